#!/usr/bin/env python3
"""The official `anthropic` Python client talks to it through nginx over HTTPS: messages, streams,
tools, counts, error classes, timeouts, cancellation.

The client comes from a virtual environment: PYTHON_OPENAI names its python, or
builddir/venv/bin/python is it. Without one the test says so and skips itself."""

import asyncio
import os
import ssl
import sys
import typing

from harness import BUILDDIR, MODEL_NAME, Stack, Tap, key, need_nginx, skip_all, until

need_nginx()
try:
    import anthropic
except ImportError:
    python = os.environ.get("PYTHON_OPENAI") or os.path.join(BUILDDIR, "venv", "bin", "python")
    if os.environ.get("QUIRE_IN_VENV") or not os.path.exists(python):
        skip_all("there is no anthropic module: make one with `python3 -m venv venv && "
                 "venv/bin/pip install -r ../tests/requirements.txt` in the build folder")
    os.environ["QUIRE_IN_VENV"] = "1"
    os.execv(python, [python] + sys.argv)

import pydantic  # noqa: E402: the client brings it

tap = Tap()
tap.note("anthropic %s" % anthropic.__version__)
hello = [{"role": "user", "content": "Hello"}]
cold = {"temperature": 0}  # the client has no such argument any more
HELLO = "Hello! How can I help you today?"
WEATHER = {"name": "get_weather", "description": "Get the weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}


def client_of(s, kind=anthropic.Anthropic, **kw):
    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    http = (anthropic.DefaultHttpxClient if kind is anthropic.Anthropic else
            anthropic.DefaultAsyncHttpxClient)(verify=context)
    return kind(base_url="https://127.0.0.1:%d" % s.port, http_client=http,
                **dict(dict(api_key=key(0), max_retries=0, timeout=30), **kw))


def raises(kind, status, call, name):
    try:
        call()
    except anthropic.APIStatusError as e:
        tap.eq((type(e).__name__, e.status_code), (kind.__name__, status), name)
        tap.eq(e.body["type"], "error", name + ": its shape")
        return
    tap.ok(False, name, "nothing was raised")


with tap.section("client"), Stack() as s:
    c = client_of(s)
    ask = dict(model=MODEL_NAME, max_tokens=60, messages=hello, extra_body=cold)
    r = c.messages.create(**ask)
    tap.eq((r.content[0].text, r.stop_reason, r.role, r.type, len(r.content)),
           (HELLO, "end_turn", "assistant", "message", 1), "a message")
    n = c.messages.count_tokens(model=MODEL_NAME, messages=hello).input_tokens
    tap.eq(n, r.usage.input_tokens + r.usage.cache_read_input_tokens, "its count")
    events = list(c.messages.create(stream=True, **ask))
    tap.eq(("".join(e.delta.text for e in events if e.type == "content_block_delta"),
            events[0].type, events[-1].type), (HELLO, "message_start", "message_stop"), "a stream")
    with c.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    tap.eq((text, final.content[0].text, final.stop_reason, final.usage.output_tokens),
           (HELLO, HELLO, "end_turn", r.usage.output_tokens), "the client's own joining")
    r = c.messages.create(**dict(ask, stop_sequences=["help"], system="Be brief."))
    tap.ok(r.stop_reason in ("stop_sequence", "end_turn"), "system and stop_sequences", r)
    r = c.messages.create(**dict(ask, thinking={"type": "enabled", "budget_tokens": 1024},
                                 metadata={"user_id": "u"}, extra_body={"top_k": 1}))
    tap.eq(r.content[0].text, HELLO, "thinking is asked for")

    ask = dict(ask, tools=[WEATHER], messages=[
        {"role": "user", "content": "What is the weather in Rome?"}])
    r = c.messages.create(**ask)
    call = r.content[0]
    tap.eq((r.stop_reason, call.type, call.name, call.input),
           ("tool_use", "tool_use", "get_weather", {"city": "Rome"}), "a tool call")
    with c.messages.stream(**ask) as stream:
        kinds = set(e.type for e in stream)
        final = stream.get_final_message()
    tap.eq((final.content[0].name, final.content[0].input, final.stop_reason),
           ("get_weather", {"city": "Rome"}, "tool_use"), "a streamed call, joined")
    tap.ok("input_json" in kinds, "and its events", kinds)
    r = c.messages.create(**dict(ask, messages=ask["messages"] + [
        {"role": "assistant", "content": r.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id,
                                      "content": '{"temperature": 9, "sky": "cloudy"}'}]}]))
    tap.ok("9" in r.content[0].text, "the answer from its result", r.content)


    class Place(pydantic.BaseModel):
        city: typing.Literal["Paris", "Rome"]
    r = c.messages.parse(model=MODEL_NAME, max_tokens=60, output_format=Place, messages=[
        {"role": "user", "content": "What is the capital of France?"}], extra_body=cold)
    tap.ok(r.parsed_output.city in ("Paris", "Rome"), "a message parsed into a class", r)
    r = c.messages.create(**dict(ask, messages=hello, tool_choice={"type": "any"}))
    tap.eq(r.content[0].type, "tool_use", "a call that must be")
    raises(anthropic.BadRequestError, 400, lambda: c.messages.create(
        model=MODEL_NAME, max_tokens=9, messages=[]), "no messages")
    raises(anthropic.BadRequestError, 400, lambda: c.messages.create(
        model=MODEL_NAME, max_tokens=9, messages=hello, stream=True,
        extra_body={"temperature": -9}),
        "a stream's error")
    raises(anthropic.NotFoundError, 404, lambda: c.messages.create(
        model="gpt", max_tokens=9, messages=hello), "an unknown model")
    raises(anthropic.AuthenticationError, 401, lambda: client_of(
        s, api_key="sk-wrong").messages.create(model=MODEL_NAME, max_tokens=9, messages=hello),
        "a wrong key")
    bearer = client_of(s, api_key=None, auth_token=key(1))
    tap.eq(bearer.messages.create(**dict(ask, tools=[], messages=hello)).content[0].text, HELLO,
           "a bearer's token in place of the key")

    async def many():
        async with client_of(s, anthropic.AsyncAnthropic) as a:
            async def one():
                async with a.messages.stream(model=MODEL_NAME, max_tokens=60, messages=hello,
                                             extra_body=cold) as stream:
                    return (await stream.get_final_message()).content[0].text
            return await asyncio.gather(*(one() for _ in range(32)))
    tap.eq(asyncio.run(many()), [HELLO] * 32, "32 streams of the asynchronous client at once")

with tap.section("the client's own tool loop"), Stack() as s:
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather of a city.

        Args:
            city: the city
        """
        asked.append(city)
        return '{"temperature": 9, "sky": "cloudy"}'
    runner = client_of(s).beta.messages.tool_runner(
        model=MODEL_NAME, max_tokens=100, tools=[get_weather], extra_body=cold,
        messages=[{"role": "user", "content": "What is the weather in Rome?"}])
    said = runner.until_done()
    tap.eq(asked, ["Rome"], "it calls the function")
    tap.ok("9" in said.content[0].text, "and gets the answer", said.content)

with tap.section("timeouts and cancellation"), Stack() as s:
    long = dict(model=MODEL_NAME, max_tokens=1900, messages=hello, extra_body={"ignore_eos": True})

    def freed(name):
        tap.ok(s.idle(10), name + " leaves nothing running")

    def fails(kind, call, name):
        try:
            call()
            tap.ok(False, name, "nothing was raised")
        except anthropic.APIConnectionError as e:
            tap.eq(type(e).__name__, kind.__name__, name)
    fails(anthropic.APITimeoutError, lambda: client_of(s, timeout=0.2).messages.create(**long),
          "an answer that takes too long")
    freed("a timeout")
    fails(anthropic.APIConnectionError, lambda: anthropic.Anthropic(
        base_url="http://127.0.0.1:9", api_key="x", max_retries=0).messages.create(**long),
          "no server")
    raises(anthropic.RequestTooLargeError, 413, lambda: client_of(s).messages.create(
        **dict(long, system="word " * (7 << 20))), "a request of 35 MB")
    with client_of(s).messages.stream(**long) as stream:
        next(iter(stream.text_stream))
    freed("a stream that is left")

    async def cancelled():
        async with client_of(s, anthropic.AsyncAnthropic) as a:
            async def work():
                async with a.messages.stream(**long) as stream:
                    async for _ in stream:
                        pass
            task = asyncio.create_task(work())
            while s.metric("vllm:num_requests_running") == 0:
                await asyncio.sleep(0.01)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                return True
            return False
    tap.ok(asyncio.run(cancelled()), "a cancelled stream")
    freed("a cancelled stream")

with tap.section("full"), Stack(engine=["--lane-slots", 1], n_fronts=1,
                                front=["--engine-wait-ms", 300]) as s:
    c = client_of(s)

    def call(c=c):
        return c.messages.create(model=MODEL_NAME, max_tokens=30, messages=hello,
                                 extra_body=cold)
    held = s.open_stream("/v1/chat/completions", s.chat("Hello", max_tokens=1900, ignore_eos=True))
    held.response.readline()
    raises(anthropic.RateLimitError, 429, call, "a full server")
    held.close()
    s.engine.hold()
    s.engine.kill()
    tap.ok(until(lambda: s.get("/health").status == 503), "the engine is gone")
    raises(anthropic.OverloadedError, 529, call, "no engine")
    s.engine.release()
    tap.eq(call(client_of(s, max_retries=5)).content[0].text, HELLO,
           "the client's own retries reach the next engine")

with tap.section("an error in mid-stream"), Stack(env={"QUIRE_FAULT": "engine_step:3"}) as s:
    try:
        list(client_of(s).messages.create(model=MODEL_NAME, max_tokens=60, messages=hello,
                                          stream=True))
        tap.ok(False, "a stream that fails raises", "nothing was raised")
    except anthropic.APIError as e:
        tap.ok(True, "a stream that fails raises %s" % type(e).__name__)
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
