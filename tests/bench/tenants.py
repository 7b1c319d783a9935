#!/usr/bin/env python3
"""One tenant's day against another's: the median of small requests of one key, alone and beside
another key that does one hostile thing after the other, as fast as it is answered.

    builddir=build tests/bench/tenants.py [--seconds 8] [--only NAME] [--many N]

The whole stack of the tests, on the cpu device, with the demo model: clients, fronts and engine
share the cores, so a factor of 2 is what another key that computes at the same time costs at best.
"""

import argparse
import http.client
import itertools
import os
import statistics
import sys
import threading
import time
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
os.environ.setdefault("srcdir", os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))

from harness import Stack, key  # noqa: E402: its folder has just been named

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FORM = {"structured_outputs": {"regex": "[a-z ]{4,60}"}}


def schema(value):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": value}}


def enums(s, n):
    entries = ["k%d-%d-%d" % (n, i * 7919 % 20011, i) for i in range(20000)]
    return CHAT, s.chat("Hello", max_tokens=4, response_format=schema({"enum": entries}))


def ambiguous(s, n):
    rule = 'root ::= (a | b)*\na ::= "x"* [a-z ]*\nb ::= [a-z ]* "y%d"*' % n
    return CHAT, s.chat("Hello", max_tokens=60, ignore_eos=True, structured_outputs={"grammar": rule})


def refused(s, n):
    return CHAT, s.chat("Hello", max_tokens=4, response_format=schema(
        {"type": "array", "items": {"type": "string", "pattern": "(a|b|ab){%d,4000}c" % (200 + n)},
         "minItems": 3000}))


def long_prompts(s, n):
    return TEXT, s.completion([(n * 31 + i * 7) % 1000 + 40 for i in range(1900)], max_tokens=8)


def long_answers(s, n):
    return TEXT, s.completion("Count %d" % n, max_tokens=400, ignore_eos=True)


def choices(s, n):
    return TEXT, s.completion("Story %d" % n, max_tokens=20, n=64, temperature=1, ignore_eos=True)


def big_texts(s, n):
    return CHAT, s.chat("%d " % n + "lantern " * 400000, max_tokens=4)


def big_trees(s, n):
    return CHAT, dict(s.chat("Hello", max_tokens=4), metadata=[[n]] * 600000)


def counts(s, n):
    return "/tokenize", {"prompt": "%d " % n + "The quick brown fox. " * 50000}


HOSTILE = [enums, ambiguous, refused, long_prompts, long_answers, choices, big_texts, big_trees, counts]


def small(s, seconds, fields):
    """Seconds of each small request of the quiet key."""
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        r = s.request("POST", CHAT, s.chat("Hello", max_tokens=8, **fields),
                      {"Authorization": "Bearer " + key(1)})
        if r.status != 200:
            raise ValueError(r.text)
        took.append(1e3 * (time.monotonic() - began))
        time.sleep(0.02)
    return sorted(took)


def beside(s, what, many, seconds, fields):
    stop, answers, numbers = threading.Event(), Counter(), itertools.count()

    def greedy():
        while not stop.is_set():
            path, body = what(s, next(numbers))
            try:
                answers[s.request("POST", path, body, {"Authorization": "Bearer " + key(0)}).status] += 1
            except (OSError, http.client.HTTPException) as e:
                answers[type(e).__name__] += 1
    threads = [threading.Thread(target=greedy, daemon=True) for _ in range(many)]
    for t in threads:
        t.start()
    time.sleep(1)
    took = small(s, seconds, fields)
    stop.set()
    for t in threads:
        t.join(120)
    return took, dict(answers)


def row(name, took, alone=None, note=""):
    median = statistics.median(took)
    print("%-24s %5d %9.1f ms %9.1f ms %9.1f ms %7s  %s" % (
        name, len(took), median, took[len(took) * 95 // 100], took[-1],
        "%.2f" % (median / alone) if alone else "", note), flush=True)
    return median


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=8)
    a.add_argument("--many", type=int, default=8, help="connections of the hostile key")
    a.add_argument("--only")
    a = a.parse_args()
    with Stack(many_keys=True) as s:
        print("%-24s %5s %12s %12s %12s %7s" % ("beside", "n", "median", "p95", "most", "factor"))
        for kind, fields in (("plain", {}), ("with a form", FORM)):
            alone = row(kind + ", alone", small(s, a.seconds, fields))
            for what in HOSTILE:
                if a.only in (None, what.__name__):
                    took, answers = beside(s, what, a.many, a.seconds, fields)
                    row("  " + what.__name__, took, alone, answers)
                    s.idle()


main()
