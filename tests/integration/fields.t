#!/usr/bin/env python3
"""Fields in any combination: what a request is told as a stream is what it is told at once, its
texts, reasons, log probabilities, ids and calls; outputs have their form; nothing but 200, or 400 for
what excludes each other. SEED=n draws other combinations, N_REQUESTS more of them."""

import json
import os
import random
import re

from harness import Stack, Tap, need_nginx

need_nginx()
tap = Tap()
SEED = int(os.environ.get("SEED", "1"))
N_REQUESTS = int(os.environ.get("N_REQUESTS", "300"))
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "now", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
    "additionalProperties": False}}}]
CHOICES = [{"type": "function", "function": {"name": "now"}}, "auto", "none", "required"]
FORMS = [({"regex": "[ab]{3,9}"}, lambda t: re.fullmatch("[ab]{3,9}", t)),
         ({"choice": ["Hello", "Hell"]}, lambda t: t in ("Hello", "Hell")),
         ({"json": {"type": "object", "properties": {"a": {"type": "integer"}}}},
          lambda t: isinstance(json.loads(t), dict))]
BOTH = {
    "temperature": [0, 1e-7, 0.7, 3, 100], "top_k": [1, 5, -1], "top_p": [0.01, 0.5, 1],
    "min_p": [0, 0.5, 1], "n": [1, 2, 4], "max_tokens": [1, 7, 40], "min_tokens": [0, 3],
    "stop": ["e", ["lo", "x"]], "stop_token_ids": [[30], [5, 6], list(range(300, 340))],
    "ignore_eos": [True],
    "include_stop_str_in_output": [True, False], "skip_special_tokens": [False],
    "logit_bias": [{"40": 100}, {"655": -100, "0": 5}], "allowed_token_ids": [[40, 41, 0, 655]],
    "bad_words": [["Hello"], ["!", " How"]], "repetition_penalty": [0.5, 1.5],
    "presence_penalty": [2], "frequency_penalty": [-2], "return_token_ids": [True],
    "return_tokens_as_token_ids": [True], "structured_outputs": [f for f, _ in FORMS],
    "truncate_prompt_tokens": [3, -1], "echo": [True], "priority": [1, -1], "cache_salt": ["a", "b"],
    "add_special_tokens": [True, False]}
CHATS = {"logprobs": [True], "top_logprobs": [0, 3, 20], "tools": [TOOLS], "tool_choice": CHOICES,
         "parallel_tool_calls": [True, False], "continue_final_message": [True]}
TEXTS = {"logprobs": [0, 3, 20]}


def draw(r, s):
    """A request of up to six fields."""
    chat = r.random() < 0.6
    fields = dict(BOTH, **(CHATS if chat else TEXTS))
    some = {k: r.choice(fields[k]) for k in r.sample(sorted(fields), r.randint(0, 6))}
    if "top_logprobs" in some:
        some["logprobs"] = True
    if "tool_choice" in some or "parallel_tool_calls" in some:
        some["tools"] = TOOLS
    some.setdefault("seed", r.choice([-9, -7, -2, 0, 1, 5, 9]))
    some.setdefault("max_tokens", 20)
    if not chat:
        return TEXT, dict(s.completion(r.choice(["Hello", ["a", "Once upon"], [655, 0]])), **some)
    messages = [{"role": "user", "content": "Hello"}]
    if "continue_final_message" in some or r.random() < 0.2:
        messages.append({"role": "assistant", "content": "Hel"})
    return CHAT, dict(s.chat(messages), **some)


def told_at_once(choice):
    message = choice.get("message") or {"content": choice.get("text")}
    lists = choice["logprobs"] or {}
    return {"text": message["content"] or "", "finish": choice["finish_reason"],
            "stop": choice["stop_reason"], "ids": choice.get("token_ids") or [],
            "logprobs": lists.get("content") or lists.get("token_logprobs") or [],
            "calls": [c["function"] for c in message.get("tool_calls") or []]}


def told_in_stream(told, i):
    choices = [c for e in told.events for c in e.get("choices", []) if c["index"] == i]
    calls = []
    for c in choices:
        for d in c.get("delta", {}).get("tool_calls") or []:
            if d["index"] == len(calls):
                calls.append({"name": d["function"]["name"], "arguments": ""})
            calls[d["index"]]["arguments"] += d["function"]["arguments"]
    lists = [c["logprobs"] for c in choices if c["logprobs"]]
    return {"text": told.text.get(i, ""), "finish": told.finish.get(i), "stop": told.stop.get(i),
            "ids": [t for c in choices for t in c.get("token_ids") or []],
            "logprobs": [p for q in lists for p in q.get("content") or q["token_logprobs"]],
            "calls": calls}


def has_form(body, told):
    """Where nothing else may end or begin it."""
    if told["finish"] != "stop" or not {"structured_outputs"} <= set(body) or \
            {"stop", "stop_token_ids", "echo", "tools"} & set(body):
        return True
    return next(fits for form, fits in FORMS if form == body["structured_outputs"])(told["text"])


def one(s, path, body):
    """What is wrong with it, or None."""
    r = s.post(path, body)
    if r.status != 200:
        said = r.error["message"]
        excludes = "allow no token" in said or "must not be above" in said
        return None if r.status == 400 and excludes else "%d %s" % (r.status, said)
    told = s.stream(path, body)
    if told.broken or told.error or not told.done:
        return "a stream that broke: %r" % (told.broken or told.error)
    for c in r.json["choices"]:
        want, got = told_at_once(c), told_in_stream(told, c["index"])
        wrong = [k for k in want if want[k] != got[k]]
        if wrong:
            return "%s: %r, streamed %r" % (wrong[0], want[wrong[0]], got[wrong[0]])
        if not has_form(body, want):
            return "not of its form: %r" % want["text"]
    return None


with tap.section("fields"), Stack() as s:
    draws = random.Random(SEED)
    wrong = []
    for _ in range(N_REQUESTS):
        path, body = draw(draws, s)
        fault = one(s, path, body)
        if fault:
            wrong.append("%s %s\n%s" % (path, json.dumps(body), fault))
    tap.ok(wrong == [], "%d requests, SEED=%d, each at once and as a stream" % (N_REQUESTS, SEED),
           "\n".join(wrong[:5]))
    tap.ok(all(f.exits == [] for f in s.fronts) and s.engine.exits == [], "no process died",
           s.logs())
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
