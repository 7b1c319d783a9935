#!/usr/bin/env python3
"""A model on two and on four ranks of the cpu device: what it says is what it says on one, alone
and in a crowd, from an empty cache and a full one, after restarts and kills, asleep and awake; pages of
another number of ranks are no hits; a rank that is lost ends a life, and no text."""

import os
import random
import signal
import subprocess
import threading
import time

import twin
from harness import BUILDDIR, DEVICE, MODEL, Stack, Tap, crowd, draw_seed, need_nginx, \
    skip_all, until

need_nginx()
if DEVICE != "cpu":
    skip_all("ranks are of the cpu device")
tap = Tap()
draw_seed(tap)
TEXT = "/v1/completions"
BLOCK = 16


def ranks(n):
    return ["--tensor-parallel-size", n]


def draw(n):
    return [random.randrange(300, 2000) for _ in range(n)]


LENGTHS = (5, 17, 48, 49, 100, 200, 333)
# Their first tokens differ: one that is shared is found in the cache.
PROMPTS = [[first] + draw(n - 1) for first, n in zip(random.sample(range(300, 2000), 8), LENGTHS)]


def say(s, prompt, n=24):
    """The text, and how many tokens of the prompt were cached."""
    r = s.post(TEXT, dict(prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True))
    if r.status != 200:
        tap.note(r.text[:300])
        return None, 0
    return (r.json["choices"][0]["text"], r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def ask_all(s):
    """The texts, and how much of each prompt was cached."""
    said = [say(s, p) for p in PROMPTS]
    return [t for t, _ in said], [c for _, c in said]


def another_life(s, sig):
    """The engine ends, and its next life serves. It may be between two lives."""
    n = len(s.engine.exits)
    until(s.engine.alive)
    s.engine.kill(sig)
    return until(lambda: len(s.engine.exits) > n) and until(lambda: s.get("/health").status == 200)


def with_ranks(s, n):
    """The same server with another number of ranks."""
    s.engine.argv[s.engine.argv.index("--tensor-parallel-size") + 1] = str(n)
    return another_life(s, signal.SIGTERM)


def hits(cached):
    return all(c >= len(p) - 1 - BLOCK for c, p in zip(cached, PROMPTS) if len(p) > BLOCK)


with tap.section("one rank"), Stack(engine=["--enable-prefix-caching", "false"]) as s:
    want, _ = ask_all(s)
    tap.ok(len(set(want)) > len(want) // 2, "prompts have answers of their own", want)

for n in (2, 4):
    with tap.section("%d ranks" % n), Stack(engine=ranks(n), store=True) as s:
        tap.note(s.engine.said().splitlines()[-1])
        got, cached = ask_all(s)
        tap.eq(got, want, "%d ranks say what one says" % n)
        got, cached = ask_all(s)
        tap.ok(got == want and hits(cached), "and from the cache", str(cached))
        got = crowd(len(PROMPTS), lambda i: say(s, PROMPTS[i])[0])
        tap.eq(got, want, "together as alone")
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
        other = 6 - n
        tap.ok(with_ranks(s, other), "a restart with %d ranks" % other)
        got, cached = ask_all(s)
        tap.ok(got == want and max(cached) == 0, "which says the same, and finds nothing",
               "%r %r" % (cached, got == want))
        tap.ok(with_ranks(s, 1), "a restart with one rank")
        got, cached = ask_all(s)
        tap.ok(got == want and max(cached) == 0, "likewise",
               "%r %r" % (cached, got == want))
        tap.ok(with_ranks(s, n), "a restart with %d ranks" % n)
        got, cached = ask_all(s)
        tap.ok(got == want and hits(cached), "whose pages are still on the disk",
               "%r %r" % (cached, got == want))
        tap.ok(another_life(s, signal.SIGTERM), "a restart")
        r = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump"), "--verify", s.store_dir],
                           capture_output=True, encoding="utf-8")
        tap.eq(r.returncode, 0, "the store is whole: %s" % (r.stdout or r.stderr).strip()[-80:])

with tap.section("the work of each rank"), \
        Stack(engine=ranks(2) + ["--pipeline-parallel-size", 2]) as s:
    say(s, PROMPTS[0], 100)
    until(lambda: s.metric("quire:rank_steps_total") >= 4 * 100)
    m = s.metrics()
    for stage in (0, 1):
        for rank in (0, 1):
            work = {name: m.get('quire:rank_%s{model_name="demo",engine="0",stage="%d",rank="%d"}' %
                                (name, stage, rank), -1)
                    for name in ("steps_total", "step_seconds_total", "sum_seconds_total",
                                 "device_bytes")}
            tap.ok(work["steps_total"] >= 100 and
                   0 < work["sum_seconds_total"] < work["step_seconds_total"] and
                   work["device_bytes"] > 1 << 20, "/metrics tells of stage %d, rank %d" %
                   (stage, rank), str(work))
    tap.eq(s.metric("quire:rank_device_bytes"), s.metric("quire:device_memory_bytes"),
           "their memory is all there is")
    top = subprocess.run([os.path.join(BUILDDIR, "quire"), "top", "--once", "--seconds", "0.1",
                          "--engine-socket", s.engine_socket], capture_output=True, text=True)
    tap.eq([x[:15] for x in top.stdout.splitlines() if "in sums over ranks" in x],
           ["stage %d rank %d:" % (i, k) for i in (0, 1) for k in (0, 1)], "quire top as well")
    r = subprocess.run([os.path.join(BUILDDIR, "quire"), "bench", "throughput", "--model", MODEL,
                        "--device", "cpu", "--tensor-parallel-size", "2", "--num-prompts", "2",
                        "--input-len", "64", "--output-len", "32", "--num-pages", "64",
                        "--max-model-len", "128"],
                       capture_output=True, text=True, timeout=120)
    tap.ok("stage 0 rank 1: " in r.stdout, "and quire bench", r.stdout + r.stderr)

with tap.section("sleep"), Stack(engine=ranks(2) + ["--sleep-after-s", 1], host="32M") as s:
    for turn in range(2):
        got, cached = ask_all(s)
        tap.ok(got == want and (turn == 0 or hits(cached)), "awake, turn %d" % turn, str(cached))
        awake = s.metric("quire:device_memory_bytes")
        tap.ok(until(s.is_sleeping), "asleep", s.logs())
        tap.ok(s.metric("quire:device_memory_bytes") < awake / 2, "and gives the memory back")
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "awake once more")

with tap.section("one rank cannot wake"), \
        Stack(engine=ranks(4) + ["--sleep-after-s", 1], host="32M",
              env={"QUIRE_FAULT": "device_wake:3"}) as s:
    tap.eq(say(s, PROMPTS[3])[0], want[3], "awake")
    tap.ok(until(s.is_sleeping), "it falls asleep", s.logs())
    tap.eq(say(s, PROMPTS[3])[0], want[3], "it wakes at the second attempt")
    tap.ok("cannot wake" in s.engine.said() and not s.engine.exits, "in the same life", s.logs())

with tap.section("one rank cannot sleep"), \
        Stack(engine=ranks(2) + ["--sleep-after-s", 1], host="32M",
              env={"QUIRE_FAULT": "device_sleep:2"}) as s:
    tap.eq(say(s, PROMPTS[3])[0], want[3], "awake")
    tap.ok(until(lambda: "cannot sleep" in s.engine.said()), "it stays awake", s.logs())
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "and says the same")
    tap.ok(until(s.is_sleeping), "later it sleeps", s.logs())
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "and wakes")

with tap.section("a rank is lost"), \
        Stack(engine=ranks(2), env={"QUIRE_FAULT": "rank_lost:2500"}) as s:
    with Stack() as one:
        told = say(one, PROMPTS[3], 150)[0]
    tap.eq(say(s, PROMPTS[3], 150)[0], told, "the text goes on in another life")
    tap.ok(s.engine.exits and set(s.engine.exits) == {3}, "the engine ended by itself",
           s.engine.exits)

for name, make in (("windows beside all tokens", lambda: twin.windows(48, (2, 5))),
                   ("states, windows and all tokens", lambda: twin.states("rfwrwf"))):
    with tap.section(name):
        folder, said = make(), []
        for n in (1, 2, 4):
            with Stack(model=folder, engine=ranks(n), host="32M") as s:
                texts, _ = ask_all(s)
                tap.ok(another_life(s, signal.SIGTERM), "a restart")
                again, cached = ask_all(s)
                tap.ok(texts == again and hits(cached), "%d ranks: the same from host memory" % n,
                       str(cached))
                said.append(texts)
        tap.ok(said[0] == said[1] == said[2], "%s: one, two and four ranks say the same" % name)

with tap.section("what does not divide"):
    for n, what in ((3, "does not divide the 8 heads"), (17, "tensor_parallel_size")):
        r = subprocess.run([os.path.join(BUILDDIR, "quire-engine"), "--model", MODEL,
                            "--device", "cpu", "--tensor-parallel-size", str(n)],
                           capture_output=True, encoding="utf-8")
        tap.ok(r.returncode == 1 and what in r.stderr, "%d ranks are refused" % n, r.stderr[-300:])

tap.done()
