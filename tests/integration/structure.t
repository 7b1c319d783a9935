#!/usr/bin/env python3
"""Structured output from the request to the answer: whatever the model would say, what comes has the
form that was asked for, streamed or not, alone or beside many others, and across an engine's death.
Forms that cannot be held to are refused with the field, the keyword and its place. The same with a
twin of the model that has 128,256 tokens, and free text in forms of every kind."""

import json
import os
import re
import tempfile
import threading
import time

import twin
from harness import LONG, MODEL, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SEEDS, N_FORMS = (3, 300) if LONG else (2, 90)  # a server has 64 places

PERSON = {"type": "object",
          "properties": {"name": {"type": "string", "maxLength": 8},
                         "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "mood": {"enum": ["good", "bad"]}},
          "required": ["name", "age", "mood"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
             "type": "object",
             "properties": {"city": {"type": "string", "maxLength": 12},
                            "days": {"type": "integer", "minimum": 1, "maximum": 14}},
             "required": ["city", "days"], "additionalProperties": False}}},
         {"type": "function", "function": {"name": "now", "parameters": {
             "type": "object", "properties": {}, "additionalProperties": False}}}]


def is_person(v):
    return (isinstance(v, dict) and list(v) == ["name", "age", "mood"] and
            isinstance(v["name"], str) and len(v["name"]) <= 8 and type(v["age"]) is int and
            0 <= v["age"] <= 150 and v["mood"] in ("good", "bad"))


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def schema_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": schema}}


def said(s, body, path=CHAT):
    r = s.post(path, body)
    if r.status != 200:
        tap.note(r.text)
        return None, None
    choice = r.json["choices"][0]
    return choice.get("text", (choice.get("message") or {}).get("content")), choice


def wild(s, seed, **fields):
    """A question that the model would answer otherwise, at a temperature that says anything."""
    return s.chat("Hello", temperature=1.5, seed=seed, max_tokens=1200, **fields)


def contents(s):
    for seed in range(2 * SEEDS):
        text, choice = said(s, wild(s, seed, response_format=schema_format(PERSON)))
        tap.ok(is_person(parsed(text)), "json_schema, seed %d" % seed, repr(text))
        tap.eq(choice["finish_reason"], "stop", "it ends by itself")
    compact = {"json": PERSON, "disable_any_whitespace": True}
    for seed in range(SEEDS):
        text, _ = said(s, wild(s, seed, structured_outputs=compact))
        tap.ok(is_person(parsed(text)) and "\n" not in text, "structured_outputs.json, compact",
               repr(text))
    for fields in ({"structured_outputs": {"json": PERSON, "whitespace_pattern": r"\s?"}},
                   {"guided_json": PERSON, "guided_whitespace_pattern": "[ ]?"}):
        for seed in range(2):
            text, _ = said(s, wild(s, seed, **fields))
            bare = re.sub(r'"([^"\\\\]|\\\\.)*"', '""', text or "\n\n")
            tap.ok(is_person(parsed(text)) and not re.search(r"\s\s", bare), "whitespace_pattern",
                   repr(text))
    for fields, fits in (
            ({"structured_outputs": {"json": json.dumps(PERSON)}}, lambda t: is_person(parsed(t))),
            ({"guided_json": PERSON}, lambda t: is_person(parsed(t))),
            ({"structured_outputs": {"regex": "[0-9]{3}-[a-f]{2}"}},
             lambda t: re.fullmatch("[0-9]{3}-[a-f]{2}", t)),
            ({"guided_regex": "(ab|c){2}"}, lambda t: re.fullmatch("(ab|c){2}", t)),
            ({"structured_outputs": {"choice": ["yes", "no", "not at all"]}},
             lambda t: t in ("yes", "no", "not at all")),
            ({"guided_choice": ["\u00e9t\u00e9"]}, lambda t: t == "\u00e9t\u00e9"),
            ({"structured_outputs": {"grammar": 'root ::= "a" ("b" | "c"){3} "d"'}},
             lambda t: re.fullmatch("a[bc]{3}d", t)),
            ({"guided_grammar": 'start: "x"~2..4 "y"'}, lambda t: re.fullmatch("x{2,4}y", t))):
        for path, make in ((CHAT, lambda **f: wild(s, 1, **f)),
                           (TEXT, lambda **f: dict(s.completion("Hello", temperature=1.5, seed=1,
                                                                max_tokens=1200), **f))):
            text, _ = said(s, make(**fields), path)
            tap.ok(text is not None and fits(text), "%s at %s" % (fields, path), repr(text))
    loose = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {
        "type": "object", "properties": {"additionalProperties": {"type": "null"}}}},
        "required": ["a", "b"]}
    tag = {"format": {"type": "or", "elements": [{"type": "json_schema", "json_schema": loose}]}}
    for source in ({"json": loose}, {"json": json.dumps(loose)}, {"structural_tag": tag},
                   {"structural_tag": json.dumps(tag)}):
        for seed in range(SEEDS):
            text, _ = said(s, wild(s, seed, structured_outputs=dict(
                source, disable_additional_properties=True)))
            got = parsed(text) or {}
            tap.ok(list(got) == ["a", "b"] and set(got["b"]) <= {"additionalProperties"},
                   "disable_additional_properties", repr(text))
    text, choice = said(s, s.chat("Hello", max_tokens=300, temperature=0,
                                  response_format={"type": "json_object"}))
    tap.ok(choice["finish_reason"] == "length" or isinstance(parsed(text), dict), "json_object",
           repr(text))


def tags(s):
    """Structural tags in both shapes and both fields: what is in a tag has its form."""
    weather = {"begin": "<f=get_weather>", "end": "</f>", "schema": {
        "type": "object", "properties": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["days"], "additionalProperties": False}}
    tag = {"type": "tag", "begin": weather["begin"], "end": weather["end"],
           "content": {"type": "json_schema", "json_schema": weather["schema"]}}
    old = {"type": "structural_tag", "structures": [weather], "triggers": ["<f="]}
    new = {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["<f="], "tags": [tag], "at_least_one": True,
        "stop_after_first": True}}
    call = r"<f=get_weather>\s*\{\s*\"days\" ?:\s*[1-9]\s*\}\s*</f>"
    for fields in ({"response_format": new}, {"structured_outputs": {"structural_tag": new}},
                   {"structured_outputs": {"structural_tag": json.dumps(new)}}):
        for path, make in ((CHAT, lambda **f: wild(s, 1, **f)),
                           (TEXT, lambda **f: dict(s.completion("Hello", temperature=1.5, seed=1,
                                                                max_tokens=1200), **f))):
            text, _ = said(s, make(**fields), path)
            tap.ok(text is not None and re.fullmatch(call, text), "%s at %s" % (list(fields), path),
                   repr(text))
    for seed in range(SEEDS):
        text, _ = said(s, dict(wild(s, seed, response_format=old), logit_bias=None))
        tap.ok(text is not None and all(re.match(call, "<f=" + t) for t in text.split("<f=")[1:]),
               "free text with tags, seed %d" % seed, repr(text))
    hello, _ = said(s, s.chat("Hello", max_tokens=40, temperature=0))
    text, _ = said(s, s.chat("Hello", max_tokens=40, temperature=0, response_format=old))
    tap.eq(text, hello, "where no tag comes the text is as it was")
    pair = {"type": "sequence", "elements": [
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"},
        {"type": "or", "elements": [{"type": "const_string", "value": "yes"},
                                    {"type": "regex", "pattern": "no+"}]}]}
    body = wild(s, 2, response_format={"type": "structural_tag", "format": pair})
    text, c = said(s, dict(body, stop=None, max_tokens=400 if LONG else 100))
    tap.ok(text is not None and text.startswith("<think>") and
           (c["finish_reason"] == "length" or re.search(r"</think>(yes|no+)$", text)),
           "a sequence of a tag and alternatives", repr(text))


def streams(s):
    for seed in range(SEEDS):
        body = wild(s, seed, response_format=schema_format(PERSON))
        whole, _ = said(s, body)
        told = s.stream(CHAT, dict(body, stream=True))
        tap.eq(told.text.get(0), whole, "a stream says the same")


def calls(s):
    named = {"type": "function", "function": {"name": "now"}}
    for choice, only in (("required", None), (named, "now")):
        for parallel in (True, False):
            for seed in range(SEEDS):
                _, c = said(s, wild(s, seed, tools=TOOLS, tool_choice=choice,
                                    parallel_tool_calls=parallel))
                got = c["message"].get("tool_calls") or []
                name = "tool_choice %s, parallel %s, seed %d" % (only or choice, parallel, seed)
                if c["finish_reason"] == "length":
                    tap.ok(parallel and only is None, name + ": so many that they did not end")
                    continue
                tap.eq(c["finish_reason"], "tool_calls", name)
                tap.ok(len(got) == 1 or (parallel and only is None and len(got) > 1), "so many",
                       str(len(got)))
                for call in got:
                    f = call["function"]
                    args = parsed(f["arguments"])
                    good = (args == {} if f["name"] == "now" else f["name"] == "get_weather" and
                            isinstance(args, dict) and list(args) == ["city", "days"] and
                            1 <= args["days"] <= 14)
                    tap.ok(good and f["name"] == (only or f["name"]), "a valid call", json.dumps(f))
    strict = [dict(t, function=dict(t["function"], strict=True)) for t in TOOLS]
    for seed in range(SEEDS):
        text, c = said(s, wild(s, seed, tools=strict))
        for call in c["message"].get("tool_calls") or []:
            tap.ok(parsed(call["function"]["arguments"]) is not None, "a strict tool's arguments")
        tap.ok(c["finish_reason"] in ("stop", "tool_calls", "length"), "strict tools, seed %d" % seed)


def allowed(s):
    """Some of the tools: the prompt is that of all, but no other is called."""
    one = [{"type": "function", "function": {"name": "now"}}]

    def among(mode, tools=one):
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    ask = s.chat("What is the weather in Paris?", max_tokens=80, temperature=0, tools=TOOLS)
    free, c = said(s, ask)
    tap.eq([t["function"]["name"] for t in c["message"].get("tool_calls") or []], ["get_weather"],
           "left alone the model calls it")
    r = s.post(CHAT, dict(ask, tool_choice=among("required"), parallel_tool_calls=False)).json
    tap.eq([t["function"]["name"] for t in r["choices"][0]["message"]["tool_calls"]], ["now"],
           "required: the allowed one is called")
    tap.eq(r["usage"]["prompt_tokens"], s.post(CHAT, ask).json["usage"]["prompt_tokens"],
           "the prompt names all tools")
    for seed in range(SEEDS):
        _, c = said(s, wild(s, seed, tools=TOOLS, tool_choice=among("auto")))
        tap.ok(all(t["function"]["name"] == "now" for t in c["message"].get("tool_calls") or []),
               "auto, seed %d" % seed)
    text, c = said(s, dict(ask, tool_choice=among("auto")))
    tap.ok(all(t["function"]["name"] == "now" for t in c["message"].get("tool_calls") or []) and
           "get_weather" not in (text or ""), "auto: no other call", json.dumps(c))
    for fields in ({"structured_outputs": {"regex": r"[\s\S]*"}},
                   {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}):
        _, c = said(s, dict(ask, tool_choice=among("auto"), **fields))
        tap.ok(all(t["function"]["name"] == "now" for t in c["message"].get("tool_calls") or []),
               "auto: nor beside content that has a form", json.dumps(c))
    r = s.post(CHAT, dict(ask, tool_choice=among("auto"), guided_grammar='root ::= [^z]*'))
    tap.ok(r.status == 400 and "grammar" in r.text, "a grammar cannot be kept from writing calls",
           r.text)
    both = one + [{"type": "function", "function": {"name": "get_weather"}}]
    _, c = said(s, dict(ask, tool_choice=among("auto", both)))
    tap.eq([t["function"]["name"] for t in c["message"]["tool_calls"]], ["get_weather"],
           "auto with both: as it likes")


def many(s):
    wrong, lock = [], threading.Lock()

    def one(i):
        text, _ = said(s, wild(s, i, structured_outputs={"regex": "n%d(x|y){5}" % i}))
        if text is None or not re.fullmatch("n%d[xy]{5}" % i, text):
            with lock:
                wrong.append((i, text))
    for first in range(0, N_FORMS, 30):  # more than there are places for
        threads = [threading.Thread(target=one, args=(i,)) for i in range(first, first + 30)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    tap.eq(wrong[:3], [], "%d requests of as many forms" % N_FORMS)


def deaths(s):
    got = []
    # With no end in the form the text goes on until max_tokens.
    body = wild(s, 1, stream=True, structured_outputs={"regex": "([a-c] )*"})
    body["max_tokens"] = 300
    seen = threading.Event()

    def ask():
        got.append(s.stream(CHAT, body, on_event=lambda _: seen.set()))
    t = threading.Thread(target=ask)
    t.start()
    seen.wait(30)
    s.engine.kill()
    t.join()
    tap.ok(got and re.fullmatch("([a-c] ?)*", got[0].text.get(0, "")), "the next goes on within the form",
           repr(got[0].text.get(0, "")[:80]) if got else "")
    until(lambda: s.get("/health").status == 200)
    text, _ = said(s, wild(s, 2, response_format=schema_format(PERSON)))
    tap.ok(is_person(parsed(text)), "and holds new ones to theirs", repr(text))


def refusals(s):
    deep = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a"}}}
    for fields, param, words in (
            ({"response_format": schema_format(deep)}, "response_format", "pattern"),
            ({"response_format": schema_format({"type": "number", "minimum": "x"})},
             "response_format", "minimum"),
            ({"response_format": schema_format({"type": "object", "properties": {"tags": {
                "type": "array", "uniqueItems": True, "items": {"type": "string"}}}})},
             "response_format", "list the values as an \"enum\", or leave it out and look for equal "
             "items in the answer, at /properties/tags/uniqueItems"),
            ({"structured_outputs": {"regex": "a(?<=b)"}}, "structured_outputs", "lookbehind"),
            ({"structured_outputs": {"json": {}, "whitespace_pattern": "x"}}, "structured_outputs",
             "whitespace_pattern"),
            ({"guided_grammar": "root ::= x"}, "guided_grammar", "x"),
            ({"response_format": {"type": "structural_tag"}}, "response_format", "format"),
            ({"response_format": {"type": "structural_tag", "format": {"type": "any_tokens"}}},
             "response_format", "any_tokens"),
            ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs", "JSON"),
            ({"structured_outputs": {"structural_tag": {"format": {
                "type": "regex", "pattern": "(a"}}}}, "structured_outputs", "pattern"),
            ({"guided_json": "{"}, "guided_json", "JSON"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
             "tool_choice", "x"),
            ({"tool_choice": "required"}, "tool_choice", "tools")):
        r = s.post(CHAT, s.chat("Hello", **fields))
        e = (r.json or {}).get("error") or {}
        tap.ok(r.status == 400 and e.get("param") == param and words in e.get("message", ""),
               "%s is blamed for %s" % (param, words), r.text[:300])


def reasoned(s, seed, **fields):
    """A question whose reasoning ends at some time: the pieces of its tags are all that the model
    wants to say, each less the more often it was said."""
    begin, *ends = [i for text in ("<", "</think>")
                    for i in s.post("/tokenize", {"model": "demo", "prompt": text,
                                                  "add_special_tokens": False}).json["tokens"]]
    return s.chat("Hello", temperature=1.5, seed=seed, max_tokens=700 if LONG else 300,
                  frequency_penalty=2, logit_bias=dict({str(i): 90 for i in ends}, **{str(begin): 100}), **fields)


def behind(s, name, fits, fields):
    """Two requests, each streamed and not: a free reasoning, then what has the form. Seeds whose
    reasoning did not end are passed over."""
    ended = 0
    for seed in range(16):
        body = reasoned(s, seed, **fields)
        r = s.post(CHAT, body)
        if r.status != 200 or ended == SEEDS - 1:
            break
        c, usage = r.json["choices"][0], r.json["usage"]["completion_tokens_details"]
        m = c["message"]
        if c["finish_reason"] == "length":
            tap.ok(not m["content"], "%s, seed %d: no end, no content" % (name, seed), m)
            continue
        ended += 1
        tap.ok(fits(m) and "think>" not in (m["content"] or ""),
               "%s, seed %d: the content has the form" % (name, seed), m)
        tap.eq(m.get("reasoning_content"), m.get("reasoning"), "both names of the reasoning")
        told = s.stream(CHAT, body)
        deltas = [c["delta"] for e in told.events for c in e.get("choices", [])]
        thought = m.get("reasoning") or ""
        tap.eq(("".join(d.get("reasoning") or "" for d in deltas), told.text.get(0, "")),
               (thought, m["content"] or ""), "a stream says the same")
        yield thought, usage["reasoning_tokens"]
    tap.ok(r.status == 200 and ended == SEEDS - 1, name + ": reasonings end", r.text)


def tagged(s, always):
    """Beside reasoning tags bind behind it alone. What begins a tag is what the reasoning is full
    of; bound there, "th" could only be followed by a number in brackets."""
    number = {"type": "integer", "minimum": 10, "maximum": 99}
    old = {"type": "structural_tag", "triggers": ["th"],
           "structures": [{"begin": "th[", "schema": number, "end": "]"}]}
    new = {"type": "structural_tag", "format": {
        "type": "triggered_tags", "triggers": ["th"], "at_least_one": True,
        "stop_after_first": True, "tags": [
            {"type": "tag", "begin": "th[", "end": "]",
             "content": {"type": "json_schema", "json_schema": number}}]}}
    then = {"type": "structural_tag", "format": {"type": "sequence", "elements": [
        {"type": "const_string", "value": "th="}, {"type": "regex", "pattern": "[0-9]{4}"}]}}
    tool = [dict(TOOLS[0], function=dict(TOOLS[0]["function"], strict=True))]
    free = 0
    for name, fits, fields in (
            ("triggered tags", lambda m: re.fullmatch(r"th\[[1-9][0-9]\]", m["content"]),
             {"response_format": new}),
            ("a sequence", lambda m: re.fullmatch(r"th=[0-9]{4}", m["content"]),
             {"structured_outputs": {"structural_tag": then}}),
            ("a sequence beside tools", lambda m: m.get("tool_calls") or
             re.fullmatch(r"th=[0-9]{4}", m["content"]),
             {"structured_outputs": {"structural_tag": then}, "tools": tool}),
            ("a call that must come", lambda m: [
                c["function"]["name"] for c in m.get("tool_calls") or []] == ["get_weather"],
             {"tools": tool, "tool_choice": "required", "parallel_tool_calls": False})):
        for thought, n_tokens in behind(s, name, fits, fields):
            tap.ok((n_tokens > 0) == (thought != "") and (thought != "" or not always),
                   "the reasoning's tokens are counted", (n_tokens, thought))
            free += len(re.findall(r"th(?!\[[1-9][0-9]\]|=[0-9]{4})", thought))
    tap.ok(free > 0, "tags do not bind in the reasoning (%d times)" % free)
    for seed in range(SEEDS):
        body = dict(reasoned(s, seed, response_format=old), max_tokens=300)
        m = s.post(CHAT, body).json["choices"][0]["message"]
        tap.ok(all(re.match(r"\[[1-9][0-9]\]", t) for t in (m["content"] or "").split("th")[1:-1]),
               "free text with tags, seed %d" % seed, m)


def reasoning():
    """The prompt ends inside the reasoning; the model may begin one; it is switched off."""
    with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
        template = json.load(f)["chat_template"]
    for name, tail in (("inside", "<think>\n"), ("may", ""),
                       ("off", "{% if enable_thinking is defined and not enable_thinking %}"
                               "<think>\n\n</think>\n\n{% endif %}")):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f, \
                tap.section("beside reasoning: " + name):
            f.write(template + tail)
            f.flush()
            with Stack(n_fronts=1, front=["--reasoning-parser", "think", "--chat-template",
                                          f.name]) as s:
                if name != "off":
                    tagged(s, name == "inside")
                    continue
                for field in ({"chat_template_kwargs": {"enable_thinking": False}},
                              {"reasoning_effort": "none"}):
                    r = s.post(CHAT, reasoned(s, 1, structured_outputs={"structural_tag": {
                        "format": {"type": "regex", "pattern": "th{3}"}}}, **field)).json
                    tap.eq(r["choices"][0]["message"]["content"], "thhh", "no reasoning: bound at once")
            tap.eq(s.leftovers, [], "every process followed SIGTERM")


def free_text(s):
    """Free text that a form bounds somewhere: by what comes before, around or in it."""
    strict = [dict(t, function=dict(t["function"], strict=True)) for t in TOOLS]
    tag = {"type": "structural_tag", "triggers": ["<f="], "structures": [
        {"begin": "<f=x>", "end": "</f>", "schema": {"type": "integer"}}]}
    for name, fits, fields in (
            ("strict tools, auto", r"[\s\S]*", {"tools": strict, "tool_choice": "auto"}),
            ("tags in text", r"[\s\S]*", {"response_format": tag}),
            ("any_text", r"[\s\S]*",
             {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}}),
            ("regex .*", r".*", {"structured_outputs": {"regex": ".*"}}),
            ("regex Answer: .*", r"Answer: .*", {"structured_outputs": {"regex": "Answer: .*"}}),
            ("a rule of text", r"[^<]*(<[^<]*)*",
             {"guided_grammar": 'root ::= t ("<" t)*\nt ::= [^<]*'})):
        for temperature in (0, 1.5):
            body = dict(wild(s, 3, **fields), temperature=temperature, max_tokens=40)
            text, choice = said(s, body)
            tap.ok(choice is not None and choice["finish_reason"] in ("stop", "length", "tool_calls")
                   and re.fullmatch(fits, text or ""), "%s at %s" % (name, temperature), repr(text))


def slow(s):
    """Ambiguous forms, whose masks take longer than a step may wait: they come all the same, while
    others go on; and one beyond all bounds is refused, the second time before it is tried."""
    form = 'root ::= x "1"\nx ::= y | y x\ny ::= z "0"? z?\nz ::= [a-z ]+ | " " [a-z]+'
    endless = ('root ::= a "1"\na ::= b | b a a? ","?\nb ::= c "0"? c? "-"?\n'
               'c ::= d | d d ";"? | [a-z] c "_"?\nd ::= [a-z ]+ ("x" b)?')
    plain = s.chat("Hello", temperature=0, max_tokens=30)
    hello = said(s, plain)[0]

    def one(i):
        if i % 2 == 0:
            return said(s, plain)[0] == hello
        text, choice = said(s, dict(wild(s, i, guided_grammar=form), max_tokens=12))
        return re.fullmatch("[a-z 0]+1?", text) is not None
    tap.eq(crowd(8, one), [True] * 8, "four of them beside four others")
    for _ in range(6):  # each front learns it
        r = s.post(CHAT, dict(wild(s, 1, guided_grammar=endless), max_tokens=12))
        tap.ok(r.status == 400 and "per mask" in r.text, "beyond all bounds: refused", r.text)
    tap.ok("guided_grammar" in r.text, "in the end by the field's name, without the engine", r.text)
    tap.eq(said(s, plain)[0], hello, "and others are served")


with Stack() as s:
    for part in (refusals, contents, tags, streams, calls, allowed, free_text, many, deaths):
        with tap.section(part.__name__):
            part(s)
tap.eq(s.leftovers, [], "every process followed SIGTERM")
reasoning()
if not LONG:
    SEEDS = 1  # a mask of so many tokens takes a while
with Stack(model=twin.folder()) as s:
    # Calls with so many tokens are in tools.t, too.
    for part in (tags, streams, calls, free_text, slow) if LONG else (tags, free_text, slow):
        began = time.monotonic()
        with tap.section("128,256 tokens: " + part.__name__):
            part(s)
        tap.note("%s: %.1f s" % (part.__name__, time.monotonic() - began))
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
