#!/usr/bin/env python3
"""Requests of hostile size, to every endpoint that reads one: each is answered with 400 or 413 (or
served, where that is cheap) after a bounded time of computing, others are served meanwhile, and the
fronts are as healthy and about as large as before."""

import json
import os
import threading
import time

from harness import MODEL_NAME, Stack, Tap, cpu_seconds, need_nginx, until

need_nginx()
tap = Tap()
CHAT, TEXT, MESSAGES, RESPONSES = ("/v1/chat/completions", "/v1/completions", "/v1/messages",
                                   "/v1/responses")
# A sanitizer takes its time, and keeps what was freed for a while; what is shown there is that
# nothing breaks.
SANITIZED = "asan" in os.environ.get("builddir", "")
LIMIT_S = 150.0 if SANITIZED else 10.0  # CPU time of the fronts for one request
GROWTH_BYTES = (1024 if SANITIZED else 64) << 20  # of a front, when all is over
MB = 1 << 20


def rss(pid, key="VmRSS"):
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    return 0


def cpu_of(s):
    return sum(cpu_seconds(f.pid) for f in s.fronts)


def user(text="Hi"):
    return {"role": "user", "content": text}


def tool(i, big=False):
    args = {
        "type": "object", "properties": {
            "a%d" % k: {"type": "string", "enum": ["x%d" % j for j in range(50)]}
            for k in range(10 if big else 1)
        }
    }
    return "tool_%d" % i, args


def chat_tools(n, big=False):
    return [{"type": "function", "function": {"name": a, "parameters": b}}
            for a, b in (tool(i, big) for i in range(n))]


def nested(n):
    return b"[" * n + b"]" * n


def choice_schema(n):
    return {"anyOf": [{"const": "alternative number %d" % i} for i in range(n)]}


def object_schema(n):
    return {
        "anyOf": [{
            "type": "object", "properties": {"k%d" % i: {"type": "integer"}},
            "required": ["k%d" % i]
        } for i in range(n)]
    }


def wrap(schema):
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def raw(path, fields, name, value):
    """A body whose member `name` is these bytes."""
    head = json.dumps(dict(fields, model=MODEL_NAME, max_tokens=4))[:-1].encode()
    return path, head + b", \"" + name.encode() + b"\": " + value + b"}"


def chats():
    chat = lambda **f: (CHAT, dict(dict(model=MODEL_NAME, messages=[user()], max_tokens=4), **f))
    yield "one message of 30 MB", chat(messages=[user("word " * (6 * MB))])
    yield "30 MB without a space", chat(messages=[user("x" * (30 * MB))])
    yield "30 MB of Han characters", chat(messages=[user("\u4e2d" * (10 * MB - 200))])
    yield "100,000 messages", chat(messages=[user("m%d" % i) for i in range(100000)])
    yield "500,000 messages", chat(messages=[user("")] * 500000)
    yield "100,000 parts", chat(messages=[user([{"type": "text", "text": "a"}] * 100000)])
    yield "100,000 tool calls", chat(messages=[
        user(), {
            "role": "assistant", "content": "", "tool_calls": [
                {"id": "c%d" % i, "type": "function",
                 "function": {"name": "f", "arguments": "{\"a\": %d}" % i}}
                for i in range(100000)]
        }
    ])
    yield "1,000 tools", chat(tools=chat_tools(1000))
    yield "1,000 tools, required", chat(tools=chat_tools(1000), tool_choice="required")
    yield "1,000 large tools, required", chat(tools=chat_tools(1000, True), tool_choice="required")
    yield "20,000 tools", chat(tools=chat_tools(20000), tool_choice="auto")
    yield "100,000 stops", chat(stop=["s%d" % i for i in range(100000)])
    yield "100,000 biases", chat(logit_bias={str(i): 1 for i in range(100000)})
    yield "100,000 bad words", chat(bad_words=["w%d" % i for i in range(100000)])
    yield "1,000,000 unknown fields", (CHAT, json.dumps(chat()[1])[:-1].encode() + b"".join(
        b', "u%d": 0' % i for i in range(1000000)) + b"}")
    yield "lists in lists, 1,000,000 deep", raw(CHAT, {}, "messages", nested(1000000))
    yield "15 MB of quotes", raw(CHAT, {}, "messages", b"\"" + b"\\\"" * (14 * MB) + b"\"")
    yield "30 MB that are no JSON", (CHAT, b"{" * (30 * MB))
    yield "30 MB of white space", (CHAT, b" " * (30 * MB))
    yield "a number of 30 MB", raw(CHAT, {}, "seed", b"1" * (30 * MB))
    yield "a body of 33 MB", (CHAT, b"x" * (33 * MB))
    yield "documents of 30 MB", chat(documents=[{"title": "t", "text": "word " * 100}] * 50000)
    yield "variables of 25 MB", chat(
        chat_template_kwargs={"k%d" % i: "v" * 250
                              for i in range(90000)})
    yield "a variable of 100,000 members", chat(
        chat_template_kwargs={"k": {"m%d" % i: i
                                    for i in range(100000)}})
    yield "messages of 100,000 members", chat(
        messages=[dict(user(), **{"m%d" % i: i
                                  for i in range(100000)})] * 3)


def completions():
    ask = lambda **f: (TEXT, dict(dict(model=MODEL_NAME, prompt="Hi", max_tokens=4), **f))
    yield "a prompt of 30 MB", ask(prompt="word " * (6 * MB))
    yield "30 MB without a space", ask(prompt="x" * (30 * MB))
    yield "30 MB cut to 100 tokens", ask(prompt="word " * (6 * MB), truncate_prompt_tokens=100)
    yield "100,000 prompts", ask(prompt=["p"] * 100000)
    yield "3,000,000 ids", ask(prompt=[5] * 3000000)
    yield "100,000 lists of ids", ask(prompt=[[5, 6]] * 100000)
    yield "128 choices of a prompt of 30 MB", ask(prompt="word " * (6 * MB), n=128)
    yield "128 prompts of 128 choices", ask(prompt=["p"] * 128, n=128)
    yield "an echo of 30 MB", ask(prompt="word " * (6 * MB), echo=True, max_tokens=0, logprobs=5)
    yield "allowed ids", ask(allowed_token_ids=[1] * 1000000)
    yield "15,000,000 numbers", (TEXT, b'{"prompt": [' + b"1," * (15 * MB) + b"1]}")
    yield "tokenize 5 MB", ("/tokenize", {"model": MODEL_NAME, "prompt": "x y " * (5 * MB // 4)})
    yield "detokenize 1,000,000 ids", ("/detokenize",
                                       {"model": MODEL_NAME, "tokens": [5] * 1000000})


def messages():
    ask = lambda **f: (MESSAGES, dict(dict(model=MODEL_NAME, messages=[user()], max_tokens=4), **f))
    yield "one message of 30 MB", ask(messages=[user("word " * (6 * MB))])
    yield "a system text of 30 MB", ask(system="word " * (6 * MB))
    yield "100,000 messages", ask(messages=[user("m%d" % i) for i in range(100000)])
    yield "100,000 blocks", ask(messages=[user([{"type": "text", "text": "a"}] * 100000)])
    yield "100,000 results", ask(messages=[
        user([{"type": "tool_result", "tool_use_id": "t%d" % i, "content": "a"}
              for i in range(100000)])
    ])
    yield "1,000 tools", ask(tools=[{"name": a, "input_schema": b}
                                    for a, b in map(tool, range(1000))])
    yield "1,000 tools, any", ask(tools=[{"name": a, "input_schema": b}
                                         for a, b in map(tool, range(1000))],
                                  tool_choice={"type": "any"})
    yield "100,000 stops", ask(stop_sequences=["s%d" % i for i in range(100000)])
    yield "lists in lists, 1,000,000 deep", raw(MESSAGES, {}, "messages", nested(1000000))
    yield "a count of 30 MB", ("/v1/messages/count_tokens",
                               {"model": MODEL_NAME, "messages": [user("word " * (6 * MB))]})


def responses():
    ask = lambda **f: (RESPONSES, dict(dict(model=MODEL_NAME, input="Hi", max_output_tokens=16), **f
                                       ))
    yield "an input of 30 MB", ask(input="word " * (6 * MB))
    yield "instructions of 30 MB", ask(instructions="word " * (6 * MB))
    yield "100,000 items", ask(input=[user("m%d" % i) for i in range(100000)])
    yield "100,000 calls and outputs", ask(input=[
        x for i in range(50000)
        for x in ({"type": "function_call", "call_id": "c%d" % i, "name": "f", "arguments": "{}"},
                  {"type": "function_call_output", "call_id": "c%d" % i, "output": "1"})
    ])
    yield "1,000 tools", ask(
        tools=[{"type": "function", "name": a, "parameters": b, "strict": False}
               for a, b in map(tool, range(1000))])
    yield "1,000 strict tools", ask(tools=[{
        "type": "function", "name": a, "parameters": dict(
            b, additionalProperties=False, required=["a0"]), "strict": True
    } for a, b in map(tool, range(1000))])
    yield "a schema of 100,000 alternatives", ask(
        text={"format": {"type": "json_schema", "name": "s", "schema": choice_schema(100000)}})


def structures():
    chat = lambda **f: (CHAT, dict(dict(model=MODEL_NAME, messages=[user()], max_tokens=4), **f))
    yield "100,000 constants", chat(response_format=wrap(choice_schema(100000)))
    yield "100,000 objects", chat(response_format=wrap(object_schema(100000)))
    yield "an enum of 100,000", chat(
        response_format=wrap({"enum": ["e%d" % i for i in range(100000)]}))
    yield "100,000 properties", chat(response_format=wrap(
        {"type": "object", "properties": {"p%d" % i: {"type": "integer"}
                                          for i in range(100000)}}))
    yield "100,000 definitions", chat(response_format=wrap({
        "$ref": "#/$defs/d0", "$defs": {
            "d%d" % i: {
                "type": "object", "properties": {"n": {"$ref": "#/$defs/d%d" % ((i + 1) % 100000)}}
            }
            for i in range(100000)
        }
    }))
    yield "a choice of 100,000", chat(
        structured_outputs={"choice": ["c%d" % i for i in range(100000)]})
    yield "a pattern of 100,000 alternatives", chat(
        structured_outputs={"regex": "|".join("a%d" % i for i in range(100000))})
    yield "a pattern of many states", chat(
        structured_outputs={"regex": "((a{1,500}){1,500}){1,500}"})
    yield "a pattern that doubles", chat(structured_outputs={"regex": "(a|b)*a(a|b){30}"})
    yield "a grammar of 100,000 rules", chat(
        structured_outputs={
            "grammar": "root ::= r0\n" + "".join("r%d ::= \"x\" r%d | \"y\"\n" % (i, i + 1)
                                                 for i in range(100000)) + "r100000 ::= \"z\"\n"
        })
    yield "a grammar of 100,000 alternatives", chat(structured_outputs={
        "grammar": "root ::= " + " | ".join("\"w%d\"" % i for i in range(100000))
    })
    tag = lambda i: {"type": "tag", "begin": "<t%d>" % i, "end": "</t>",
                     "content": {"type": "const_string", "value": "c"}}
    tags = lambda **f: chat(response_format={"type": "structural_tag", "format": dict(
        {"type": "triggered_tags", "triggers": ["<t"]}, **f)})
    yield "100,000 tags", tags(tags=[tag(i) for i in range(100000)])
    yield "100,000 triggers", tags(tags=[tag(i) for i in range(1000)],
                                   triggers=["<t%d" % i for i in range(100000)])
    again = {"type": "const_string", "value": "x"}
    for _ in range(6):
        again = {"type": "triggered_tags", "triggers": ["<t"], "at_least_one": True, "tags": [
            dict(tag(i), content=again) for i in range(6)]}
    yield "46,656 tags in tags", chat(response_format={"type": "structural_tag", "format": again})
    some = [{"type": "function", "function": {"name": "tool_%d" % i}} for i in range(20000)]
    yield "20,000 of 20,000 tools", chat(tools=some, tool_choice={
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some}})
    yield "50 of 20,000 tools", chat(tools=some, tool_choice={
        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": some[:50]}})
    yield "a schema of 30 MB", chat(guided_json="[" + "1," * (15 * MB - 100) + "1]")
    yield "minItems of 2^40", chat(response_format=wrap(
        {"type": "array", "items": {"type": "integer"}, "minItems": 1 << 40, "maxItems": 1 << 41}))
    yield "lists of 10^6 in lists of 10^6", chat(response_format=wrap({
        "type": "array", "minItems": 1000000, "items": {
            "type": "array", "minItems": 1000000, "items": {"type": "string", "minLength": 1000000}
        }
    }))


class Others:
    """Another client, which asks a short thing again and again."""
    def __init__(self, s):
        self.s, self.times, self.wrong, self.over = s, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        while not self.over.is_set():
            began = time.monotonic()
            try:
                r = self.s.post(CHAT, self.s.chat("Hello", max_tokens=2))
                if r.status != 200:
                    self.wrong.append(r.text[:200])
            except OSError as e:
                self.wrong.append(repr(e))
            self.times.append(time.monotonic() - began)
            time.sleep(0.05)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join(60)


def ask(s, group, name, path, body):
    data = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
    before, cpu = sum(rss(f.pid) for f in s.fronts), cpu_of(s)
    c = s.connect(timeout=120)
    began = time.monotonic()
    c.request("POST", path, data, {"Content-Type": "application/json", "Authorization": s.bearer()})
    r = c.getresponse()
    text = r.read()
    took = time.monotonic() - began
    c.close()
    cpu = cpu_of(s) - cpu
    # The bound is of CPU time, and ten times what the slowest needs: it finds what is not linear.
    good = r.status in (200, 400, 413) and cpu < LIMIT_S
    tap.ok(
        good, "%s: %s (%.1f MB): %d in %.2f s (%.2f s of the fronts), %+d MB" %
        (group, name, len(data) / MB, r.status, took, cpu,
         (sum(rss(f.pid) for f in s.fronts) - before) // MB), text[:300].decode(errors="replace"))
    if r.status in (400, 413):
        try:
            e = json.loads(text)["error"]
            tap.ok(e["message"] and len(text) < 4096, "    its error: " + e["message"][:120],
                   text[:300])
        except (ValueError, KeyError):
            tap.ok(False, "    its error", text[:300])
    return took


only = os.environ.get("ONLY", "")
with Stack() as s:
    warm = [s.post(CHAT, s.chat("Hello", max_tokens=2)).status for _ in range(20)]
    tap.eq(set(warm), {200}, "it serves")
    pids = [f.pid for f in s.fronts]
    first = {p: rss(p) for p in pids}
    for group in (chats, completions, messages, responses, structures):
        if only and only != group.__name__:
            continue
        with tap.section(group.__name__), Others(s) as others:
            slowest = max(ask(s, group.__name__, name, *what) for name, what in group())
        tap.eq(
            others.wrong[:3], [],
            "%s: %d others were served meanwhile, the slowest in %.2f s; the slowest here took "
            "%.2f s"
            % (group.__name__, len(others.times), max(others.times), slowest))
        tap.note("the slowest of them waited %.2f s" % max(others.times))
        tap.eq(s.post(CHAT, s.chat("Hello", max_tokens=2)).status, 200, "    and it serves on")
    tap.eq([f.pid for f in s.fronts], pids, "no front has ended")
    # What was freed goes back to the system within seconds.
    until(lambda: all(rss(p) - first[p] < GROWTH_BYTES for p in pids))
    last = {p: rss(p) for p in pids}
    tap.ok(
        all(last[p] - first[p] < GROWTH_BYTES for p in pids),
        "fronts had %s MB before, have %s MB, at most %s MB" %
        tuple("/".join(str(v // MB) for v in m.values())
              for m in (first, last, {p: rss(p, "VmHWM")
                                      for p in pids})))
    tap.ok(s.idle(), "nothing is left in the engine")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
