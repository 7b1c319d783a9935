#!/usr/bin/env python3
"""Other people's clients, unchanged, through nginx over HTTPS: LangChain's models and OpenAI's
agent library (with tools, streams and typed answers), and the chat front `llm`.

They come from a virtual environment of their own (tests/requirements-agents.txt): PYTHON_AGENTS
names its python, or builddir/venv-agents/bin/python is it. Each that is missing says so and is
skipped."""

import asyncio
import importlib.util
import json
import os
import ssl
import subprocess
import sys
import typing

from harness import BUILDDIR, MODEL_NAME, Stack, Tap, key, need_nginx, skip_all

need_nginx()
CLIENTS = ("langchain_openai", "agents", "llm")
found = [c for c in CLIENTS if importlib.util.find_spec(c) is not None]
if not found:
    python = os.environ.get("PYTHON_AGENTS") or os.path.join(BUILDDIR, "venv-agents", "bin",
                                                             "python")
    if os.environ.get("QUIRE_IN_VENV") or not os.path.exists(python):
        skip_all(
            "there are no client packages: make them with `python3 -m venv venv-agents && "
            "venv-agents/bin/pip install -r ../tests/requirements-agents.txt` in the build folder")
    os.environ["QUIRE_IN_VENV"] = "1"
    os.execv(python, [python] + sys.argv)

import openai  # noqa: E402: all of them bring these
import pydantic  # noqa: E402

tap = Tap()
HELLO = "Hello! How can I help you today?"
WEATHER = "What is the weather in Rome?"
RESULT = '{"temperature": 9, "condition": "cloudy"}'


class Place(pydantic.BaseModel):
    """A place."""
    city: typing.Literal["Paris", "Rome"]


def url(s):
    return "https://127.0.0.1:%d/v1" % s.port


def clients(s):
    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    return (openai.DefaultHttpxClient(verify=context),
            openai.DefaultAsyncHttpxClient(verify=context))


# --- LangChain -----------------------------------------------------------------------------------


def langchain(s):
    import langchain_core.messages as messages
    import langchain_core.tools
    import langchain_openai

    asked = []

    @langchain_core.tools.tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return RESULT

    common = dict(model=MODEL_NAME,
                  base_url=url(s),
                  api_key=key(0),
                  http_client=clients(s)[0],
                  max_retries=0,
                  temperature=0)
    for name, kind in (("chat", {}), ("responses", {"use_responses_api": True})):
        # An asynchronous client lives as long as its loop.
        m = langchain_openai.ChatOpenAI(http_async_client=clients(s)[1], **common, **kind)
        r = m.invoke("Hello")
        tap.eq((r.text, r.usage_metadata["total_tokens"] > 0), (HELLO, True),
               "langchain, %s: invoke" % name)
        tap.eq("".join(x.text for x in m.stream("Hello")), HELLO, "langchain, %s: stream" % name)
        tap.eq([x.text for x in m.batch(["Hello"] * 4)], [HELLO] * 4, "langchain, %s: batch" % name)

        async def several(m=m):
            async def one():
                return "".join([x.text async for x in m.astream("Hello")])

            return await asyncio.gather(*(one() for _ in range(8)))

        tap.eq(asyncio.run(several()), [HELLO] * 8,
               "langchain, %s: eight asynchronous streams" % name)
        bound = m.bind_tools([get_weather])
        talk = [messages.HumanMessage(WEATHER)]
        call = bound.invoke(talk)
        tap.eq([(c["name"], c["args"]) for c in call.tool_calls],
               [("get_weather", {"city": "Rome"})], "langchain, %s: a call" % name)
        whole = None
        for x in bound.stream(talk):
            whole = x if whole is None else whole + x
        tap.eq([(c["name"], c["args"]) for c in whole.tool_calls],
               [("get_weather", {"city": "Rome"})], "langchain, %s: a streamed call" % name)
        talk += [call] + [get_weather.invoke(c) for c in call.tool_calls]
        tap.ok("9" in bound.invoke(talk).text, "langchain, %s: the answer to its result" % name,
               talk)
        must = m.bind_tools([get_weather], tool_choice="any").invoke("Hello")
        tap.eq([c["name"] for c in must.tool_calls][:1], ["get_weather"],
               "langchain, %s: a call that must be" % name)
        for method in ("json_schema", "function_calling"):
            typed = m.with_structured_output(Place,
                                             method=method).invoke("What is the capital of France?")
            tap.ok(isinstance(typed, Place), "langchain, %s: a typed answer by %s" % (name, method),
                   typed)
    r = langchain_openai.ChatOpenAI(**common).bind(logprobs=True, top_logprobs=2).invoke("Hello")
    tap.ok(
        len(r.response_metadata["logprobs"]["content"]) > 5, "langchain: log probabilities",
        r.response_metadata)
    told = list(langchain_openai.ChatOpenAI(stream_usage=True, **common).stream("Hello"))
    tap.ok(
        sum((x.usage_metadata or {}).get("output_tokens", 0) for x in told) > 5,
        "langchain: a stream's usage", told[-1])
    r = langchain_openai.OpenAI(max_tokens=8, **common).invoke("Once upon a time")
    tap.ok(len(r) > 5, "langchain: a completion", r)
    try:
        langchain_openai.ChatOpenAI(**dict(common, model="gpt")).invoke("Hello")
        tap.ok(False, "langchain: an unknown model raises", "nothing was raised")
    except openai.NotFoundError as e:
        tap.eq(e.status_code, 404, "langchain: an unknown model raises")
    tap.eq(asked, ["Rome"] * 2, "langchain: its tool was called")


# --- OpenAI's agents -----------------------------------------------------------------------------


def agent_library(s):
    import agents

    agents.set_tracing_disabled(True)  # it would tell OpenAI
    asked = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city."""
        asked.append(city)
        return RESULT

    cold = agents.ModelSettings(temperature=0)

    async def work(name, kind):
        async with openai.AsyncOpenAI(base_url=url(s),
                                      api_key=key(0),
                                      max_retries=0,
                                      http_client=clients(s)[1]) as c:
            model = kind(model=MODEL_NAME, openai_client=c)
            plain = agents.Agent(name="Plain", model=model, model_settings=cold)
            r = await agents.Runner.run(plain, "Hello")
            tap.eq(r.final_output, HELLO, "agents, %s: a run" % name)
            again = await agents.Runner.run(
                plain,
                r.to_input_list() + [{"role": "user", "content": "Hello"}])
            tap.ok(again.final_output, "agents, %s: a second turn" % name, again)
            able = agents.Agent(name="Able", model=model, model_settings=cold, tools=[get_weather])
            r = await agents.Runner.run(able, WEATHER)
            tap.ok("9" in r.final_output, "agents, %s: a tool's result is told" % name,
                   r.final_output)
            streamed = agents.Runner.run_streamed(able, WEATHER)
            kinds = set([e.type async for e in streamed.stream_events()])
            tap.ok("9" in streamed.final_output and "run_item_stream_event" in kinds,
                   "agents, %s: streamed, with events %s" % (name, sorted(kinds)),
                   streamed.final_output)
            typed = agents.Agent(name="Typed", model=model, model_settings=cold, output_type=Place)
            r = await agents.Runner.run(typed, "What is the capital of France?")
            tap.ok(isinstance(r.final_output, Place), "agents, %s: a typed output" % name,
                   r.final_output)
            must = agents.Agent(name="Must",
                                model=model,
                                tools=[get_weather],
                                tool_use_behavior="stop_on_first_tool",
                                model_settings=agents.ModelSettings(temperature=0,
                                                                    tool_choice="required"))
            r = await agents.Runner.run(must, "Hello")
            tap.eq(r.final_output, RESULT, "agents, %s: a call that must be" % name)

    asyncio.run(work("chat", agents.OpenAIChatCompletionsModel))
    asyncio.run(work("responses", agents.OpenAIResponsesModel))
    tap.eq(asked[:2], ["Rome"] * 2, "agents: the tool was called (%d times)" % len(asked))


# --- llm -----------------------------------------------------------------------------------------


def chat_front(s):
    home = s.path("llm")
    os.mkdir(home)
    # YAML takes JSON.
    with open(os.path.join(home, "extra-openai-models.yaml"), "w") as f:
        json.dump([{
            "model_id": "quire", "model_name": MODEL_NAME, "api_base": url(s),
            "api_key_name": "quire", "supports_tools": True, "supports_schema": True
        }, {
            "model_id": "quire-text", "model_name": MODEL_NAME, "api_base": url(s),
            "api_key_name": "quire", "completion": True
        }], f)
    env = dict(os.environ, LLM_USER_PATH=home, SSL_CERT_FILE=s.path("cert.pem"))

    def llm(*args, stdin=None):
        r = subprocess.run([sys.executable, "-m", "llm"] + list(args),
                           env=env,
                           input=stdin,
                           text=True,
                           capture_output=True,
                           timeout=60,
                           stdin=None if stdin is not None else subprocess.DEVNULL)
        return r.stdout.strip() if r.returncode == 0 else "exit %d: %s%s" % (r.returncode, r.stdout,
                                                                             r.stderr)

    ask = ["-m", "quire", "-o", "temperature", "0"]
    llm("keys", "set", "quire", "--value", key(0))
    tap.eq(llm(*ask, "Hello"), HELLO, "llm: a stream")
    tap.eq(llm(*ask, "--no-stream", "Hello"), HELLO, "llm: a whole answer")
    tap.ok(llm(*ask, "-c", "What is the capital of France?") != "", "llm: a conversation goes on")
    tap.ok(HELLO in llm("chat", *ask, stdin="Hello\nquit\n"), "llm: its chat")
    said = llm(
        *ask, "--functions",
        "def get_weather(city: str) -> str:\n    'Get the weather of a city.'\n    return %r" %
        RESULT, WEATHER)
    tap.ok("9" in said and "exit" not in said, "llm: a function is called and its result told",
           said)
    said = llm(*ask, "--no-stream", "--schema", json.dumps(Place.model_json_schema()),
               "What is the capital of France?")
    tap.ok(json.loads(said)["city"] in ("Paris", "Rome"), "llm: an answer under a schema", said)
    said = llm("-m", "quire-text", "-o", "temperature", "0", "-o", "max_tokens", "8",
               "Once upon a time")
    tap.ok(said != "" and "exit" not in said, "llm: a completion", said)
    said = llm(*ask, "-o", "max_tokens", "99999", "Hello")
    tap.ok("exit 1" in said and "maximum context length" in said, "llm: an error is told", said)
    logs = json.loads(llm("logs", "--json", "-n", "0"))
    tap.ok(any((row.get("output_tokens") or 0) > 5 for row in logs), "llm: its log has the usage",
           logs[:1])


for module, part in zip(CLIENTS, (langchain, agent_library, chat_front)):
    if importlib.util.find_spec(module) is None:
        tap.skip(part.__name__, "there is no module " + module)
        continue
    with tap.section(part.__name__), Stack() as s:
        part(s)
        tap.ok(s.idle(), "%s leaves nothing running" % module)
        tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
