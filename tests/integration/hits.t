#!/usr/bin/env python3
"""What a model with states finds in its cache, beside one without. Both have pages of 16 tokens; the
one with states has Qwen3.5's layers, of which three of four keep a state, and a snapshot of its
states is as large as the keys of 3,456 tokens (of Qwen3.5-35B-A3B: 3,300). Two loads: prompts of
2,200 tokens, each of which shares its first 100 to 2,100 with one before, and agents that ask, get a
tool's answer, and ask again with all that went before. No prompt finds less than it does without
states by more than one snapshot stride, and the agents find 95% of it. Hits are told by group: in
usage, metrics, and quire top."""

import os
import random
import re
import subprocess
import time

import twin
from harness import BUILDDIR, LONG, Stack, Tap, draw_seed, key, need_nginx

need_nginx()
tap = Tap()
seed = draw_seed(tap)
STRIDE = 1024  # TABLES_STRIDE
LEN, N_PROMPTS = 2200, 64 if LONG else 16
# Agents share descriptions of tools; each turn adds what was said and a tool's answer.
N_TOOLS, N_AGENTS, N_TURNS = (4, 24, 8) if LONG else (2, 8, 5)
TOOLS, ANSWER, OUTPUT, THOUGHT = 3000 if LONG else 1500, (100, 400), 40, 24
TIGHT = 6000 if LONG else 1600  # pages; all agents' newest take twice as many
GROUPS = "quire:prefix_cache_group_hits_total"


def draw(n):
    return [random.randrange(300, 2000) for _ in range(n)]


def ask(s, ids, n=1, tenant=0):
    """Cached tokens, those of each group, and the output's ids."""
    r = s.post("/v1/completions", dict(prompt=ids, max_tokens=n, temperature=0, ignore_eos=True,
                                       return_token_ids=True),
               headers={"Authorization": "Bearer " + key(tenant)})
    if r.status != 200:
        tap.ok(False, "an answer: %s" % r.text[:300])
        return 0, {}, [0] * n
    told = r.json["usage"]["prompt_tokens_details"]
    return (told["cached_tokens"], told.get("cached_tokens_by_group", {}),
            r.json["choices"][0]["token_ids"])


def draw_prompts():
    prompts = [draw(LEN)]
    while len(prompts) < N_PROMPTS:
        n = random.randint(100, 2100)
        prompts.append(random.choice(prompts)[:n] + draw(LEN - n))
    return prompts


def draw_agents():
    """Of each agent its first prompt and the tools' answers."""
    tools = [draw(TOOLS) for _ in range(N_TOOLS)]
    return [(tools[i % N_TOOLS] + draw(60), [draw(random.randint(*ANSWER)) for _ in range(N_TURNS)])
            for i in range(N_AGENTS)]


def play(s):
    """(tokens of all prompts, and hits, by turns). Every second agent's client does not send the
    reasoning back, so its next prompt leaves the last one two tokens before its end."""
    whole, hits = 0, []
    at = [first for first, _ in agents]
    for turn in range(N_TURNS):
        for i, (_, answers) in enumerate(agents):
            whole += len(at[i])
            hits.append(ask(s, at[i], OUTPUT))
            said = hits[-1][2]
            at[i] = (at[i] + said if i % 2 == 0 else at[i][:-2] + said[THOUGHT:]) + answers[turn]
    return whole, hits


def top_says(s, ids):
    """The line about groups of quire top, while a prompt is asked."""
    with subprocess.Popen([os.path.join(BUILDDIR, "quire"), "top", "--once", "--seconds", "2",
                           "--engine-socket", s.engine_socket], stdout=subprocess.PIPE,
                          encoding="utf-8") as top:
        time.sleep(0.5)  # its first look
        for _ in range(3):
            ask(s, ids)
        lines = top.stdout.read().splitlines()
    return next((line for line in lines if line.startswith("by group")), "")


def by_group(s):
    """{group: tokens} of the metrics."""
    return {re.search('group="([a-z]*)"', k).group(1): v for k, v in s.metrics().items()
            if k.startswith(GROUPS)}


def run(name, kinds):
    """Hits of each prompt; tokens of agents' prompts and the cached ones."""
    tap.section(name)
    with Stack(model=twin.small(kinds), engine=["--num-pages", 120000, "--max-model-len", 8192]) as s:
        hits = [ask(s, p) for p in prompts]
        whole, turns = play(s)
        cached = sum(c for c, _, _ in turns)
        tap.note("prompts: %d of %d tokens cached; agents: %d of %d"
                 % (sum(c for c, _, _ in hits), LEN * N_PROMPTS, cached, whole))
        n, size = s.metric("quire:state_snapshots_total"), s.metric("quire:state_snapshot_bytes")
        told, all_hits = by_group(s), s.metric("vllm:prefix_cache_hits_total")
        line = top_says(s, prompts[0])
        found = {g: sum(of[g] for _, of, _ in hits + turns) for g in ("full", "state")} if kinds else {}
        first = draw(900)
        short = [ask(s, first + draw(80))[0] for _ in range(3)]
        if kinds:
            tap.eq(short, [0, 0, 896], "prompts that share less than a stride: where the second left the "
                   "first, a snapshot serves the third")
            tap.note("%d snapshots of %d bytes, %.0f MB in all" % (n, size, n * size * 1e-6))
            tap.eq(size, 216 * 1024, "a snapshot's bytes are told")
            tap.eq(told, found, "usage and metrics agree about hits by group: %s" % found)
            tap.ok(all(of["state"] == c <= of["full"] for c, of, _ in hits + turns),
                   "a prefix is used as far as both groups serve it")
            tap.ok(re.match(r"by group: all tokens 99.\d%   states 99.\d%   snapshots: \d+ of 0.21 MiB", line),
                   "quire top: %s" % line)
            words = dict(input="All work and no play. " * 30, max_output_tokens=1)
            for _ in range(2):
                r = s.post("/v1/responses", words).json["usage"]["input_tokens_details"]
            tap.ok(r["cached_tokens_by_group"]["state"] == r["cached_tokens"] > 64, "responses: %s" % r)
        else:
            tap.eq(list(told), ["full"], "metrics have the group that there is")
            tap.eq(told["full"], all_hits, "which has all hits")
            tap.ok(not line and not any(of for _, of, _ in hits), "a single group is not told apart")
    return [c for c, _, _ in hits], whole, cached


def told_next(s, prompt):
    """Log probabilities of the likeliest next tokens, by id."""
    r = s.post("/v1/completions", dict(prompt=prompt, max_tokens=1, temperature=0, logprobs=5,
                                       return_tokens_as_token_ids=True)).json
    return r["choices"][0]["logprobs"]["top_logprobs"][0]


def compare_types():
    """States in bfloat16: half a snapshot, the same hits, and nearly the same log probabilities."""
    tap.section("states in bfloat16")
    said = []
    for dtype in ("float32", "bfloat16"):
        with Stack(model=twin.small("dddf"), engine=["--mamba-ssm-cache-dtype", dtype, "--num-pages", 4000,
                                                     "--max-num-batched-tokens", 64]) as s:
            first = told_next(s, prompts[0][:600])
            again = told_next(s, prompts[0][:600])
            said.append((s.metric("quire:state_snapshot_bytes"), first,
                         ask(s, prompts[0][:600] + prompts[1][:50])[0]))
            tap.ok(max(abs(first[t] - again.get(t, 9)) for t in first) < 1e-4,
                   "%s: from a snapshot the same" % dtype)
    (size, want, hit), (half, got, hit_of_half) = said
    # The fifth of one may be the sixth of the other, which then has less than its fifth.
    worst = max(abs(want[t] - got.get(t, min(got.values()))) for t in want)
    tap.ok(half * 2 == size, "%d bytes, not %d" % (half, size))
    tap.eq((hit, hit_of_half), (592, 592), "the same hits")
    tap.ok(0 < worst < 0.1, "a prompt in ten steps: log probabilities within %.4f" % worst)
    r = subprocess.run([os.path.join(BUILDDIR, "quire-engine"), "--model", twin.small("dddf"), "--device", "cpu",
                        "--mamba-ssm-cache-dtype", "half"], capture_output=True, encoding="utf-8")
    tap.ok(r.returncode != 0 and "use auto, float32 or bfloat16" in r.stderr, "another type is refused")


def ask_as_tenants():
    """Tenants that share pages hear of their own alone, also by group."""
    tap.section("tenants")
    with Stack(model=twin.small("dddf"), engine=["--num-pages", 4000],
               front=["--cache-per-key", "false"]) as s:
        told = [ask(s, prompts[0][:600], tenant=i)[:2] for i in (0, 1, 0)]
        tap.eq(told[0], (0, {"full": 0, "state": 0}), "the first finds nothing")
        tap.eq(told[1], told[0], "nor does another hear of its pages")
        tap.eq(told[2], (592, {"full": 592, "state": 592}), "which it does itself")
        tap.eq(by_group(s), {"full": 1184, "state": 1184}, "operators see both hits")


def run_tight(n_pages):
    """The agents again, with room on the device for some of their pages, and host memory for all."""
    tap.section("host memory behind %d pages" % n_pages)
    with Stack(model=twin.small("dddf"), host="256M",
               engine=["--num-pages", n_pages, "--max-model-len", 8192, "--max-num-seqs", 8]) as s:
        whole, turns = play(s)
        found = sum(c for c, _, _ in turns)
        tap.note("agents: %d of %d; from host memory %d, pages there %d"
                 % (found, whole, s.metric("quire:host_prefix_cache_hits_total"),
                    s.metric("quire:kv_host_pages")))
        return found


prompts, agents = draw_prompts(), draw_agents()
compare_types()
ask_as_tenants()
dense, _, most = run("without states", "")
hits, whole, cached = run("with states", "dddf")
tap.section("beside each other")
less = [d - h for d, h in zip(dense, hits)]
tap.ok(max(less) < STRIDE, "each prompt finds what it does without states, less a stride: %d to %d"
       % (min(less), max(less)))
tap.ok(sum(dense) > N_PROMPTS * 700, "which is much: %d tokens, and %d" % (sum(dense), sum(hits)))
tap.ok(cached >= 0.95 * most, "agents find %.1f%% of theirs: %d of %d" % (100 * cached / most, cached, most))
tight = run_tight(TIGHT)
tap.ok(tight >= 0.95 * most, "so they do with a part of the pages: %.1f%%" % (100 * tight / most))
tap.done()
