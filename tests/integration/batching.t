#!/usr/bin/env python3
"""Batching is invisible: 64 concurrent requests of mixed length with chunked prefill, preemption
forced by a small pool, and prefix sharing give the same greedy text as each alone. Seeded
sampling at temperature 1 gives the same text alone and in the crowd as well."""

from harness import DEVICE, Stack, Tap, crowd, golden, need_nginx

N = 64

need_nginx()
tap = Tap()

# Prompts of 20 to 700 tokens; a third share a long beginning, some end within it.
story = " ".join("The %s fox carried lantern number %d over the old bridge." % (a, i)
                 for i, a in enumerate(["clever", "quiet", "small", "brave"] * 8))
known = golden("known.json")
heldout = golden("heldout.json")


def bodies(s):  # s.chat() only makes the body
    out = []
    for i in range(N):
        if i % 3 == 0:
            b = s.chat(story[:200 + 24 * i] + " Question %d: what did the fox carry?" % i,
                       max_tokens=24 + i % 7, ignore_eos=True)
        elif i % 3 == 1:
            b = s.chat(heldout[(i * 7) % len(heldout)]["messages"], max_tokens=160)
        else:
            b = s.chat(known[i % len(known)]["messages"], max_tokens=40 + i, ignore_eos=True)
        if i % 4 == 3:
            b.update(temperature=1.0, seed=1000 + i)
        if i % 8 == 5:
            b.update(temperature=0.8, seed=i, top_k=20, top_p=0.9, presence_penalty=0.5,
                     repetition_penalty=1.1)
        out.append(b)
    return out


def must_agree(bad, s):
    """Those of bad that count. The cpu device's sums do not depend on what shares a step. The cuda
    device's do, in the last bit: there the answers of the model must agree, not what it says
    behind their end or what a draw among near-equals says."""
    if DEVICE == "cpu":
        return bad
    firm = [b for b in bad if not (bodies(s)[b[0]].get("ignore_eos")
                                   or bodies(s)[b[0]].get("temperature"))]
    tap.note("%d differ behind the end or in a draw" % (len(bad) - len(firm)))
    return firm


def answer(s, body):
    r = s.post("/v1/chat/completions", body)
    if r.status != 200:
        return (r.status, r.text, 0)
    c = r.json["choices"][0]
    return (c["message"]["content"], c["finish_reason"], r.json["usage"]["completion_tokens"])


# Alone: one after the other, in an engine without any of it.
with Stack(engine=["--enable-prefix-caching", "false"]) as s:
    alone = [answer(s, b) for b in bodies(s)]
    m = s.metrics()
    tap.eq(s.metric("vllm:num_preemptions_total"), 0, "alone: nothing was preempted")
    tap.eq(s.metric("vllm:prefix_cache_hits_total"), 0, "alone: nothing was shared")
tap.ok(all(isinstance(a[0], str) for a in alone), "alone: all 64 are answered", alone)
tap.ok(len(set(a[0] for a in alone)) > 40, "the 64 texts differ from each other")

# The crowd. 68 pages of 16 tokens are fewer than 64 such sequences want.
with Stack(engine=["--num-pages", 68, "--max-num-batched-tokens", 48, "--max-num-seqs", 32,
                   "--max-model-len", 1024, "--long-prefill-token-threshold", 32]) as s:
    for turn in ("cold", "warm"):
        got = crowd(N, lambda i: answer(s, bodies(s)[i]))
        bad = [(i, alone[i], got[i]) for i in range(N) if got[i] != alone[i]]
        bad = must_agree(bad, s)
        tap.eq(len(bad), 0, "%s crowd: every text, reason and count is as alone" % turn)
        for i, a, g in bad[:4]:
            tap.note("request %d\n alone %r\n crowd %r" % (i, a, g))
    preempted, hits = s.metric("vllm:num_preemptions_total"), \
        s.metric("vllm:prefix_cache_hits_total")
    tap.ok(preempted > 0, "preemptions happened (%d)" % preempted)
    tap.ok(hits > 0, "prefixes were shared (%d tokens)" % hits)
    tap.ok(s.idle(), "idle afterwards")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "every page came back")
    tap.note("%d steps" % s.metric("quire:steps_total"))

# The same with streams, half of them read at once with prefix caching and a store beneath.
with Stack(engine=["--num-pages", 160, "--max-num-batched-tokens", 96], store=True) as s:
    told = crowd(N, lambda i: s.stream("/v1/chat/completions",
                                       dict(bodies(s)[i], stream_options={"include_usage": True})))
    bad = [(i, alone[i], getattr(t, "text", t)) for i, t in enumerate(told)
           if getattr(t, "text", {}).get(0) != alone[i][0] or t.finish.get(0) != alone[i][1]
           or t.usage["completion_tokens"] != alone[i][2] or not t.done]
    bad = must_agree(bad, s)
    tap.eq(len(bad), 0, "streams with a page store beneath: as alone")
    for i, a, g in bad[:4]:
        tap.note("request %d\n alone %r\n crowd %r" % (i, a, g))
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
