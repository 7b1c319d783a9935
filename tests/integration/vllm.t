#!/usr/bin/env python3
"""vLLM's own endpoints: render and derender, tokens in and out. What is rendered, generated from
tokens and derendered is the answer that the one request would have had."""

import json
import os
import re
import subprocess
import sys
import tempfile

from harness import BUILDDIR, LONG, MODEL, MODEL_NAME, Stack, Tap, crowd, need_nginx

need_nginx()
tap = Tap()
CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate"
TOOL = {"type": "function", "function": {
    "name": "weather", "strict": True, "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"], "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
          "additionalProperties": False}


def post(s, path, body):
    r = s.post(path, body)
    if r.status != 200:
        raise RuntimeError("%s: %d %s for %r" % (path, r.status, r.text, body))
    return r.json


def refuse(s, path, body, status, param, name):
    r = s.post(path, body)
    tap.ok(r.status == status and r.error["param"] == param, name, r.text[:300])


def said(r):
    """What an answer says, without what differs from one request to the next."""
    out = []
    for c in r["choices"]:
        m = c.get("message", {})
        calls = [(t["function"]["name"], t["function"]["arguments"])
                 for t in m.get("tool_calls", [])]
        out.append((c["index"], m.get("content", c.get("text")), m.get("reasoning"), calls,
                    c["finish_reason"], c["stop_reason"] if isinstance(c["stop_reason"], str)
                    else None, c["logprobs"]))
    return out, {k: v for k, v in r["usage"].items() if k.endswith("_tokens")}


def streamed(s, body):
    """{index: (ids, finish_reason, logprobs)} and the usage of a stream of tokens."""
    ids, finish, told, usage = {}, {}, {}, None
    k = s.open_stream(GENERATE, body)
    for e in k:
        usage = e["usage"] or usage
        for c in e["choices"]:
            i = c["index"]
            ids.setdefault(i, []).extend(c["token_ids"])
            told.setdefault(i, []).extend((c["logprobs"] or {"content": []})["content"])
            finish[i] = c["finish_reason"] or finish.get(i)
    tap.ok(k.done, "generate: the stream ends with [DONE]")
    return {i: (ids[i], finish[i], told[i]) for i in ids}, usage


def derendered(s, path, request, more):
    """What said() tells of an answer, from a stream of tokens derendered event by event."""
    state, out, usage = None, {}, None
    for e in s.open_stream(GENERATE, request):
        r = post(s, path + "/derender", dict(
            more, model=MODEL_NAME, stream=True, generate_chunk=e, stream_state=state))
        chunk, state = r["chunk"], r["stream_state"]
        usage = chunk["usage"] or usage
        for c in chunk["choices"]:
            new = c["index"] not in out
            to = out.setdefault(c["index"], {"text": "", "reason": "", "calls": {}, "told": []})
            if path == CHAT:
                d = c["delta"]
                if (d.get("role") == "assistant") != new:
                    raise RuntimeError("a role in each first delta alone: %r" % c)
                to["text"] += d.get("content") or ""
                to["reason"] += d.get("reasoning") or ""
                for t in d.get("tool_calls", []):
                    call = to["calls"].setdefault(t["index"], ["", "", t.get("id")])
                    call[0] += t["function"].get("name", "")
                    call[1] += t["function"]["arguments"]
                to["told"] += (c["logprobs"] or {"content": []})["content"]
            else:
                to["text"] += c["text"]
                to["told"].append(c["logprobs"])
            to["why"] = c["finish_reason"], c["stop_reason"]
    return out, usage


CHATS = (
    ("plain", {}),
    ("drawn", dict(temperature=0.9, seed=7, top_p=0.9, top_k=30, n=3, max_tokens=20)),
    ("stop", dict(stop=["Paris", "zzz"], include_stop_str_in_output=True)),
    ("length", dict(max_tokens=3)),
    ("logprobs", dict(logprobs=True, top_logprobs=3, max_tokens=4)),
    ("bias", dict(logit_bias={"40": 3.5, "7": -1}, max_tokens=8, min_tokens=4)),
    ("schema", dict(max_tokens=40, response_format={"type": "json_schema", "json_schema": {
        "name": "a", "schema": SCHEMA}})),
    ("choice", dict(structured_outputs={"choice": ["one of them", "another"]})),
    ("call", dict(max_tokens=60, tools=[TOOL], tool_choice="required")),
    ("salt", dict(max_tokens=5, cache_salt="a", priority=3)),
)


def chats(s):
    """A chat answered at once, and in three steps."""
    for name, fields in CHATS:
        body = s.chat("What is the capital of France?", **fields)
        whole = post(s, CHAT, body)
        request = post(s, CHAT + "/render", body)
        tap.eq((set(request) - {"prompt", "count"}, request["features"], request["model"]),
               ({"request_id", "token_ids", "features", "sampling_params", "model", "stream",
                 "stream_options", "cache_salt", "priority", "kv_transfer_params"}, None,
                MODEL_NAME), name + ": a GenerateRequest")
        tap.eq(len(request["token_ids"]), whole["usage"]["prompt_tokens"], name + ": its tokens")
        made = post(s, GENERATE, request)
        tap.eq((made["request_id"], [c["index"] for c in made["choices"]], made["prompt_logprobs"],
                made["kv_transfer_params"]),
               (request["request_id"], list(range(fields.get("n", 1))), None, None),
               name + ": a GenerateResponse")
        tap.eq([set(c) for c in made["choices"]],
               [{"index", "logprobs", "finish_reason", "token_ids", "routed_experts"}] *
               fields.get("n", 1), name + ": its choices")
        told, usage = streamed(s, dict(request, stream=True,
                                       stream_options={"include_usage": True}))
        tap.eq({i: t[:2] for i, t in told.items()},
               {c["index"]: (c["token_ids"], c["finish_reason"]) for c in made["choices"]},
               name + ": the stream has the same tokens")
        tap.eq([told[c["index"]][2] for c in made["choices"]],
               [(c["logprobs"] or {"content": []})["content"] for c in made["choices"]],
               name + ": and the same log probabilities")
        tap.eq({k: v for k, v in usage.items() if k.endswith("_tokens")},
               {k: v for k, v in made["usage"].items() if k.endswith("_tokens")},
               name + ": the same usage")
        back = post(s, CHAT + "/derender",
                    {"model": MODEL_NAME, "generate_response": made, "chat_request": body,
                     "prompt_tokens": len(request["token_ids"])})
        tap.eq((back["id"], back["object"]), (request["request_id"], "chat.completion"),
               name + ": derendered")
        tap.eq(said(back), said(whole), name + ": and the same answer")
        told, usage = derendered(s, CHAT, dict(request, stream=True, stream_options={
            "include_usage": True}), {"chat_request": body, "prompt_tokens": len(
                request["token_ids"])})
        want, counts = said(whole)
        tap.eq([(i, t["text"], t["reason"] or None, [tuple(v[:2]) for v in t["calls"].values()],
                 t["why"][0], t["why"][1], {"content": t["told"], "refusal": None}
                 if t["told"] else None) for i, t in sorted(told.items())],
               [(w[0], w[1] or "") + w[2:] for w in want], name + ": derendered event by event")
        tap.eq({k: v for k, v in usage.items() if k.endswith("_tokens")}, counts,
               name + ": with its usage")


def completions(s):
    for name, fields in (("plain", {}), ("logprobs", dict(logprobs=2, max_tokens=5)),
                         ("drawn", dict(temperature=1.1, seed=3, max_tokens=6)),
                         ("prompt", dict(prompt_logprobs=2, max_tokens=2))):
        body = s.completion(["Once upon a time", "Paris is"], **fields)
        whole = post(s, TEXT, body)
        requests = post(s, TEXT + "/render", body)
        tap.eq(len(requests), 2, name + ": a request of each prompt")
        made = [post(s, GENERATE, r) for r in requests]
        back = post(s, TEXT + "/derender",
                    {"model": MODEL_NAME, "generate_responses": made, "completion_request": body,
                     "prompt_tokens": [len(r["token_ids"]) for r in requests]})
        tap.eq(said(back), said(whole), "completions, %s: there and back" % name)
        for r, c in zip(requests if name != "prompt" else [], whole["choices"]):
            told = derendered(s, TEXT, dict(r, stream=True), {"completion_request": body})[0][0]
            lists = [t for t in told["told"] if t]
            tap.eq((told["text"], told["why"][0], {k: [v for t in lists for v in t[k]]
                                                   for k in lists[0]} if lists else None),
                   (c["text"], c["finish_reason"], c["logprobs"]),
                   "completions, %s: event by event" % name)
        if name == "prompt":
            for c, b in zip(whole["choices"], back["choices"]):
                tap.eq([p and {i: (t["logprob"], t["rank"]) for i, t in p.items()}
                        for p in b["prompt_logprobs"]],
                       [p and {i: (t["logprob"], t["rank"]) for i, t in p.items()}
                        for p in c["prompt_logprobs"]], "prompt_logprobs come along")


def tokens(s):
    """generate by itself, and what is no request."""
    ids = post(s, "/tokenize", s.chat("Count from 1 to 20."))["tokens"]  # which comes to its end
    r = post(s, GENERATE, {"token_ids": ids, "sampling_params": {"temperature": 0}})
    tap.ok(len(r["choices"][0]["token_ids"]) > 16, "without max_tokens there are more than 16", r)
    ids = post(s, "/tokenize", {"prompt": "Once upon a time"})["tokens"]
    tap.ok(r["request_id"].startswith("generate-tokens-"), "a name where none was given", r)
    r = post(s, GENERATE, {"token_ids": ids, "request_id": "mine-1", "model": MODEL_NAME,
                           "sampling_params": {"temperature": 0, "max_tokens": 4, "logprobs": 1}})
    tap.eq(r["request_id"], "mine-1", "the client's name")
    tap.eq([e["token"] for e in r["choices"][0]["logprobs"]["content"]],
           ["token_id:%d" % i for i in r["choices"][0]["token_ids"]], "tokens are ids")
    for body, param, name in (
            ({"sampling_params": {}}, "token_ids", "no tokens"),
            ({"token_ids": [], "sampling_params": {}}, "token_ids", "none in the list"),
            ({"token_ids": [1, -1], "sampling_params": {}}, "token_ids", "a negative one"),
            ({"token_ids": [1, "a"], "sampling_params": {}}, "token_ids", "a text"),
            ({"token_ids": [1]}, "sampling_params", "no parameters"),
            ({"token_ids": [1], "sampling_params": {"temperature": "x"}}, "temperature",
             "a wrong parameter"),
            ({"token_ids": [1], "sampling_params": {}, "features": {"mm_hashes": {}}}, "features",
             "features")):
        refuse(s, GENERATE, body, 400, param, "generate: " + name)
    refuse(s, GENERATE, {"token_ids": [1], "sampling_params": {}, "model": "x"}, 404, "model",
           "generate: another model")
    r = s.request("POST", GENERATE, {"token_ids": [1], "sampling_params": {}},
                  headers={"Authorization": "Bearer none"})
    tap.eq(r.status, 401, "generate: a key is needed")


def derender(s):
    ids = post(s, "/tokenize", {"prompt": "Hello there", "add_special_tokens": False})["tokens"]

    def response(**fields):
        return dict({"request_id": "req-1", "choices": [
            {"index": 0, "token_ids": ids, "finish_reason": "stop"}]}, **fields)

    r = post(s, CHAT + "/derender", {"model": MODEL_NAME, "generate_response": response(
        kv_transfer_params={"a": 1}, prompt_logprobs=[None, None])})
    tap.eq((r["id"], r["choices"][0]["message"]["content"], r["usage"]["prompt_tokens"],
            r["usage"]["completion_tokens"], r["kv_transfer_params"], r["prompt_logprobs"]),
           ("req-1", "Hello there", 0, len(ids), {"a": 1}, [None, None]),
           "derender: what came along")
    r = post(s, CHAT + "/derender", {"model": MODEL_NAME, "generate_response": response(choices=[
        {"index": 0, "token_ids": ids, "logprobs": {"content": [
            {"token": "token_id:%d" % ids[0], "logprob": -1.0, "bytes": None, "top_logprobs": [
                {"token": "token_id:%d" % ids[1], "logprob": -2.0, "bytes": None}]}]}}])})
    told = r["choices"][0]["logprobs"]["content"]
    tap.eq((told[0]["token"], told[0]["bytes"], told[0]["top_logprobs"][0]["logprob"]),
           ("Hello", list(b"Hello"), -2.0), "derender: ids become tokens")
    for path, body, param, name in (
            (CHAT, {}, "generate_response", "nothing"),
            (CHAT, {"generate_response": response(choices=[])}, "choices", "no choices"),
            (CHAT, {"generate_response": response(choices=[{"index": 0, "token_ids": []}])},
             "choices", "no tokens"),
            (CHAT, {"generate_response": response(choices=[{"index": 0, "token_ids": None}])},
             "choices", "tokens of null"),
            (CHAT, {"generate_response": response(choices=[
                {"index": 0, "token_ids": [1] * 5000}])}, "choices", "too many tokens"),
            (CHAT, {"generate_response": response(choices=[
                {"index": 0, "token_ids": [1], "logprobs": {"content": [{"token": "a"}]}}])},
             "choices", "log probabilities of no ids"),
            (CHAT, {"generate_response": response(choices=[
                {"index": 0, "token_ids": [1]}] * 257)}, "choices", "257 choices"),
            (TEXT, {"generate_responses": []}, "generate_response", "no responses"),
            (TEXT, {"generate_responses": [response()], "prompt_tokens": [1, 2]},
             "prompt_tokens", "two counts of one response"),
            (CHAT, {"generate_response": response(), "stream": True}, "generate_chunk",
             "a stream without its event"),
            (CHAT, {"generate_chunk": response(), "stream": True, "stream_state": 5},
             "stream_state", "no state"),
            (CHAT, {"generate_chunk": response(), "stream": True, "stream_state": {"choices": [
                {"index": 0, "token_ids": [1], "n_said": 2}]}}, "stream_state", "a wrong one"),
            (CHAT, {"generate_chunk": response(choices=[{"index": 300, "token_ids": [1]}]),
             "stream": True}, "generate_chunk", "an index of no choice"),
            (CHAT, {"generate_chunk": response(choices=[{"index": 0, "token_ids": [1] * 5000}]),
             "stream": True}, "generate_chunk", "too many tokens in an event")):
        refuse(s, path + "/derender", dict(body, model=MODEL_NAME), 400, param,
               "derender: " + name)
    refuse(s, CHAT + "/derender", {"model": "x", "generate_response": response()}, 404, "model",
           "derender: another model")


def batch(s):
    """Several conversations: each choice says what the conversation alone would be answered."""
    talks = [[{"role": "user", "content": "What is the capital of %s?" % c}]
             for c in ("France", "Italy", "Spain")]
    talks.append(talks[0] + [{"role": "assistant", "content": "The"}])
    for name, fields in (("plain", {}), ("drawn", dict(temperature=1, seed=5, max_tokens=9)),
                         ("logprobs", dict(logprobs=True, top_logprobs=2, max_tokens=5)),
                         ("choice", dict(structured_outputs={"choice": ["aa", "bb"]})),
                         ("echo", dict(echo=True, continue_final_message=True,
                                       add_generation_prompt=False, max_tokens=4))):
        alone = [post(s, CHAT, s.chat(t, **fields)) for t in talks]
        r = post(s, CHAT + "/batch", s.chat([], **dict(fields, messages=talks)))
        tap.eq((r["object"], [c["index"] for c in r["choices"]]), ("chat.completion", [0, 1, 2, 3]),
               "batch, %s: a choice of each" % name)
        tap.eq([(c["message"], c["finish_reason"], c["logprobs"]) for c in r["choices"]],
               [(a["choices"][0]["message"], a["choices"][0]["finish_reason"],
                 a["choices"][0]["logprobs"]) for a in alone], "batch, %s: as alone" % name)
        tap.eq((r["usage"]["prompt_tokens"], r["usage"]["completion_tokens"]),
               (sum(a["usage"]["prompt_tokens"] for a in alone),
                sum(a["usage"]["completion_tokens"] for a in alone)), "batch, %s: usage" % name)
    body = s.chat([], messages=talks)
    for fields, param, name in (
            (dict(stream=True), "stream", "a stream"), (dict(n=2), "n", "two choices"),
            (dict(tools=[TOOL]), "tools", "tools"), (dict(messages=[]), "messages", "none"),
            (dict(messages=talks[0]), "messages", "one conversation"),
            (dict(messages=[talks[0], []]), "messages", "an empty one"),
            (dict(messages=[talks[0], [5]]), "messages", "one of numbers"),
            (dict(messages=talks[:1] * 257), "messages", "257"),
            (dict(prompt_logprobs=1), "prompt_logprobs", "log probabilities of prompts")):
        refuse(s, CHAT + "/batch", dict(body, **fields), 400, param, "batch: " + name)


def told_of(r, chat):
    """[{token: log probability}] beside each token of an answer's first choice."""
    p = r["choices"][0]["logprobs"]
    if not chat:
        return p["top_logprobs"]
    return [{t["token"]: t["logprob"] for t in c["top_logprobs"]} for c in p["content"]]


def asked(s):
    """logprob_token_ids: the same values that alternatives have, for ids that are none of them."""
    for chat in (True, False):
        path = CHAT if chat else TEXT
        body = s.chat("Hello", max_tokens=6) if chat else s.completion("Once", max_tokens=6)
        one = dict(logprobs=True) if chat else dict(logprobs=0)
        many = dict(logprobs=True, top_logprobs=20) if chat else dict(logprobs=20)
        body["return_tokens_as_token_ids"] = True
        all20 = told_of(post(s, path, dict(body, **many)), chat)
        ids = sorted({int(t.split(":")[1]) for t in all20[0]})
        few = told_of(post(s, path, dict(body, logprob_token_ids=ids, **one)), chat)
        tap.eq(len(few), len(all20), "asked: each token has them")
        tap.eq({k: v for k, v in few[0].items()}, all20[0], "asked: the same values")
        for i, (got, top) in enumerate(zip(few, all20)):
            want = {"token_id:%d" % k for k in ids}
            tap.ok(want <= set(got) and len(got) <= len(want) + (not chat) and
                   all(abs(got[t] - top[t]) < 1e-6 for t in got if t in top),
                   "asked: token %d" % i, (got, top))
        both = told_of(post(s, path, dict(body, logprob_token_ids=ids[:3] + [0, 1], **many)), chat)
        tap.ok(all({"token_id:0", "token_id:1"} <= set(b) and set(t) <= set(b)
                   for b, t in zip(both, all20)), "asked: beside the top ones", both[0])
        p128 = told_of(post(s, path, dict(body, logprob_token_ids=list(range(128)), **many)), chat)
        tap.ok(all(len(p) >= 128 for p in p128), "asked: 128")
        told = s.stream(path, dict(body, logprob_token_ids=ids, **one))
        seen = [c["logprobs"] for e in told.events for c in e["choices"] if c["logprobs"]]
        seen = [{t["token"]: t["logprob"] for t in c["top_logprobs"]}
                for p in seen for c in p["content"]] if chat else \
            [t for p in seen for t in p["top_logprobs"]]
        tap.eq(seen, few, "asked: a stream tells the same")
        made = post(s, path, dict(body, logprob_token_ids=ids, **one))
        s.engine.kill()
        again = post(s, path, dict(body, logprob_token_ids=ids, **one))
        tap.eq(again["choices"], made["choices"], "asked: the next engine tells the same")
        for value, status, name in (([-1], 400, "a negative id"), (["x"], 400, "a text"),
                                    (5, 400, "a number"), ([2048], 400, "no id of this model"),
                                    (list(range(129)), 400, "129 ids")):
            refuse(s, path, dict(body, logprob_token_ids=value, **one), status,
                   "logprob_token_ids", "asked: " + name)
    refuse(s, CHAT, s.chat("Hello", logprob_token_ids=[5]), 400, "logprob_token_ids",
           "asked: without logprobs")


def bounds(s):
    """What a server's settings say of a request's size."""
    refuse(s, TEXT, s.completion("Once", logprobs=21), 400, "logprobs", "bounds: 21 by default")
    refuse(s, TEXT, s.completion("a", stop=["s%d" % i for i in range(33)]), 400, "stop",
           "bounds: 33 stop strings by default")
    with Stack(n_fronts=1, front=["--max-logprobs", "-1", "--max-stop-strings", "1024",
                                  "--max-choices", "300"]) as t:
        body = t.completion("Once upon a time", max_tokens=3, return_tokens_as_token_ids=True)
        r = post(t, TEXT, dict(body, logprobs=128, prompt_logprobs=128))
        tap.eq([len(p) for p in told_of(r, False)], [128] * 3, "bounds: 128 alternatives")
        few = post(t, TEXT, dict(body, logprobs=5))
        tap.ok(all(list(b.items())[:5] == list(a.items()) for a, b in
                   zip(told_of(few, False), told_of(r, False))), "bounds: the first five as alone")
        values = [list(p.values()) for p in told_of(r, False)]
        tap.ok(all(v == sorted(v, reverse=True) and sum(2.718281828 ** x for x in v) < 1.001
                   for v in values), "bounds: the most probable first", values[0][:5])
        tap.ok(all(len(p) in (128, 129) for p in r["choices"][0]["prompt_logprobs"][1:]),
               "bounds: and of the prompt")
        r = post(t, TEXT, dict(body, logprobs=129, prompt_logprobs=129))
        tap.eq([len(p) for p in told_of(r, False)], [129] * 3, "bounds: one more is another way")
        tap.ok(all(len(p) in (129, 130) for p in r["choices"][0]["prompt_logprobs"][1:]),
               "bounds: and of the prompt")
        text = post(t, TEXT, t.completion("Once upon a", max_tokens=20))["choices"][0]["text"]
        stops = ["~%d~" % i for i in range(1023)] + [text[20:30]]
        r = post(t, TEXT, t.completion("Once upon a", stop=stops, max_tokens=20))
        tap.eq((r["choices"][0]["stop_reason"], r["choices"][0]["text"]),
               (text[20:30], text[:text.index(text[20:30])]),
               "bounds: the last of 1,024 stop strings")
        refuse(t, TEXT, t.completion("a", stop=stops + ["x"]), 400, "stop", "bounds: 1,025")
        refuse(t, TEXT, t.completion("a", stop=["x" * 4096] * 33), 400, "stop",
               "bounds: too many bytes of stop strings")
        r = post(t, TEXT, t.completion(["a"] * 300, max_tokens=1))
        tap.eq(len(r["choices"]), 300, "bounds: 300 prompts")
        refuse(t, TEXT, t.completion(["a"] * 301), 400, "prompt", "bounds: 301 prompts")
        refuse(t, TEXT, t.completion(["a"] * 151, n=2), 400, "n", "bounds: 302 choices")
    with Stack(n_fronts=1, front=["--max-logprobs", "128"]) as t:
        for field in ("logprobs", "prompt_logprobs"):
            refuse(t, TEXT, t.completion("Once", **{field: 129}), 400, field,
                   "bounds: %s of 129" % field)
            r = t.post(TEXT, t.completion("Once", **{field: -1}))
            tap.ok(r.status == 400 and "at most 128" in r.error["message"] and
                   "max_logprobs" in r.error["message"],
                   "bounds: %s of -1 says how many there are" % field, r.text)
    with Stack(n_fronts=1, front=["--max-logprobs", "0"]) as t:
        refuse(t, TEXT, t.completion("Once", logprobs=1), 400, "logprobs", "bounds: none")


def thought(s, body):
    """(ids, reasoning, content, finish_reason) of an answer."""
    c = post(s, CHAT, body)["choices"][0]
    return (c["token_ids"], c["message"]["reasoning"], c["message"]["content"],
            c["finish_reason"])


def budget_of(s, name, close, close_ids):
    """thinking_token_budget where a prompt ends inside of the reasoning. Of a second name of its end
    a few budgets and deaths, unless the run is a long one."""
    all_of = LONG or "mistral" not in name
    spell = lambda ids: post(s, "/detokenize", {"tokens": ids})["prompt"].replace("<|im_end|>", "")
    for fields in ({}, dict(temperature=0.9, seed=4),
                   dict(temperature=0.9, seed=5, presence_penalty=0.5),
                   dict(structured_outputs={"regex": "(ab|cd)+e"}),
                   dict(logprobs=True, top_logprobs=2), dict(min_tokens=30)):
        body = s.chat("Tell me of a clever fox.", max_tokens=60, return_token_ids=True,
                      ignore_eos="structured_outputs" not in fields, **fields)
        free = thought(s, body)
        tap.eq((free[1] == "", len(free[0])), (False, 60), name + ": without a budget it goes on")
        for n in (0, 1, 2, 7, 30) if all_of else (0, 7):
            what = "%s: %d tokens, %s" % (name, n, sorted(fields))
            ids, reasoning, content, finish = thought(s, dict(body, thinking_token_budget=n))
            tap.eq(ids[:n + len(close_ids)], free[0][:n] + close_ids, what + ": then the end tag")
            tap.ok((reasoning or "") == spell(ids[:n]).rstrip() or
                   (reasoning or "").strip() == spell(ids[:n]).strip(), what + ": the reasoning",
                   (reasoning, spell(ids[:n])))
            if "structured_outputs" in fields:
                tap.ok(re.fullmatch("(ab|cd)+e", content or "") or
                       finish == "length" and re.fullmatch("(ab|cd)*[ac]?", content or ""),
                       what + ": the form behind it", content)
            else:
                tap.ok(content and finish == "length" and close not in content,
                       what + ": the content goes on", content)
            told = s.stream(CHAT, dict(body, thinking_token_budget=n))
            got = [i for e in told.events for c in e.get("choices", ())
               for i in c.get("token_ids") or ()]
            tap.eq((got, told.text.get(0, "")), (ids, content), what + ": a stream says the same")
        for n in (-1, 60, 1000) if all_of else (1000,):
            tap.eq(thought(s, dict(body, thinking_token_budget=n)), free,
                   "%s: a budget of %d binds nothing" % (name, n))
    body = s.chat("Tell me of a fox.", max_tokens=400, ignore_eos=True, return_token_ids=True,
                  temperature=0.8, seed=9, thinking_token_budget=300)
    want = thought(s, body)
    for at in (20, 150, 301, 303) if all_of else (301,):
        killed = []

        def kill(told):
            n = sum(len(c.get("token_ids") or ()) for c in told.events[-1].get("choices", ()))
            killed.append(n)
            if sum(killed) >= at and not kill.done:
                kill.done = True
                s.engine.kill()
        kill.done = False
        told = s.stream(CHAT, body, on_event=kill)
        got = [i for e in told.events for c in e.get("choices", ())
               for i in c.get("token_ids") or ()]
        tap.eq((kill.done, told.done, told.error, got), (True, True, None, want[0]),
               "%s: the engine dies after %d tokens" % (name, at))
    for value in (-2, 1.5, "x", 1 << 40):
        refuse(s, CHAT, s.chat("Hi", thinking_token_budget=value), 400, "thinking_token_budget",
               "%s: a budget of %r" % (name, value))
    request = post(s, CHAT + "/render", dict(body, thinking_token_budget=5))
    made = post(s, GENERATE, request)["choices"][0]["token_ids"]
    tap.eq(made, thought(s, dict(body, thinking_token_budget=5))[0], name + ": from tokens as well")
    crowd(12, lambda i: tap.eq(
        thought(s, s.chat("Fox %d" % i, max_tokens=80, return_token_ids=True, ignore_eos=True,
                          thinking_token_budget=i))[0][i:i + len(close_ids)], close_ids,
        "%s: in a crowd, %d" % (name, i)))


def budget(s):
    refuse(s, CHAT, s.chat("Hi", thinking_token_budget=5), 400, "thinking_token_budget",
           "budget: a model without reasoning")
    tap.eq(post(s, CHAT, s.chat("Hi", thinking_token_budget=-1, max_tokens=1))["object"],
           "chat.completion", "budget: none")
    with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
        template = json.load(f)["chat_template"]
    for parser, begin, close in (("think", "<think>", "</think>"),
                                 ("mistral", "[THINK]", "[/THINK]")):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
            f.write(template + begin + "\n")
            f.flush()
            with Stack(n_fronts=1, front=["--reasoning-parser", parser, "--chat-template",
                                          f.name]) as t:
                ids = post(t, "/tokenize", {"prompt": close, "add_special_tokens": False})
                budget_of(t, "budget, " + parser, close, ids["tokens"])
            tap.eq(t.leftovers, [], "every process followed SIGTERM")


def content(s):
    """--chat-template-content-format: what a template gets that reads both forms."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write("{% for m in messages %}{% if m.content is string %}S:{{ m.content }};{% else %}"
                "{% for p in m.content %}P:{{ p.text }};{% endfor %}{% endif %}{% endfor %}")
        f.flush()
        for form, of_text, of_parts in (("auto", "S:one;", "P:one;P:two;"),
                                        ("string", "S:one;", "S:one\ntwo;"),
                                        ("openai", "P:one;", "P:one;P:two;")):
            with Stack(n_fronts=1, front=["--chat-template", f.name,
                                          "--chat-template-content-format", form]) as t:
                for given, want in (("one", of_text), (parts, of_parts)):
                    for role in ("user", "system", "assistant"):
                        r = post(t, CHAT + "/render", t.chat([{"role": role, "content": given}]))
                        tap.eq(r["prompt"], want, "content: %s, a %s's %r" % (form, role, given))
        p = subprocess.run([os.path.join(BUILDDIR, "quire-front"), "--model", MODEL, "--listen",
                            f.name + ".sock", "--chat-template-content-format", "x"],
                           capture_output=True, text=True, timeout=60)
        tap.ok(p.returncode != 0 and "must be auto, string or openai" in p.stdout + p.stderr,
               "content: another word", p.stderr)


def main():
    with Stack() as s:
        for part in (chats, completions, tokens, derender, batch, asked, bounds, budget, content):
            if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
                tap.section(part.__name__)
                part(s)
    tap.done()


main()
