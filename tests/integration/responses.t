#!/usr/bin/env python3
"""POST /v1/responses through nginx: streams say what whole answers say, both as OpenAI's schema has
them; requests mean the chats that they are said as; what would need memory is refused by name."""

import json
import os
import re
import tempfile
import threading
import time

from harness import MODEL, MODEL_NAME, Stack, Tap, need_nginx, until

need_nginx()
tap = Tap()
PATH, CHAT = "/v1/responses", "/v1/chat/completions"
HELLO = "Hello! How can I help you today?"
PARIS = "The capital of France is Paris."
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the weather",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                          "required": ["city"]}}


def body_of(content, **fields):
    return dict({"model": MODEL_NAME, "temperature": 0, "input": content}, **fields)


def joined(events):
    """The output items that deltas add up to. ValueError where done events say otherwise."""
    items, texts = [], {}
    for e in events:
        kind = e["type"]
        if kind == "response.output_item.added":
            if e["output_index"] != len(items):
                raise ValueError("an item out of turn")
            items.append(e["item"])
            texts[e["output_index"]] = ""
        elif kind == "response.content_part.added":
            items[e["output_index"]]["content"].append(e["part"])
        elif kind.endswith(".delta"):
            if e["item_id"] != items[e["output_index"]]["id"]:
                raise ValueError("a delta of another item")
            texts[e["output_index"]] += e["delta"]
            if kind == "response.output_text.delta":
                items[e["output_index"]]["content"][0]["logprobs"] += e["logprobs"]
        elif kind == "response.output_item.done":
            item, text = items[e["output_index"]], texts[e["output_index"]]
            if item["type"] == "function_call":
                item["arguments"] = text
            elif item["type"] == "custom_tool_call":
                item["input"] = text
            else:
                item["content"][0]["text"] = text
            item["status"] = e["item"]["status"]
            if item != e["item"]:
                raise ValueError("the item is not what its deltas say: %r" % e["item"])
        elif kind.endswith(".done") and ("text" in e or "arguments" in e or "input" in e):
            said = e.get("text") or e.get("arguments") or e.get("input") or ""
            if said != texts[e["output_index"]]:
                raise ValueError("the text is not what its deltas say")
    return items


def anonymous(r):
    """Without what differs from one answer to the next."""
    usage = {k: v for k, v in (r.get("usage") or {}).items() if k != "input_tokens_details"}
    output = [{k: v for k, v in i.items() if k not in ("id", "call_id")} for i in r["output"]]
    return dict(r, id="", created_at=0, completed_at=0, usage=usage, output=output)


def both(s, body, name):
    """Ask plainly and as a stream; they must agree. The plain answer."""
    r = s.post(PATH, body)
    if not tap.eq(r.status, 200, name + ": 200"):
        raise RuntimeError(r.text)
    _, events = s.events(PATH, body)
    last = events[-1]
    tap.eq(anonymous(last["response"]), anonymous(r.json), name + ": the stream says the same")
    tap.eq((last["type"], joined(events)), ("response." + r.json["status"],
                                            last["response"]["output"]),
           name + ": its events add up")
    tap.eq([e["sequence_number"] for e in events], list(range(len(events))),
           name + ": the events are numbered")
    tap.eq([e["type"] for e in events[:2]], ["response.created", "response.in_progress"],
           name + ": the first events")
    return r.json


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def answers(s):
    r = both(s, body_of("What is the capital of France?"), "a question")
    tap.eq((text_of(r), r["status"], r["object"], r["model"], r["error"], r["store"]),
           (PARIS, "completed", "response", MODEL_NAME, None, False), "a question: the response")
    tap.ok(r["id"].startswith("resp_") and abs(r["created_at"] - time.time()) < 60, "id and time")
    u = r["usage"]
    tap.eq(u["total_tokens"], u["input_tokens"] + u["output_tokens"], "usage adds up")
    chat = s.post(CHAT, s.chat("What is the capital of France?")).json
    tap.eq((text_of(r), u["input_tokens"], u["output_tokens"]),
           (chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"],
            chat["usage"]["completion_tokens"]), "as a chat says it")
    r = both(s, body_of("Hello", max_output_tokens=3), "max_output_tokens")
    tap.eq((r["status"], r["incomplete_details"], r["output"][0]["status"],
            r["usage"]["output_tokens"]),
           ("incomplete", {"reason": "max_output_tokens"}, "incomplete", 3), "cut: it says so")
    r = both(s, body_of("Hello", instructions="Be brief.", metadata={"k": "v"}, store=True,
                        top_p=0.5, temperature=0.7, seed=3, max_output_tokens=50, user="u",
                        reasoning={"effort": "low"}, truncation="disabled", colour=1,
                        text={"format": {"type": "text"}, "verbosity": "low"},
                        include=["reasoning.encrypted_content"], service_tier="auto",
                        stream_options={"include_obfuscation": False}), "many fields")
    tap.eq((r["instructions"], r["metadata"], r["store"], r["top_p"], r["temperature"],
            r["max_output_tokens"], r["reasoning"]["effort"], r["previous_response_id"]),
           ("Be brief.", {"k": "v"}, False, 0.5, 0.7, 50, "low", None), "the answer repeats them")


def meanings(s):
    """A request and the chat that it must be: the same number of tokens."""
    call = {"type": "function_call", "call_id": "c", "name": "get_weather",
            "arguments": '{"city": "Rome"}'}
    asked = {"role": "user", "content": "Weather?"}
    said = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "get_weather",
                                                     "arguments": '{"city": "Rome"}'}}]}
    for name, fields, chat in (
            ("instructions", dict(input="Weather?", instructions="Be brief."),
             [{"role": "system", "content": "Be brief."}, asked]),
            ("developer", dict(input=[{"role": "developer", "content": "Be brief."}, asked]),
             [{"role": "system", "content": "Be brief."}, asked]),
            ("parts", dict(input=[{"role": "user", "content": [
                {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}]),
             [{"role": "user", "content": "a\nb"}]),
            ("a call and its output", dict(input=[asked, call, {
                "type": "function_call_output", "call_id": "c", "output": "9 degrees"}]),
             [asked, said, {"role": "tool", "tool_call_id": "c", "content": "9 degrees"}])):
        body = dict({"model": MODEL_NAME, "max_output_tokens": 1}, **fields)
        got = s.post(PATH, body).json["usage"]["input_tokens"]
        want = s.post("/tokenize", {"messages": chat}).json["count"]
        tap.eq(got, want, "%s: the chat's tokens" % name)


def tools(s):
    right = 0
    for city in ("Paris", "Rome", "Tokyo"):
        ask = [{"role": "user", "content": "What is the weather in %s?" % city}]
        r = both(s, body_of(ask, tools=[WEATHER], max_output_tokens=80), "a call about " + city)
        calls = [i for i in r["output"] if i["type"] == "function_call"]
        right += [(c["name"], json.loads(c["arguments"])) for c in calls] == \
            [("get_weather", {"city": city})]
        talk = ask + r["output"] + [{"type": "function_call_output",
                                     "call_id": calls[0]["call_id"],
                                     "output": '{"temperature": 21, "sky": "sunny"}'}]
        text = text_of(both(s, body_of(talk, tools=[WEATHER]), "its output"))
        tap.ok("21" in text and "sunny" in text, "an answer from the call's output", text)
    tap.eq(right, 3, "three calls of three")
    ask = body_of("What is the weather in Paris?", tools=[WEATHER])
    r = both(s, dict(ask, max_output_tokens=16), "a call that is cut")
    tap.eq((r["status"], r["output"][-1]["status"]), ("incomplete", "incomplete"),
           "a call that is cut says so")
    raw = both(s, dict(ask, tool_choice="none"), "tool_choice none")
    tap.ok("<tool_call>" in text_of(raw), "tool_choice none: what the model says", raw)
    odd = dict(WEATHER, parameters={"type": "object", "maximum": 7})
    body = json.dumps(dict(ask, tools=[odd], max_output_tokens=1)).replace("7", "1e999").encode()
    r = s.post(PATH, body)
    tap.ok(b'"maximum":1e999}' in r.body, "a number is repeated as it was written", r.text)
    r = both(s, dict(ask, tool_choice="auto", parallel_tool_calls=False), "one call at a time")
    tap.eq((r["parallel_tool_calls"], r["tool_choice"], r["tools"][0]["name"]),
           (False, "auto", "get_weather"), "the answer repeats what was asked of tools")


def codex(s):
    """Tools as Codex sends them: of a namespace, of OpenAI's own, and such as take a text."""
    patch = {"type": "custom", "name": "patch", "description": "Change a file.",
             "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
    space = {"type": "namespace", "name": "mcp__home", "description": "At home.",
             "tools": [{"type": "function", "name": "lamp", "description": "Light.",
                        "parameters": {"type": "object",
                                       "properties": {"on": {"enum": ["yes", "no"]}},
                                       "required": ["on"], "additionalProperties": False}}]}
    search = {"type": "web_search", "external_web_access": False}
    ask = body_of("Light!", tools=[WEATHER, space, search, patch], max_output_tokens=200)
    choice = {"type": "function", "name": "lamp", "namespace": "mcp__home"}
    r = both(s, dict(ask, tool_choice=choice), "a namespace's tool")
    item = r["output"][0]
    tap.eq((item["type"], item["name"], item["namespace"]), ("function_call", "lamp", "mcp__home"),
           "it is called by its names")
    tap.ok(json.loads(item["arguments"])["on"] in ("yes", "no"), "under its schema", item)
    tap.eq(r["tools"][1:], [space, search, patch], "the tools are repeated as they were")
    r = both(s, dict(ask, tool_choice={"type": "custom", "name": "patch"}), "a custom tool")
    item = r["output"][0]
    tap.eq((item["type"], item["name"]), ("custom_tool_call", "patch"), "it is called")
    tap.ok(isinstance(item["input"], str) and (item["input"] or r["status"] == "incomplete"),
           "with a text", item)
    for rule, text in (("[0-9]{3}-[a-f]{2}", "[0-9]{3}-[a-f]{2}"),
                       (r'a"b\\c|"[xy]{1,3}"\n', r'a"b\\c|"[xy]{1,3}"\n')):
        held = dict(patch, format={"type": "grammar", "syntax": "regex", "definition": rule})
        for more in (dict(), dict(temperature=1.5, seed=3)):
            r = both(s, dict(ask, tools=[WEATHER, held], tool_choice={"type": "custom",
                                                                      "name": "patch"}, **more),
                     "a text under %r" % rule)
            tap.ok(r["status"] == "completed" and re.fullmatch(text, r["output"][0]["input"]),
                   "it matches", r["output"])
    for form, words in (({"type": "grammar", "syntax": "regex", "definition": "("}, "pattern"),
                        ({"type": "grammar", "syntax": "peg", "definition": "x"}, "lark or regex"),
                        ({"type": "grammar", "syntax": "regex"}, "definition"),
                        ({"type": "xml"}, "text or grammar"), ("text", "object")):
        body = dict(ask, tools=[dict(patch, format=form)])
        refuse(s, body, 400, "tools", str(form))
        said = s.post(PATH, body).text
        tap.ok(words in said and "tool" in said, "it says what is wrong", said)
    talk = [{"role": "user", "content": "Light!"}, dict(choice, type="function_call", call_id="c1",
                                                        arguments='{"on": "yes"}'),
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** a \"b\""},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
            {"role": "user", "content": "Hello"}]
    both(s, dict(ask, input=talk, max_output_tokens=20), "their history")
    r = both(s, body_of("word " * 5000, truncation="auto", max_output_tokens=8), "a long input")
    tap.eq(r["truncation"], "auto", "truncation is repeated")
    refuse(s, body_of("word " * 5000, max_output_tokens=8), 400, "input", "too long without")


def forms(s):
    """What the answer must be: the chat's own machinery, by this API's names."""
    hello = body_of("Hello", tools=[WEATHER, dict(WEATHER, name="other")], max_output_tokens=60)
    for choice, names in (("required", ("get_weather", "other")),
                          ({"type": "function", "name": "other"}, ("other",))):
        r = both(s, dict(hello, tool_choice=choice), "tool_choice %r" % choice)
        call = r["output"][0]
        tap.ok(call["type"] == "function_call" and call["name"] in names, "it calls", r)
        if r["status"] == "completed":
            tap.eq(list(json.loads(call["arguments"])), ["city"], "and how")
        tap.eq(r["tool_choice"], choice, "the choice is repeated")
    for mode in ("auto", "required"):
        choice = {"type": "allowed_tools", "mode": mode,
                  "tools": [{"type": "function", "name": "other"}]}
        r = both(s, dict(hello, input="What is the weather in Rome?", tool_choice=choice),
                 "allowed tools, " + mode)
        calls = [i["name"] for i in r["output"] if i["type"] == "function_call"]
        tap.ok(set(calls) <= {"other"} and (calls or mode == "auto"), "no other is called", calls)
        tap.eq(r["tool_choice"], choice, "they are repeated")
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
              "required": ["city"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "place", "schema": schema, "strict": True}
    ask = "What is the capital of France?"
    r = both(s, body_of(ask, text={"format": form}), "a schema")
    tap.ok(json.loads(text_of(r))["city"] in ("Paris", "Rome"), "the text follows it", r)
    tap.eq(r["text"]["format"], form, "the format is repeated")
    r = both(s, body_of(ask, text={"format": {"type": "json_object"}}, max_output_tokens=60),
             "json_object")
    tap.ok(text_of(r).lstrip().startswith("{"), "the text is one", r)
    refuse(s, body_of(ask, text={"format": dict(form, schema={"$ref": "http://x"})}), 400, "text",
           "a schema that is not there")
    refuse(s, dict(hello, tool_choice={"type": "function", "name": "none"}), 400, "tool_choice",
           "a choice of no tool")


def told(r):
    """Log probabilities of all texts."""
    return [p for i in r["output"] if i["type"] == "message" for c in i["content"]
            for p in c["logprobs"]]


def logprobs(s):
    """Each token of a text with its log probability and alternatives, and no other token."""
    include = ["message.output_text.logprobs"]
    ask = "What is the capital of France?"
    r = both(s, body_of(ask, include=include, top_logprobs=3), "log probabilities")
    got = told(r)
    tap.eq("".join(p["token"] for p in got), PARIS, "the tokens are the text")
    tap.eq([bytes(p["bytes"]).decode() for p in got], [p["token"] for p in got], "their bytes")
    tap.ok(all(len(p["top_logprobs"]) == 3 and p["top_logprobs"][0]["token"] == p["token"] and
               p["logprob"] == p["top_logprobs"][0]["logprob"] <= 0 for p in got), "alternatives")
    tap.eq(r["top_logprobs"], 3, "how many is repeated")
    chat = s.post(CHAT, s.chat(ask, logprobs=True, top_logprobs=3)).json["choices"][0]
    tap.eq(got, chat["logprobs"]["content"][:len(got)], "those of a chat")
    r = both(s, body_of(ask, include=include), "no alternatives")
    tap.ok(len(told(r)) == len(got) and all(p["top_logprobs"] == [] for p in told(r)), "none")
    tap.eq(told(both(s, body_of(ask, top_logprobs=3), "not asked for")), [], "they are not told")
    r = both(s, body_of(ask, include=include, max_output_tokens=3), "log probabilities, cut")
    tap.eq("".join(p["token"] for p in told(r)), text_of(r), "the tokens of what there is")
    r = both(s, body_of("What is the weather in Paris?", tools=[WEATHER], include=include),
             "log probabilities beside a call")
    tap.eq((r["output"][-1]["type"], "".join(p["token"] for p in told(r))),
           ("function_call", text_of(r)), "a call's tokens are not told")


def refuse(s, body, status, param, name, word="", code=None, method="POST", path=PATH):
    r = s.request(method, path, body)
    try:
        e = r.error
        good = (r.status, e["param"], set(e)) == (status, param,
                                                  {"message", "type", "param", "code"}) and \
            word in e["message"] and (code is None or e["code"] == code) and e["message"]
    except (ValueError, KeyError, TypeError):
        good = False
    tap.ok(good, "%d for %s" % (status, name), "%d %s" % (r.status, r.text[:300]))


def errors(s):
    for field, value in (
            ("input", None), ("input", 5), ("input", []), ("input", [5]), ("input", [{}]),
            ("input", [{"role": "x", "content": "a"}]), ("input", [{"role": "user"}]),
            ("input", [{"role": "user", "content": 5}]), ("input", [{"type": []}]),
            ("input", [{"role": "user", "content": [{"type": "input_image"}]}]),
            ("input", [{"type": "function_call"}]), ("input", [{"type": "reasoning"}]),
            ("input", [{"type": "web_search_call"}]), ("input", [{"type": "item_reference"}]),
            ("instructions", []), ("max_output_tokens", 0), ("max_output_tokens", "5"),
            ("temperature", 101), ("temperature", "hot"), ("top_p", 0), ("stream", "perhaps"),
            ("tools", 5), ("tools", [5]), ("tools", [{"type": "colour"}]),
            ("tools", [{"type": "function"}]), ("tool_choice", 5), ("tool_choice", "x"),
            ("tool_choice", {"type": "allowed_tools"}), ("parallel_tool_calls", "x"),
            ("text", 5), ("text", {"format": {"type": "x"}}), ("reasoning", 5),
            ("reasoning", {"effort": "x"}), ("metadata", {"a": 1}), ("include", 5),
            ("include", [5]), ("truncation", "some"), ("store", 5),
            ("previous_response_id", "resp_1"), ("conversation", "c"), ("background", True),
            ("prompt", {"id": "p"}), ("top_logprobs", 21), ("top_logprobs", -1), ("model", 5)):
        refuse(s, body_of("Hello", **{field: value}), 400, field, "%s %r" % (field, str(value)[:50]))
    refuse(s, body_of("Hello", previous_response_id="resp_1"), 400, "previous_response_id",
           "a response before", "does not store")
    refuse(s, body_of("Hello", model="gpt"), 404, "model", "an unknown model", "gpt",
           "model_not_found")
    refuse(s, body_of("Hello " * 3000), 400, "input", "a long prompt", "maximum context length",
           "context_length_exceeded")
    refuse(s, None, 404, "response_id", "a response that was", "does not store", "not_found", "GET",
           PATH + "/resp_1")
    refuse(s, None, 405, None, "GET of all", method="GET")
    refuse(s, {}, 404, "response_id", "a cancel", "does not store", path=PATH + "/resp_1/cancel")
    refuse(s, b"x" * 5000000, 404, "response_id", "5 MB to a response that was",
           path=PATH + "/resp_1/cancel")
    refuse(s, None, 404, "response_id", "a DELETE", method="DELETE", path=PATH + "/resp_1")
    refuse(s, b"{", 400, None, "cut JSON")
    began = time.monotonic()
    for filler, name in ((b"[],", "10 MB of []"), (b'{"type":"message"},', "10 MB of items"),
                         (b'{"role":"user","content":"a"},', "10 MB of messages")):
        n = 10000000 // len(filler)
        r = s.post(PATH, b'{"model":"demo","input":[' + (filler * n)[:-1] + b"]}")
        tap.ok(r.status in (400, 413) and r.error["message"], "%d for %s" % (r.status, name),
               r.text[:200])
    tap.note("%.1f s" % (time.monotonic() - began))
    tap.eq(text_of(s.post(PATH, body_of("Hello")).json), HELLO, "it serves")


with Stack() as s:
    for part in (answers, meanings, tools, codex, forms, logprobs, errors):
        with tap.section(part.__name__):
            part(s)
    tap.ok(all(f.exits == [] for f in s.fronts) and s.engine.exits == [], "no process died",
           s.logs())
with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
    template = json.load(f)["chat_template"]
with tap.section("reasoning"), tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
    f.write(template + "{% if reasoning_effort is defined %}{{ reasoning_effort }}, "
            "{{ enable_thinking }}{% endif %}<think>\n")  # which the demo model never leaves
    f.flush()
    with Stack(n_fronts=1, front=["--reasoning-parser", "think", "--chat-template", f.name]) as s:
        r = both(s, body_of("What is the capital of France?", max_output_tokens=40), "reasoning")
        tap.eq([(i["type"], i["summary"], i["content"][0]["type"]) for i in r["output"]],
               [("reasoning", [], "reasoning_text")], "reasoning is an item of its own")
        tap.eq(r["usage"]["output_tokens_details"]["reasoning_tokens"],
               r["usage"]["output_tokens"], "and its tokens are counted")
        for fields, want in ((dict(reasoning_effort="high"), "high, True<think>"),
                             (dict(reasoning_effort="none"), "none, False<think>"),
                             (dict(reasoning_effort="low", chat_template_kwargs={
                                 "reasoning_effort": "mine", "enable_thinking": False}),
                              "mine, False<think>")):
            p = s.post(CHAT + "/render", s.chat("Hi", **fields)).json["prompt"]
            tap.ok(p.rstrip().endswith(want), "the template hears of %r" % fields, p)
        long, short = (s.post(PATH, body_of("Hi", max_output_tokens=1, **fields)).json["usage"]
                       ["input_tokens"] for fields in (dict(reasoning={"effort": "high"}), {}))
        tap.ok(long > short, "and of a response's effort")
        talk = [{"role": "user", "content": "Hello"}] + r["output"] + \
            [{"role": "user", "content": "And?"}]
        tap.eq(s.post(PATH, body_of(talk, max_output_tokens=3)).status, 200, "and is taken back")
with tap.section("an engine that dies"), Stack() as s:
    body = body_of("Tell me a story", include=["message.output_text.logprobs"], top_logprobs=1,
                   max_output_tokens=800, ignore_eos=True)
    want, got = s.post(PATH, body).json, []
    t = threading.Thread(target=lambda: got.append(s.post(PATH, body).json))
    t.start()
    until(lambda: s.get("/load").json["server_load"] > 0)
    time.sleep(0.2)
    s.engine.kill()
    tap.ok(until(lambda: len(s.engine.exits) == 1) and not got, "it died before the answer")
    t.join()
    tap.eq((text_of(got[0]), [p["token"] for p in told(got[0])]),
           (text_of(want), [p["token"] for p in told(want)]),
           "the next goes on: every token is told once")

with tap.section("an error in mid-stream"), Stack(env={"QUIRE_FAULT": "engine_step:3"}) as s:
    _, events = s.events(PATH, body_of("Hello"))
    tap.eq((events[-1]["type"], events[-1]["response"]["status"],
            events[-1]["response"]["error"]["code"]), ("response.failed", "failed", "server_error"),
           "a stream that fails says so")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
