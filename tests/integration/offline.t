#!/usr/bin/env python3
"""Goal: work without a server of one's own: quire batch and the Python package answer as the server
does, and leave nothing behind; and the exercises with which people learn a serving engine run.
Method: the programs themselves on the cpu device; kills at chosen moments."""

import asyncio
import contextlib
import glob
import http.client
import importlib.util
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

from harness import BUILDDIR, DEVICE, MODEL, SRCDIR, Tap, need_nginx, until

need_nginx()
tap = Tap()
QUIRE = os.path.join(BUILDDIR, "quire")
PACKAGE = os.path.join(SRCDIR, "tools", "python")
SETTINGS = ["--device", DEVICE, "--cpu-threads", "2", "--served-model-name", "demo"]
WAIT_S = 60
runtime = tempfile.mkdtemp(prefix="quire-t-", dir="/tmp")
os.environ.update(XDG_RUNTIME_DIR=runtime, QUIRE_BIN=QUIRE, HF_HOME=os.path.join(runtime, "hf"),
                  PYTHONDONTWRITEBYTECODE="1")
for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
    os.environ.pop(name, None)
sys.dont_write_bytecode = True
IN, OUT = os.path.join(runtime, "in.jsonl"), os.path.join(runtime, "out.jsonl")
ASK = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


def servers():
    """Processes whose command line names the test's folder."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        with contextlib.suppress(OSError), open(path) as f:
            if runtime in f.read():
                found.append(path)
    return found


def folders():
    return glob.glob(os.path.join(runtime, "quire-serve-*"))


def line(custom_id, url="/v1/chat/completions", **body):
    body = dict({"model": "demo", "temperature": 0, "max_tokens": 20}, **body)
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def write(lines):
    with open(IN, "w") as f:
        f.writelines((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)


def answers():
    """Those of the whole lines."""
    with open(OUT) as f:
        return [json.loads(x) for x in f if x.endswith("\n")]


def batch_args(*more):
    return [QUIRE, "batch", IN, OUT, "--model", MODEL, *more, "--", *SETTINGS]


def batch(*more):
    p = subprocess.run(batch_args(*more), capture_output=True, text=True, timeout=WAIT_S)
    return p.returncode, p.stderr


with tap.section("a batch"):
    write([line("chat", messages=ASK), line("text", "/v1/completions", prompt="Hello"),
           line("ids", "/tokenize", prompt="Hello"),
           line("refused", messages=ASK, temperature=-1), line("lost", "/v1/nowhere")])
    status, said = batch()
    got = {a["custom_id"]: a for a in answers()}
    tap.eq(status, 1, "a refused request tells in the exit status")
    tap.eq(got["chat"]["response"]["body"]["choices"][0]["message"]["content"], PARIS,
           "a chat is answered")
    tap.eq({k: a["response"]["status_code"] for k, a in got.items()},
           {"chat": 200, "text": 200, "ids": 200, "refused": 400, "lost": 404},
           "every line has its status")
    tap.ok(all(a["error"] is None and a["id"].startswith("batch_req_") for a in got.values()) and
           got["chat"]["response"]["request_id"] == got["chat"]["response"]["body"]["id"],
           "the form is OpenAI's", got)
    tap.ok("5 of 5, 2 refused" in said, "the state is told on standard error", said)
    tap.eq((servers(), folders()), ([], []), "the private server has gone")

with tap.section("wrong lines"):
    os.unlink(OUT)
    write([line("a", messages=ASK), "{", line("a", messages=ASK), dict(line("b"), method="GET"),
           dict(line("c"), url="nowhere"), {"custom_id": 3}, line("d", stream=True)])
    status, said = batch()
    tap.eq((status, os.path.exists(OUT)), (2, False), "nothing is asked when a line is wrong")
    tap.eq([int(n) for n in re.findall(r"in\.jsonl:(\d+):", said)], [2, 4, 5, 6, 7, 3],
           "each wrong line is named")

with tap.section("a batch that is killed"):
    n = 120
    write([line("r%d" % i, "/v1/completions", prompt="Number %d" % i, max_tokens=60,
                ignore_eos=True) for i in range(n)])
    p = subprocess.Popen(batch_args("--concurrency", "4"), stderr=subprocess.DEVNULL)
    tap.ok(until(lambda: os.path.exists(OUT) and len(answers()) >= 5, WAIT_S), "it has begun")
    p.kill()
    p.wait()
    before = answers()
    tap.ok(len(before) < n, "it is killed before its end", len(before))
    tap.ok(until(lambda: not servers(), WAIT_S), "its server ends with it", servers())
    with open(OUT, "a") as f:
        f.write('{"id":"batch_req_0","custom_id":"r5')
    status, said = batch()
    after = answers()
    tap.eq((status, after[:len(before)]), (0, before), "what it has written stays")
    tap.eq(sorted(a["custom_id"] for a in after), sorted("r%d" % i for i in range(n)),
           "the next run asks the rest once, after a half-written line is cut off")
    tap.ok("has %d of %d answers" % (len(before), n) in said, "and says so", said)
    tap.eq((batch()[0], answers()), (0, after), "a third run has nothing to ask")
    tap.eq(folders(), [], "no folder is left")

with tap.section("the wheel"):
    built = subprocess.run([sys.executable, os.path.join(PACKAGE, "wheel.py"), runtime],
                           capture_output=True, text=True)
    wheel = built.stdout.strip()
    with open(os.path.join(SRCDIR, "configure.ac")) as f:
        version = re.search(r"AC_INIT\(\[quire\], \[([^]]+)\]", f.read()).group(1)
    tap.eq(os.path.basename(wheel), "quire-%s-py3-none-any.whl" % version,
           "one command builds it, with the project's version")
    zipfile.ZipFile(wheel).extractall(os.path.join(runtime, "site"))
    sys.path.insert(0, os.path.join(runtime, "site"))
    tap.ok(importlib.util.find_spec("quire").origin.startswith(runtime), "it can be imported")

from quire import (LLM, BeamSearchParams, PoolingParams, SamplingParams,  # noqa: E402
                   StructuredOutputsParams)


def greedy(**more):
    return SamplingParams(**dict({"temperature": 0, "max_tokens": 20}, **more))


def steps(llm):
    return sum(m.value for m in llm.get_metrics() if m.name == "quire:steps_total")


def learn(llm):
    """The exercises of section 1."""
    prompts = ["Hello, my name is", "The president of the United States is",
               "The capital of France is"]
    params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=20, repetition_penalty=1.1)
    outputs = llm.generate(prompts, params)
    tap.eq([o.prompt for o in outputs], prompts, "the outputs are in the order of the prompts")
    tap.ok(all(o.finished and o.outputs[0].text and 0 < len(o.outputs[0].token_ids) <= 20 and
               o.outputs[0].finish_reason in ("stop", "length") and
               o.metrics.finished_time >= o.metrics.arrival_time for o in outputs),
           "they have vLLM's fields", outputs)
    one = llm.generate("The future of AI is ", greedy(logprobs=2, prompt_logprobs=1), False)[0]
    found = one.outputs[0]
    tokenizer = llm.get_tokenizer()
    tap.eq(one.prompt_token_ids, tokenizer.encode("The future of AI is "),
           "token ids of the prompt are the tokenizer's")
    tap.ok(llm.generate("a", greedy(thinking_token_budget=-1), False)[0].finished,
           "a bound of the reasoning is a parameter")
    tap.eq(found.text, tokenizer.decode(found.token_ids), "those of the answer are its text")
    best = [min(step, key=lambda t: -step[t].logprob) for step in found.logprobs]
    tap.eq(best, found.token_ids, "a greedy token is the most likely one")
    tap.ok(all(step[t].rank == 1 and step[t].decoded_token == tokenizer.decode([t])
               for step, t in zip(found.logprobs, found.token_ids)), "with rank and text",
           found.logprobs)
    tap.ok(abs(found.cumulative_logprob - sum(s[t].logprob for s, t in zip(
        found.logprobs, found.token_ids))) < 1e-6, "and their sum")
    tap.eq((one.prompt_logprobs[0], len(one.prompt_logprobs)), (None, len(one.prompt_token_ids)),
           "the prompt's tokens have theirs")
    again = llm.generate({"prompt_token_ids": one.prompt_token_ids}, greedy(), False)[0]
    tap.eq(again.outputs[0].token_ids, found.token_ids, "a prompt of ids gives the same answer")
    two = llm.generate(["a", "b"], [greedy(max_tokens=2), greedy(max_tokens=3, ignore_eos=True)],
                       False)
    tap.eq(len(two[1].outputs[0].token_ids), 3, "each prompt may have its own parameters")
    tap.eq([o.index for o in llm.generate("a", SamplingParams(n=3, seed=1), False)[0].outputs],
           [0, 1, 2], "n answers")
    chat = llm.chat([ASK, ASK], greedy(max_tokens=None, skip_special_tokens=True), False)
    tap.eq([c.outputs[0].text for c in chat], [PARIS, PARIS], "conversations")
    form = StructuredOutputsParams(choice=["Positive", "Negative"])
    tap.ok(llm.generate("Good:", SamplingParams(structured_outputs=form), False)[0].outputs[0].text
           in ("Positive", "Negative"), "structured output")
    beams = llm.beam_search(["Hello"], BeamSearchParams(beam_width=2, max_tokens=4))[0].sequences
    tap.ok(len(beams) == 2 and beams[0].cum_logprob >= beams[1].cum_logprob, "beam search", beams)
    try:
        llm.generate("a", SamplingParams(temperature=-1), False)
        wrong = ""
    except ValueError as e:
        wrong = str(e)
    tap.ok("temperature" in wrong, "a wrong parameter is a ValueError", wrong)
    tap.ok(llm.reset_prefix_cache(), "the prefix cache is emptied")


def engine_seconds():
    """CPU seconds of the engines so far. Unlike the time that passes, a busy machine hardly changes them."""
    total = 0
    for path in servers():
        with contextlib.suppress(OSError), open(os.path.dirname(path) + "/stat") as f:
            name, fields = f.read().split("(", 1)[1].rsplit(")", 1)
            if name == "quire-engine":
                total += sum(int(x) for x in fields.split()[11:13])  # user and system time
    return total / os.sysconf("SC_CLK_TCK")


def crowd(llm, n_tokens, at_least=1):
    """Eight prompts one by one against all at once, then batches. Wall times depend on what else the
    machine does, steps and the engine's CPU seconds do not. at_least: how much cheaper at once is."""
    prompts, params = ["Test prompt %d" % i for i in range(8)], greedy(max_tokens=n_tokens,
                                                                     ignore_eos=True)

    def timed(call):
        begin, cpu, n = time.monotonic(), engine_seconds(), steps(llm)
        ids = call()
        return ids, steps(llm) - n, engine_seconds() - cpu, time.monotonic() - begin
    alone, n_alone, cpu_alone, alone_s = timed(
        lambda: [llm.generate(p, params, False)[0].outputs[0].token_ids for p in prompts])
    together, n_together, cpu_together, together_s = timed(
        lambda: [o.outputs[0].token_ids for o in llm.generate(prompts, params, False)])
    tap.note("8 prompts: one by one %.2f s, %.2f of CPU; at once %.2f s, %.2f of CPU: %.1f times faster" % (
        alone_s, cpu_alone, together_s, cpu_together, alone_s / together_s))
    tap.eq(together, alone, "prompts at once have the answers of each alone")
    tap.ok(3 * n_together < n_alone, "and share their steps",
           "%d steps, not %d" % (n_together, n_alone))
    tap.ok(at_least * cpu_together < cpu_alone, "and take less than 1/%g of the time" % at_least,
           "%.2f s of CPU, not %.2f" % (cpu_together, cpu_alone))
    for size in (1, 2, 4, 8):
        begin = time.monotonic()
        llm.generate(prompts[:size], params, False)
        tap.note("batch of %d: %.1f requests/s" % (size, size / (time.monotonic() - begin)))


def large_folder():
    """A model in the shape of OPT-125m, with the demo model's tokenizer; its weights are made at the
    start. They do not stay in a processor's caches, as those of the demo model do."""
    folder = os.path.join(runtime, "large")
    shutil.copytree(MODEL, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with open(os.path.join(MODEL, "config.json")) as f:
        config = json.load(f)
    config.update(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                  num_key_value_heads=12, head_dim=64)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


async def post(path, body):
    """Status and body of one request."""
    reader, writer = await asyncio.open_unix_connection(path)
    data = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                 % (len(data), data))
    answer = await reader.read()
    writer.close()
    return int(answer.split(b" ", 2)[1])


async def load(path):
    """Section 2: requests at once to a server."""
    body = {"model": "demo", "prompt": "The future of AI is", "max_tokens": 30, "temperature": 0.7}
    for n in (10, 1, 2, 4, 8, 16):
        begin = time.monotonic()
        got = await asyncio.gather(*(post(path, body) for _ in range(n)))
        tap.note("%d at once: %.2f s" % (n, time.monotonic() - begin))
        tap.eq(got, [200] * n, "%d requests at once are answered" % n)


with tap.section("a hub name"):
    kept = os.path.join(runtime, "hf", "hub", "models--some--demo")
    os.makedirs(os.path.join(kept, "refs"))
    os.makedirs(os.path.join(kept, "snapshots"))
    with open(os.path.join(kept, "refs", "main"), "w") as f:
        f.write("0123abcd")
    os.symlink(MODEL, os.path.join(kept, "snapshots", "0123abcd"))
    try:
        said = LLM("facebook/opt-125m")
    except FileNotFoundError as e:
        said = str(e)
    tap.ok("hf download facebook/opt-125m" in said, "a missing model says how to fetch it", said)

with tap.section("LLM"):
    llm = LLM(model="some/demo", dtype="auto", max_model_len=512, gpu_memory_utilization=0.5,
              tensor_parallel_size=1, max_num_batched_tokens=2048, quantization=None,
              enable_prefix_caching=True, max_num_seqs=64, seed=0, trust_remote_code=True,
              device=DEVICE, cpu_threads=2, served_model_name="demo")
    learn(llm)
    crowd(llm, 50)
    asyncio.run(load(llm.server.socket))
    other = LLM(MODEL, device=DEVICE, cpu_threads=2, trust_remote_code=False, enable_lora=False)
    tap.eq(other.chat(ASK, greedy(), False)[0].outputs[0].text, PARIS, "two engines at a time")
    kept = other.generate("Hello", greedy(logprobs=1), False)[0].outputs[0]
    n = len(servers())
    del other
    tap.ok(0 < len(servers()) < n, "a server ends with its object, though outputs are kept")
    tap.eq(kept.logprobs[0][kept.token_ids[0]].decoded_token, None,
           "which then know no text of single tokens")
    llm.close()
    tap.eq((servers(), folders()), ([], []), "or when it is closed")
    try:
        said = LLM(MODEL, nonsense_of_mine=3)
    except TypeError as e:
        said = str(e)
    tap.eq(said, "LLM() got an unexpected keyword argument 'nonsense_of_mine'",
           "an argument that nothing has")
    try:
        said = LLM(MODEL, task="dance")
    except ValueError as e:
        said = str(e)
    tap.ok("task must be one of auto, generate" in said, "a task that nothing has", said)
    tap.eq(folders(), [], "no folder is left by them")


with tap.section("eight prompts at once"), LLM(
        large_folder(), load_format="dummy", device=DEVICE, cpu_threads=1, max_model_len=512, num_pages=128) as llm:
    crowd(llm, 16, at_least=2)  # 2.9 to 3.1: docs/benchmarks.md


class Heard(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []
        logging.getLogger("quire").addHandler(self)

    def emit(self, record):
        self.lines.append(record.getMessage())


with tap.section("models that pool"):
    heard = Heard()
    with open(os.path.join(SRCDIR, "tests/golden/pooling/demo.json")) as f:
        golden = json.load(f)
    texts = golden["texts"][:4]
    with LLM(MODEL, task="embed", device=DEVICE, cpu_threads=2, enforce_eager=True, swap_space=4,
             dtype="auto", trust_remote_code=True, seed=0, max_num_seqs=16) as llm:
        tap.eq(sorted(line.split("=")[0] for line in heard.lines),
               ["LLM(dtype", "LLM(enforce_eager", "LLM(seed", "LLM(swap_space", "LLM(trust_remote_code"],
               "keywords without a meaning: a line of warning each")
        tap.ok(all(re.fullmatch(r"LLM\(\w+=\.\.\.\) has no effect: .+", x) for x in heard.lines),
               "with the reason", heard.lines)
        found = llm.embed(texts, use_tqdm=False)
        want = llm.server.json("/v1/embeddings", {"model": llm.model, "input": texts})
        tap.eq([o.outputs.embedding for o in found], [d["embedding"] for d in want["data"]],
               "embed(): the vectors of the API, in order")
        tap.ok(all(type(o).__name__ == "EmbeddingRequestOutput" and o.finished and
                   o.outputs.hidden_size == len(o.outputs.embedding) and
                   type(o.outputs).__name__ == "EmbeddingOutput" and o.num_cached_tokens >= 0
                   for o in found), "in vLLM's shape", repr(found[0])[:200])
        tap.eq([o.prompt_token_ids for o in found], [llm.tokenizer.encode(t) for t in texts],
               "with the ids of the prompts")
        tap.eq(len({o.request_id for o in found}), len(texts), "and ids of their own")
        one = llm.embed({"prompt_token_ids": found[1].prompt_token_ids}, use_tqdm=False)[0]
        tap.ok(max(abs(a - b) for a, b in zip(one.outputs.embedding, found[1].outputs.embedding)) < 1e-5,
               "a prompt of ids has the same vector")
        raw = llm.embed(texts[0], pooling_params=PoolingParams(normalize=False), use_tqdm=False)[0]
        length = sum(x * x for x in raw.outputs.embedding) ** 0.5
        tap.ok(abs(length - 1) > 0.01 and max(abs(a / length - b) for a, b in zip(
            raw.outputs.embedding, found[0].outputs.embedding)) < 1e-5, "pooling_params: not normalised")
        short = llm.embed(texts[0], truncate_prompt_tokens=2, use_tqdm=False)[0]
        tap.eq(short.prompt_token_ids, found[0].prompt_token_ids[:2], "truncated")
        whole = llm.encode(texts, use_tqdm=False)
        tap.eq([o.outputs.data for o in whole], [o.outputs.embedding for o in found], "encode()")
        rows = llm.encode(texts[0], pooling_task="token_embed", use_tqdm=False)[0]
        tap.eq((len(rows.outputs.data), rows.outputs.data[-1]),
               (len(rows.prompt_token_ids), found[0].outputs.embedding), "of each token, with token_embed")
        scores = llm.score(texts[0], texts[1:], use_tqdm=False)

        def cosine(a, b):
            return sum(x * y for x, y in zip(a, b))
        tap.ok(all(abs(o.outputs.score - cosine(found[0].outputs.embedding,
                                                found[i + 1].outputs.embedding)) < 1e-5
                   for i, o in enumerate(scores)) and len(scores) == 3,
               "score(): the cosine of one text and several", scores)
        tap.eq([o.outputs.score for o in llm.score(texts[:2], texts[2:], use_tqdm=False)],
               [llm.score(texts[i], texts[2 + i], use_tqdm=False)[0].outputs.score for i in (0, 1)],
               "of as many of both")
        for name, call in (("lengths", lambda: llm.score(texts[:2], texts[:3])),
                           ("a task", lambda: llm.encode("a", pooling_task="dance")),
                           ("a number as a text", lambda: llm.score("a", 7)),
                           ("kwargs", lambda: llm.embed("a", tokenization_kwargs={"padding": True})),
                           ("labels of a model of vectors", lambda: llm.classify("a", use_tqdm=False)),
                           ("an answer", lambda: llm.generate("a", greedy(), False))):
            try:
                call()
                said = "nothing"
            except ValueError as e:
                said = str(e)
            tap.ok(said not in ("nothing", ""), "a ValueError: " + name, said)
    labels = {"architectures": ["LlamaForSequenceClassification"],
              "classifier_from_token": ["a", "b", "c"], "method": "no_post_processing"}
    with LLM(MODEL, runner="pooling", device=DEVICE, cpu_threads=2, hf_overrides=labels) as llm:
        found = llm.classify(texts, use_tqdm=False)
        want = llm.server.json("/classify", {"model": llm.model, "input": texts})
        tap.eq([o.outputs.probs for o in found], [d["probs"] for d in want["data"]],
               "classify(): the probabilities of the API")
        tap.ok(all(o.outputs.num_classes == len(o.outputs.probs) == 3 and
                   abs(sum(o.outputs.probs) - 1) < 1e-5 for o in found), "of three labels", found[0])

with tap.section("a process that is killed"):
    code = ("import sys, time; sys.path.insert(0, %r)\nfrom quire import LLM\n"
            "llm = LLM(%r, device=%r, cpu_threads=2)\nprint('ready', flush=True)\ntime.sleep(600)"
            % (os.path.join(runtime, "site"), MODEL, DEVICE))
    p = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    tap.eq(p.stdout.readline(), "ready\n", "it has a server")
    tap.ok(servers(), "which runs")
    p.send_signal(signal.SIGKILL)
    p.wait()
    tap.ok(until(lambda: not servers(), WAIT_S), "and ends with it", servers())

with tap.section("preemptions"), LLM(MODEL, device=DEVICE, cpu_threads=2, num_pages=40) as llm:
    llm.generate(["Number %d" % i for i in range(24)], greedy(max_tokens=200, ignore_eos=True),
                 False)
    n = sum(m.value for m in llm.get_metrics() if m.name == "vllm:num_preemptions_total")
    with open(llm.server.log) as f:
        said = re.findall(r"WARN.*preemptions.*|<4>.*preemptions.*", f.read())
    tap.ok(n >= 16 and len(said) == 1 and "gpu_memory_utilization" in said[0],
           "frequent preemptions are warned of once, with what to change", "%d\n%s" % (n, said))

with tap.section("a server and clients"):
    log = open(os.path.join(runtime, "log"), "w+")
    flags = ("--host 0.0.0.0 --port 0 --max-model-len 512 --gpu-memory-utilization 0.9 "
             "--enable-prefix-caching --max-num-seqs 64 --dtype bfloat16 --served-model-name demo "
             "--enable-auto-tool-choice --tool-call-parser hermes --trust-remote-code").split()
    p = subprocess.Popen([QUIRE, "serve", MODEL, *flags, "--device", DEVICE, "--cpu-threads", "2"],
                         stdout=subprocess.PIPE, stderr=log, text=True)
    port = int(re.search(r":(\d+)/v1", p.stdout.readline()).group(1))

    def heard(pattern):
        log.seek(0)
        return re.search(pattern, log.read())
    tap.ok(heard("--trust-remote-code has no effect"), "a flag that does nothing is told")
    tap.ok(until(lambda: heard(r"\d+ pages"), WAIT_S), "and the number of KV pages")
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    c.request("POST", "/v1/chat/completions", json.dumps(
        {"model": "demo", "messages": ASK, "temperature": 0}),
        {"Authorization": "Bearer dummy", "Content-Type": "application/json"})
    tap.eq(json.loads(c.getresponse().read())["choices"][0]["message"]["content"], PARIS,
           "a dummy key is as good as none")
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    tap.eq([name for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                              "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc",
                              "vllm:num_preemptions_total")
            if "\n%s{" % name not in text], [], "the metrics have vLLM's names")
    write([line("url", messages=ASK)])
    os.unlink(OUT)
    told = subprocess.run([QUIRE, "batch", "-i", IN, "-o", OUT, "--url",
                           "http://127.0.0.1:%d/v1" % port], capture_output=True, text=True)
    tap.eq((told.returncode, answers()[0]["response"]["status_code"]), (0, 200),
           "a batch for a server that runs, with vLLM's options")
    data = os.path.join(runtime, "sharegpt.json")
    with open(data, "w") as f:
        json.dump([{"conversations": [
            {"from": "human", "value": "What is the capital of France, and why is it so?"},
            {"from": "gpt", "value": "The capital of France is Paris, a town on a river."}]}], f)
    told = subprocess.run(
        [QUIRE, "bench", "serve", "--backend", "vllm", "--model", "demo", "--port", str(port),
         "--dataset-name", "sharegpt", "--dataset-path", data, "--num-prompts", "20",
         "--request-rate", "100"], capture_output=True, text=True)
    tap.ok(told.returncode == 0 and " 20 ended, 0 failed" in told.stdout and all(
        x in told.stdout for x in ("p99", "TTFT", "TPOT", "ITL")), "a load test with vLLM's flags",
        told.stdout + told.stderr)
    p.send_signal(signal.SIGTERM)
    tap.eq(p.wait(WAIT_S), 0, "it ends in good order")
    log.close()

with tap.section("doctor"):
    def doctor(**settings):
        path = os.path.join(runtime, "quire.conf")
        with open(path, "w") as f:
            f.writelines("%s = %s\n" % item for item in settings.items())
        p = subprocess.run([QUIRE, "doctor", "--config", path], capture_output=True, text=True,
                           timeout=WAIT_S)
        return p.returncode, [x[5:] for x in p.stdout.splitlines() if x.startswith("mend ")], \
            p.stdout

    own = ("model", "device", "driver")
    status, wrong, said = doctor(device="cpu", model=MODEL)
    tap.ok(not any(w.startswith(own) for w in wrong) and status == bool(wrong),
           "the demo model on the cpu device needs nothing", said)
    tap.ok("nginx version" in said and all(x.startswith(("ok   ", "mend "))
                                           for x in said.splitlines()), "every line has a verdict",
           said)
    status, wrong, said = doctor(device="cpu", model="/nowhere")
    tap.ok(status == 1 and any("set `model`" in w for w in wrong),
           "a missing model is to be mended", said)
    tap.eq(doctor(nonsense=1)[0], 2, "a wrong setting is refused")

with tap.section("memory"):
    shapes = os.path.join(SRCDIR, "tests", "bench", "llama-3.3-70b")
    told = subprocess.run([QUIRE, "plan", shapes, "--card", "80", "--len", "2048"],
                          capture_output=True, text=True).stdout
    fits = [int(m.group(1)) for m in re.finditer(r"^(\d+) +as the folder +[\d.]+ ", told, re.M)]
    tap.ok(fits and min(fits) > 1, "70B in 16 bits needs more than one card of 80 GB", told)
    with open(os.path.join(shapes, "config.json")) as f:
        config = dict(json.load(f), quantization_config={
            "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm",
            "zero_point": True})
    with open(os.path.join(runtime, "config.json"), "w") as f:
        json.dump(config, f)
    told = subprocess.run([QUIRE, "plan", runtime, "--card", "80", "--len", "2048"],
                          capture_output=True, text=True).stdout
    row = re.search(r"^1 +as the folder +([\d.]+) ", told, re.M)
    tap.ok(row and 30 < float(row.group(1)) < 40, "and in 4 bits one: half a byte a parameter",
           told)
    config = json.load(open(os.path.join(SRCDIR, "tests", "bench", "llama-3.1-8b", "config.json")))
    told = subprocess.run([QUIRE, "plan", os.path.join(SRCDIR, "tests", "bench", "llama-3.1-8b")],
                          capture_output=True, text=True).stdout
    kib = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * 128 * 2 / 1024
    row = re.search(r"^1 +as the folder +(.*)$", told, re.M).group(1).split()
    tap.eq(float(row[3]), kib, "KV bytes of a token: 2 x layers x KV heads x head_dim x bytes")

shutil.rmtree(runtime, ignore_errors=True)
tap.done()
