#!/usr/bin/env python3
"""Tool calls there and back: a hundred tools and questions in the demo model's language, whose
calls must come and must be valid, streamed or not, hot or cold, required or named; then the result
goes back and the model answers. The same through every API.

The tools are those that the model was taught (tools/demo-model/generate.py makes them), every other
with parameters that it was not trained on. SEED=n asks others. Some of them again, every tool strict,
with a twin of the model that has 128,256 tokens."""

import json
import os
import random
import re
import sys

import twin
from harness import DEVICE, LONG, MODEL_NAME, SRCDIR, Stack, Tap, crowd, need_nginx
from schema import find_modules

need_nginx()
sys.path.insert(0, os.path.join(SRCDIR, "tools", "demo-model"))
import generate  # noqa: E402: its folder has just been named

find_modules()
try:
    import jsonschema
except ImportError:
    jsonschema = None

tap = Tap()
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
SEED = int(os.environ.get("SEED", "1"))
N = 100 if LONG else 20
N_FREE = 40 if LONG else 8  # of calls that the model makes by itself
EXTRAS = {
    "level": {"type": "integer", "minimum": 3, "maximum": 11},
    "kind": {"enum": ["alpha", "beta", 7, None, True]},
    "tags": {
        "type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3
    },
    "when": {"type": "string", "pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])$"},
    "flag": {"type": ["boolean", "null"]},
    "spot": {
        "type": "object", "properties": {
            "x": {"type": "number", "minimum": -1, "maximum": 1},
            "name": {"type": "string", "maxLength": 8}
        }, "required": ["x", "name"], "additionalProperties": False
    },
    "note": {"type": "string", "minLength": 2, "maxLength": 20},
    "either": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"const": "none"}]},
}


def small_check(schema, v):
    """What the schemas here use of JSON Schema, for want of the module; true when v is valid."""
    kinds = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
        "boolean": bool, "null": type(None)
    }
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(
            isinstance(v, kinds[t]) and (t == "boolean") == isinstance(v, bool) for t in types):
        return False
    same = lambda a: type(a) is type(v) and a == v
    if "enum" in schema and not any(map(same, schema["enum"])) or "const" in schema and not same(
            schema["const"]):
        return False
    if "anyOf" in schema and not any(small_check(s, v) for s in schema["anyOf"]):
        return False
    if isinstance(v, dict):
        known = schema.get("properties", {})
        return (all(k in v for k in schema.get("required", [])) and
                (schema.get("additionalProperties") is not False or set(v) <= set(known)) and
                all(small_check(known[k], x) for k, x in v.items() if k in known))
    if isinstance(v, list):
        return (schema.get("minItems", 0) <= len(v) <= schema.get("maxItems", len(v)) and
                all(small_check(schema.get("items", {}), x) for x in v))
    if isinstance(v, str):
        return (schema.get("minLength", 0) <= len(v) <= schema.get("maxLength", len(v)) and
                re.search(schema.get("pattern", ""), v) is not None)
    return v is None or isinstance(
        v, bool) or schema.get("minimum", v) <= v <= schema.get("maximum", v)


def fault(tools, call):
    """Why a call is not valid; None when it is."""
    schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
    name = call["function"]["name"]
    try:
        args = json.loads(call["function"]["arguments"])
    except ValueError:
        return "no JSON: %r" % call
    if name not in schemas or not isinstance(args, dict):
        return "no such call: %r" % call
    if jsonschema is not None:
        errors = list(jsonschema.Draft202012Validator(schemas[name]).iter_errors(args))
        return errors[0].message if errors else None
    return None if small_check(schemas[name], args) else "invalid: %r" % call


class Case:
    """One question with its tools; taught: the model has learned what comes of it."""
    def __init__(self, i):
        rng = random.Random(SEED * 1000003 + i)
        makers = rng.sample(generate.TOOLS, rng.randint(1, 4))
        made = [m(rng) for m in makers]
        tool, ask = made[0]
        self.question, self.args, self.result, self.answer = ask(rng)
        self.taught = i % 2 == 0
        parameters = tool["function"]["parameters"]
        if not self.taught:
            extras = rng.sample(sorted(EXTRAS), rng.randint(1, 4))
            parameters["properties"].update({k: EXTRAS[k] for k in extras})
            parameters["required"] = sorted(set(parameters.get("required", [])) | set(extras[1:]))
            # In what it was not taught the model finds no end by itself.
            parameters["additionalProperties"] = False
            for p in parameters["properties"].values():
                if p.get("type") == "string" and "enum" not in p and "pattern" not in p:
                    p.setdefault("maxLength", 24)
                elif p.get("type") == "integer":
                    p.setdefault("maximum", 100000)
                    p.setdefault("minimum", 0)
        self.tools = []
        for t, _ in made:  # two of the makers may have found the same name
            if t["function"]["name"] not in [x["function"]["name"] for x in self.tools]:
                self.tools.append(t)
        rng.shuffle(self.tools)
        self.name = tool["function"]["name"]
        self.named = i % 4 < 2
        self.body = {
            "model": MODEL_NAME, "messages": [{"role": "user", "content": self.question}],
            "tools": self.tools, "temperature": float(i % 8 < 4), "seed": i, "max_tokens": 600,
            "parallel_tool_calls": self.taught and i % 5 == 0,
            "tool_choice": {"type": "function", "function": {"name": self.name}}
            if self.named else "required"
        }


def joined(told):
    """The calls that a stream's deltas add up to."""
    calls = []
    for e in told.events:
        for d in (x for c in e["choices"] for x in c["delta"].get("tool_calls") or []):
            if d["index"] == len(calls):
                calls.append({
                    "id": d["id"], "type": d["type"],
                    "function": {"name": d["function"]["name"], "arguments": ""}
                })
            calls[d["index"]]["function"]["arguments"] += d["function"].get("arguments", "")
    return calls


def bare(calls):
    return [c["function"] for c in calls]


def one(s, i):
    """(the case, what was wrong, whether the call was the taught one, and the answer to it)"""
    c = Case(i)
    s.settle(CHAT, c.body)
    r = s.post(CHAT, c.body)
    if r.status != 200:
        raise ValueError(r.text)
    choice = r.json["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    told = s.stream(CHAT, dict(c.body, stream=True))
    faults = [f for f in (fault(c.tools, x) for x in calls) if f]
    if choice["finish_reason"] != "tool_calls" or told.finish.get(0) != "tool_calls":
        faults.append("ended by %s and %s" % (choice["finish_reason"], told.finish))
    if not calls or (c.named and {x["function"]["name"] for x in calls} != {c.name}):
        faults.append("calls %r" % bare(calls))
    if len({x["id"] for x in calls}) != len(calls):
        faults.append("ids that are not their own")
    if bare(joined(told)) != bare(calls):
        faults.append("a stream that says %r, not %r" % (bare(joined(told)), bare(calls)))
    right = [(x["function"]["name"], json.loads(x["function"]["arguments"]))
             for x in calls] == [(c.name, c.args)] if not faults else False
    # The message goes back as it came; the result is the taught one.
    talk = c.body["messages"] + [
        choice["message"]
    ] + [{"role": "tool", "tool_call_id": x["id"], "content": json.dumps(c.result)} for x in calls]
    r = s.post(CHAT, {
        "model": MODEL_NAME, "messages": talk, "tools": c.tools, "temperature": 0, "max_tokens": 200
    })
    if r.status != 200:
        raise ValueError(r.text)
    choice = r.json["choices"][0]
    content = choice["message"]["content"] or ""
    if content.strip() == "" or choice["finish_reason"] != "stop" or choice["message"].get(
            "tool_calls"):
        faults.append("no answer: %r" % choice)
    return c, faults, right, content == c.answer


def round_trips(s, n=N):
    results = []
    at_once = min(10, n) if DEVICE == "cpu" else 1  # elsewhere draws depend on the other sequences of the step
    for first in range(0, n, at_once):
        results += crowd(at_once, lambda k: one(s, first + k))
    broken = [
        "case %d: %s" % (i, r) if isinstance(r, Exception) else "case %d: %s" % (i, "; ".join(r[1]))
        for i, r in enumerate(results) if isinstance(r, Exception) or r[1]
    ]
    tap.ok(
        broken == [],
        "%d of %d calls parse, validate (%s), stream alike and are answered after their result" %
        (n - len(broken), n, "jsonschema" if jsonschema else "a small check of its own"),
        "\n".join(broken))
    taught = [
        r for r in results
        if not isinstance(r, Exception) and r[0].taught and r[0].body["temperature"] == 0
    ]
    right = [r for r in taught if r[2]]
    tap.ok(
        len(right) >= 0.8 * len(taught),
        "%d of %d calls of what was taught are the right ones, cold" % (len(right), len(taught)),
        [r[0].question for r in taught if not r[2]])
    answered = [r for r in right if r[3]]
    tap.ok(
        len(answered) >= 0.8 * len(right),
        "%d of these %d are answered in the right words" % (len(answered), len(right)),
        [r[0].answer for r in right if not r[3]])


def free(s):
    """tool_choice auto: whatever comes, in calls or in words, is whole."""
    bad, called = [], 0
    for i in range(N_FREE):
        c = Case(1000 + i)
        body = dict(c.body, tool_choice="auto")
        s.settle(CHAT, body)
        choice = s.post(CHAT, body).json["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        told = s.stream(CHAT, dict(body, stream=True))
        called += bool(calls)
        if bare(joined(told)) != bare(calls) or (choice["finish_reason"]
                                                 == "tool_calls") != bool(calls):
            bad.append((i, choice))
        bad += [(i, x) for x in calls
                if not isinstance(json.loads(x["function"]["arguments"]), dict)]
    tap.ok(bad == [] and called >= N_FREE // 2,
           "auto: %d of %d call by themselves, streamed alike" % (called, N_FREE), bad)


def allowed(s):
    """tool_choice allowed_tools, of a few of the tools: no other is called, hot or cold, streamed
    or not; where a call must come, one comes and is valid."""
    bad, called, other = [], 0, 0
    for i in range(N_FREE):
        c = Case(3000 + i)
        some = c.tools[:1 + i % max(1, len(c.tools) - 1)]
        names = [t["function"]["name"] for t in some]
        must = i % 2 == 0
        body = dict(c.body, tool_choice={"type": "allowed_tools", "allowed_tools": {
            "mode": "required" if must else "auto",
            "tools": [{"type": "function", "function": {"name": n}} for n in names]}})
        s.settle(CHAT, body)
        choice = s.post(CHAT, body).json["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        told = s.stream(CHAT, dict(body, stream=True))
        called += bool(calls)
        other += c.name not in names
        bad += [(i, x, names) for x in bare(calls) if x["name"] not in names]
        if bare(joined(told)) != bare(calls) or (must and not calls):
            bad.append((i, choice))
        if must and (DEVICE == "cpu" or choice["finish_reason"] != "length"):
            bad += [(i, f) for f in (fault(c.tools, x) for x in calls) if f]
    tap.ok(bad == [] and called >= N_FREE // 2 and other >= N_FREE // 8,
           "allowed_tools: %d of %d call, of the allowed ones alone, though %d ask for another" %
           (called, N_FREE, other), bad[:3])


def others(s):
    """The same by Anthropic's and OpenAI's other API."""
    bad = []
    for i in range(N_FREE // 2):
        c = Case(2000 + i)
        tools = [{
            "name": t["function"]["name"], "description": t["function"]["description"],
            "input_schema": t["function"]["parameters"]
        } for t in c.tools]
        talk = [{"role": "user", "content": c.question}]
        body = {
            "model": MODEL_NAME, "max_tokens": 900, "messages": talk, "tools": tools,
            "temperature": c.body["temperature"], "seed": i,
            "tool_choice": dict({"type": "tool", "name": c.name} if c.named else {"type": "any"},
                                disable_parallel_tool_use=True)
        }
        m = s.post(MESSAGES, body).json
        uses = [b for b in m["content"] if b["type"] == "tool_use"]
        faults = [
            fault(c.tools, {"function": {"name": b["name"], "arguments": json.dumps(b["input"])}})
            for b in uses
        ]
        if m["stop_reason"] != "tool_use" or len(uses) != 1 or faults != [None]:
            bad.append((i, m, faults))
            continue
        talk = talk + [{"role": "assistant", "content": m["content"]}, {
            "role": "user", "content": [{
                "type": "tool_result", "tool_use_id": uses[0]["id"], "content": json.dumps(c.result)
            }]
        }]
        m = s.post(MESSAGES, {
            "model": MODEL_NAME, "max_tokens": 200, "messages": talk, "tools": tools,
            "temperature": 0
        }).json
        if m["stop_reason"] != "end_turn" or not "".join(b.get("text", "")
                                                         for b in m["content"]).strip():
            bad.append((i, m))
    tap.ok(bad == [], "%d by /v1/messages" % (N_FREE // 2), "\n".join(map(str, bad)))
    bad = []
    for i in range(N_FREE // 2):
        c = Case(3000 + i)
        tools = [{
            "type": "function", "name": t["function"]["name"],
            "description": t["function"]["description"], "parameters": t["function"]["parameters"],
            "strict": False
        } for t in c.tools]
        talk = [{"role": "user", "content": c.question}]
        r = s.post(
            RESPONSES, {
                "model": MODEL_NAME, "input": talk, "tools": tools, "max_output_tokens": 900,
                "parallel_tool_calls": False, "temperature": c.body["temperature"], "seed": i,
                "tool_choice": {"type": "function", "name": c.name} if c.named else "required"
            }).json
        calls = [o for o in r["output"] if o["type"] == "function_call"]
        faults = [fault(c.tools, {"function": o}) for o in calls]
        if r["status"] != "completed" or len(calls) != 1 or faults != [None]:
            bad.append((i, r, faults))
            continue
        talk = talk + r["output"] + [{
            "type": "function_call_output", "call_id": calls[0]["call_id"], "output": json.dumps(
                c.result)
        }]
        r = s.post(
            RESPONSES, {
                "model": MODEL_NAME, "input": talk, "tools": tools, "max_output_tokens": 200,
                "temperature": 0
            }).json
        if r["status"] != "completed" or [o["type"] for o in r["output"]] != [
                "message"
        ] or not r["output"][0]["content"][0]["text"].strip():
            bad.append((i, r))
    tap.ok(bad == [], "%d by /v1/responses" % (N_FREE // 2), "\n".join(map(str, bad)))


def strict(s, n=8):
    """auto with strict tools: text in which a call may begin anywhere."""
    bad, called = [], 0
    for i in range(0, 2 * n, 2):
        c = Case(1000 + i)
        tools = [dict(t, function=dict(t["function"], strict=True)) for t in c.tools]
        body = dict(c.body, tools=tools, tool_choice="auto", temperature=0)
        s.settle(CHAT, body)
        r = s.post(CHAT, body)
        if r.status != 200:
            raise ValueError(r.text)
        calls = r.json["choices"][0]["message"].get("tool_calls") or []
        called += bool(calls)
        bad += [(i, f) for f in (fault(tools, x) for x in calls) if f]
    tap.ok(bad == [] and called >= n // 2, "strict and auto: %d of %d call, validly" % (called, n), bad)


with Stack() as s:
    tap.note("SEED=%d" % SEED)
    for part in (round_trips, free, strict, allowed, others):
        with tap.section(part.__name__):
            part(s)
    tap.ok(s.idle(), "nothing is left in the engine")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
with Stack(model=twin.folder()) as s:
    with tap.section("128,256 tokens"):
        round_trips(s, 10 if LONG else 5)
        strict(s, 8 if LONG else 4)
    tap.ok(s.idle(), "nothing is left in the engine")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
