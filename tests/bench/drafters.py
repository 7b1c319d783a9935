#!/usr/bin/env python3
"""Drafters on the demo model: which drafts are right, by task, and tokens per second.

    builddir=BUILD tests/bench/drafters.py --drafters FOLDER [--device cpu] [--seconds 4]

FOLDER is what tools/demo-model/drafters.py made.  The questions are the held-out ones of
tests/golden/demo.  For each way of drafting, always (adaptive false, three drafts) and adaptively,
the answers at temperature 0 and 0.8; then answers of 64 tokens at 1, 8 and 32 at once.  Every answer
must be that of the server without drafts.
"""
import json
import os
import sys
import threading
import time

from servers import SRCDIR, parse, parser  # and finds harness
from harness import MODEL, Stack

p = parser()
p.add_argument("--drafters", required=True)
p.add_argument("--seconds", type=float, default=4.0, help="of a measurement of speed")
a = parse(p)

with open(os.path.join(SRCDIR, "tests", "golden", "demo", "heldout.json"), encoding="utf-8") as f:
    QUESTIONS = json.load(f)
TASKS = sorted({q["task"] for q in QUESTIONS})
CHOSEN = [q for t in TASKS for q in [q for q in QUESTIONS if q["task"] == t][:6]]


def body(s, q, temperature, **more):
    some = dict(s.chat("?"), messages=q["messages"], temperature=temperature, seed=7, max_tokens=64, **more)
    return dict(some, tools=q["tools"]) if q.get("tools") else some


def text_of(r):
    if r.status != 200:
        raise RuntimeError(r.error)
    m = r.json["choices"][0]["message"]
    return m.get("content"), [c["function"] for c in m.get("tool_calls") or []]


def told(s):
    m = s.metrics()
    return [sum(v for name, v in m.items() if name.split("{")[0] == "vllm:spec_decode_num_%s_total" % k)
            for k in ("draft_tokens", "accepted_tokens")]


def speed(s, n):
    """Tokens per second of n clients that ask one question after another."""
    end, counts = time.monotonic() + a.seconds, [0] * n

    def client(i):
        k = i
        while time.monotonic() < end:
            r = s.post("/v1/chat/completions", body(s, CHOSEN[k % len(CHOSEN)], 0, ignore_eos=True))
            counts[i] += r.json["usage"]["completion_tokens"]
            k += n

    began = time.monotonic()
    threads = [threading.Thread(target=client, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sum(counts) / (time.monotonic() - began)


def measure(name, config, base):
    engine = ["--max-num-seqs", 64]
    if config is not None:
        engine += ["--speculative-config", json.dumps(config)]
    out, texts = {}, {}
    with Stack(engine=engine) as s:
        for temperature in (0, 0.8):
            for q in CHOSEN:
                before = told(s)
                texts[temperature, id(q)] = text_of(s.post("/v1/chat/completions",
                                                           body(s, q, temperature)))
                after = told(s)
                had = out.setdefault((q["task"], temperature), [0, 0])
                had[0] += after[0] - before[0]
                had[1] += after[1] - before[1]
        if base is not None and texts != base:
            raise RuntimeError(name + ": other answers than without drafts")
        rates = [speed(s, n) for n in (1, 8, 32)]
    for (task, temperature), (n, right) in sorted(out.items(), key=str):
        if n:
            print("%-20s %-12s temperature %.1f: %4d of %4d drafts right, %.2f"
                  % (name, task, temperature, right, n, right / n), flush=True)
    print("%-20s tok/s at 1, 8, 32: %s" % (name, "  ".join("%.0f" % r for r in rates)), flush=True)
    return texts


base = measure("none", None, None)
for name, config in (("ngram", {"method": "ngram"}), ("suffix", {"method": "suffix"}),
                     ("draft", {"model": os.path.join(a.drafters, "draft")}),
                     ("eagle3", {"method": "eagle3", "model": os.path.join(a.drafters, "eagle3")})):
    if "model" in config:
        measure(name + " always", dict(config, adaptive=False, num_speculative_tokens=3), base)
    measure(name, config, base)
