#!/usr/bin/env python3
"""speculative_config: every answer is the answer without it, whatever its fields (penalties, biases,
log probabilities, forms, stops, seeds), alone, in a crowd and over engines that die; and texts that
repeat themselves take fewer steps. SEED=n draws other requests, N_REQUESTS more of them."""

import json
import os
import random
import re
import threading
import time

from harness import DEVICE, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
SEED = int(os.environ.get("SEED", "1"))
N_REQUESTS = int(os.environ.get("N_REQUESTS", "100"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
METHODS = ['{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, '
           '"prompt_lookup_max": 4}', '{"method": "suffix"}']
TOOLS = [{"type": "function", "function": {"name": "now", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
    "additionalProperties": False}}}]
FIELDS = {
    "temperature": [0, 0, 0.2, 0.7, 1.3], "top_k": [1, 5, -1], "top_p": [0.5, 1], "min_p": [0, 0.3],
    "n": [1, 2, 3], "min_tokens": [0, 3, 50], "stop": ["100", ["\n", "lo"]],
    "stop_token_ids": [[30], [5, 6], list(range(300, 340))],
    "ignore_eos": [True], "include_stop_str_in_output": [True],
    "logit_bias": [{"40": 3}, {"655": -100, "0": 5}], "allowed_token_ids": [list(range(300, 700))],
    "bad_words": [["Hello"], ["!", " How"]], "repetition_penalty": [0.9, 1.2],
    "presence_penalty": [1], "frequency_penalty": [-1, 0.5], "return_token_ids": [True],
    "structured_outputs": [{"regex": "([ab]{3} )+"}, {"json": {"type": "object"}}],
    "echo": [True], "priority": [1, -1], "cache_salt": ["a", "b"]}
CHATS = {"top_logprobs": [0, 3, 20], "tools": [TOOLS], "tool_choice": ["auto", "required"]}
TEXTS = {"logprobs": [0, 3, 20], "prompt_logprobs": [1]}
LINES = ["the cat sat on the mat. ", "100 + 1 = 101. ", "for i in range(10): print(i)\n",
         "A, B, C, D, E, F, G. ", "I am only a small demo model, and I do not know that. "]


def draw(r, s):
    """A request of up to five fields whose text repeats itself, mostly."""
    chat = r.random() < 0.3
    fields = dict(FIELDS, **(CHATS if chat else TEXTS))
    some = {k: r.choice(fields[k]) for k in r.sample(sorted(fields), r.randint(0, 5))}
    if "top_logprobs" in some:
        some["logprobs"] = True
    if "tool_choice" in some:
        some["tools"] = TOOLS
    some.setdefault("temperature", 0)
    some["seed"] = r.randrange(1000)
    some["max_tokens"] = r.choice([1, 2, 17, 60, 60, 120])
    if "min_tokens" in some:
        some["min_tokens"] = min(some["min_tokens"], some["max_tokens"])
    story = r.choice(LINES) * r.randint(1, 12)
    if chat:
        return CHAT, dict(s.chat("Say again: " + story), **some)
    return TEXT, dict(s.completion(r.choice([story, [story, "Count from 1"]])), **some)


def ask(s, path, body):
    r = s.post(path, body)
    if r.status != 200:
        return r.status, r.error["message"]
    calls = re.sub(r'"call_[0-9a-f]+"', '""', json.dumps(r.json["choices"]))
    return r.status, (calls, r.json["usage"]["completion_tokens"])


def told(s):
    return {k: s.metric("vllm:spec_decode_num_%s_total" % k)
            for k in ("drafts", "draft_tokens", "accepted_tokens")}


def edits(s):
    """A text to be said again with a word changed: most of the answer stood in the prompt."""
    return dict(prompt=LINES[1] * 30, max_tokens=200, temperature=0, ignore_eos=True)


with Stack(engine=["--max-num-seqs", 16]) as s:
    draws = random.Random(SEED)
    requests = [draw(draws, s) for _ in range(N_REQUESTS)]
    want = [ask(s, path, body) for path, body in requests]
    before = s.metric("quire:steps_total")
    edited = ask(s, TEXT, edits(s))
    plain_steps = s.metric("quire:steps_total") - before

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
