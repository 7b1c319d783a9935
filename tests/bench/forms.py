#!/usr/bin/env python3
"""What one key's forms cost another key: the median of small requests, alone and while another key
sends schemas with enums of 20,000 entries, no two alike, as fast as they are answered.

    srcdir=. builddir=build python3 tests/bench/forms.py [seconds]

The whole stack of the tests, on the cpu device, with the demo model: the engine has the same cores.
"""

import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))

from harness import Stack, key  # noqa: E402: its folder has just been named

CHAT = "/v1/chat/completions"
N_GREEDY = 16


def medians(s, seconds, fields, tenant):
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        r = s.request("POST", CHAT, s.chat("Hello", max_tokens=8, **fields),
                      {"Authorization": "Bearer " + key(tenant)})
        if r.status != 200:
            raise ValueError(r.text)
        took.append(1e3 * (time.monotonic() - began))
        time.sleep(0.02)
    took.sort()
    return "%d requests, median %.1f ms, p95 %.1f, most %.1f" % (
        len(took), statistics.median(took), took[len(took) * 95 // 100], took[-1])


def greedy(s, stop, nth, answers):
    n = 0
    while not stop.is_set():
        entries = ["k%d-%d-%d-%d" % (nth, n, i * 7919 % 20011, i) for i in range(20000)]
        r = s.request("POST", CHAT, s.chat("Hello", max_tokens=4, response_format={
            "type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": entries}}}),
            {"Authorization": "Bearer " + key(0)})
        answers[r.status] = answers.get(r.status, 0) + 1
        n += 1


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    form = {"structured_outputs": {"regex": "[a-z ]{4,60}"}}
    with Stack() as s:
        for name, fields in (("plain", {}), ("with a form", form)):
            print("%s, alone: %s" % (name, medians(s, seconds, fields, 1)))
        stop, answers = threading.Event(), {}
        threads = [threading.Thread(target=greedy, args=(s, stop, i, answers), daemon=True)
                   for i in range(N_GREEDY)]
        for t in threads:
            t.start()
        time.sleep(2)
        for name, fields in (("plain", {}), ("with a form", form)):
            print("%s, beside %d: %s" % (name, N_GREEDY, medians(s, seconds, fields, 1)))
        stop.set()
        for t in threads:
            t.join(60)
        print("answers to the greedy key: %s" % answers)


main()
