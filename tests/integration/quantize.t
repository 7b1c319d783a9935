#!/usr/bin/env python3
"""Goal: quire quantize writes checkpoints that keep what the model knows, and quire eval measures
it. Method: the demo model's held-out questions, answered by a server and chosen among wrong answers
of the same task; runs that are killed, repeated, or wrong."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from harness import BUILDDIR, LONG, MODEL, MODEL_NAME, SRCDIR, Stack, Tap, need_nginx

sys.path.insert(0, os.path.join(SRCDIR, "tools", "demo-model"))
import generate  # noqa: E402: by that path

need_nginx()
tap = Tap()
QUIRE = os.path.join(BUILDDIR, "quire")
DIR = tempfile.mkdtemp(prefix="quire-t-")
KINDS = {"int4": 0.98, "int8": 0.995, "fp8": 0.995, "nvfp4": 0.98}  # least share of the score kept


def run(*args):
    p = subprocess.run([QUIRE] + [str(a) for a in args], capture_output=True, text=True)
    return p.returncode, p.stdout, p.stderr


def quantize(kind, out, *args, model=MODEL):
    return run("quantize", model, "--to", kind, "--out", out, "--group", 64, *args)


def digest(folder):
    h = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as f:
            h.update(name.encode() + f.read())
    return h.hexdigest()


def questions(n):
    """Held-out conversations: (prompt, answer, task), and a text of all of them."""
    rng = random.Random("quantize")
    out, text = [], ""
    for i in range(n):
        c = generate.conversation(rng, [(generate.EVALUATED[i % len(generate.EVALUATED)], 1)],
                                  held_out=True)
        parts = [t for t, _ in generate.render(c)]
        text += "".join(parts)
        out.append(("".join(parts[:-2]), parts[-2], c))
    return out, text


asked, text = questions((4 if LONG else 2) * len(generate.EVALUATED))
rng = random.Random(7)
TEXT, PART = os.path.join(DIR, "text"), os.path.join(DIR, "part")
QUESTIONS = os.path.join(DIR, "questions.jsonl")
with open(TEXT, "w") as f:
    f.write(text)
with open(PART, "w") as f:
    f.write(text[:len(text) // (5 if LONG else 10)])
with open(QUESTIONS, "w") as f:
    for prompt, answer, c in asked:
        wrong = sorted({a for _, a, d in asked if d.task == c.task and a != answer})
        choices = rng.sample(wrong, min(3, len(wrong))) or [answer[::-1]]
        at = rng.randrange(len(choices) + 1)
        choices.insert(at, answer)
        f.write(json.dumps({"prompt": prompt, "choices": choices, "answer": at}) + "\n")


def perplexity(model, *args, text=TEXT):
    rc, out, err = run("eval", "perplexity", model, text, "--device", "cpu", *args)
    if rc != 0:
        raise RuntimeError(err)
    return float(re.match(r"perplexity (\S+):", out).group(1))


def answers(model):
    """The share of the questions whose answer, greedily, is right to the last character."""
    right = []

    def ask(s, some):
        for _, _, c in some:
            body = {"model": MODEL_NAME, "messages": c.messages[:-1], "temperature": 0,
                    "max_tokens": 700, "skip_special_tokens": False}
            if c.tools:
                body["tools"] = c.tools
            r = s.post("/v1/chat/completions", dict(body, tool_choice="none") if c.tools else body)
            if r.status != 200:
                raise RuntimeError(r.text)
            text = r.json["choices"][0]["message"]["content"] or ""
            right.append(text.strip() == c.messages[-1]["content"].strip())
    with Stack(model=model) as s:
        threads = [threading.Thread(target=ask, args=(s, asked[i::8])) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    return sum(right) / len(asked)


def score(model):
    rc, out, err = run("eval", "choices", model, QUESTIONS, "--device", "cpu")
    if rc != 0:
        raise RuntimeError(err)
    return float(re.match(r"\d+ questions: (\S+) right", out).group(1))


tap.section("eval")
# What perplexities are of: the whole text, or a tenth of it.
KEPT = TEXT if LONG else PART
before, chosen, right = perplexity(MODEL, text=KEPT), score(MODEL), answers(MODEL)
tap.note("perplexity %.4f, held-out questions: chosen %.3f, answered %.3f"
         % (before, chosen, right))
tap.ok(chosen >= 0.95, "the model chooses its held-out answers", chosen)
tap.ok(right >= 0.9, "and gives them", right)
with open(os.path.join(DIR, "noise"), "w") as f:
    f.write("".join(rng.choice("abcdefghijklmnopqrstuvwxyz ") for _ in range(4000 if LONG else 1500)))
rc, said, err = run("eval", "perplexity", MODEL, os.path.join(DIR, "noise"), "--device", "cpu")
tap.ok(float(said.split()[1].rstrip(":")) > before, "and predicts such texts better than noise")
part = perplexity(MODEL, text=PART) if LONG else before
tap.ok(abs(perplexity(MODEL, "--max-num-seqs", 3, text=PART) - part) < 1e-3, "in steps of any size")
tap.ok(perplexity(MODEL, "--len", 64, text=PART) > part, "less context predicts worse")
tap.ok(abs(perplexity(MODEL, "--tensor-parallel-size", 2, text=PART) - part) < 1e-3,
       "over two ranks")
tap.eq(perplexity(MODEL, "--pipeline-parallel-size", 2, text=PART), part, "and over two stages")
for args, why in ((["perplexity", MODEL], "usage:"), (["nothing", MODEL, TEXT], "usage:"),
                  (["perplexity", MODEL, "/nowhere"], "/nowhere"),
                  (["perplexity", "/nowhere", TEXT], "/nowhere"),
                  (["perplexity", MODEL, TEXT, "--len", "1"], "--len"),
                  (["perplexity", MODEL, TEXT, "--len", "999999"], "999999"),
                  (["perplexity", MODEL, TEXT, "--pipeline-parallel-size", "7"], "6 layers"),
                  (["perplexity", MODEL, os.devnull], "two tokens"),
                  (["choices", MODEL, TEXT], "question 1"),
                  (["choices", MODEL, os.devnull], "no questions")):
    rc, out, err = run("eval", *args, "--device", "cpu")
    tap.ok(rc in (1, 2) and why in err, "refused: eval " + " ".join(args[:1] + args[3:]), err)
for line in ('{"prompt": "a", "choices": ["b"], "answer": 0}',
             '{"prompt": "a", "choices": ["b", "c"], "answer": 2}',
             '{"prompt": "a", "choices": ["b", ""], "answer": 0}', '[]'):
    with open(os.path.join(DIR, "bad"), "w") as f:
        f.write(line)
    rc, out, err = run("eval", "choices", MODEL, os.path.join(DIR, "bad"), "--device", "cpu")
    tap.ok(rc == 1 and "question 1 needs" in err, "refused: " + line, err)

for kind, least in KINDS.items():
    tap.section(kind)
    out = os.path.join(DIR, kind)
    rc, said, err = quantize(kind, out, "--text", PART)
    tap.ok(rc == 0, "it is written", err)
    lines = re.findall(r"layer (\d+): 7 matrices, relative error (\S+),", said)
    tap.eq([int(n) for n, _ in lines], list(range(6)), "an error for each layer")
    tap.ok(all(0 < float(e) < 0.12 for _, e in lines), "that is small", lines)
    told = re.findall(r"perplexity \w+: (\S+) ", said)
    after, kept = perplexity(out, text=KEPT), answers(out)
    tap.note("perplexity %.4f, answered %.3f" % (after, kept))
    if LONG:
        tap.note("chosen %.3f" % score(out))
    of_part = perplexity(out, text=PART) if LONG else after
    tap.ok(len(told) == 2 and abs(float(told[1]) - of_part) < 1e-3, "its perplexity is told", said)
    tap.ok(after < before * 1.06, "and hardly more than before", (before, after))
    tap.ok(kept >= least * right, "%.1f %% of the held-out score are kept" % (100 * least), kept)
    tap.ok(not os.path.exists(os.path.join(out, "quantize.run")), "no trace of the run is left")
    rc, said, err = quantize(kind, out)
    tap.ok(rc == 1 and "has a checkpoint" in err, "a checkpoint is not written over", err)
    rc, said, err = quantize(kind, os.path.join(DIR, "twice"), model=out)
    tap.ok(rc == 1 and "quantised already" in err, "nor quantised twice", err)

tap.section("calibrated")
rng = random.Random("calibrate")
CALIBRATE = os.path.join(DIR, "calibrate.jsonl")
with open(CALIBRATE, "w") as f:  # none of the held-out questions
    for i in range(80):
        c = generate.conversation(rng, [(generate.EVALUATED[i % len(generate.EVALUATED)], 1)])
        f.write(json.dumps({"text": "".join(t for t, _ in generate.render(c))}) + "\n")
out = os.path.join(DIR, "calibrated")
rc, said, err = quantize("int4", out, "--calibrate", CALIBRATE, "--calibrate-tokens", 3000 if LONG else 1500)
tap.ok(rc == 0 and "calibrating layers 0 to 5" in said, "it is written", err)
lines = re.findall(r"layer (\d+): 7 matrices, relative error of outputs (\S+),", said)
tap.eq([int(n) for n, _ in lines], list(range(6)), "an error for each layer")
tap.ok(all(0 < float(e) < 0.06 for _, e in lines), "that is smaller than that of weights", lines)
tap.ok("to nearest" not in said, "no matrix is without inputs", said)
tap.ok(digest(out) != digest(os.path.join(DIR, "int4")), "other codes than to nearest")
after, kept = perplexity(out, text=KEPT), answers(out)
tap.note("perplexity %.4f, answered %.3f" % (after, kept))
tap.ok(abs(after / before - 1) < 0.06, "the perplexity is near that before", (before, after))
tap.ok(kept >= 0.98 * right, "98 % of the held-out score are kept", kept)
for text, why in (('{"text": "a"}\nno', "line 2"), ('{"prompt": "a"}', "line 1"), ("", "no text"),
                  ('{"text": ""}', "no text")):
    bad, out = os.path.join(DIR, "bad"), os.path.join(DIR, "uncalibrated")
    with open(bad, "w") as f:
        f.write(text)
    rc, said, err = quantize("int4", out, "--calibrate", bad)
    tap.ok(rc == 1 and why in err and err.count("\n") == 1, "refused: %r" % text, err)
    shutil.rmtree(out)
rc, said, err = quantize("int4", out, "--calibrate", "/nowhere")
tap.ok(rc == 1 and "/nowhere" in err, "refused: no file", err)

tap.section("interrupted")
# A copy of the model large enough to be killed in the middle: its weights as float32, 8 times.
wanted = digest(os.path.join(DIR, "int4"))
slow = os.path.join(DIR, "slow")
for after_s in (0.05, 0.15, 0.3):
    p = subprocess.Popen([QUIRE, "quantize", MODEL, "--to", "int4", "--out", slow, "--group", "64",
                          "--threads", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(after_s)
    p.send_signal(signal.SIGKILL)
    p.wait()
if os.path.exists(os.path.join(slow, "quantize.run")):
    rc, said, err = quantize("int8", slow)
    tap.ok(rc == 1 and "another run" in err, "another run does not mix with it", err)
else:
    tap.skip("another run does not mix with it", "it was over before the kill")
rc, said, err = quantize("int4", slow)
tap.ok(rc == 0 or "has a checkpoint" in err, "a killed run continues", err)
tap.eq(digest(slow), wanted, "and ends with the same bytes")

tap.section("what cannot be")
for args, why in ((["--to", "int3", "--out", "x"], "int3"), (["--to", "int4"], "needed"),
                  (["--to", "int4", "--out", "x", "--group", "48"], "48"),
                  (["--to", "int4", "--out", "x", "--threads", "0"], "0"),
                  (["--to", "int4", "--out", "/proc/no/such"], "/proc/no/such")):
    rc, out, err = run("quantize", MODEL, *args)
    tap.ok(rc in (1, 2) and why in err, "refused: " + " ".join(args), err)
rc, out, err = run("quantize", "/nowhere", "--to", "int4", "--out", os.path.join(DIR, "x"))
tap.ok(rc == 1 and "/nowhere" in err, "refused: no folder", err)
rc, out, err = run("quantize", __file__, "--to", "int4", "--out", os.path.join(DIR, "x"))
tap.ok(rc == 1 and "is a file" in err and err.count("\n") == 1, "refused: a GGUF file", err)


def checkpoint(name, tensors):
    """A folder with these {name: (rows, cols)} in float32, and the demo model's config."""
    folder = os.path.join(DIR, name)
    os.mkdir(folder)
    shutil.copy(os.path.join(MODEL, "config.json"), folder)
    header, at = {}, 0
    for n, (rows, cols) in tensors.items():
        header[n] = {"dtype": "F32", "shape": [rows, cols], "data_offsets": [at, at + 4 * rows * cols]}
        at += 4 * rows * cols
    head = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head + bytes(at))
    return folder


tap.section("families")
# What is written of any family is read: routers of all names stay as they are.
FAMILIES = os.path.join(SRCDIR, "tests", "golden", "families")
n_written = 0
for i, family in enumerate(sorted(os.listdir(FAMILIES))):
    for kind in ("int8", "int4") if LONG else ("int8", "int4", None, None)[i % 4:i % 4 + 1]:
        if kind is None:
            continue
        out = os.path.join(DIR, "family")
        shutil.rmtree(out, ignore_errors=True)
        rc, said, err = run("quantize", os.path.join(FAMILIES, family), "--to", kind, "--out", out,
                            "--group", 32)
        if rc != 0:
            tap.ok("no matrices" in err or "transposed" in err or "quantised already" in err,
                   "%s in %s: refused" % (family, kind), err)
            continue
        n_written += 1
        rc, said, err = run("bench", "throughput", "--model", out, "--device", "cpu", "--num-prompts",
                            1, "--input-len", 4, "--output-len", 2, "--num-pages", 2000,
                            "--max-model-len", 64)
        tap.ok(rc == 0, "%s in %s: written and read" % (family, kind), err)
tap.ok(n_written > (40 if LONG else 12), "most families have matrices that divide", n_written)
for family, gates in (("qwen3.5", ("linear_attn.in_proj_a", "linear_attn.in_proj_b")),
                      ("qwen3-next", ("linear_attn.in_proj_ba",)),
                      ("kimi-linear-wide", ["self_attn.%s_proj" % p
                                            for p in ("b", "f_a", "f_b", "g_a", "g_b")])):
    out = os.path.join(DIR, "gates-" + family)
    rc, said, err = run("quantize", os.path.join(FAMILIES, family), "--to", "int8", "--out", out)
    with open(os.path.join(out, "config.json")) as f:
        ignored = json.load(f)["quantization_config"]["ignore"]
    tap.ok(all(any(i.endswith("layers.0." + g) for i in ignored) for g in gates),
           "gates of %s stay as they are" % family, ignored)
rc, said, err = run("bench", "latency", "--model", MODEL, "--device", "cpu", "--max-model-len", 64)
tap.ok(rc > 0 and "max_model_len" in err, "latency has no room in 64 tokens", err)

odd = checkpoint("odd", {"model.layers.0.mlp.up_proj.weight": (4, 72),
                         "model.layers.0.mlp.down_proj.weight": (3, 128),
                         "model.layers.0.mlp.gate.weight": (4, 128),
                         "model.embed_tokens.weight": (5, 128)})
out = os.path.join(DIR, "odd4")
rc, said, err = quantize("int4", out, model=odd)
with open(os.path.join(out, "config.json")) as f:
    ignored = json.load(f)["quantization_config"]["ignore"]
tap.ok(rc == 0 and "1 of 4 tensors" in said, "what does not divide into groups stays", said + err)
tap.eq(sorted(ignored), ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate",
                         "model.layers.0.mlp.up_proj"], "and is named in config.json")
with open(os.path.join(out, "model.safetensors"), "rb") as f:
    n = struct.unpack("<Q", f.read(8))[0]
    header = json.loads(f.read(n))
tap.eq({k: (v["dtype"], v["shape"]) for k, v in header.items() if "down_proj" in k},
       {"model.layers.0.mlp.down_proj.weight_packed": ("I32", [3, 16]),
        "model.layers.0.mlp.down_proj.weight_scale": ("BF16", [3, 2]),
        "model.layers.0.mlp.down_proj.weight_shape": ("I64", [2])}, "tensors of a matrix of zeros")
rc, said, err = quantize("int4", os.path.join(DIR, "none"),
                         model=checkpoint("bare", {"model.embed_tokens.weight": (5, 128)}))
tap.ok(rc == 1 and "no matrices" in err, "refused: nothing to round", err)

shutil.rmtree(DIR)
tap.done()
