#!/usr/bin/env python3
"""Models that do not keep all tokens in all layers: what they say is the same from an empty cache
and from a full one, at any length, after restarts and kills, and when pages are short; memory is
bounded by the window; every tier serves them."""

import random
import signal
import subprocess
import threading
import time

import os

import twin
from harness import BUILDDIR, DEVICE, LONG, Stack, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
TEXT = "/v1/completions"
draw_seed(tap)
KINDS = [("windows beside all tokens", lambda: twin.windows(48, (2, 5)), False),
         ("a window in all layers", lambda: twin.windows(80, ()), False),
         ("states beside all tokens", lambda: twin.states("rfrfrr"), True),
         ("states alone", lambda: twin.states("rrrrrr"), True),
         ("delta rule beside all tokens", lambda: twin.delta("ddfddf"), True),
         ("delta rule by channel beside latents", lambda: twin.kimi("ddfddf"), True),
         ("Mamba-2 beside all tokens", lambda: twin.mamba("mmfmmf"), True),
         ("Mamba-2 and all tokens in each layer", lambda: twin.mamba("bbbbbb"), True),
         ("latents and experts", twin.latent, False),
         ("latents of chosen tokens", lambda: twin.latent(40), False),
         ("states, windows and all tokens", lambda: twin.states("rfwrwf"), True)]
BLOCK = 16
BRANCH = 128  # TABLES_BRANCH
N_SAID = 24 if LONG else 16
N_FAR = 150 if LONG else 60
N_CROWD, N_GROWN = (12, 60) if LONG else (8, 32)  # where pages are short
# Of prompts: around three pages, and one behind whose 400th token another goes on.
LENGTHS = (5, 30, 47, 48, 49, 64, 200, 333, 700) if LONG else (5, 48, 49, 200, 450)
BOUNDED = {"a window in all layers": 12, "states alone": 6}  # pages that any length fits in
SHORT = {"delta rule beside all tokens": 140, "delta rule by channel beside latents": 125,
         "Mamba-2 beside all tokens": 140,
         "Mamba-2 and all tokens in each layer": 140, "latents and experts": 120,
         "latents of chosen tokens": 120}  # else these:
FEW_PAGES = 220 if LONG else 130


def say(s, ids, n=N_SAID):
    """What is said, with the log probability of each token, which tells wrong sums by themselves;
    and how much of the prompt was cached."""
    r = s.post(TEXT, dict(prompt=ids, max_tokens=n, temperature=0, ignore_eos=True, logprobs=0,
                          return_token_ids=True))
    if r.status != 200:
        tap.note(r.text[:300])
        return None, 0
    c = r.json["choices"][0]
    return (list(zip(c["token_ids"], c["logprobs"]["token_logprobs"])),
            r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def ids_of(said):
    return [i for i, _ in said]


def kill(s, sig=signal.SIGKILL):
    """The engine may be between two lives."""
    while True:
        until(s.engine.alive, 30)
        try:
            s.engine.kill(sig)
            return
        except ProcessLookupError:
            time.sleep(0.01)


def draw(n):
    return [random.randrange(300, 2000) for _ in range(n)]


def agree(got, want, name):
    """On cuda the last bits depend on what shares a step: far ends of texts part."""
    if DEVICE == "cpu":
        tap.eq(got, want, name)
    else:
        tap.ok(all(g is not None and ids_of(g)[:3] == ids_of(w)[:3] for g, w in zip(got, want)), name)


def conversation(s, prompts):
    """Each prompt, then what was said and more behind it, then the first part of it again."""
    said = []
    for p in prompts:
        first, _ = say(s, p)
        more, _ = say(s, p + ids_of(first) + p[:30])
        part, _ = say(s, p[:len(p) * 2 // 3] + p[:9])
        said += [first, more, part]
    return said


for name, make, has_states in KINDS:
    tap.section(name)
    folder = make()
    prompts = [draw(n) for n in LENGTHS]
    with Stack(model=folder, engine=["--enable-prefix-caching", "false"]) as s:
        want = conversation(s, prompts)
        halves = [prompts[-1][:400] + draw(20) for _ in range(2)]
        want_halves = [say(s, p)[0] for p in halves]
        tap.eq(len({str(w) for w in want}), len(want), "each prompt has an answer of its own")
    with Stack(model=folder, host="24M", store=True, engine=["--max-num-batched-tokens", 96]) as s:
        agree(conversation(s, prompts), want, "what is said from a cache, in chunks, is the same")
        again = [say(s, p) for p in prompts]
        agree([a for a, _ in again], want[::3], "and when it is asked again")
        # A snapshot stands behind the last whole page.
        tap.ok(all(cached == ((len(p) - 1) // BLOCK * BLOCK if has_states else len(p) - 1)
                   for (_, cached), p in zip(again, prompts)),
               "all that could be is found", str([c for _, c in again]))
        parts = [say(s, p) for p in halves]
        agree([p for p, _ in parts], want_halves, "prompts that part in its middle say the same")
        # The first that parts takes a snapshot there, unless one stands close before. Pages of tokens
        # tell where.
        tap.ok(parts[1][1] > 400 - (BRANCH if has_states else BLOCK) or name == "states alone",
               "of a prefix as much as all groups serve: %s of 400 tokens" % [c for _, c in parts])
        got = crowd(len(prompts), lambda i: say(s, prompts[i])[0])
        agree(got, want[::3], "together as alone")
        tap.ok(s.idle(), "idle")
        kill(s, signal.SIGTERM)  # saves what the device has
        tap.ok(until(lambda: len(s.engine.exits) > 0, 30), "a restart")
        until(lambda: s.get("/health").status == 200, 30)
        again = [say(s, p) for p in prompts]
        agree([a for a, _ in again], want[::3], "another life says the same")
        tap.ok(all(c >= len(p) - 1 - BLOCK for (_, c), p in zip(again, prompts) if len(p) > BLOCK),
               "from the pages of the one before", str([c for _, c in again]))
        got, stop = [], []

        def stream(i):
            got.append((i, say(s, prompts[i], 2 * N_SAID)[0]))

        threads = [threading.Thread(target=stream, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for _ in range(2):  # the third would be the last of a request that was in all of them
            time.sleep(0.2)
            kill(s)
        for t in threads:
            t.join()
        agree([g and g[:N_SAID] for _, g in sorted(got)], want[::3], "under kills the same")
        kill(s, signal.SIGTERM)
        until(lambda: s.get("/health").status == 200, 30)
        r = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump"), "--verify", s.store_dir],
                           capture_output=True, encoding="utf-8")
        tap.eq(r.returncode, 0, "the store is whole: %s" % (r.stdout or r.stderr).strip()[-80:])
    with Stack(model=folder, engine=["--num-pages", SHORT.get(name, FEW_PAGES), "--max-model-len", 1200,
                                     "--max-num-batched-tokens", 128]) as s:
        long = [draw(n) for n in (164, 300, 433, 800)]
        alone = [say(s, p, N_GROWN)[0] for p in long]
        got = crowd(N_CROWD, lambda i: say(s, long[i % 4], N_GROWN)[0])
        agree(got, [alone[i % 4] for i in range(N_CROWD)], "pages are short: the same")
        tap.note("%d preemptions" % s.metric("vllm:num_preemptions_total"))
        if name in BOUNDED:
            far = draw(1000 if LONG else 600)
            want_far = say(s, far, N_FAR)[0]
    if name in BOUNDED:
        with Stack(model=folder, engine=["--num-pages", BOUNDED[name], "--max-model-len", 1200,
                                         "--max-num-batched-tokens", 64]) as s:
            agree([say(s, far, N_FAR)[0]], [want_far],
                  "%d tokens in %d pages of %d" % (len(far) + N_FAR, BOUNDED[name], BLOCK))

tap.done()
