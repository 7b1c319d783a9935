#!/usr/bin/env python3
"""What a client notices of a model that slept: time to first token awake, and of the request that
wakes it; and two models that share a GPU, asked in turn.

    builddir=BUILD tests/bench/sleep.py [--model tests/bench/llama-3.1-8b] [--tokens 2048]
        [--host 8G] [--share 0.55] [--device cuda]

Weights are random; prompts are token ids. Prints a line each."""
import argparse
import os
import random
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SRCDIR = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SRCDIR, "tests", "integration"))
os.environ.setdefault("srcdir", SRCDIR)

p = argparse.ArgumentParser()
p.add_argument("--model", default=os.path.join(HERE, "llama-3.1-8b"))
p.add_argument("--tokens", type=int, default=2048, help="of a prompt")
p.add_argument("--host", default="8G", help="host tier of each model")
p.add_argument("--share", default="0.55", help="of the GPU's memory, for each of the two")
p.add_argument("--turns", type=int, default=4)
p.add_argument("--device", default="cuda")
a = p.parse_args()
os.environ["QUIRE_TEST_DEVICE"] = a.device

from harness import MODEL_NAME, Stack, until  # noqa: E402: it reads the environment


def prompt(i):
    r = random.Random(i)
    return [r.randrange(100, 2000) for _ in range(a.tokens)]


def first_token(s, i):
    """Milliseconds to one token, and how many prompt tokens were cached."""
    began = time.monotonic()
    r = s.post("/v1/completions", {"model": MODEL_NAME, "prompt": prompt(i), "max_tokens": 1,
                                   "temperature": 0, "ignore_eos": True})
    ms = (time.monotonic() - began) * 1e3
    if r.status != 200:
        raise RuntimeError(r.text)
    return ms, r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def line(what, times):
    print("%-44s %8.1f ms (median of %d; %s tokens cached)"
          % (what, statistics.median(t for t, _ in times), len(times),
             "/".join(str(c) for _, c in times[:4])))
    sys.stdout.flush()


def asleep(s):
    if not until(lambda: s.get("/is_sleeping").json["is_sleeping"], 60):
        raise RuntimeError("it does not fall asleep:\n" + s.logs())


def sleepy(share):
    return Stack(engine=["--model", a.model, "--load-format", "dummy", "--sleep-after-s", "1",
                         "--max-model-len", str(a.tokens + 64), "--gpu-memory-utilization", share,
                         "--gemm-table", os.path.join(SRCDIR, "kernels", "gemm-h200.txt")],
                 host=a.host)


with sleepy("0.9") as s:
    first_token(s, 0)
    line("awake, a new prompt", [first_token(s, 100 + i) for i in range(a.turns)])
    line("awake, a known one", [first_token(s, 0) for _ in range(a.turns)])
    known, new = [], []
    for i in range(a.turns):
        asleep(s)
        new.append(first_token(s, 200 + i))
        asleep(s)
        known.append(first_token(s, 0))
    line("asleep, a new prompt", new)
    line("asleep, one that host memory knows", known)
    print("%-44s %8.1f ms" % ("of that, waking", s.metric("quire:engine_wake_seconds_sum") /
                              s.metric("quire:engine_wake_seconds_count") * 1e3))
    for text in s.engine.said().splitlines():
        if "asleep:" in text:
            print("# " + text)
with sleepy(a.share) as one:
    asleep(one)
    with sleepy(a.share) as other:
        times = []
        for i in range(a.turns):
            for s, rest in ((one, other), (other, one)):
                asleep(rest)
                times.append(first_token(s, i))
        line("two models in turn, each from its sleep", times)
        asleep(one)
        asleep(other)
        first_token(one, 0)
        times = [first_token(other, 0)]
        line("the other is awake: until it has slept", times)
