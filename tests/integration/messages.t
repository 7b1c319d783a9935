#!/usr/bin/env python3
"""POST /v1/messages and /v1/messages/count_tokens through nginx: streams say what whole answers
say, requests mean the chats that they are said as, and every refusal has Anthropic's shape."""

import json
import time

from harness import MODEL_NAME, Stack, Tap, key, need_nginx, until

need_nginx()
tap = Tap()
PATH, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
HELLO = "Hello! How can I help you today?"
WEATHER = {"name": "get_weather", "description": "Get the weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def body_of(content, **fields):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return dict({"model": MODEL_NAME, "max_tokens": 60, "temperature": 0, "messages": messages},
                **fields)


def joined(events):
    """The message that a stream's events add up to. ValueError when their order is wrong."""
    message, open_block, partial = None, None, ""
    for e in events:
        if e["type"] == "ping":
            continue
        if e["type"] == "message_start":
            message = dict(e["message"], content=[])
        elif e["type"] == "content_block_start":
            if open_block is not None or e["index"] != len(message["content"]):
                raise ValueError("a block begins inside another")
            open_block, partial = dict(e["content_block"]), ""
        elif e["type"] == "content_block_delta":
            d = e["delta"]
            if e["index"] != len(message["content"]):
                raise ValueError("a delta of another block")
            if d["type"] == "text_delta":
                open_block["text"] += d["text"]
            elif d["type"] == "thinking_delta":
                open_block["thinking"] += d["thinking"]
            elif d["type"] == "signature_delta":
                open_block["signature"] = d["signature"]
            elif d["type"] == "input_json_delta":
                partial += d["partial_json"]
            else:
                raise ValueError(d["type"])
        elif e["type"] == "content_block_stop":
            if open_block["type"] == "tool_use":
                try:
                    open_block["input"] = json.loads(partial)
                except ValueError:
                    open_block["input"] = {}
            message["content"].append(open_block)
            open_block = None
        elif e["type"] == "message_delta":
            message.update(e["delta"])
            message["usage"] = e["usage"]
        elif e["type"] != "message_stop":
            raise ValueError(e["type"])
    if open_block is not None or events[-1]["type"] != "message_stop":
        raise ValueError("it does not end")
    return message


def anonymous(message):
    """Without what differs from one answer to the next; what was cached counts as read."""
    u = message["usage"]
    usage = (u["input_tokens"] + u["cache_read_input_tokens"] + u["cache_creation_input_tokens"],
             u["output_tokens"])
    content = [{k: v for k, v in b.items() if k != "id"} for b in message["content"]]
    return dict(message, id="", usage=usage, content=content)


def both(s, body, name):
    """Ask plainly, as a stream, and for the count; all must agree. The plain answer."""
    r = s.post(PATH, body)
    if not tap.eq(r.status, 200, name + ": 200"):
        raise RuntimeError(r.text)
    _, events = s.events(PATH, body)
    tap.eq(anonymous(joined(events)), anonymous(r.json), name + ": the stream says the same")
    count = {k: v for k, v in body.items() if k in ("model", "messages", "system", "tools",
                                                    "tool_choice", "thinking")}
    n = s.post(COUNT, count)
    tap.eq((n.status, n.json), (200, {"input_tokens": anonymous(r.json)["usage"][0]}),
           name + ": the count is the usage")
    return r.json


def text_of(message):
    return "".join(b.get("text", "") for b in message["content"])


def answers(s):
    r = both(s, body_of("What is the capital of France?"), "a question")
    tap.eq((text_of(r), r["stop_reason"], r["stop_sequence"], r["type"], r["role"], r["model"],
            len(r["content"])),
           ("The capital of France is Paris.", "end_turn", None, "message", "assistant",
            MODEL_NAME, 1), "a question: the message")
    tap.ok(r["id"].startswith("msg_"), "its id", r["id"])
    r = both(s, body_of("Hello", max_tokens=3), "max_tokens")
    tap.eq((r["stop_reason"], r["usage"]["output_tokens"]), ("max_tokens", 3), "max_tokens: why")
    r = both(s, body_of("Hello. " * 400, max_tokens=5000, ignore_eos=True), "more than there is room for")
    u = r["usage"]
    tap.eq((r["stop_reason"], u["output_tokens"] + anonymous(r)["usage"][0]),
           ("model_context_window_exceeded", 2048), "it ends with the context")
    r = both(s, body_of("Count from 1 to 20.", stop_sequences=["zz", "10"]), "stop_sequences")
    tap.eq((r["stop_reason"], r["stop_sequence"], "10" in text_of(r)),
           ("stop_sequence", "10", False), "stop_sequences: which")
    r = both(s, body_of("Hello", stop_sequences=["Hello"]), "a stop at once")
    tap.eq((r["content"], r["stop_reason"]), ([], "stop_sequence"), "a stop at once: no block")
    r = both(s, body_of([{"role": "user", "content": "What is the capital of France?"},
                         {"role": "assistant", "content": "The capital of"}]), "a beginning")
    tap.eq(text_of(r), " France is Paris.", "a beginning goes on")
    for begun in ("<", "|", ">", "end", "i", "so far ", "", " ", "\n",
                  [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]):
        talk = [{"role": "user", "content": "i < end | >"}, {"role": "assistant", "content": begun}]
        r = s.post(PATH, body_of(talk, max_tokens=1))
        n = s.post(PATH + "/count_tokens", {"model": MODEL_NAME, "messages": talk}).json
        text = begun if isinstance(begun, str) else "one\ntwo "
        p = s.post(CHAT + "/render", s.chat(talk[:1] + [dict(talk[1], content=text)],
                                            continue_final_message=True,
                                            add_generation_prompt=False)).json
        tap.eq((r.status, n["input_tokens"]), (200, p["count"]), "a beginning %r" % begun)
        tap.ok(p["prompt"].endswith("assistant\n" + text), "where the prompt ends", p["prompt"])
    a, b = s.events(PATH, body_of("Hello")), s.post(CHAT, s.chat("Hello")).json
    tap.eq(text_of(joined(a[1])), b["choices"][0]["message"]["content"], "as a chat says it")
    tap.eq(a[1][0]["message"]["usage"]["output_tokens"], 0, "the first event has the prompt's usage")
    many = [s.post(PATH, body_of("Tell me a short story.", temperature=1.5, top_p=0.9, top_k=50,
                                 seed=5)).json["content"] for _ in range(2)]
    tap.eq(many[0], many[1], "sampling fields, and a seed")
    for kind in (dict(thinking={"type": "enabled", "budget_tokens": 1024}),
                 dict(thinking={"type": "disabled"}), dict(metadata={"user_id": "u"}),
                 dict(context_management={"edits": [{"type": "clear_thinking_20251015"}]}),
                 dict(service_tier="auto", colour=1, tools=[], tool_choice={"type": "auto"})):
        r = s.post(PATH, body_of("Hello", **kind))
        tap.eq((r.status, text_of(r.json)), (200, HELLO), "with %r" % kind)


def meanings(s):
    """A request and the chat that it must be: the same tokens, by both counts."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}
    tools = [{"type": "function", "function": {
        "name": "get_weather", "description": "Get the weather",
        "parameters": WEATHER["input_schema"]}}]
    asked = [{"role": "user", "content": "Weather?"}]
    for name, fields, chat in (
            ("system", dict(system="Be brief."),
             [{"role": "system", "content": "Be brief."}] + asked),
            ("system in blocks", dict(system=[{"type": "text", "text": "Be"},
                                              {"type": "text", "text": "brief."}]),
             [{"role": "system", "content": "Be\nbrief."}] + asked),
            ("a call and its result", dict(messages=asked + [
                {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, call]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
                                              "content": "9 degrees"},
                                             {"type": "text", "text": "So?"}]}]),
             asked + [{"role": "assistant", "content": "Hm.", "tool_calls": [
                 {"id": "toolu_1", "type": "function",
                  "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}]},
                 {"role": "tool", "tool_call_id": "toolu_1", "content": "9 degrees"},
                 {"role": "user", "content": "So?"}])):
        got = s.post(COUNT, dict({"model": MODEL_NAME, "messages": asked, "tools": [WEATHER]},
                                 **fields)).json
        want = s.post("/tokenize", {"messages": chat, "tools": tools}).json["count"]
        tap.eq(got, {"input_tokens": want}, "%s: the chat's tokens" % name)


def tools(s):
    right = 0
    for city in ("Paris", "Rome", "Tokyo"):
        ask = [{"role": "user", "content": "What is the weather in %s?" % city}]
        r = both(s, body_of(ask, tools=[WEATHER]), "a call about " + city)
        calls = [b for b in r["content"] if b["type"] == "tool_use"]
        right += [(c["name"], c["input"]) for c in calls] == [("get_weather", {"city": city})] and \
            r["stop_reason"] == "tool_use"
        talk = ask + [{"role": "assistant", "content": r["content"]}, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": calls[0]["id"],
             "content": [{"type": "text", "text": '{"temperature": 21, "sky": "sunny"}'}]}]}]
        text = text_of(both(s, body_of(talk, tools=[WEATHER]), "its result"))
        tap.ok("21" in text and "sunny" in text, "an answer from the call's result", text)
    tap.eq(right, 3, "three calls of three")
    ask = body_of("What is the weather in Paris?", tools=[WEATHER])
    r = both(s, dict(ask, max_tokens=16), "a call that is cut")
    tap.eq((r["stop_reason"], r["content"][-1].get("input", {})), ("max_tokens", {}),
           "a call that is cut has no arguments")
    raw = both(s, dict(ask, tool_choice={"type": "none"}), "tool_choice none")
    tap.ok("<tool_call>" in text_of(raw) and raw["stop_reason"] == "end_turn",
           "tool_choice none: what the model says", raw)
    r = s.post(PATH, dict(ask, tool_choice={"type": "auto", "disable_parallel_tool_use": True}))
    tap.eq((r.status, len(r.json["content"])), (200, 1), "one call at a time")


def forms(s):
    """What the answer must be: the chat's own machinery, by this API's names."""
    hello = body_of("Hello", tools=[WEATHER, dict(WEATHER, name="other")])
    for choice, names in (({"type": "any"}, ("get_weather", "other")),
                          ({"type": "tool", "name": "other"}, ("other",))):
        r = both(s, dict(hello, tool_choice=choice), "tool_choice %r" % choice)
        call = r["content"][0]
        tap.ok(call["type"] == "tool_use" and call["name"] in names, "it calls", r)
        if r["stop_reason"] != "max_tokens":
            tap.eq((r["stop_reason"], list(call["input"])), ("tool_use", ["city"]), "and how")
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
              "required": ["city"], "additionalProperties": False}
    form = {"type": "json_schema", "schema": schema}
    for field in (dict(output_config={"format": form}), dict(output_format=form)):
        r = both(s, body_of("What is the capital of France?", **field), "a schema")
        tap.ok(json.loads(text_of(r))["city"] in ("Paris", "Rome"), "the text follows it", r)
    refuse(s, dict(hello, tool_choice={"type": "tool", "name": "none"}), 400,
           "invalid_request_error", "none", "a choice of no tool")
    refuse(s, body_of("Hello", output_config={"format": {"type": "json_schema", "schema": {
        "$ref": "http://x"}}}), 400, "invalid_request_error", "", "a schema that is not there")


def refuse(s, body, status, kind, word, name, path=PATH, **kw):
    r = s.request("POST", path, body, **kw)
    try:
        v = r.json
        good = r.status == status and v["type"] == "error" and v["error"]["type"] == kind and \
            word in v["error"]["message"] and set(v["error"]) == {"type", "message"} and \
            r.headers["Content-Type"].startswith("application/json")
    except (ValueError, KeyError, TypeError):
        good = False
    tap.ok(good, "%d for %s" % (status, name), "%d %s" % (r.status, r.text[:300]))
    return r


def errors(s):
    bad = "invalid_request_error"
    for field, value in (
            ("max_tokens", 0), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_tokens", None),
            ("max_tokens", []), ("messages", None), ("messages", "Hello"), ("messages", []),
            ("messages", [5]), ("messages", [{}]), ("messages", [{"role": "user"}]),
            ("messages", [{"role": 5, "content": "a"}]),
            ("messages", [{"role": "user", "content": 5}]),
            ("messages", [{"role": "user", "content": [[]]}]),
            ("messages", [{"role": "user", "content": [{"type": 5}]}]),
            ("messages", [{"role": "user", "content": [{"type": "text", "text": {}}]}]),
            ("messages", [{"role": "user", "content": [{"type": "image", "source": {}}]}]),
            ("system", 5), ("system", {}), ("system", [5]), ("stop_sequences", "a"),
            ("stop_sequences", [5]), ("stop_sequences", ["a"] * 99), ("stream", "perhaps"),
            ("temperature", "hot"), ("temperature", 101), ("top_p", 0), ("top_k", -2),
            ("tools", 5), ("tools", [5]), ("tools", [{}]), ("tools", [{"name": "f"}]),
            ("tools", [{"type": "web_search_20250305", "name": "web_search"}]),
            ("tool_choice", "auto"), ("tool_choice", {"type": "x"}), ("thinking", True),
            ("thinking", {"type": []}), ("metadata", 5), ("container", "c"), ("model", 5),
            ("output_config", {"format": 5}), ("chat_template_kwargs", [])):
        body = body_of("Hello", **{field: value})
        refuse(s, body, 400, bad, "", "%s %r" % (field, str(value)[:50]))
        if field in ("messages", "tools", "system"):
            refuse(s, body, 400, bad, "", "the count of %s %r" % (field, str(value)[:50]), COUNT)
    refuse(s, body_of("Hello", model="gpt"), 404, "not_found_error", "gpt", "an unknown model")
    refuse(s, body_of("Hello " * 3000), 400, bad, "maximum context length", "a long prompt")
    for broken, name in ((b"", "an empty body"), (b"{", "cut JSON"), (b"[]", "a list"),
                         (b'{"messages":' + b"[" * 100000, "deep nesting")):
        refuse(s, broken, 400, bad, "", name)
    r = refuse(s, body_of("Hello", stream=True, temperature=900), 400, bad, "temperature",
               "a stream's error", headers={"X-Request-Id": "abc"})
    tap.eq((r.json["request_id"], r.headers["X-Request-Id"]), ("abc", "abc"), "its request_id")
    refuse(s, {}, 404, "not_found_error", "batches", "what is not there", PATH + "/batches")
    refuse(s, b"x" * 5000000, 404, "not_found_error", "there is no", "and 5 MB", PATH + "/batches")
    r = s.get(PATH)
    tap.eq((r.status, r.json["type"]), (405, "error"), "GET")
    r = s.post(PATH, b"x" * (33 << 20))
    tap.eq((r.status, r.json["error"]["type"]), (413, "request_too_large"), "a body too large")
    began = time.monotonic()
    for filler, name in ((b"[],", "10 MB of []"), (b'{"type":"text"},', "10 MB of blocks"),
                         (b'{"role":"user","content":"a"},', "10 MB of messages"),
                         (b'{"type":"text","text":""},', "10 MB of empty texts")):
        n = 10000000 // len(filler)
        opens = b"" if b"role" in filler else b'{"role":"user","content":['
        closes = b"" if b"role" in filler else b"]}"
        r = s.post(PATH, b'{"model":"demo","max_tokens":5,"messages":[' + opens +
                   (filler * n)[:-1] + closes + b"]}")
        tap.ok(r.status in (400, 413) and r.json["type"] == "error", "no to " + name,
               "%d %s" % (r.status, r.text[:200]))
    tap.note("%.1f s" % (time.monotonic() - began))
    tap.eq(text_of(s.post(PATH, body_of("Hello")).json), HELLO, "it serves")


def keys(s):
    body = body_of("Hello", max_tokens=3)

    def code(headers):
        return s.request("POST", PATH, body, headers=dict({"Authorization": ""}, **headers)).status
    tap.eq(code({"X-Api-Key": key(1)}), 200, "x-api-key")
    tap.eq(code({"x-api-key": key(1), "anthropic-version": "2023-06-01",
                 "anthropic-beta": "x"}), 200, "anthropic-version is taken")
    tap.eq(code({"x-api-key": "sk-wrong"}), 401, "a wrong x-api-key")
    tap.eq(code({"x-api-key": "Bearer " + key(1)}), 401, "a Bearer in x-api-key")
    r = refuse(s, body, 401, "authentication_error", "key", "no key", headers={"Authorization": ""})
    tap.ok("X-Request-Id" in r.headers, "a refusal by nginx has its name")
    refuse(s, {}, 401, "authentication_error", "key", "no key for a count", COUNT,
           headers={"Authorization": ""})
    r = s.request("GET", "/v1/models", headers={"Authorization": ""})
    tap.eq((r.status, r.error["code"]), (401, "invalid_api_key"), "other paths keep OpenAI's shape")
    r = s.request("GET", "/v1/models", headers={"Authorization": "", "X-Api-Key": key(2)})
    tap.eq(r.status, 200, "and take the key as well")


with Stack() as s:
    for part in (answers, meanings, tools, forms, errors, keys):
        with tap.section(part.__name__):
            part(s)
    tap.ok(all(f.exits == [] for f in s.fronts) and s.engine.exits == [], "no process died",
           s.logs())
with tap.section("reasoning"), Stack(front=["--reasoning-parser", "think"], n_fronts=1) as s:
    # The prompt ends inside the reasoning, and the demo model never leaves it.
    r = both(s, body_of([{"role": "user", "content": "What is the capital of France?"},
                         {"role": "assistant", "content": "<think>"}]), "reasoning")
    tap.eq([b["type"] for b in r["content"]], ["thinking"], "reasoning is a block of its own")
    tap.ok(r["content"][0]["thinking"] and r["content"][0]["signature"], "and is signed", r)
with tap.section("keep-alive"), Stack(engine=["--lane-slots", 1], n_fronts=1,
                                      front=["--keepalive-s", 1, "--engine-wait-ms", 4000]) as s:
    c = s.connect(timeout=30)
    c.request("POST", PATH, json.dumps(body_of("Hello", max_tokens=1900, stream=True,
                                               ignore_eos=True)).encode(),
              {"Content-Type": "application/json", "Authorization": s.bearer()})
    r = c.getresponse()
    r.readline()
    refuse(s, body_of("Hello"), 429, "rate_limit_error", "", "a full server")
    s.engine.hold()
    s.engine.kill()
    text = r.read().decode()  # until the front gives up
    tap.ok('event: ping\ndata: {"type":"ping"}\n\n' in text, "a silent stream is pinged")
    last = text.rstrip("\n").split("\n\n")[-1].split("\n")
    v = json.loads(last[1][len("data: "):])
    tap.eq((last[0], v["type"], v["error"]["type"]), ("event: error", "error", "overloaded_error"),
           "an engine that stays away: an error event")
    c.close()
    r = s.post(PATH, body_of("Hello"))
    tap.eq((r.status, r.json["error"]["type"], "Retry-After" in r.headers),
           (529, "overloaded_error", True), "and 529 before a stream")
    s.engine.release()
    tap.ok(until(lambda: s.post(PATH, body_of("Hello")).status == 200), "the next engine answers")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
