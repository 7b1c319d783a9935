#!/usr/bin/env python3
# Compares the rendering of real chat templates with jinja2's under Hugging Face's settings.
#
#   pip install jinja2==3.1.6
#   make render_records
#   python3 templates.py [--driver ./render_records] [--show N] [TEMPLATES-FOLDER]
#
# The folder (preset: templates/ of QUIRE_TEST_DATA, else of shared/data beside the checkout) holds
# *.jinja files and folders with a chat_template.jinja or a tokenizer_config.json. Every template is
# rendered over every conversation with each set of tools, documents, enable_thinking,
# add_generation_prompt and further variables, twice: the interpreter alone over the variables as
# they are, and a whole chat as the front says it, where arguments of calls become objects and parts
# become text unless the template reads them itself. Prints a row for each template and the first
# differences. Ends with 1 when there was one.
import argparse
import copy
import datetime
import glob
import itertools
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
NOW = 1700000000
TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
MARK = "zqxj"


def skip(why):
    print("1..0 # SKIP " + why)
    sys.exit(0)


try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    skip("there is no jinja2 module: pip install jinja2==3.1.6")


class Generation(Extension):
    """What stands between the tags is the assistant's; without a mask it is said as it is."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.If(nodes.Const(True), parser.parse_statements(["name:endgeneration"], drop_needle=True), [], [],
                        lineno=line)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception
ENV.globals["strftime_now"] = lambda f: datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(f)

# --- conversations ------------------------------------------------------------------------------


def user(text):
    return {"role": "user", "content": text}


def said(text, **more):
    return dict({"role": "assistant", "content": text}, **more)


def call(name, arguments, i=0):
    return {"id": "abcdef12%d" % i, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, name="get_weather", i=0):
    return {"role": "tool", "tool_call_id": "abcdef12%d" % i, "name": name, "content": text}


def part(text):
    return {"type": "text", "text": text}


ODD = "Stra\u00dfe \u041c\u043e\u0441\u043a\u0432\u0430 \u4e2d\u6587 \u0627\u0644\u0633\u0644\u0627\u0645 e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2028\u00a0\u200b\ufeff\x7f <b>&amp;</b> \"'\\ {{ x }} {% if %} {# c #}"
ROME = {"city": "Rome", "days": 2, "deep": {"list": [1, 2.5, None, True, "\u00e9\"\\\n"], "big": 2 ** 63, "real": 1e20, "small": 1e-7}}
CONVERSATIONS = {
    "user": [user("Hi")],
    "system": [{"role": "system", "content": "Be brief."}, user("One?")],
    "turns": [{"role": "system", "content": "Be brief."}, user("One?"), said("Two."), user("Three?"), said("Four."), user("Five?")],
    "ends with assistant": [user("One?"), said("Two is the an")],
    "unicode": [{"role": "system", "content": ODD}, user(ODD), said(ODD), user(ODD)],
    "white space": [{"role": "system", "content": " \n s \t\n"}, user("\n\n  a\r\nb\t \n"), said(" \x0b c \x0c\n\n"), user(" \u3000x\u00a0 ")],
    "empty": [{"role": "system", "content": ""}, user(""), said(""), user("")],
    "call": [user("Weather?"), said("", tool_calls=[call("get_weather", ROME)]), result('{"t": 3}'), said("3 degrees."), user("Thanks")],
    "call without content": [user("Weather?"), said(None, tool_calls=[call("get_weather", {"city": ODD})]), result(ODD)],
    "call, no content at all": [user("W?"), {"role": "assistant", "tool_calls": [call("now", {})]}, result("7", "now"), said("7"), user("ok")],
    "call with text arguments": [user("Weather?"), said("Let me see.", tool_calls=[call("get_weather", json.dumps(ROME))]),
                                 result("3"), said("3 degrees.")],
    "two calls": [{"role": "system", "content": "Call."}, user("Both?"),
                  said("", tool_calls=[call("get_weather", {"city": "Rome"}), call("now", {"zone": None}, 1)]),
                  result("3"), result("noon", "now", 1), said("3 at noon."), user("And now?"), said("", tool_calls=[call("now", {}, 2)]),
                  result("one", "now", 2)],
    "reasoning tags": [user("Q"), said("<think>\nhm, {1}\n</think>\n\nA"), user("Q2"), said("<think>x</think>B"), user("Q3")],
    "reasoning field": [user("Q"), said("A", reasoning_content="because\n", reasoning="because\n", thinking="because\n"), user("Q2")],
    "reasoning and calls": [user("Q"), said("", reasoning_content=" must ask ", thinking="must ask", tool_calls=[call("get_weather", {"city": "x"})]),
                            result("3"), said("<think>now I know</think>3.", reasoning_content="")],
    "parts": [{"role": "system", "content": [part("Be"), part(" brief.")]}, user([part("One"), part("two\n"), part("")]), said([part("Three")]), user([part("x")])],
    "parts with an image": [user([part("What is it?"), {"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": {"url": "b"}}])],
    "no parts": [user([]), said([]), user([part("x")])],
    "developer": [{"role": "developer", "content": "Rules."}, user("Hi")],
    "system in the middle": [user("Hi"), said("Ho"), {"role": "system", "content": "New rules."}, user("Go on")],
    "two of the user": [user("One"), user("Two")],
    "begins with assistant": [said("First"), user("Second")],
    "unknown role": [{"role": "critic", "content": "Bad."}, user("Hi")],
    "system alone": [{"role": "system", "content": "Be brief."}],
    "result first": [result("3"), user("What is this?")],
    "names": [dict(user("Hi"), name="Ann"), dict(said("Ho"), name="Bot"), dict(user("What?"), name="Ann")],
    "long": [m for i in range(40) for m in (user("Question %d" % i), said("Answer %d" % i))] + [user("Last")],
    "calls of Python": [user("Plot"), said("", tool_calls=[call("python", {"code": "print('a')\nx = \"b\""})]), result("a", "python"),
                        said("", tool_calls=[call("ipython", "{\"code\": \"1\"}", 1)]), {"role": "ipython", "content": "out"}],
    "tools of the system": [{"role": "system", "content": "Use tools.", "tools": '[{"name": "f"}]'}, user("Hi")],
}


def function(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)[:1]}}}


WEATHER = function("get_weather", "Weather <now> & \"then\" in a Stra\u00dfe", city={"type": "string", "description": "City, as in \u041c\u043e\u0441\u043a\u0432\u0430"},
                   days={"type": "integer", "description": "How many", "default": 1.0, "enum": [1, 2.5, None, True]})
KINDS = function(
    "kinds", "Of everything", text={"type": "string", "description": "A", "enum": ["a", "\u00fc", "c'\""], "nullable": True},
    numbers={"type": "array", "description": "B", "items": {"type": "number"}}, ints={"type": "array", "description": "C", "items": {"type": "integer"}, "nullable": True},
    either={"type": ["string", "integer", "null"], "description": "D"}, deep={"type": "object", "description": "E", "properties": {
        "flag": {"type": "boolean", "description": "F"}, "rows": {"type": "array", "description": "rows", "items": {"type": "object", "properties": {"x": {"type": "number", "description": "G"}}}}},
        "required": ["flag"], "additionalProperties": {"type": "string"}},
    choice={"oneOf": [{"type": "string", "description": "s", "default": "d"}, {"type": "number"}], "description": "H", "default": "e"},
    any={"description": "I"}, counts={"type": "object", "description": "J", "additionalProperties": {"type": "integer"}}, flag={"type": "boolean", "description": "K", "default": False})
BARE = {"type": "function", "function": {"name": "now", "description": "The time"}}
EMPTY = {"type": "function", "function": {"name": "nothing", "description": "", "parameters": {"type": "object", "properties": {}}}}
RETURNS = copy.deepcopy(WEATHER)
RETURNS["function"]["return"] = {"type": "object", "description": "it", "properties": {"t": {"type": "number"}}}
OLD = {"name": "search", "description": "Search", "parameter_definitions": {"query": {"description": "Q", "type": "str", "required": True},
                                                                           "n": {"description": "N", "type": "int", "required": False}}}
TOOLS = {"no tools": None, "a tool": [WEATHER], "many": [WEATHER, KINDS, BARE, EMPTY, RETURNS], "old tools": [OLD], "no tool in a list": []}
DOCUMENTS = {"": None, "documents": [{"title": "T1", "text": "Text \u00e9"}, {"title": "T2", "text": "More\nof it", "n": 3}]}
MORE = ({}, {"enable_thinking": True}, {"enable_thinking": False},
        {"reasoning_effort": "high", "builtin_tools": ["browser", "python"], "model_identity": "You are quire.", "date_string": "1 May 2026",
         "tools_in_user_message": False, "add_vision_id": True, "thinking": True, "xml_tools": ["x"], "keep_past_thinking": True})

# --- templates ----------------------------------------------------------------------------------


def templates(root):
    """name, source, its tokens, the folder that has all of it or None."""
    for path in sorted(glob.glob(root + "/*.jinja")):
        with open(path, newline="") as f:
            yield os.path.basename(path)[:-6], f.read(), {"bos_token": "<s>", "eos_token": "</s>"}, None
    for path in sorted(glob.glob(root + "/*/tokenizer_config.json")):
        folder = os.path.dirname(path)
        with open(path) as f:
            config = json.load(f)
        tokens = {t: config[t]["content"] if isinstance(config[t], dict) else config[t] for t in TOKENS if config.get(t)}
        source = config.get("chat_template")
        if os.path.exists(folder + "/chat_template.jinja"):
            with open(folder + "/chat_template.jinja", newline="") as f:
                source = f.read()
        if isinstance(source, str):
            yield os.path.basename(folder), source, tokens, folder
        else:
            print("# %s has no template" % os.path.basename(folder))


def render(template, variables):
    try:
        return "T", template.render(**variables)
    except jinja2.exceptions.TemplateError as e:
        return ("R" if type(e) is jinja2.exceptions.TemplateError else "E"), str(e)
    except Exception as e:  # whatever Python raises is an error of the template
        return "E", str(e)


def reads_parts(template, tokens):
    """Whether it says a list of one part as it says the text of it."""
    whole = [[render(template, dict(tokens, messages=[user(c)], tools=t, documents=None, add_generation_prompt=True))
              for t in (None, [WEATHER])] for c in (MARK, [part(MARK)])]
    return whole[0] == whole[1] and any(kind == "T" for kind, _ in whole[0])


def shaped(messages, parts):
    """What a server passes on: arguments of calls as objects, parts as a text where it must be one."""
    messages = copy.deepcopy(messages)
    for m in messages:
        if isinstance(m.get("content"), list) and not parts:
            if any(p["type"] != "text" for p in m["content"]):
                return None
            m["content"] = "\n".join(p["text"] for p in m["content"])
        if m["role"] == "assistant" and m.get("content") is None:
            m["content"] = ""
        if not m.get("tool_calls", True):
            del m["tool_calls"]
        for c in m.get("tool_calls", []):
            if isinstance(c["function"]["arguments"], str):
                c["function"]["arguments"] = json.loads(c["function"]["arguments"])
    return messages


def otherwise(messages, said):
    """The messages, and how a server may put them for a template that raises then, or leaves calls out."""
    yield messages
    texts = copy.deepcopy(messages)
    for m, s in zip(texts, said):
        for c, was in zip(m.get("tool_calls", []), s.get("tool_calls", [])):
            was = was["function"]["arguments"]
            c["function"]["arguments"] = was if isinstance(was, str) else json.dumps(was, ensure_ascii=False)
    if texts != messages:
        yield texts
        none = copy.deepcopy(texts)
        for m in none:
            if m.get("tool_calls") and not m["content"]:
                m["content"] = None
        yield none
    system = [m["content"] for m in messages if m["role"] == "system"]
    if any(m["role"] == "system" for m in messages[1:]) and all(isinstance(s, str) for s in system):
        yield [{"role": "system", "content": "\n\n".join(system)}] + [m for m in messages if m["role"] != "system"]


def cases(template, tokens):
    """name, the record for the driver, what is expected of it."""
    parts = reads_parts(template, tokens)
    for (name, messages), (has, tools), (doc, documents), generate, more in itertools.product(
            CONVERSATIONS.items(), TOOLS.items(), DOCUMENTS.items(), (False, True), MORE):
        title = ", ".join(filter(None, (name, has, doc, "generate" if generate else "", str(more) if more else "")))
        given = dict(tokens, messages=messages, tools=tools, documents=documents, add_generation_prompt=generate, **more)
        yield "raw: " + title, {"raw": True, "kwargs": given, "now": NOW}, [render(template, given)]
        proper = shaped(messages, parts)
        want = [("E", "refused")] if proper is None else [render(template, dict(given, messages=m)) for m in otherwise(proper, messages)]
        yield "chat: " + title, {"messages": messages, "tools": tools, "documents": documents, "kwargs": more,
                                 "add_generation_prompt": generate, "now": NOW}, want


def run(driver, folder, path, records):
    with tempfile.TemporaryFile() as f:
        for r in records:
            f.write(json.dumps(r, ensure_ascii=False).encode() + b"\n")
        f.seek(0)
        out = subprocess.run([driver, folder, path], stdin=f, stdout=subprocess.PIPE, check=True, env=dict(os.environ, TZ="UTC")).stdout
    at = 0
    while at < len(out):
        n, = struct.unpack_from("<I", out, at + 1)
        yield out[at:at + 1].decode(), out[at + 5:at + 5 + n].decode()
        at += 5 + n


def compare(args, work, name, source, tokens, folder):
    template = ENV.from_string(source)
    path = os.path.join(work, "template")
    with open(path, "w", newline="") as f:
        f.write(source)
    if folder is None:
        folder = work
        with open(os.path.join(work, "chat_template.jinja"), "w", newline="") as f:
            f.write(source)
        with open(os.path.join(work, "tokenizer_config.json"), "w") as f:
            json.dump(tokens, f)
    all_of_it = list(cases(template, tokens))
    found = {"texts": 0, "bytes": 0, "raised": 0, "differ": 0}
    for (title, record, wanted), (got, text) in zip(all_of_it, run(args.driver, folder, path, [r for _, r, _ in all_of_it]), strict=True):
        kind, want = next((w for w in wanted if got == "T" and w == ("T", text)), wanted[0])
        found["texts" if kind == "T" else "raised"] += 1
        found["bytes"] += len(want.encode()) if kind == "T" else 0
        # What the template itself raises is told to the client, word by word.
        if got == "E":
            text = re.sub(r"^(chat template, )?line \d+: ", "", text)
        if (got == "T") == (kind == "T") and (text == want or any(k == "E" for k, _ in wanted)):
            continue
        found["differ"] += 1
        if found["differ"] <= args.show:
            at = next((i for i, (a, b) in enumerate(zip(text, want)) if a != b), min(len(text), len(want)))
            print("#", name, title)
            print("#   want %s %r" % (kind, want[max(0, at - 40):at + 200]))
            print("#   got  %s %r" % (got, text[max(0, at - 40):at + 200]))
    print("| %s | %d | %d | %d | %d |" % (name, *found.values()), flush=True)
    return found["differ"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--driver", default="./render_records")
    p.add_argument("--show", type=int, default=3)
    p.add_argument("folder", nargs="?")
    args = p.parse_args()
    data = os.environ.get("QUIRE_TEST_DATA") or os.path.join(HERE, "..", "..", "..", "..", "shared", "data")
    folder = args.folder or os.path.join(data, "templates")
    if not os.path.isdir(folder):
        skip("there are no templates at %s" % folder)
    if not os.path.exists(args.driver):
        skip("there is no %s: make render_records" % args.driver)
    print("jinja2 %s, %d conversations" % (jinja2.__version__, len(CONVERSATIONS)))
    print("| template | texts | bytes | errors | differences |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        differ = [compare(args, work, *t) for t in templates(folder)]
    print("%d templates, %d differences" % (len(differ), sum(differ)))
    return 1 if sum(differ) or not differ else 0


if __name__ == "__main__":
    sys.exit(main())
