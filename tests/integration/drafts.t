#!/usr/bin/env python3
"""speculative_config: every answer is the answer without it, whatever its fields (penalties, biases,
log probabilities, forms, stops, seeds), alone, in a crowd and over engines that die; and texts that
repeat themselves take fewer steps. SEED=n draws other requests, N_REQUESTS more of them."""

import json
import os
import random
import threading
import time

from drawn import CHAT, LINES, TEXT, ask, draw
from harness import DEVICE, LONG, SRCDIR, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
SEED = int(os.environ.get("SEED", "1"))
N_REQUESTS = int(os.environ.get("N_REQUESTS", "100" if LONG else "50"))
FORCED = '{"method": "forced"}'
METHODS = ['{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, '
           '"prompt_lookup_max": 4}', '{"method": "suffix"}']
def told(s):
    return {k: s.metric("vllm:spec_decode_num_%s_total" % k)
            for k in ("drafts", "draft_tokens", "accepted_tokens")}


def edits(s):
    """A text to be said again with a word changed: most of the answer stood in the prompt."""
    return dict(prompt=LINES[1] * 30, max_tokens=200, temperature=0, ignore_eos=True)


def kind_of(v):
    return {"type": "integer" if isinstance(v, int) else "string"}


def forms(s):
    """Questions of the demo model's held-out ones whose answers have a form."""
    with open(os.path.join(SRCDIR, "tests", "golden", "demo", "heldout.json"), encoding="utf-8") as f:
        questions = json.load(f)
    for temperature in (0, 0.8):
        more = dict(temperature=temperature, seed=7, max_tokens=120)
        for q in [q for q in questions if q["task"] == "extraction"][:8 if LONG else 4]:
            answer = json.loads(q["expected"])
            schema = {"type": "object", "properties": {k: kind_of(v) for k, v in answer.items()},
                      "required": list(answer), "additionalProperties": False}
            yield CHAT, dict(s.chat("?"), messages=q["messages"], response_format={
                "type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}},
                **more)
        for q in [q for q in questions if q["task"] == "tool_call"][:4 if LONG else 2]:
            yield CHAT, dict(s.chat("?"), messages=q["messages"], tools=q["tools"],
                             tool_choice="required", **more)


def ask_forms(s):
    """The answers to forms(), and the steps that they took."""
    before = s.metric("quire:steps_total")
    return [ask(s, *r) for r in forms(s)], s.metric("quire:steps_total") - before


with Stack(engine=["--max-num-seqs", 16]) as s:
    want_forms, plain_form_steps = ask_forms(s)
    draws = random.Random(SEED)
    requests = [draw(draws, s) for _ in range(N_REQUESTS)]
    want = [ask(s, path, body) for path, body in requests]
    before = s.metric("quire:steps_total")
    edited = ask(s, TEXT, edits(s))
    plain_steps = s.metric("quire:steps_total") - before

tap.section("forms")
for method in METHODS + [FORCED]:
    name = json.loads(method)["method"]
    with Stack(engine=["--max-num-seqs", 16, "--speculative-config", method]) as s:
        got, steps = ask_forms(s)
        tap.ok(DEVICE != "cpu" or got == want_forms, "%s: %d outputs with a form, as without drafts"
               % (name, len(got)))
        said = told(s)
        tap.ok(steps < 0.7 * plain_form_steps and said["accepted_tokens"] > 0.8 * said["draft_tokens"],
               "in seven tenths of the steps, and most drafts right", "%d of %d steps, %s" %
               (steps, plain_form_steps, said))
        tap.note("%s: %d of %d steps, %d tokens, %s" % (name, steps, plain_form_steps,
                                                        sum(g[1][1] for g in got), said))

for method in METHODS:
    name = json.loads(method)["method"]
    tap.section(name)
    with Stack(engine=["--max-num-seqs", 16, "--speculative-config", method]) as s:
        wrong = []
        for (path, body), w in zip(requests, want):
            got = ask(s, path, body)
            same = got == w if DEVICE == "cpu" else got[0] == w[0]
            if not same:
                wrong.append("%s %s\n  want %s\n  got  %s" % (path, json.dumps(body), w, got))
        tap.ok(not wrong, "%d random requests, SEED=%d: each as without drafts" % (N_REQUESTS, SEED),
               "%d wrong\n%s" % (len(wrong), "\n".join(wrong[:3])))
        said = told(s)
        tap.ok(said["accepted_tokens"] > 100 and said["drafts"] > 30 and
               said["accepted_tokens"] < said["draft_tokens"], "drafts were right, and wrong", said)
        tap.note("%s: %s" % (name, said))
        before = s.metric("quire:steps_total")
        tap.eq(ask(s, TEXT, edits(s)), edited, "a text that is said again")
        steps = s.metric("quire:steps_total") - before
        tap.ok(2 * steps < plain_steps, "in less than half the steps", "%d of %d" % (steps, plain_steps))
        said = told(s)
        tap.eq(ask(s, TEXT, dict(edits(s), num_speculative_tokens=0)), edited, "without drafts")
        tap.eq(told(s), said, "no drafts are made for a request that wants none")
        tap.eq(ask(s, TEXT, dict(edits(s), num_speculative_tokens=1)), edited, "one at a time")
        now = told(s)
        tap.ok(now["drafts"] > said["drafts"] and now["draft_tokens"] - said["draft_tokens"] ==
               now["drafts"] - said["drafts"], "as many drafts at a time as a request wants", now)
        some = [i for i, (_, body) in enumerate(requests) if body["max_tokens"] == 60][:24]
        got = crowd(len(some), lambda i: ask(s, *requests[some[i]]))
        tap.ok(DEVICE != "cpu" or got == [want[i] for i in some], "a crowd as each alone")
        got = []
        long = [i for i in some if "n" not in requests[i][1]][:8]

        def stream(i):
            got.append((i, ask(s, *requests[i])))

        threads = [threading.Thread(target=stream, args=(i,)) for i in long]
        for t in threads:
            t.start()
        time.sleep(0.3)
        until(s.engine.alive)
        s.engine.kill()
        for t in threads:
            t.join()
        tap.ok(DEVICE != "cpu" or all(g == want[i] for i, g in got), "the same over an engine's death")
        tap.ok(s.idle(), "nothing is left behind")

tap.section("settings")
for config, why in (('{"method": "eagle"}', "method"), ('[]', "JSON object"), ('{"method"', "speculative"),
                    ('{"method": "ngram", "prompt_lookup_max": 0}', "prompt_lookup_max"),
                    ('{"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 2}',
                     "prompt_lookup_min")):
    s = Stack(engine=["--speculative-config", config], nginx=False, n_fronts=0)
    tap.ok(until(lambda: why in s.logs(), 10), "refused: %s" % config, s.logs()[-300:])
    s.stop()
tap.done()
