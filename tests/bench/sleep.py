#!/usr/bin/env python3
"""What a client notices of a model that slept: time to first token awake, and of the request that
wakes it; and two models that share a GPU, asked in turn.

    builddir=BUILD tests/bench/sleep.py [--model tests/bench/llama-3.1-8b] [--tokens 2048]
        [--host 8G] [--share 0.55] [--device cuda]

Weights are random; prompts are token ids. Prints a line each."""
from servers import dummy, first_token, line, parse, parser, prompt  # and finds harness
from harness import Stack, until

p = parser()
p.add_argument("--tokens", type=int, default=2048, help="of a prompt")
p.add_argument("--host", default="8G", help="host tier of each model")
p.add_argument("--share", default="0.55", help="of the GPU's memory, for each of the two")
p.add_argument("--turns", type=int, default=4)
a = parse(p)


def ask(s, i):
    return first_token(s, prompt(i, a.tokens))


def asleep(s):
    if not until(lambda: s.get("/is_sleeping").json["is_sleeping"], 60):
        raise RuntimeError("it does not fall asleep:\n" + s.logs())


def sleepy(share):
    return Stack(engine=dummy(a.model, a.tokens + 64) + ["--sleep-after-s", "1",
                                                         "--gpu-memory-utilization", share],
                 host=a.host)


with sleepy("0.9") as s:
    ask(s, 0)
    line("awake, a new prompt", [ask(s, 100 + i) for i in range(a.turns)])
    line("awake, a known one", [ask(s, 0) for _ in range(a.turns)])
    known, new = [], []
    for i in range(a.turns):
        asleep(s)
        new.append(ask(s, 200 + i))
        asleep(s)
        known.append(ask(s, 0))
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
                times.append(ask(s, i))
        line("two models in turn, each from its sleep", times)
        asleep(one)
        asleep(other)
        ask(one, 0)
        times = [ask(other, 0)]
        line("the other is awake: until it has slept", times)
