#!/usr/bin/env python3
"""Drafters (speculative_config with a model): every answer is the answer without one, whatever its
fields, alone, in a crowd, with few pages, found prefixes, several ranks, and over engines that die.
Drafters here are the demo model itself, whose drafts are right, its first layer, whose drafts are
seldom right, and a head of random weights. SEED=n draws other requests, N_REQUESTS more of them."""

import json
import os
import random
import threading
import time

from drawn import FORMS, LINES, TEXT, ask, draw
from harness import DEVICE, LONG, MODEL, Stack, Tap, crowd, need_nginx, until
import twin
from twin import eagle_head, first_layers, folder, windows

need_nginx()
tap = Tap()
SEED = int(os.environ.get("SEED", "1"))
N_REQUESTS = int(os.environ.get("N_REQUESTS", "1000" if LONG else "20"))
N_FEW = N_REQUESTS // 3


def told(s):
    return {k: s.metric("vllm:spec_decode_num_%s_total" % k)
            for k in ("drafts", "draft_tokens", "accepted_tokens")}


def compare(s, which, name):
    """Are the answers of requests `which` those of a server without drafts, one after another?"""
    wrong, n_forms, of_forms = [], 0, {"draft_tokens": 0, "accepted_tokens": 0}
    for i in which:
        before, w = told(s), want[i]
        got = ask(s, *requests[i])
        if any(k in requests[i][1] for k in FORMS):
            n_forms += 1
            for k, n in told(s).items():
                of_forms[k] = of_forms.get(k, 0) + n - before[k]
        if not (got == w if DEVICE == "cpu" else got[0] == w[0]):
            wrong.append("%s %s\n  want %s\n  got  %s" % (requests[i][0], json.dumps(requests[i][1]),
                                                         w, got))
    tap.ok(not wrong, "%s: %d random requests, SEED=%d: each as without drafts"
           % (name, len(which), SEED), "%d wrong\n%s" % (len(wrong), "\n".join(wrong[:3])))
    if n_forms >= 8:  # of fewer, drafts of a random head may all be wrong
        tap.ok(of_forms["accepted_tokens"] > 0,
               "%s: some drafts are right where the output has a form" % name, of_forms)
    tap.note("%d with a form: %s" % (n_forms, of_forms))


def compare_crowd(s, which, name):
    got = crowd(len(which), lambda i: ask(s, *requests[which[i]]))
    wrong = [i for i, g in zip(which, got) if g != want[i]]
    tap.ok(DEVICE != "cpu" or not wrong, "%s: a crowd of %d as each alone" % (name, len(which)),
           "%d wrong: %s" % (len(wrong), json.dumps(requests[wrong[0]][1]) if wrong else ""))


def compare_killed(s, which, name):
    """The engine dies while they run."""
    got = []
    threads = [threading.Thread(target=lambda i=i: got.append((i, ask(s, *requests[i]))))
               for i in which]
    for t in threads:
        t.start()
    time.sleep(0.2)
    until(s.engine.alive)
    s.engine.kill()
    for t in threads:
        t.join()
    tap.ok(DEVICE != "cpu" or all(g == want[i] for i, g in got),
           "%s: the same over an engine's death" % name)


def speculation(model, n=4, **more):
    """Always n drafts: neither drafter is worth its time here."""
    return ["--speculative-config", json.dumps(dict(more, model=model, num_speculative_tokens=n,
                                                    adaptive=False))]


PLAIN = ["--max-num-seqs", 16]
with Stack(engine=PLAIN) as s:
    draws = random.Random(SEED)
    requests = [draw(draws, s) for _ in range(N_REQUESTS)]
    want = [ask(s, path, body) for path, body in requests]
every = list(range(N_REQUESTS))
longer = [i for i, (_, body) in enumerate(requests) if body["max_tokens"] >= 60]
single = [i for i in longer if "n" not in requests[i][1]][:6]

tap.section("a draft model that is right")
with Stack(engine=PLAIN + speculation(MODEL, method="draft_model")) as s:
    compare(s, every, "the model itself")
    said = told(s)
    tap.ok(said["accepted_tokens"] > said["draft_tokens"] / 2 > 100, "most drafts are right", said)
    tap.note("%s" % said)
    compare_crowd(s, longer[:16], "the model itself")
    compare_killed(s, single, "the model itself")
    before = s.metric("quire:steps_total")
    story = dict(prompt=LINES[1] * 5, max_tokens=100, temperature=0, ignore_eos=True)
    ask(s, TEXT, story)
    steps = s.metric("quire:steps_total") - before
    tap.ok(steps < 60, "100 tokens in fewer steps", steps)
    tap.ok(s.idle(), "nothing is left behind")

tap.section("one that is mostly wrong, few pages")
with Stack(engine=PLAIN + ["--num-pages", 34, "--max-model-len", 512] +
           speculation(first_layers(1))) as s:
    small = [i for i in every if len(json.dumps(requests[i][1]["prompt"] if "prompt" in requests[i][1]
                                                else requests[i][1]["messages"])) < 400]
    few = [i for i in small if i in longer][:12]
    compare(s, small[:N_FEW], "the first layer")
    said = told(s)
    tap.ok(0 < said["accepted_tokens"] < said["draft_tokens"], "drafts were right, and wrong", said)
    tap.note("%s" % said)
    compare_crowd(s, few * 2, "preempted")
    tap.ok(s.metric("vllm:num_preemptions_total") > 0, "some were")

tap.section("an EAGLE-3 head, random")
with Stack(engine=PLAIN + speculation(eagle_head(), method="eagle3")) as s:
    compare(s, every[:N_FEW], "the head")
    tap.ok(told(s)["draft_tokens"] > 100, "drafts were made", told(s))
    tap.note("%s" % told(s))
    compare_crowd(s, longer[:12], "the head")
    compare_killed(s, single[:3], "the head")
    tap.ok(s.idle(), "nothing is left behind")

tap.section("ranks")
for name, option in (("two ranks", "--tensor-parallel-size"),
                     ("two stages", "--pipeline-parallel-size")):
    with Stack(engine=PLAIN + [option, 2]) as s:
        some = every[:N_FEW // 2]
        mine = [ask(s, *requests[i]) for i in some]
    with Stack(engine=PLAIN + [option, 2] + speculation(MODEL)) as s:
        got = [ask(s, *requests[i]) for i in some]
        tap.eq(got, mine, "%s: as without drafts" % name)
        tap.ok(told(s)["accepted_tokens"] > 0, "%s: drafts were right" % name, told(s))

tap.section("sleep")
with Stack(engine=PLAIN + ["--sleep-after-s", 1] + speculation(MODEL)) as s:
    first = ask(s, *requests[longer[0]])
    tap.ok(until(s.is_sleeping, 30), "asleep")
    tap.ok(ask(s, *requests[longer[0]]) == first == want[longer[0]], "awake with the same text")

tap.section("states")
# Behind the random ones an output that a form makes repeat itself, whatever the model would say.
LOOPS = [(TEXT, dict(s.completion(LINES[0] * 4), max_tokens=60,
                     structured_outputs={"regex": "(the cat sat on the mat\\. ){5}"}))]
STATES = [("states and windows", twin.states("rfwrwf")), ("Gated DeltaNet", twin.delta()),
          ("Mamba-2", twin.mamba()), ("Mamba-2 beside attention", twin.mamba("bbbbbb"))]
some = requests[:N_FEW] + LOOPS
ROOM = ["--max-num-seqs", 16, "--max-model-len", 512]


def compare_states(model, name, config, options, mine):
    """A state has taken in the drafts: wrong ones are undone."""
    with Stack(engine=["--model", model, "--speculative-config", json.dumps(config)] + options) as s:
        got = [ask(s, *r) for r in some]
        wrong = [r for r, g, w in zip(some, got, mine) if g != w]
        tap.ok(DEVICE != "cpu" or not wrong, "%s: %d random requests, each as without drafts"
               % (name, len(some)), json.dumps(wrong[:2]))
        said = told(s)
        tap.ok(said["accepted_tokens"] > 0 and (config["method"] == "ngram" or
               said["accepted_tokens"] < said["draft_tokens"]), "drafts were right, and wrong", said)
        tap.note("%s: %s" % (name, said))
        got = crowd(len(some), lambda i: ask(s, *some[i]))
        tap.ok(DEVICE != "cpu" or got == mine, "%s: a crowd as each alone" % name)
        tap.ok(s.idle(), "nothing is left behind")


# They grow until pages are short, however late the last of them comes.
GROWING = [dict(prompt="%d: %s" % (i, LINES[i % len(LINES)]), max_tokens=200, temperature=0, ignore_eos=True)
           for i in range(10)]


def grow(s):
    return crowd(len(GROWING), lambda i: ask(s, TEXT, GROWING[i]))


def compare_preempted(model, name, config, want):
    with Stack(engine=["--model", model, "--speculative-config", json.dumps(config)] + ROOM +
               ["--num-pages", 64]) as s:
        tap.ok(grow(s) == want or DEVICE != "cpu", "%s: outputs that grow, each as without drafts" % name)
        tap.ok(s.metric("vllm:num_preemptions_total") > 0, "some are preempted")
        tap.ok(told(s)["accepted_tokens"] > 0, "drafts were right", told(s))
        tap.ok(s.idle(), "nothing is left behind")


EVER = {"method": "draft_model", "model": MODEL, "num_speculative_tokens": 3, "adaptive": False}
for kind, model in STATES:
    with Stack(engine=["--model", model] + ROOM) as s:
        mine = [ask(s, *r) for r in some]
        grown = grow(s) if model == STATES[1][1] else None
    compare_states(model, kind + ", ngram", {"method": "ngram"}, ROOM, mine)
    compare_states(model, kind + ", a model", EVER, ROOM, mine)
    if model != STATES[1][1]:
        continue
    compare_preempted(model, kind + ", few pages", EVER, grown)
    for option in "--tensor-parallel-size", "--pipeline-parallel-size":
        with Stack(engine=["--model", model, option, 2] + ROOM) as s:
            mine = [ask(s, *r) for r in some]
        compare_states(model, kind + " " + option, EVER, ROOM + [option, 2], mine)

tap.section("MTP layers")
REPEATS = {"method": "mtp", "num_speculative_tokens": 3, "adaptive": False}
for name, model in (("of Qwen3.5", twin.delta("ddfddf", True)),
                    ("with experts", twin.delta("ddfddf", True, True)),
                    ("of DeepSeek V3", twin.latent()), ("of DeepSeek V3.2", twin.latent(40)),
                    ("of GLM 4.5", twin.glm())):
    with Stack(engine=["--model", model] + ROOM) as s:
        mine = [ask(s, *r) for r in some]
    compare_states(model, "an MTP layer " + name, REPEATS, ROOM, mine)

tap.section("settings")
for config, why in (({"method": "draft_model"}, "'model' must be"),
                    ({"method": "draft_model", "model": "/nowhere"}, "/nowhere"),
                    ({"model": MODEL, "draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size"),
                    ({"model": folder()}, "vocabulary of 128256 tokens"),
                    ({"model": windows()}, "windows or states"),
                    ({"method": "eagle3", "model": MODEL}, "no EAGLE-3 head"),
                    ({"method": "mtp"}, "the method mtp is for"),
                    ({"method": "mtp", "model": twin.delta()}, "has no MTP layer")):
    s = Stack(engine=["--speculative-config", json.dumps(config)], nginx=False, n_fronts=0)
    tap.ok(until(lambda: why in s.logs(), 20), "refused: %s" % json.dumps(config), s.logs()[-300:])
    s.stop()
tap.done()
