#!/usr/bin/env python3
"""LoRA adapters: named as models, alone and in a crowd; loaded and unloaded by the API; folders that
cannot be used; prefixes that are an adapter's own in every tier; more adapters than there are
places; kill -9 in the middle of streams, after which texts go on and adapters are there again."""

import json
import os
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time

from harness import BUILDDIR, LONG, MODEL, MODEL_NAME, SRCDIR, STORY, Stack, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
draw_seed(tap)

KEY = "an-admin-key-of-the-tests"
path = "/v1/completions"
ATTENTION = {"q_proj": (256, 512), "k_proj": (256, 256), "v_proj": (256, 256), "o_proj": (512, 256)}
MLP = {"gate_proj": (256, 512), "up_proj": (256, 512), "down_proj": (512, 256)}


def write_adapter(folder, seed, rank=4, size=0.4, config=None, dtype="F32", cut=0, layers=6,
                  names=None, wide=0):
    """A folder as PEFT saves one, with random matrices for the demo model."""
    draw = random.Random(seed)
    tensors, data = {}, b""
    for layer in range(layers):
        for name, (n_in, n_out) in (names or ATTENTION).items():
            block = "self_attn" if name in ATTENTION else "mlp"
            for half, shape in (("A", (rank, n_in + wide)), ("B", (n_out, rank))):
                n = shape[0] * shape[1]
                values = struct.pack("<%df" % n, *(draw.gauss(0, size) for _ in range(n)))
                key = "base_model.model.model.layers.%d.%s.%s.lora_%s.weight" % (layer, block, name, half)
                tensors[key] = {"dtype": dtype, "shape": shape,
                                "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    header = json.dumps(tensors).encode()
    os.makedirs(folder, exist_ok=True)
    whole = struct.pack("<Q", len(header)) + header + data
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(whole[:len(whole) - cut])
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(dict({"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none",
                        "target_modules": sorted(names or ATTENTION)}, **(config or {})), f)
    return folder


top = tempfile.mkdtemp(prefix="quire-lora-")
lora_dir = os.path.join(top, "adapters")
keyfile = os.path.join(top, "key")
with open(keyfile, "w") as f:
    f.write(KEY + "\n")
os.chmod(keyfile, 0o600)
red = write_adapter(os.path.join(top, "red"), 1)
blue = write_adapter(os.path.join(lora_dir, "blue"), 2, rank=3, names=dict(ATTENTION, **MLP), size=0.3)


def lora(engine=(), modules="red=" + red, **kw):
    return Stack(engine=["--lora-modules", modules, "--lora-dir", lora_dir, "--max-model-len", "600"] +
                 list(engine), front=["--admin-key-file", keyfile], **kw)


def admin(s, verb, body, key=KEY):
    headers = {"Authorization": "Bearer " + key} if key else {}
    return s.request("POST", "/v1/%s_lora_adapter" % verb, body, headers)


def load(s, name, folder):
    return admin(s, "load", {"lora_name": name, "lora_path": folder})


def unload(s, name):
    return admin(s, "unload", {"lora_name": name})


def body(s, model, i, n=24, **fields):
    return dict(s.completion("%d. %s" % (i, STORY[5 * i:]), max_tokens=n, ignore_eos=True, seed=i,
                             **fields), model=model, temperature=1)


def ask(s, model, i, **fields):
    """Text and cached tokens; status and message of what is no answer."""
    r = s.post(path, body(s, model, i, **fields))
    if r.status != 200:
        return r.status, r.error["message"]
    return (r.json["choices"][0]["text"],
            r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def names(s):
    return {m["id"]: m for m in s.get("/v1/models").json["data"]}


MODELS = [MODEL_NAME, "red", "blue"]
N = 36 if LONG else 12
with Stack() as s:
    plain = [ask(s, MODEL_NAME, i)[0] for i in range(3)]
    r = s.post(path, body(s, "red", 0))
    tap.eq((r.status, r.error["code"]), (404, "model_not_found"), "no adapters, no such model")

with tap.section("names"), lora(host="64M", store=True) as s:
    tap.eq(sorted(names(s)), sorted([MODEL_NAME, "red"]), "the list has the adapter of the settings")
    card = names(s)["red"]
    tap.eq((card["root"], card["parent"]), (red, MODEL_NAME), "with its folder and its model")
    tap.eq(s.get("/v1/models/red").json["id"], "red", "and by its name")
    r = load(s, "blue", "blue")
    tap.eq((r.status, r.text), (200, "Success: LoRA adapter 'blue' added successfully."),
           "another one is loaded")
    tap.ok(until(lambda: all(sorted(names(s)) == sorted(MODELS) for _ in range(4))),
           "all fronts have it")
    tap.eq(admin(s, "load", {"lora_name": "x", "lora_path": "blue"}, key=None).status, 401,
           "not without the operators' key")
    alone = {(m, i): ask(s, m, i)[0] for m in MODELS for i in range(3)}
    tap.eq([alone[MODEL_NAME, i] for i in range(3)], plain, "the model itself is as without adapters")
    tap.eq(len(set(alone.values())), 9, "each has its own texts")
    tap.eq(s.post(path, body(s, "red", 0)).json["model"], "red", "an answer names its adapter")
    r = s.post("/v1/chat/completions", dict(s.chat("Hello", max_tokens=4), model="blue"))
    tap.eq((r.status, r.json["model"]), (200, "blue"), "a chat as well")
    again = {k: ask(s, *k) for k in alone}
    tap.eq({k: t for k, (t, _) in again.items()}, alone, "the same texts from the cache")
    tap.ok(all(c > 100 for _, c in again.values()), "which each finds", again)
    answers = crowd(N, lambda k: ask(s, MODELS[k % 3], k // 3 % 3, logprobs=2)[0])
    tap.eq(answers, [alone[MODELS[k % 3], k // 3 % 3] for k in range(N)], "the same in a crowd")
    constrained = dict(structured_outputs={"regex": "[a-z]{8}"})
    r = [s.post(path, dict(body(s, m, 1), **constrained)).json["choices"][0]["text"] for m in MODELS]
    tap.ok(all(len(t) == 8 and t.islower() for t in r) and len(set(r)) == 3, "forms hold", r)

    tap.eq(unload(s, "blue").text, "Success: LoRA adapter 'blue' removed successfully.", "unloaded")
    tap.eq(ask(s, "blue", 0)[0], 404, "it is no model any more")
    shutil.copytree(blue, os.path.join(lora_dir, "copy"))
    tap.eq(load(s, "azure", os.path.join(lora_dir, "copy")).status, 200, "a copy under another name")
    got = ask(s, "azure", 0)
    tap.ok(got[0] == alone["blue", 0] and got[1] > 100, "has the same texts, and pages", got)

    # The file of names and the pages survive the engine.
    tap.ok(until(lambda: s.metric("quire:kv_host_pages") > 50), "pages go to host memory")
    s.engine.kill(signal.SIGKILL)
    after = [ask(s, m, i) for m in ("red", "azure") for i in range(3)]
    tap.eq([t for t, _ in after], [alone[m, i] for m in ("red", "blue") for i in range(3)],
           "the same texts after kill -9")
    tap.ok(all(c > 100 for _, c in after), "from pages of before", after)
    os.remove(s.host_file) if os.path.exists(s.host_file) else None
    tap.ok(s.idle(), "nothing is left")

def uses(s):
    """The adapters that run and wait by the metric, and how many may run."""
    found = [(k, v) for k, v in s.metrics().items() if k.startswith("vllm:lora_requests_info{")]
    if len(found) != 1 or abs(found[0][1] - time.time()) > 60:
        return found
    labels = dict(re.findall(r'(\w+)="([^"]*)"', found[0][0]))
    return (labels["running_lora_adapters"], labels["waiting_lora_adapters"], labels["max_lora"])


with tap.section("streams and kills"), lora() as s:
    load(s, "blue", "blue")
    tap.eq(uses(s), ("", "", "4"), "the metric says that no adapter runs")
    want = {m: ask(s, m, 0, n=150)[0] for m in MODELS}
    n_events = [0]

    def streamed(k):
        return s.stream(path, body(s, MODELS[k % 3], 0, n=150),
                        on_event=lambda t: n_events.__setitem__(0, n_events[0] + 1))

    def kills():
        for n in (60, 250):
            until(lambda: n_events[0] > n, 30, 0.002)
            s.engine.kill(signal.SIGKILL)

    killer = threading.Thread(target=kills)
    killer.start()
    told = crowd(9, streamed)
    killer.join()
    text = ["".join(c["text"] for e in t.events for c in e.get("choices", ())) for t in told]
    tap.ok(all(t.done and t.error is None for t in told), "streams end", [t.error for t in told])
    tap.eq(text, [want[MODELS[k % 3]] for k in range(9)], "with the texts of their adapters")
    tap.ok(len(s.engine.exits) == 2, "the engine was killed twice", s.engine.exits)

    # Unloaded while it runs: the stream ends as it would have; then it is gone for all.
    begun = threading.Event()
    out = []
    reader = threading.Thread(target=lambda: out.append(s.stream(
        path, body(s, "blue", 0, n=150), on_event=lambda t: begun.set())))
    reader.start()
    begun.wait(30)
    tap.eq(uses(s), ("blue", "", "4"), "the metric says that one runs")
    tap.eq(unload(s, "blue").status, 200, "unloaded in the middle of a stream")
    reader.join()
    text = "".join(c["text"] for e in out[0].events for c in e.get("choices", ()))
    tap.eq((out[0].done, text), (True, want["blue"]), "which has its whole text")
    tap.eq(ask(s, "blue", 0)[0], 404, "and is the last")
    # A killed engine does not have it: what it ran ends with an error.
    load(s, "blue", "blue")
    begun.clear()
    out.clear()

    def cut(t):
        if len(t.events) == 3:
            begun.set()

    reader = threading.Thread(target=lambda: out.append(s.stream(
        path, body(s, "blue", 0, n=400), on_event=cut)))
    reader.start()
    begun.wait(30)
    unload(s, "blue")
    s.engine.kill(signal.SIGKILL)
    reader.join()
    tap.ok(out[0].error is not None and out[0].error["code"] == "model_not_found" or out[0].done,
           "unloaded and killed: a clear error", (out[0].error, out[0].done))
    tap.eq(ask(s, "red", 0, n=150)[0], want["red"], "others go on")

def written(s, after_s):
    time.sleep(after_s)
    return s.metric("quire:store_pages_written_total")


with tap.section("the disk"), lora(store=True) as s:
    load(s, "blue", "blue")
    first = {m: ask(s, m, 4)[0] for m in MODELS}
    tap.ok(until(lambda: written(s, 0) > 20 and written(s, 0) == written(s, 0.5)),
           "pages go to the disk, all of them")
    s.engine.kill(signal.SIGKILL)
    tap.ok(s.until_attached(), "another engine, whose device has no pages")
    got = {m: ask(s, m, 4) for m in ("blue", "red", MODEL_NAME)}
    tap.eq({m: t for m, (t, _) in got.items()}, first, "the same texts")
    tap.ok(got["blue"][1] > 100, "the prefix comes from the disk, under the adapter", got)

with tap.section("few places"), lora(["--max-loras", "2", "--max-cpu-loras", "1"]) as s:
    for i in range(5):
        write_adapter(os.path.join(lora_dir, "n%d" % i), 10 + i)
        tap.eq(load(s, "n%d" % i, "n%d" % i).status, 200, "adapter %d is loaded" % i)
    want = [ask(s, "n%d" % i, 0)[0] for i in range(5)]
    tap.eq(len(set(want)), 5, "five adapters in two places")
    got = crowd(N, lambda k: ask(s, "n%d" % (k % 5), 0)[0])
    tap.eq(got, [want[k % 5] for k in range(N)], "in turn, in a crowd")
    long = [threading.Thread(target=s.stream, args=(path, body(s, name, 0, n=400)))
            for name in ("n1", "n2", "n3")]
    for t in long:
        t.start()
    seen = until(lambda: sum(map(len, uses(s)[:2])) == 7 and uses(s))
    tap.ok(seen and len(seen[0]) == 5 and len(seen[1]) == 2 and seen[2] == "2",
           "the metric says that two run and one waits", seen)
    for t in long:
        t.join()
    write_adapter(os.path.join(lora_dir, "n0"), 99)
    ask(s, "n1", 1), ask(s, "n2", 1)
    got = ask(s, "n0", 1)
    tap.eq(got[0], 404, "a folder that changed since is another adapter: %s" % got[1])
    tap.eq(ask(s, "n3", 0)[0], want[3], "others are not disturbed")
    tap.ok(s.idle(), "nothing is left")

BOTH = "red=%s, blue=%s" % (red, blue)
DRAFTS = ["--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3})]
with tap.section("few pages, drafts, sleep"), lora(
        DRAFTS + ["--num-pages", "40", "--max-num-seqs", "8", "--max-model-len", "400",
                  "--max-num-batched-tokens", "48", "--sleep-after-s", "3600"], modules=BOTH) as s:
    answers = crowd(N, lambda k: ask(s, MODELS[k % 3], k // 3 % 3)[0])
    tap.eq(answers, [alone[MODELS[k % 3], k // 3 % 3] for k in range(N)], "the same texts")
    tap.ok(s.metric("vllm:num_preemptions_total") > 0, "some were preempted")
    tap.eq(s.request("POST", "/sleep", headers={"Authorization": "Bearer " + KEY}).status, 200,
           "it sleeps")
    tap.eq(ask(s, "blue", 2)[0], alone["blue", 2], "and has the adapter when it wakes")

objects = json.dumps([{"name": "red", "path": red}, {"name": "blue", "path": blue}])
with tap.section("stages"), lora(["--pipeline-parallel-size", "2"], modules=objects) as s:
    answers = crowd(9, lambda k: ask(s, MODELS[k % 3], k // 3)[0])
    tap.eq(answers, [alone[MODELS[k % 3], k // 3] for k in range(9)], "the same texts on two stages")

with tap.section("two engines"), lora(n_engines=2) as s:
    tap.eq(load(s, "blue", "blue").status, 200, "both load an adapter")
    answers = crowd(N, lambda k: ask(s, MODELS[k % 3], k // 3 % 3)[0])
    tap.eq(answers, [alone[MODELS[k % 3], k // 3 % 3] for k in range(N)], "the same texts")
    s.engines[1].kill(signal.SIGKILL)
    tap.eq([ask(s, m, 0)[0] for m in MODELS], [alone[m, 0] for m in MODELS], "one is killed")
    tap.ok(s.until_attached() and load(s, "blue", "blue").status == 400, "it has all of them again")

with tap.section("folders that cannot be used"), lora() as s:
    bad = {
        "dora": dict(config={"use_dora": True}),
        "bias": dict(config={"bias": "all"}),
        "rank": dict(rank=17),
        "narrow": dict(wide=1),
        "deep": dict(layers=7),
        "cut": dict(cut=100),
        "experts": dict(names={"experts.0.up_proj": (256, 512)}),
    }
    for i, (name, how) in enumerate(bad.items()):
        write_adapter(os.path.join(lora_dir, name), i, **how)
        r = load(s, name, name)
        tap.eq(r.status, 400, "%s: %s" % (name, r.error["message"]))
    for name, folder, status in (("none", "nowhere", 404), ("out", "../red", 404), ("out", red, 404),
                                 ("out", "/etc", 404), (MODEL_NAME, "blue", 400), ("red", "blue", 400),
                                 ("a\tb", "blue", 400), ("", "blue", 400), (7, "blue", 400),
                                 ("x" * 200, "blue", 400)):
        r = load(s, name, folder)
        tap.eq(r.status, status, "%.20s from %s: %s" % (name, folder, r.error["message"]))
    r = unload(s, "nobody")
    tap.eq(r.status, 404, "unload: %s" % r.error["message"])
    tap.eq(sorted(names(s)), sorted([MODEL_NAME, "red"]), "nothing was added")
    tap.eq(ask(s, MODEL_NAME, 0)[0], plain[0], "the server goes on")
    tap.eq(s.engine.exits, [], "the engine too")

sys.path.insert(0, os.path.join(SRCDIR, "tools", "python"))
os.environ["QUIRE_BIN"] = os.path.join(BUILDDIR, "quire")
from quire import LLM, LoRARequest, SamplingParams  # noqa: E402

with tap.section("the Python package"), LLM(MODEL, device="cpu", cpu_threads=2, max_model_len=600,
                                            enable_lora=True) as llm:
    prompt = "1. " + STORY[5:]
    params = SamplingParams(temperature=1, seed=1, max_tokens=24, ignore_eos=True)
    got = llm.generate([prompt] * 3, params, use_tqdm=False, lora_request=[
        None, LoRARequest("red", 1, red), LoRARequest("blue", 2, blue)])
    tap.eq([o.outputs[0].text for o in got], [alone[m, 1] for m in MODELS],
           "a batch has the server's texts")
    try:
        llm.generate(prompt, params, use_tqdm=False, lora_request=LoRARequest("no", 3, "/nowhere"))
        said = "nothing"
    except ValueError as e:
        said = str(e)
    tap.ok("No adapter found" in said, "a folder that is not there: " + said)

shutil.rmtree(top, ignore_errors=True)
tap.done()
