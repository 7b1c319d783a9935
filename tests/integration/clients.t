#!/usr/bin/env python3
"""Other people's clients as they come from PyPI, through nginx over HTTPS: openai and anthropic in
an agent's second turn, litellm, langchain's agents, guidance, instructor, pydantic-ai; the binaries
of Claude Code and Codex out of the packages claude-agent-sdk and openai-codex. The prompts of these
two are ten times what the demo model takes: they come whole to a front, whose chat template hands
the end of each message and one tool on.

They come from a virtual environment of their own (tests/requirements-clients.txt): PYTHON_CLIENTS
names its python, or builddir/venv-clients/bin/python is it. Each that is missing says so and is
skipped. Arguments name the parts that shall run. The test has a network of its own with nothing but
loopback, because some of these clients call home."""

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import traceback
import typing

from harness import BUILDDIR, MODEL_NAME, Stack, Tap, key, memory_folder, need_nginx, skip_all

need_nginx()
CLIENTS = ("openai", "anthropic", "litellm", "langchain", "guidance", "instructor", "pydantic_ai",
           "claude_agent_sdk", "codex_cli_bin")
if not any(importlib.util.find_spec(c) for c in CLIENTS[2:]):
    python = os.environ.get("PYTHON_CLIENTS") or os.path.join(BUILDDIR, "venv-clients", "bin",
                                                              "python")
    if os.environ.get("QUIRE_IN_VENV") or not os.path.exists(python):
        skip_all(
            "there are no client packages: make them in the build folder with `python3 -m venv "
            "venv-clients && venv-clients/bin/pip install -r ../tests/requirements-clients.txt`")
    os.environ["QUIRE_IN_VENV"] = "1"
    os.execv(python, [python] + sys.argv)

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def leave_network():
    """A network namespace in which there is loopback and nothing else."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0 and libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        skip_all("no network namespace can be made, and these clients would call home")
    with socket.socket() as k:
        fcntl.ioctl(k, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


leave_network()
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", DO_NOT_TRACK="1")
tap = Tap()
HELLO = "Hello! How can I help you today?"
WEATHER = "What is the weather in Rome?"
RESULT = '{"temperature": 9, "condition": "cloudy"}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHOICE = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
          "required": ["city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA,
                                         "description": "Get the weather of a city."}}
TOOL_A = {"name": "get_weather", "description": "Get the weather of a city.",
          "input_schema": SCHEMA}
CALL = {"id": "call_1", "type": "function",
        "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
RESULT_MESSAGE = {"role": "tool", "tool_call_id": "call_1", "content": RESULT}


@contextlib.contextmanager
def guarded(name):
    """An exception is a failed result whose last lines are told: the client's own are many."""
    try:
        yield
    except Exception:
        tap.ok(False, name, "".join(traceback.format_exc().splitlines(True)[-8:]))


def url(s):
    return "https://127.0.0.1:%d" % s.port


# --- openai --------------------------------------------------------------------------------------


def openai_client(s, name=None):
    import openai
    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    return openai.OpenAI(base_url=url(s) + "/v1", api_key=name or key(0), max_retries=0,
                         http_client=openai.DefaultHttpxClient(verify=context))


def openai_turns(c):
    """The second turn of an agent, in every way in which its first is sent back."""
    ask = {"role": "user", "content": WEATHER}
    common = dict(model=MODEL_NAME, temperature=0, tools=[TOOL])
    turns = {"null": {"content": None}, "absent": {}, "empty": {"content": ""},
             "a part": {"content": [{"type": "text", "text": ""}]}}
    said = {}
    for name, content in turns.items():
        call = dict({"role": "assistant", "tool_calls": [CALL]}, **content)
        r = c.chat.completions.create(messages=[ask, call, RESULT_MESSAGE], **common)
        said[name] = (r.choices[0].message.content, r.usage.prompt_tokens)
    tap.ok("9" in said["null"][0], "openai: an answer after content null", said)
    tap.eq(len(set(said.values())), 1, "openai: null, absent, empty and a part are one prompt")
    r = c.chat.completions.create(messages=[ask], **common)
    back = r.choices[0].message
    again = c.chat.completions.create(
        messages=[ask, back, dict(RESULT_MESSAGE, tool_call_id=back.tool_calls[0].id)], **common)
    tap.eq(again.choices[0].message.content, said["null"][0],
           "openai: the answer's own object as the first turn")
    for field in ("reasoning", "reasoning_content", "thinking"):
        again = c.chat.completions.create(
            messages=[ask, dict({"role": "assistant", "content": None, "tool_calls": [CALL]},
                                **{field: "The user asks for Rome."}), RESULT_MESSAGE], **common)
        tap.eq(again.choices[0].message.content, said["null"][0], "openai: earlier " + field)


def openai_shapes(c):
    def chat(messages, **kw):
        return c.chat.completions.create(model=MODEL_NAME, temperature=0, messages=messages,
                                         **kw).choices[0].message.content

    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    r = c.chat.completions.create(model=MODEL_NAME, temperature=0,
                                  messages=[{"role": "user", "content": parts}])
    tap.ok(r.usage.prompt_tokens > 5, "openai: two parts", r)
    tap.eq(chat([{"role": "user", "content": parts[:1] and [{"type": "text", "text": "Hello"}]}]),
           HELLO, "openai: one part is the text")
    for start in ("Hello! How", "Hello! How ", "H", "<", ""):
        rest = chat([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": start}],
                    extra_body={"continue_final_message": True, "add_generation_prompt": False},
                    max_tokens=16)
        if start == "Hello! How":
            tap.eq(start + rest, HELLO, "openai: a prefill goes on")
        else:
            tap.ok(isinstance(rest, str), "openai: a prefill of %r" % start, rest)
    tap.eq(chat([{"role": "user", "content": "Hello"}], seed=-1), HELLO, "openai: a seed of -1")
    tap.eq(chat([{"role": "user", "content": "Hello"}], max_tokens="40", extra_body={"top_k": 1.0}),
           HELLO, "openai: numbers as text, whole floats")
    r = c.chat.completions.create(model=MODEL_NAME, messages=[{"role": "user", "content": "Hello"}])
    told = r.model_dump()
    tap.ok({"reasoning"} <= set(told["choices"][0]["message"]) and
           {"prompt_logprobs", "system_fingerprint"} <= set(told), "openai: keys that vLLM sends",
           told)


def openai_streams(c):
    calls, content = {}, ""
    ask = [{"role": "user", "content": WEATHER}]
    for event in c.chat.completions.create(model=MODEL_NAME, temperature=0, tools=[TOOL],
                                           stream=True, messages=ask):
        delta = event.choices[0].delta
        content += delta.content or ""
        for x in delta.tool_calls or []:
            calls[x.index] = calls.get(x.index, "") + (x.function.arguments or "")
    tap.eq(([json.loads(v) for v in calls.values()], content), ([{"city": "Rome"}], ""),
           "openai: a streamed call")
    import jsonschema
    import openai.lib._pydantic
    import pydantic

    class Place(pydantic.BaseModel):
        page: pydantic.HttpUrl
        near: set[typing.Literal["sea", "hills"]]

    # The client sends this for a class. Its own parse() would want "http" of the page as well,
    # which the schema does not say.
    schema = openai.lib._pydantic.to_strict_json_schema(Place)
    r = c.chat.completions.create(
        model=MODEL_NAME, temperature=0, messages=[{"role": "user", "content": "Rome?"}],
        response_format={"type": "json_schema",
                         "json_schema": {"name": "Place", "schema": schema, "strict": True}})
    said = json.loads(r.choices[0].message.content)
    jsonschema.validate(said, schema)
    tap.ok(":" in said["page"] and len(set(said["near"])) == len(said["near"]),
           "openai: a class with HttpUrl and a set", r)
    with c.responses.stream(model=MODEL_NAME, input="Hello", temperature=0) as events:
        for _ in events:
            pass
        tap.eq(events.get_final_response().output_text, HELLO, "openai: a response's stream")
    r = c.responses.create(model=MODEL_NAME, temperature=0, input=[
        {"role": "user", "content": WEATHER},
        {"type": "reasoning", "id": "rs_1", "summary": [],
         "content": [{"type": "reasoning_text", "text": "Rome."}]},
        {"type": "function_call", "call_id": "c", "name": "get_weather",
         "arguments": '{"city": "Rome"}'},
        {"type": "function_call_output", "call_id": "c", "output": RESULT}],
        tools=[dict(TOOL["function"], type="function")])
    tap.ok("9" in r.output_text, "openai: a response's second turn", r.output_text)


def openai_names(s):
    c = openai_client(s, "EMPTY")
    names = [m.id for m in c.models.list()]
    tap.eq(names, [MODEL_NAME, "small", "gpt-4o-mini"], "openai: served names, without a key")
    for name in names:
        r = c.chat.completions.create(model=name, temperature=0,
                                      messages=[{"role": "user", "content": "Hello"}])
        tap.eq((r.choices[0].message.content, c.models.retrieve(name).id), (HELLO, name),
               "openai: the model " + name)
    import openai
    try:
        c.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hello"}])
        tap.ok(False, "openai: another name is not there")
    except openai.NotFoundError as e:
        tap.eq(e.status_code, 404, "openai: another name is not there")


def part_openai(s):
    c = openai_client(s)
    openai_turns(c)
    openai_shapes(c)
    openai_streams(c)
    names = ("--served-model-name", MODEL_NAME + ",small,gpt-4o-mini")
    with Stack(front=names, engine=names, keys='"~." anyone;\n') as other:
        openai_names(other)


# --- anthropic -----------------------------------------------------------------------------------


def anthropic_client(s, **kw):
    import anthropic
    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    return anthropic.Anthropic(base_url=url(s), max_retries=0,
                               http_client=anthropic.DefaultHttpxClient(verify=context),
                               **(kw or {"api_key": key(0)}))


def part_anthropic(s):
    c = anthropic_client(s)
    # The client knows no temperature of its own any more, but sends what it is told to.
    common = dict(model=MODEL_NAME, max_tokens=60, extra_body={"temperature": 0})
    ask = {"role": "user", "content": WEATHER}
    use = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Rome"}}
    back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
                                         "content": [{"type": "text", "text": RESULT}]}]}
    thought = {"type": "thinking", "thinking": "Rome, then.", "signature": "s"}
    for name, blocks in (("alone", [use]), ("behind a thought", [thought, use]),
                         ("behind a text", [{"type": "text", "text": "I look."}, use])):
        r = c.messages.create(messages=[ask, {"role": "assistant", "content": blocks}, back],
                              tools=[TOOL_A], **common)
        tap.ok("9" in r.content[0].text, "anthropic: a result of a call %s" % name, r)
    first = c.messages.create(messages=[ask], tools=[TOOL_A], **common)
    tap.eq([b.type for b in first.content], ["tool_use"], "anthropic: a call")
    again = c.messages.create(
        messages=[ask, {"role": "assistant", "content": first.content},
                  {"role": "user", "content": [{"type": "tool_result", "content": RESULT,
                                                "tool_use_id": first.content[0].id}]}],
        tools=[TOOL_A], **common)
    tap.ok("9" in again.content[0].text, "anthropic: the answer's own blocks go back", again)
    hello = {"role": "user", "content": "Hello"}
    for start in ("Hello! How", [{"type": "text", "text": "Hello! How"}],
                  [{"type": "text", "text": "Hello! "}, {"type": "text", "text": "How"}]):
        r = c.messages.create(messages=[hello, {"role": "assistant", "content": start}], **common)
        tap.eq("Hello! How" + r.content[0].text, HELLO, "anthropic: a prefill of %s" % start)
    for start in ("<", "|", ">", "end", "i", " ", "", [{"type": "text", "text": ""}]):
        r = c.messages.create(messages=[hello, {"role": "assistant", "content": start}], **common)
        tap.ok(r.stop_reason in ("end_turn", "max_tokens"), "anthropic: a prefill of %r" % start, r)
    with c.messages.stream(messages=[hello], **common) as events:
        whole = events.get_final_message()
    tap.eq(whole.content[0].text, HELLO, "anthropic: a stream")
    long = [{"role": "user", "content": [{"type": "text", "text": "Tell me of it. " * 40,
                                          "cache_control": {"type": "ephemeral"}}]}]
    r = [c.messages.create(messages=long, **common).usage for _ in range(2)]
    tap.ok(r[1].cache_read_input_tokens > 100 and r[1].input_tokens + r[1].cache_read_input_tokens
           == r[0].input_tokens + (r[0].cache_read_input_tokens or 0),
           "anthropic: what the cache had is told", r)
    n = c.messages.count_tokens(model=MODEL_NAME, messages=long, system="Be brief.", tools=[TOOL_A])
    tap.ok(n.input_tokens > r[0].input_tokens, "anthropic: count_tokens", n)
    other = anthropic_client(s, auth_token=key(0), api_key=None)
    tap.eq(other.messages.create(messages=[hello], **common).content[0].text, HELLO,
           "anthropic: a key as bearer")


# --- litellm -------------------------------------------------------------------------------------


def arguments(message):
    return [json.loads(x.function.arguments) for x in message.tool_calls or []]


def part_litellm(s):
    import asyncio
    import litellm
    litellm.ssl_verify = s.path("cert.pem")
    os.environ["SSL_CERT_FILE"] = s.path("cert.pem")  # which completions look at instead
    litellm.suppress_debug_info = True
    ask = [{"role": "user", "content": WEATHER}]
    hello = [{"role": "user", "content": "Hello"}]
    kinds = {"hosted_vllm": url(s) + "/v1", "openai": url(s) + "/v1", "anthropic": url(s)}
    for kind, base in kinds.items():
        common = dict(model="%s/%s" % (kind, MODEL_NAME), api_base=base, api_key=key(0),
                      temperature=0, max_tokens=60, num_retries=0)
        r = litellm.completion(messages=hello, **common)
        tap.eq(r.choices[0].message.content, HELLO, "litellm, %s: a chat" % kind)
        text = "".join(x.choices[0].delta.content or ""
                       for x in litellm.completion(messages=hello, stream=True, **common))
        tap.eq(text, HELLO, "litellm, %s: a stream" % kind)
        r = litellm.completion(messages=ask, tools=[TOOL], **common)
        call = r.choices[0].message
        tap.eq(arguments(call), [{"city": "Rome"}], "litellm, %s: a call" % kind)
        back = ask + [call.model_dump(),
                      dict(RESULT_MESSAGE, tool_call_id=call.tool_calls[0].id)]
        r = litellm.completion(messages=back, tools=[TOOL], **common)
        tap.ok("9" in r.choices[0].message.content, "litellm, %s: its result" % kind, r)
        parts = list(litellm.completion(messages=ask, tools=[TOOL], stream=True, **common))
        whole = litellm.stream_chunk_builder(parts)
        tap.eq(arguments(whole.choices[0].message), [{"city": "Rome"}],
               "litellm, %s: a streamed call" % kind)
        if kind != "anthropic":
            r = litellm.completion(messages=hello, response_format={
                "type": "json_schema", "json_schema": {"name": "x", "schema": CHOICE}}, **common)
            tap.ok("city" in json.loads(r.choices[0].message.content),
                   "litellm, %s: a form" % kind, r)

    async def other_apis():
        for kind, base in kinds.items():
            r = await litellm.anthropic.messages.acreate(
                model="%s/%s" % (kind, MODEL_NAME), api_base=base, api_key=key(0), messages=hello,
                max_tokens=60, temperature=0)
            tap.eq([b["text"] for b in dict(r)["content"]], [HELLO], "litellm, %s: messages" % kind)
            r = await litellm.aresponses(model="%s/%s" % (kind, MODEL_NAME), api_base=base,
                                         api_key=key(0), input="Hello", temperature=0,
                                         max_output_tokens=60)
            text = [c.text for o in r.output if o.type == "message" for c in o.content]
            tap.eq(text, [HELLO], "litellm, %s: responses" % kind)
        with contextlib.suppress(Exception):
            await litellm.close_litellm_async_clients()

    asyncio.run(other_apis())
    r = litellm.text_completion(model="hosted_vllm/" + MODEL_NAME, api_base=url(s) + "/v1",
                                api_key=key(0), prompt="Once upon a time", max_tokens=8)
    tap.ok(len(r.choices[0].text) > 3, "litellm: a completion", r)


# --- langchain's agents --------------------------------------------------------------------------


def part_langchain(s):
    import langchain.agents
    import langchain_core.messages as messages
    import langchain_core.tools
    import langchain_openai
    import openai
    asked = []

    @langchain_core.tools.tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return RESULT

    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    for kind in (False, True):
        m = langchain_openai.ChatOpenAI(model=MODEL_NAME, base_url=url(s) + "/v1", api_key=key(0),
                                        http_client=openai.DefaultHttpxClient(verify=context),
                                        max_retries=0, temperature=0, use_responses_api=kind)
        agent = langchain.agents.create_agent(m, [get_weather])
        name = "langchain's agent, %s" % ("responses" if kind else "chat")
        r = agent.invoke({"messages": [("user", WEATHER)]})
        tap.ok("9" in r["messages"][-1].text, name + ": a run", r)
        r = agent.invoke({"messages": r["messages"] + [messages.HumanMessage("Hello")]})
        tap.ok(r["messages"][-1].text != "", name + ": a further turn", r)
        text = ""
        for x, _ in agent.stream({"messages": [("user", WEATHER)]}, stream_mode="messages"):
            text += x.text if isinstance(x, messages.AIMessageChunk) else ""
        tap.ok("9" in text, name + ": streamed", text)
    tap.eq(set(asked), {"Rome"}, "langchain's agent: its tool was called %d times" % len(asked))


# --- guidance ------------------------------------------------------------------------------------


def part_guidance(s):
    import guidance
    from guidance.models.experimental import VLLMModel
    os.environ["SSL_CERT_FILE"] = s.path("cert.pem")  # it takes no HTTP client

    def model():
        return VLLMModel(MODEL_NAME, base_url=url(s) + "/v1", api_key=key(0), echo=False)

    def ask(form):
        m = model()
        with guidance.user():
            m += "What is the capital of France?"
        with guidance.assistant():
            m += form
        return m["x"]

    said = ask(guidance.select(["Paris", "Rome"], name="x"))
    tap.ok(said in ("Paris", "Rome"), "guidance: select", said)
    said = ask(guidance.gen(name="x", regex="[a-z]{3,5}", max_tokens=20))
    tap.ok(said.islower() and 3 <= len(said) <= 5, "guidance: a pattern", said)
    said = ask(guidance.gen(name="x", max_tokens=20, temperature=0))
    tap.ok(len(said) > 3, "guidance: free text", said)
    said = ask(guidance.json(name="x", schema=CHOICE))
    tap.ok(json.loads(said)["city"] in ("Paris", "Rome"), "guidance: a schema", said)

    m = model()
    with guidance.user():
        m += "A number?"
    with guidance.assistant():
        m += "It is " + guidance.gen(name="x", regex="[1-9]{1,4}") + "."
    tap.ok(m["x"].isdigit() and "It is %s." % m["x"] in str(m), "guidance: a text around it",
           str(m))


# --- instructor ----------------------------------------------------------------------------------


def part_instructor(s):
    import instructor
    import pydantic

    class Place(pydantic.BaseModel):
        """A place."""
        city: typing.Literal["Paris", "Rome"]

    hello = [{"role": "user", "content": "What is the capital of France?"}]
    modes = [m for m in ("TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "MD_JSON", "FUNCTIONS",
                         "RESPONSES_TOOLS") if hasattr(instructor.Mode, m)]
    for mode in modes:
        free = mode in ("JSON", "MD_JSON")  # nothing holds the model to the form
        c = instructor.from_openai(openai_client(s), mode=instructor.Mode[mode])
        try:
            r = c.create(model=MODEL_NAME, temperature=0, messages=hello, response_model=Place,
                         max_retries=0)
            tap.ok(isinstance(r, Place), "instructor, %s" % mode, r)
        except Exception as e:
            tap.ok(free and "validation" in str(e).lower(), "instructor, %s" % mode, repr(e))
    c = instructor.from_openai(openai_client(s), mode=instructor.Mode.TOOLS)
    parts = list(c.create_partial(model=MODEL_NAME, temperature=0, messages=hello,
                                  response_model=Place, max_retries=0))
    tap.ok(parts and parts[-1].city in ("Paris", "Rome"), "instructor: partial answers", parts)
    for mode in ("ANTHROPIC_TOOLS", "ANTHROPIC_JSON"):
        c = instructor.from_anthropic(anthropic_client(s), mode=instructor.Mode[mode])
        try:
            r = c.create(model=MODEL_NAME, messages=hello, response_model=Place, max_retries=0,
                         max_tokens=100)
            tap.ok(isinstance(r, Place), "instructor, %s" % mode, r)
        except Exception as e:
            tap.ok(mode == "ANTHROPIC_JSON" and "validation" in str(e).lower(),
                   "instructor, %s" % mode, repr(e))


# --- pydantic-ai ---------------------------------------------------------------------------------


def part_pydantic_ai(s):
    import httpx
    import pydantic
    import pydantic_ai
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Place(pydantic.BaseModel):
        """A place."""
        city: typing.Literal["Paris", "Rome"]
        near: set[typing.Literal["sea", "hills"]] = set()

    asked = []
    context = ssl.create_default_context(cafile=s.path("cert.pem"))

    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return RESULT

    cold = {"temperature": 0, "max_tokens": 100}
    # Its AnthropicModel fails within the package anthropic of this version, before it asks.
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        name = "pydantic-ai, " + kind.__name__

        def agent(**kw):
            # An asynchronous client lives as long as its loop: one an agent.
            provider = OpenAIProvider(base_url=url(s) + "/v1", api_key=key(0),
                                      http_client=httpx.AsyncClient(verify=context))
            return pydantic_ai.Agent(kind(MODEL_NAME, provider=provider), model_settings=cold,
                                     retries=0, **kw)

        with guarded(name):
            tap.eq(agent().run_sync("Hello").output, HELLO, name + ": a run")
            r = agent(tools=[get_weather]).run_sync(WEATHER)
            tap.ok("9" in r.output, name + ": a tool", r)
            r = agent(tools=[get_weather]).run_sync("Hello", message_history=r.all_messages())
            tap.ok(r.output != "", name + ": a further turn", r)
        for form in (pydantic_ai.ToolOutput, pydantic_ai.NativeOutput):
            with guarded("%s: %s" % (name, form.__name__)):
                r = agent(output_type=form(Place)).run_sync("What is the capital of France?")
                tap.ok(isinstance(r.output, Place), "%s: %s" % (name, form.__name__), r)
    tap.eq(set(asked), {"Rome"}, "pydantic-ai: its tool was called %d times" % len(asked))


# --- Claude Code and Codex -----------------------------------------------------------------------

SHORT = """
{%- set ns = namespace(tool='') %}
{%- for tool in tools or [] %}
    {%- if tool.function.name.endswith('get_weather') %}{% set ns.tool = tool %}{% endif %}
{%- endfor %}
{%- if ns.tool %}
    {{- '<|im_start|>system\\nYou can call functions. Their signatures stand between <tools>' }}
    {{- '</tools>, one JSON object a line:\\n<tools>\\n' + (ns.tool | tojson) }}
    {{- '\\n</tools>\\nTo call a function, ' }}
    {{- 'answer with its name and arguments as JSON:\\n<tool_call>\\n{"name": ..., ' }}
    {{- '"arguments": {...}}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'tool' %}
        {{- '<tool_response>\\n' + message.content[-300:] + '\\n</tool_response>' }}
    {%- else %}
        {{- message.content[-28:] }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' }}
        {{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

MCP_SERVER = """
import json, sys
for line in sys.stdin:
    m = json.loads(line)
    out = {"initialize": lambda: {"protocolVersion": m["params"]["protocolVersion"],
                                  "capabilities": {"tools": {}},
                                  "serverInfo": {"name": "w", "version": "1"}},
           "tools/list": lambda: {"tools": [%(tool)s]},
           "tools/call": lambda: {"content": [{"type": "text", "text": %(result)r}]}}
    if "id" in m:
        print(json.dumps({"jsonrpc": "2.0", "id": m["id"],
                          "result": out.get(m["method"], dict)()}), flush=True)
"""

CODEX_CONFIG = """
model = "%(model)s"
model_provider = "quire"
approval_policy = "never"
[model_providers.quire]
name = "quire"
base_url = "%(url)s/v1"
env_key = "QUIRE_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
[mcp_servers.w]
command = "%(python)s"
args = ["%(server)s"]
"""


def short_template():
    path = os.path.join(memory_folder(), "short.jinja")
    with open(path, "w") as f:
        f.write(SHORT)
    # These clients set no top_k, and with 1 the model says the same each time.
    return ("--chat-template", path, "--override-generation-config", '{"top_k": 1}')


def part_claude_agent_sdk(s):
    import asyncio
    import claude_agent_sdk as sdk
    asked = []
    home = s.path("home")
    os.mkdir(home)

    @sdk.tool("get_weather", "Get the weather of a city.", {"city": str})
    async def get_weather(values):
        asked.append(values)
        return {"content": [{"type": "text", "text": RESULT}]}

    async def ask(prompt):
        options = sdk.ClaudeAgentOptions(
            model=MODEL_NAME, max_turns=4, cwd=home, allowed_tools=["mcp__w__get_weather"],
            mcp_servers={"w": sdk.create_sdk_mcp_server("w", tools=[get_weather])},
            env={"HOME": home, "ANTHROPIC_BASE_URL": url(s), "ANTHROPIC_AUTH_TOKEN": key(0),
                 "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL_NAME, "ENABLE_TOOL_SEARCH": "false",
                 "NODE_EXTRA_CA_CERTS": s.path("cert.pem"), "ANTHROPIC_API_KEY": "",
                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"})
        return [m async for m in sdk.query(prompt=prompt, options=options)]

    def run(prompt):
        return asyncio.run(asyncio.wait_for(ask(prompt), 120))[-1]

    r = run("Hello")
    tap.ok(not r.is_error and r.result != "", "Claude Code: an answer: %s" % r.result, r)
    r = run(WEATHER)
    tap.eq((r.is_error, r.num_turns, asked), (False, 2, [{"city": "Rome"}]),
           "Claude Code: a tool is called, and its result answered: %s" % r.result)
    tap.ok(r.usage["cache_read_input_tokens"] > 0, "Claude Code: the second turn finds the first",
           r.usage)


def part_codex_cli_bin(s):
    import codex_cli_bin
    home, server = s.path("home"), s.path("server.py")
    os.mkdir(home)
    tool = {"name": "get_weather", "description": TOOL["function"]["description"],
            "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}}
    with open(server, "w") as f:
        f.write(MCP_SERVER.replace("%(tool)s", repr(tool).replace("%", "%%")).replace(
            "%(result)r", repr(RESULT)))
    with open(os.path.join(home, "config.toml"), "w") as f:
        f.write(CODEX_CONFIG % {"model": MODEL_NAME, "url": url(s), "python": sys.executable,
                                "server": server})
    program = os.path.join(os.path.dirname(codex_cli_bin.__file__), "bin", "codex")
    env = dict(os.environ, HOME=home, CODEX_HOME=home, QUIRE_KEY=key(0),
               CODEX_CA_CERTIFICATE=s.path("cert.pem"))

    def run(prompt):
        r = subprocess.run([program, "exec", "--json", "--skip-git-repo-check", "-s", "read-only",
                            prompt], cwd=home, env=env, stdin=subprocess.DEVNULL, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
        told = [json.loads(line) for line in r.stdout.splitlines() if line.startswith("{")]
        items = [e["item"] for e in told if e["type"] == "item.completed"]
        return r.returncode, items, [e for e in told if e["type"] == "turn.completed"]

    status, items, ends = run("Hello")
    said = [i["text"] for i in items if i["type"] == "agent_message"]
    tap.ok(status == 0 and len(said) == len(ends) == 1, "Codex: an answer: %s" % said, items)
    status, items, ends = run(WEATHER)
    calls = [i for i in items if i["type"] == "mcp_tool_call"]
    said = [i["text"] for i in items if i["type"] == "agent_message"]
    tap.ok(status == 0 and [(c["tool"], c["arguments"], c["status"]) for c in calls] ==
           [("get_weather", {"city": "Rome"}, "completed")],
           "Codex: a tool of a namespace is called", items)
    tap.ok(len(said) == 1 and "Rome" in said[0] and len(ends) == 1,
           "Codex: its result is answered: %s" % said, items)


wanted = sys.argv[1:] or CLIENTS
for module in CLIENTS:
    if module not in wanted:
        continue
    if importlib.util.find_spec(module) is None:
        tap.skip(module, "there is no module " + module)
        continue
    front = short_template() if module in ("claude_agent_sdk", "codex_cli_bin") else ()
    os.environ.pop("SSL_CERT_FILE", None)  # of the stack before
    with tap.section(module), Stack(front=front) as s:
        with guarded(module):
            globals()["part_" + module](s)
        tap.ok(s.idle(), "%s leaves nothing running" % module)
        tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
