#!/usr/bin/env python3
"""Which engine gets a request: rules of choice on simulated engines, several fronts.

Goal: choose the rule and the weights of src/front/link/engines.c before it is built, and know how
far it is from perfect knowledge.

The engines: steps of at most STEP tokens; a step takes T_STEP + T_PREFILL per prompt token +
T_SEQ per sequence that decodes + T_CTX per token of its context, as an 8B model in bf16 on an H200
does (docs/benchmarks.md). A cache of CACHE tokens in pages of 16, least recently used first out.
The fronts: a request meets one of them at random; each knows the load that an engine published at
the end of its last step, and what it has sent there since.

Rules:
  robin       in turn, per front
  least       fewest requests
  sglang      SGLang's router: the longest match of a front's own tree if that is more than 30 % of
              the prompt and the loads are balanced (max - min <= 64 or max <= 1.5 min), else the
              fewest requests
  own         cost = MISS * tokens that are not cached there + tokens that wait there + SEAT *
              requests; what is cached is a front's own memory of what it sent where
  published   the same, where engines publish the pages they hold (as of the end of a step)
  others      published, and what this front has sent since counts once for each front, since the
              others send as much
  perfect     the same with the caches and the queues of this very moment, of all fronts

Loads: a crowd that comes within a second; chats of some turns with pauses, that begin with one of 4 system prompts; long shared system
prompts with short questions; unique prompts; and all three mixed with a burst of long prompts.

    tests/bench/route.py [--engines 4] [--fronts 4] [--requests 1500] [--seeds 3]
    tests/bench/route.py --weights      published, with other weights: SEAT (64), MISS (2)

Figures, 3000 requests, 3 seeds (TTFT is the time to the first token; ms per token is the whole
time of a request divided by its output):

              4 engines, 4 fronts                    2 engines, 1 front
            rule       TTFT  95 %  ms/token  hits %   TTFT  95 %  ms/token  hits %
  chats     robin        46   116     7.13    61.4      28    74     6.08    75.0
            least        51   131     7.03    61.9      29    78     6.04    75.1
            sglang       37   106     5.84    70.1      17    37     5.44    88.2
            own          32    85     5.91    69.9      16    36     5.05    87.7
            published    15    34     4.69    87.9      16    36     5.06    87.7
            perfect      16    35     4.70    88.0      16    35     5.03    88.2
  systems   robin        16    18     5.00    93.9      13    14     4.93    94.7
            sglang       16    19     5.13    94.3      13    18     5.11    95.0
            published    13    17     4.92    94.9      13    16     4.90    94.9
            perfect      13    16     4.92    94.9      13    16     4.93    95.0
  unique    robin       230   638    12.73     0.0     233   650    13.18     0.0
            sglang      234   631    11.16     0.0     236   659    12.31     0.0
            published   152   391    10.66     0.0     189   506    12.17     0.0
            perfect     145   363    10.64     0.0     189   506    12.17     0.0
  mixed     robin       100   380     7.07    48.2      96   361     6.95    54.2
            sglang       97   385     6.40    52.3      89   345     6.23    59.8
            own          69   333     6.38    50.9      76   333     6.40    57.9
            published    63   333     5.94    56.8      74   333     6.34    58.1
            perfect      63   333     5.93    56.8      75   333     6.34    58.1

1000 requests, 2 seeds, 4 engines, 4 fronts:

  crowd       published  3236  6022    35.40     0.0
              others     3171  5957    35.42     0.0
              perfect    3171  5958    35.42     0.0

Elsewhere others and published differ by less than 1 %.

Verdict: others, SEAT 64, MISS 2. With published all fronts rush to the engine that told the least:
on four H200s one engine got 438 of 1024 requests, and another 151. It is as good as perfect
knowledge. With several fronts a memory of one's own (own, sglang) computes twice as much of chats,
because the next turn meets another front. Tokens that wait are a better load than requests, which
do not tell a prompt of 200 from one of 12,000: with unique prompts that alone makes first tokens a
third quicker. Weights matter little: SEAT 16 to 256 and MISS 1 to 3 are within 3 % of each other;
SEAT 0 makes requests 4 % slower and SEAT 1024 loses prefixes of chats."""

import argparse
import collections
import heapq
import random
import statistics

STEP, SEQS, PAGE = 8192, 256, 16
T_STEP, T_PREFILL, T_SEQ, T_CTX = 3.4e-3, 27e-6, 10e-6, 28e-9
CACHE = 400_000


class Request:
    def __init__(self, at, pages, n_out, then=None):
        self.at, self.pages, self.n_out, self.then = at, pages, n_out, then
        self.n_prompt = len(pages) * PAGE
        self.first = self.end = None


class Engine:
    def __init__(self):
        self.cache = collections.OrderedDict()
        self.waiting, self.running = collections.deque(), []
        self.busy = False
        self.lane = []           # sent, and not taken yet
        self.seen = (0, 0)       # published: requests, tokens to compute
        self.held = self.cache   # published: it changes only at the end of a step
        self.n_hit = self.n_asked = 0

    def held_pages(self, pages, of=None):
        of = self.cache if of is None else of
        n = 0
        for p in pages:
            if p not in of:
                break
            n += 1
        return n

    def todo(self):
        return sum(r.left for r in self.running) + sum(r.n_prompt for r in self.waiting)

    def use(self, pages):
        for p in pages:
            self.cache[p] = True
            self.cache.move_to_end(p)
        while len(self.cache) * PAGE > CACHE:
            self.cache.popitem(last=False)

    def begin(self):
        """Plan a step; its seconds, or None."""
        self.waiting.extend(self.lane)
        self.lane.clear()
        budget = STEP - sum(r.left == 0 for r in self.running)
        self.plan = []
        while self.waiting and len(self.running) < SEQS and budget > 0:
            r = self.waiting.popleft()
            n = min(self.held_pages(r.pages), (r.n_prompt - 1) // PAGE)
            self.n_hit += n * PAGE
            self.n_asked += r.n_prompt
            r.left, r.n_done = r.n_prompt - n * PAGE, 0
            self.running.append(r)
            budget -= r.left
        took, budget = T_STEP, STEP
        for r in self.running:
            n = min(r.left, budget) if r.left else 0
            if r.left:
                budget -= n
                took += n * T_PREFILL
            else:
                took += T_SEQ + T_CTX * (r.n_prompt + r.n_done)
            self.plan.append((r, n))
        return took if self.running else None

    def finish(self, now):
        ended = []
        for r, n in self.plan:
            r.left -= n
            if r.left == 0:
                if r.n_done == 0:
                    r.first = now
                    self.use(r.pages)
                r.n_done += 1
                if r.n_done >= r.n_out:
                    r.end = now
                    ended.append(r)
        for r in ended:
            self.running.remove(r)
            self.use(r.pages)
        return ended

    def publish(self):
        self.seen = (len(self.running) + len(self.waiting), self.todo())


class Front:
    miss = 2

    def __init__(self, engines, rng):
        self.engines, self.turn = engines, rng.randrange(len(engines))
        self.sent = [collections.OrderedDict() for _ in engines]

    def load(self, i):
        return self.engines[i].seen[0] + sum(r.front is self for r in self.engines[i].lane)

    def cost(self, r, i, rule, seat):
        e = self.engines[i]
        if rule == "perfect":
            n, held = len(e.running) + len(e.waiting) + len(e.lane), e.held_pages(r.pages)
            todo = e.todo() + sum(q.n_prompt - PAGE * e.held_pages(q.pages) for q in e.lane)
        else:
            mine = [q for q in e.lane if q.front is self]
            times = len(e.fronts) if rule == "others" else 1
            n = e.seen[0] + times * len(mine)
            todo = e.seen[1] + times * sum(q.n_prompt for q in mine)
            held = e.held_pages(r.pages, self.sent[i] if rule == "own" else e.held)
        return Front.miss * (r.n_prompt - held * PAGE) + todo + seat * n

    def choose(self, r, rule, seat):
        n = len(self.engines)
        order = [(self.turn + 1 + k) % n for k in range(n)]
        if rule == "robin":
            i = order[0]
        elif rule == "least":
            i = min(order, key=self.load)
        elif rule == "sglang":
            loads = [self.load(i) for i in range(n)]
            match = [self.engines[i].held_pages(r.pages, self.sent[i]) for i in range(n)]
            best = max(order, key=lambda i: match[i])
            balanced = max(loads) - min(loads) <= 64 or max(loads) <= 1.5 * min(loads)
            i = best if balanced and match[best] > 0.3 * len(r.pages) else min(order, key=self.load)
        else:
            i = min(order, key=lambda i: self.cost(r, i, rule, seat))
        self.turn = i
        for p in r.pages:  # as many tokens as the engine's cache has
            self.sent[i][p] = True
            self.sent[i].move_to_end(p)
        while len(self.sent[i]) * PAGE > CACHE:
            self.sent[i].popitem(last=False)
        return i


def prompt(name, n_tokens):
    return [(name, k) for k in range(n_tokens // PAGE)]


def chats(rng, n, rate):
    """Chats of 2 to 8 turns; a turn comes some seconds after the answer to the one before."""
    out, at, left = [], 0.0, n
    while left > 0:
        at += rng.expovariate(rate / 4)
        turns = min(left, rng.randint(2, 8))
        left -= turns
        name, system = ("chat", rng.random()), prompt(("system", rng.randrange(4)), 1000)

        def turn(k, at, pages, name=name, turns=turns):
            pages = pages + prompt((name, k), rng.randint(5, 60) * PAGE)
            n_out = rng.randint(50, 300)

            def then(now):
                if k + 1 < turns:
                    answer = prompt((name, k, "a"), n_out)
                    return turn(k + 1, now + rng.expovariate(1 / 6), pages + answer)
                return None
            return Request(at, pages, n_out, then)
        out.append(turn(0, at, system))
    return out


def systems(rng, n, rate):
    out, at = [], 0.0
    for i in range(n):
        at += rng.expovariate(rate)
        # Some of 12 are asked for far more often than others.
        which = min(int(rng.expovariate(0.4)), 11)
        out.append(Request(at, prompt(("long", which), 4000) + prompt(("q", i, rng.random()), 200),
                           rng.randint(20, 200)))
    return out


def unique(rng, n, rate):
    out, at = [], 0.0
    for i in range(n):
        at += rng.expovariate(rate)
        out.append(Request(at, prompt(("u", i, rng.random()), rng.choice([200, 1000, 4000, 12000])),
                           rng.randint(20, 300)))
    return out


def mixed(rng, n, rate):
    out = chats(rng, n // 2, rate / 2) + systems(rng, n // 4, rate / 4)
    return out + unique(rng, n // 4, rate / 8) + [Request(3 + k * 0.01, prompt(("burst", k), 16000), 50) for k in range(12)]


def crowd(rng, n, rate):
    """All within a second."""
    return [Request(rng.random(), prompt(("crowd", i), 1024), 300) for i in range(n)]


LOADS = {"crowd": (crowd, 1), "chats": (chats, 10), "systems": (systems, 14), "unique": (unique, 4.5),
         "mixed": (mixed, 10)}


def run(load, rule, n_engines, n_fronts, n_requests, seed, seat=64):
    make, rate = LOADS[load]
    requests = make(random.Random(seed), n_requests, rate * n_engines)
    rng = random.Random(seed + 1)
    engines = [Engine() for _ in range(n_engines)]
    fronts = [Front(engines, rng) for _ in range(n_fronts)]
    for e in engines:
        e.fronts = fronts
    events, n, done = [], 0, []
    for r in requests:
        heapq.heappush(events, (r.at, n, "ask", r))
        n += 1

    def start(e, now):
        nonlocal n
        took = e.begin()
        e.busy = took is not None
        e.publish()
        if e.busy:
            heapq.heappush(events, (now + took, n, "step", e))
            n += 1
    while events:
        now, _, kind, what = heapq.heappop(events)
        if kind == "ask":
            what.front = rng.choice(fronts)
            e = engines[what.front.choose(what, rule, seat)]
            e.lane.append(what)
            if not e.busy:
                start(e, now)
            continue
        for r in what.finish(now):
            done.append(r)
            nxt = r.then(now) if r.then else None
            if nxt:
                heapq.heappush(events, (nxt.at, n, "ask", nxt))
                n += 1
        start(what, now)
    first = sorted(r.first - r.at for r in done)
    whole = [(r.end - r.at) / r.n_out for r in done]
    hits = sum(e.n_hit for e in engines) / max(1, sum(e.n_asked for e in engines))
    return (1e3 * statistics.mean(first), 1e3 * first[int(0.95 * len(first))],
            1e3 * statistics.mean(whole), 100 * hits)


def mean(rows):
    return [statistics.mean(c) for c in zip(*rows)]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--engines", type=int, default=4)
    a.add_argument("--fronts", type=int, default=4)
    a.add_argument("--requests", type=int, default=1500)
    a.add_argument("--seeds", type=int, default=3)
    a.add_argument("--weights", action="store_true")
    a = a.parse_args()
    print("%d engines, %d fronts, %d requests, %d seeds" % (a.engines, a.fronts, a.requests,
                                                            a.seeds))
    print("%-8s %-10s %10s %10s %12s %7s" % ("load", "rule", "TTFT ms", "95 % ms", "ms per token",
                                             "hits %"))
    weights = [(s, 2) for s in (0, 16, 64, 256, 1024)] + [(64, m) for m in (1, 1.5, 3, 5)]
    for load in LOADS:
        rows = [("%d, %g" % w, "published") + w for w in weights] if a.weights else \
            [(r, r, 64, 2) for r in ("robin", "least", "sglang", "own", "published", "others", "perfect")]
        for name, rule, seat, Front.miss in rows:
            row = mean([run(load, rule, a.engines, a.fronts, a.requests, s, seat)
                        for s in range(a.seeds)])
            print("%-8s %-10s %10.0f %10.0f %12.2f %7.1f" % ((load, name) + tuple(row)), flush=True)


if __name__ == "__main__":
    main()
