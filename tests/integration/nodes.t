#!/usr/bin/env python3
"""A model on two nodes, which are two engine processes, on the cpu device with a connection of TCP
between them, or with a GPU each, whose rows travel by NCCL: what they say is what one process says, alone and in a crowd, with masks and penalties,
from an empty cache and a full one, and on the pages of one process. A node that is killed or
stopped ends the other one within seconds, by one line, and texts go on when both have started again."""

import random
import signal
import threading
import time

import twin
from harness import DEVICE, LONG, Stack, Supervised, Tap, crowd, draw_seed, free_port, n_gpus, \
    need_nginx, skip_all, until

need_nginx()
EXACT = DEVICE == "cpu"  # on a GPU sums depend on how many rows are computed together
if not EXACT and n_gpus() < 2:
    skip_all("two nodes want two GPUs")
tap = Tap()
draw_seed(tap)
TEXT = "/v1/completions"
BLOCK = 16


def draw(n):
    return [random.randrange(300, 2000) for _ in range(n)]


LENGTHS = (5, 17, 48, 49, 100, 200, 333, 700)[:8 if LONG else 7]
# Their first tokens differ: one that is shared is found in the cache.
PROMPTS = [[first] + draw(n - 1) for first, n in zip(random.sample(range(300, 2000), 8), LENGTHS)]
N_EXTRA = 24 if LONG else 14  # each prompt and each extra twice or more
EXTRAS = [dict(), dict(repetition_penalty=1.3), dict(logprobs=3), dict(logit_bias={"5": 4.0}),
          dict(structured_outputs=dict(regex="[a-z ]{20,40}")), dict(frequency_penalty=0.7)]


class Nodes(Stack):
    """A stack whose engine is node 0, and node 1 beside it."""

    def __init__(self, stages=2, ranks=1, engine=(), far_env=None, **more):
        self.far, self.far_env = None, far_env
        if not EXACT:  # a GPU each
            more["env"] = {"CUDA_VISIBLE_DEVICES": "0"}
            self.far_env = dict(far_env or {}, CUDA_VISIBLE_DEVICES="1")
        super().__init__(engine=["--pipeline-parallel-size", stages, "--tensor-parallel-size",
                                 ranks, "--nnodes", 2, "--master-port", free_port(), *engine],
                         **more)

    def start_engine(self, i=0):
        super().start_engine(i)
        argv, no_value = [], ("--kv-host-file", "--kv-store-dir", "--kv-host-bytes",
                              "--kv-store-bytes")
        for name, value in zip(self.engine_argv[1::2], self.engine_argv[2::2]):
            if name not in no_value:
                argv += [name, value]
        self.far = Supervised(self.engine_argv[:1] + argv + ["--node-rank", "1"],
                              self.path("node1.log"), env=self.far_env)

    def stop(self):
        if self.far is not None:
            self.far.stop()
        super().stop()


def say(s, prompt, n=24, **more):
    """The text, and how many tokens of the prompt were cached."""
    r = s.post(TEXT, dict(dict(prompt=prompt, max_tokens=n, temperature=0, ignore_eos=True), **more))
    if r.status != 200:
        tap.note(r.text[:300])
        return None, 0
    return (r.json["choices"][0]["text"], r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def ask_all(s):
    said = [say(s, p) for p in PROMPTS]
    return [t for t, _ in said], [c for _, c in said]


def ask_extra(s, i):
    return say(s, PROMPTS[i % len(PROMPTS)], 30 + i, **EXTRAS[i % len(EXTRAS)])[0]


def hits(cached):
    return all(c >= len(p) - 1 - BLOCK for c, p in zip(cached, PROMPTS) if len(p) > BLOCK)


def serves(s):
    return until(lambda: s.get("/health").status == 200)


with tap.section("one process"), Stack(engine=["--enable-prefix-caching", "false"]) as s:
    want, _ = ask_all(s)
    extra = [ask_extra(s, i) for i in range(N_EXTRA)]
    told = say(s, PROMPTS[3], 400)[0]

for stages, ranks in ((2, 1), (4, 1), (3, 2)) if EXACT else ((2, 1),):
    with tap.section("%d stages of %d ranks" % (stages, ranks)), \
            Nodes(stages, ranks, store=True, host="32M") as s:
        got, cached = ask_all(s)
        tap.eq(got, want, "two nodes say what one process says")
        if not EXACT:
            tap.ok("rows go to node 1 by NCCL" in s.engine.said(), "their rows go by NCCL")
        got, cached = ask_all(s)
        tap.ok((got == want or not EXACT) and hits(cached), "and from the cache", str(cached))
        got = crowd(len(PROMPTS), lambda i: say(s, PROMPTS[i])[0])
        tap.ok(got == want or not EXACT and None not in got, "together as alone", got)
        got = crowd(len(extra), lambda i: ask_extra(s, i))
        tap.ok(got == extra or not EXACT and None not in got,
               "with masks, penalties, biases and log probabilities among them", got)
        tap.ok(s.idle(), "idle")
        n, n_far = len(s.engine.exits), len(s.far.exits)
        s.engine.kill(signal.SIGTERM)
        tap.ok(until(lambda: len(s.engine.exits) > n and len(s.far.exits) > n_far) and serves(s),
               "node 0 is stopped: both start again")
        got, cached = ask_all(s)
        tap.ok(got == want and hits(cached), "and say the same, from the pages of the life before",
               "%r %r" % (cached, got == want))

with tap.section("few pages"), Nodes(2, engine=["--num-pages", 60, "--max-model-len", 800]) as s:
    got = crowd(24, lambda i: say(s, PROMPTS[i % len(PROMPTS)])[0])
    tap.ok(got == [want[i % len(want)] for i in range(24)] or not EXACT and None not in got,
           "preempted sequences say the same", got)

for name, make in (("windows beside all tokens", lambda: twin.windows(48, (2, 5))),
                   ("states, windows and all tokens", lambda: twin.states("rfwrwf"))):
    with tap.section(name):
        folder = make()
        with Stack(model=folder) as s:
            one, _ = ask_all(s)
        with Nodes(3 if EXACT else 2, model=folder, host="32M") as s:
            got, _ = ask_all(s)
            tap.eq(got, one, "two nodes say the same")
            got, cached = ask_all(s)
            tap.ok((got == one or not EXACT) and hits(cached), "and from the cache", str(cached))

with tap.section("sleep"), Nodes(2, engine=["--sleep-after-s", 1], host="32M") as s:
    for turn in range(2):
        got, cached = ask_all(s)
        tap.ok(got == want and (turn == 0 or hits(cached)), "awake, turn %d" % turn, str(cached))
        tap.ok(until(s.is_sleeping), "asleep", s.logs())
    tap.eq(say(s, PROMPTS[-1])[0], want[-1], "awake once more")
    tap.ok(not s.engine.exits and not s.far.exits, "in the same lives")

for fault in ("device_sleep:1", "device_wake:1"):
    with tap.section("node 1 has no memory: " + fault), \
            Nodes(2, engine=["--sleep-after-s", 1], host="32M", far_env={"QUIRE_FAULT": fault}) as s:
        tap.eq(say(s, PROMPTS[3])[0], want[3], "awake")
        tap.ok(until(s.is_sleeping), "it sleeps, perhaps at the second attempt", s.logs())
        tap.eq(say(s, PROMPTS[3])[0], want[3], "and wakes")
        tap.ok(not s.engine.exits and not s.far.exits, "in the same lives")
        with open(s.path("node1.log"), encoding="utf-8") as log:
            tap.note([x[13:90] for x in log.read().splitlines() if "WARN" in x or "ERROR" in x])

for which, how in (("the far node", "killed"), ("node 0", "killed"), ("the far node", "stopped"),
                   ("node 0", "stopped")):
    for busy in (False, True):
        with tap.section("%s is %s, %s" % (which, how, "busy" if busy else "idle")), Nodes(2) as s:
            tap.eq(say(s, PROMPTS[2])[0], want[2], "both serve")
            victim, other = (s.far, s.engine) if which == "the far node" else (s.engine, s.far)
            got = []
            t = threading.Thread(target=lambda: got.append(say(s, PROMPTS[3], 400)[0]))
            if busy:
                t.start()
                until(lambda: s.metric("vllm:generation_tokens_total") > 40, 10, 0.002)
            began = time.monotonic()
            victim.kill(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            ended = until(lambda: len(other.exits) == 1, 10, 0.01)
            took = time.monotonic() - began
            tap.ok(ended and took < 5.5, "the other ends within 5 s (%.1f s)" % took)
            tap.eq(other.exits[:1], [3], "with exit code 3")
            with open(other.log, encoding="utf-8") as log:
                lines = [x for x in log.read().splitlines() if "ERROR" in x]
            tap.ok(len(lines) == 1 and "has ended" in lines[0], "by one line", lines)
            if how == "stopped":
                tap.ok(until(lambda: s.get("/health").status == 503), "health says so")
                victim.kill(signal.SIGCONT)
            tap.ok(serves(s), "health is good when both have started again")
            if busy:
                t.join()
                tap.ok(got == [told] or not EXACT and None not in got, "and the text goes on", got)
            tap.eq(say(s, PROMPTS[4])[0], want[4], "and they serve")

with tap.section("nodes that differ"):
    s = Nodes(2, start_engine=False, nginx=False, n_fronts=0)
    s.start_engine()
    s.far.hold()
    s.engine.hold()
    until(s.far.alive)
    s.far.kill(signal.SIGKILL)
    until(lambda: s.far.exits)
    s.far.argv += ["--page-tokens", "32"]
    s.far.release()
    tap.ok(until(lambda: len(s.engine.exits) == 1 and len(s.far.exits) == 2), "both end")
    tap.ok("the nodes differ" in s.engine.said(), "and say why")
    s.stop()

tap.done()
