#!/usr/bin/env python3
"""Streams of every kind, 64 in a long run and 32 otherwise, while the engine is killed at random moments: each ends with [DONE] and,
byte for byte, with its undisturbed text; nothing leaks and the counters add up. Two kills per
round, ROUNDS rounds (5; 2 unless the run is a long one); on a slow machine those that begin within
ROUNDS_SECONDS (600), five at least."""

import os
import random
import signal
import threading
import time

from harness import DEVICE, LONG, Stack, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
ROUNDS = int(os.environ.get("ROUNDS") or (5 if LONG else 2))
SECONDS = float(os.environ.get("ROUNDS_SECONDS") or 600)
draw_seed(tap)
N_STREAMS = 64 if LONG else 16
LENGTH = 120 if DEVICE == "cpu" else 1500
schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 40},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]},
                                                    "minItems": 20, "maxItems": 30}},
          "required": ["name", "tags"], "additionalProperties": False}
tools = [{"type": "function", "function": {
    "name": "get_weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string", "maxLength": 30}}, "required": ["city"],
        "additionalProperties": False}}}]
kinds = [
    dict(),
    dict(temperature=1.0, seed=5),
    dict(temperature=0.9, top_p=0.9, top_k=40, presence_penalty=0.7, repetition_penalty=1.2, seed=6),
    dict(stop=["lantern", "\n\n\n"]),
    dict(logprobs=True, top_logprobs=3),
    dict(response_format={"type": "json_schema", "json_schema": {
        "name": "p", "strict": True, "schema": schema}}),
    dict(tools=tools, tool_choice="required"),
    dict(logit_bias={"300": 2.0}, bad_words=["fox"], n=2, temperature=0.7, seed=9),
]


def bodies(s):
    out = []
    for i in range(N_STREAMS):
        k = kinds[i % len(kinds)]
        free = "response_format" not in k and "tools" not in k and "stop" not in k
        out.append(s.chat("Story %d: tell me of a clever fox, and count to %d." % (i, i + 20),
                          max_tokens=LENGTH + i if free else 1200, ignore_eos=free,
                          stream_options={"include_usage": True}, **k))
    return out


def told(t):
    """Everything that a client sees of a stream, but for names and times."""
    deltas = {}
    for e in t.events:
        for c in e.get("choices", ()):
            d = deltas.setdefault(c["index"], {"content": "", "calls": "", "tokens": [], "end": None})
            d["content"] += c["delta"].get("content") or ""
            for call in c["delta"].get("tool_calls") or ():
                d["calls"] += call["function"].get("name", "") + call["function"].get(
                    "arguments", "")
            d["tokens"] += [x["token"] for x in (c.get("logprobs") or {}).get("content", ())]
            d["end"] = c["finish_reason"] or d["end"]
    usage = t.usage and (t.usage["prompt_tokens"], t.usage["completion_tokens"])
    return (t.done, t.error, deltas, usage)


def same(got, want):
    if DEVICE == "cpu":
        return got == want
    # The device's last bits depend on what shares a step: draws and far ends may part.
    return got[0] and got[1] is None and all(
        got[2][i]["end"] is not None and got[2][i]["content"][:40] == d["content"][:40]
        for i, d in want[2].items())


with Stack(host="64M", store=True) as s:
    asked = bodies(s)
    want = [told(t) for t in crowd(N_STREAMS, lambda i: s.stream(chat, asked[i]), 300)]
    tap.eq([i for i, w in enumerate(want) if not w[0] or w[1]], [], "undisturbed streams are whole")
    began = time.monotonic()
    crowd(N_STREAMS, lambda i: s.stream(chat, asked[i]), 300)
    whole_s = time.monotonic() - began
    n_killed = 0
    began = time.monotonic()
    for turn in range(ROUNDS):
        if turn >= 5 and time.monotonic() - began > SECONDS:
            tap.note("%d rounds of %d in %d s: a round takes as long as its streams do"
                     % (turn, ROUNDS, time.monotonic() - began))
            break
        def kill():
            global n_killed
            for _ in range(2):
                time.sleep(random.uniform(0.02, 0.45) * whole_s)
                before = s.engine.pid
                sig = random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                s.engine.kill(sig)
                n_killed += 1
                until(lambda: s.engine.pid != before and s.metric("quire:fronts_attached") == 2, 60)
        killer = threading.Thread(target=kill)
        killer.start()
        got = [told(t) for t in crowd(N_STREAMS, lambda i: s.stream(chat, asked[i]), 300)]
        killer.join()
        bad = [i for i in range(N_STREAMS) if not same(got[i], want[i])]
        if not tap.eq(bad, [], "round %d: %d streams are as undisturbed" % (turn, N_STREAMS)):
            tap.note("got  %s\nwant %s" % (str(got[bad[0]])[:800], str(want[bad[0]])[:800]))
        tap.ok(s.idle(), "nothing runs on")
        tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")
    tap.note("%d kills, %d exits" % (n_killed, len(s.engine.exits)))
    tap.ok(all(e in (0, -signal.SIGKILL) for e in s.engine.exits), "the engine ended only when asked",
           s.engine.exits)
    tap.eq(s.metric("quire:host_page_faults_total"), 0, "no page in host memory is damaged")
    tap.eq(s.metric("quire:store_page_faults_total"), 0, "no page on disk is damaged")
tap.ok(not s.leftovers, "every process followed SIGTERM", s.leftovers)
tap.done()
