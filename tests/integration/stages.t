#!/usr/bin/env python3
"""A model in stages, of the cpu device, each of one or two ranks: what it says is what it says on
one, alone and in a crowd, with and without extras of rows, from an empty cache and a full one, after
restarts and kills, asleep and awake. A page is the same for any number of stages. A rank that is
lost ends a life, and no text."""

import os
import random
import signal
import subprocess
import threading
import time

import twin
from harness import BUILDDIR, DEVICE, LONG, MODEL, Stack, Tap, crowd, draw_seed, need_nginx, \
    skip_all, until

need_nginx()
if DEVICE != "cpu":
    skip_all("stages are of the cpu device")
tap = Tap()
draw_seed(tap)
TEXT = "/v1/completions"
BLOCK = 16


def stages(n, ranks=1):
    return ["--pipeline-parallel-size", n, "--tensor-parallel-size", ranks]


def draw(n):
    return [random.randrange(300, 2000) for _ in range(n)]


LENGTHS = (5, 17, 48, 49, 100, 200, 333, 700)[:8 if LONG else 7]
# Their first tokens differ: one that is shared is found in the cache.
PROMPTS = [[first] + draw(n - 1) for first, n in zip(random.sample(range(300, 2000), 8), LENGTHS)]
N_EXTRA = 24 if LONG else 14  # each prompt and each extra twice or more
EXTRAS = [dict(), dict(repetition_penalty=1.3), dict(logprobs=3), dict(logit_bias={"5": 4.0}),
          dict(structured_outputs=dict(regex="[a-z ]{20,40}")), dict(frequency_penalty=0.7)]


def say(s, prompt, n=24 if LONG else 16, **more):
    """The text, and how many tokens of the prompt were cached."""
    r = s.post(TEXT, dict(dict(prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True), **more))
    if r.status != 200:
        tap.note(r.text[:300])
        return None, 0
    return (r.json["choices"][0]["text"], r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def ask_all(s):
    """The texts, and how much of each prompt was cached."""
    said = [say(s, p) for p in PROMPTS]
    return [t for t, _ in said], [c for _, c in said]


def ask_extra(s, i):
    """Prompt i with some extra of its rows, and a few tokens more."""
    return say(s, PROMPTS[i % len(PROMPTS)], 30 + i, **EXTRAS[i % len(EXTRAS)])[0]


def another_life(s, sig):
    """The engine ends, and its next life serves. It may be between two lives."""
    n = len(s.engine.exits)
    until(s.engine.alive)
    s.engine.kill(sig)
    return until(lambda: len(s.engine.exits) > n) and until(lambda: s.get("/health").status == 200)


def with_stages(s, n):
    """The same server with another number of stages."""
    s.engine.argv[s.engine.argv.index("--pipeline-parallel-size") + 1] = str(n)
    return another_life(s, signal.SIGTERM)


def hits(cached):
    return all(c >= len(p) - 1 - BLOCK for c, p in zip(cached, PROMPTS) if len(p) > BLOCK)


with tap.section("one stage"), Stack(engine=["--enable-prefix-caching", "false"]) as s:
    want, _ = ask_all(s)
    extra = [ask_extra(s, i) for i in range(N_EXTRA)]
    tap.ok(len(set(want)) > len(want) // 2, "prompts have answers of their own", want)

for n, ranks in ((2, 1), (4, 1), (2, 2)):
    with tap.section("%d stages of %d ranks" % (n, ranks)), \
            Stack(engine=stages(n, ranks), store=True) as s:
        tap.note(s.engine.said().splitlines()[-1])
        got, cached = ask_all(s)
        tap.eq(got, want, "%d stages say what one says" % n)
        got, cached = ask_all(s)
        tap.ok(got == want and hits(cached), "and from the cache", str(cached))
        got = crowd(len(PROMPTS), lambda i: say(s, PROMPTS[i])[0])
        tap.eq(got, want, "together as alone")
        got = crowd(len(extra), lambda i: ask_extra(s, i))
        tap.eq(got, extra, "with masks, penalties, biases and log probabilities among them")
        tap.ok(s.idle(), "idle")
        tap.ok(another_life(s, signal.SIGTERM), "a restart")
        got, cached = ask_all(s)
        tap.ok(got == want and hits(cached), "another life says the same, from the pages of the "
               "one before", "%r %r" % (cached, got == want))
        got = []
        threads = [threading.Thread(target=lambda i=i: got.append((i, say(s, PROMPTS[i])[0])))
                   for i in range(len(PROMPTS))]
        for t in threads:
            t.start()
        for _ in range(2):
            time.sleep(0.2)
            another_life(s, signal.SIGKILL)
        for t in threads:
            t.join()
        tap.eq([t for _, t in sorted(got)], want, "under kills the same")
        for other in (6 - n, 1, n) if LONG or (n, ranks) == (2, 1) else (6 - n,):
            tap.ok(with_stages(s, other), "a restart with %d stages" % other)
            got, cached = ask_all(s)
            tap.ok(got == want and hits(cached), "which says the same, from the same pages",
                   "%r %r" % (cached, got == want))
        tap.ok(another_life(s, signal.SIGTERM), "a restart")
        r = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump"), "--verify", s.store_dir],
                           capture_output=True, encoding="utf-8")
        tap.eq(r.returncode, 0, "the store is whole: %s" % (r.stdout or r.stderr).strip()[-80:])

with tap.section("few pages"), \
        Stack(engine=stages(2) + ["--num-pages", 60, "--max-model-len", 800]) as s:
    got = crowd(24, lambda i: say(s, PROMPTS[i % len(PROMPTS)])[0])
    tap.eq(got, [want[i % len(want)] for i in range(24)], "preempted sequences say the same")
    tap.ok(s.metric("vllm:num_preemptions_total") > 0, "and some were")

with tap.section("sleep"), Stack(engine=stages(2) + ["--sleep-after-s", 1], host="32M") as s:
    for turn in range(2):
        got, cached = ask_all(s)
        tap.ok(got == want and (turn == 0 or hits(cached)), "awake, turn %d" % turn, str(cached))
        awake = s.metric("quire:device_memory_bytes")
        tap.ok(until(s.is_sleeping), "asleep", s.logs())
        tap.ok(s.metric("quire:device_memory_bytes") < awake / 2, "and gives the memory back")
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "awake once more")

with tap.section("one rank cannot wake"), \
        Stack(engine=stages(2, 2) + ["--sleep-after-s", 1], host="32M",
              env={"QUIRE_FAULT": "device_wake:3"}) as s:
    tap.eq(say(s, PROMPTS[3])[0], want[3], "awake")
    tap.ok(until(s.is_sleeping), "it falls asleep", s.logs())
    tap.eq(say(s, PROMPTS[3])[0], want[3], "it wakes at the second attempt")
    tap.ok("cannot wake" in s.engine.said() and not s.engine.exits, "in the same life", s.logs())

with tap.section("one rank cannot sleep"), \
        Stack(engine=stages(2) + ["--sleep-after-s", 1], host="32M",
              env={"QUIRE_FAULT": "device_sleep:2"}) as s:
    tap.eq(say(s, PROMPTS[3])[0], want[3], "awake")
    tap.ok(until(lambda: "cannot sleep" in s.engine.said()), "it stays awake", s.logs())
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "and says the same")
    tap.ok(until(s.is_sleeping), "later it sleeps", s.logs())
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "and wakes")

with tap.section("a rank is lost"), \
        Stack(engine=stages(2), env={"QUIRE_FAULT": "rank_lost:60"}) as s:
    with Stack() as one:
        told = say(one, PROMPTS[3], 150)[0]
    tap.eq(say(s, PROMPTS[3], 150)[0], told, "the text goes on in another life")
    tap.ok(s.engine.exits and set(s.engine.exits) == {3}, "the engine ended by itself",
           s.engine.exits)

for name, make in (("windows beside all tokens", lambda: twin.windows(48, (2, 5))),
                   ("states, windows and all tokens", lambda: twin.states("rfwrwf"))):
    with tap.section(name):
        folder, said = make(), []
        for n, ranks in ((1, 1), (2, 1), (4, 1), (2, 2)) if LONG else ((1, 1), (4, 1), (2, 2)):
            with Stack(model=folder, engine=stages(n, ranks), host="32M") as s:
                texts, _ = ask_all(s)
                tap.ok(another_life(s, signal.SIGTERM), "a restart")
                again, cached = ask_all(s)
                tap.ok(texts == again and hits(cached), "%d stages of %d ranks: the same from host "
                       "memory" % (n, ranks), str(cached))
                crowded = crowd(len(PROMPTS), lambda i: say(s, PROMPTS[i])[0])
                tap.eq(crowded, texts, "together as alone")
                said.append(texts)
        tap.ok(all(t == said[0] for t in said), "%s: any number of stages says the same" % name)

with tap.section("what does not divide"):
    for n, ranks in ((9, 1), (17, 1), (4, 8)):
        r = subprocess.run([os.path.join(BUILDDIR, "quire-engine"), "--model", MODEL,
                            "--device", "cpu"] + [str(a) for a in stages(n, ranks)],
                           capture_output=True, encoding="utf-8")
        tap.ok(r.returncode == 1 and "pipeline_parallel_size" in r.stderr,
               "%d stages of %d ranks are refused" % (n, ranks), r.stderr[-300:])

tap.done()
