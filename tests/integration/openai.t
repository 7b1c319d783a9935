#!/usr/bin/env python3
"""The official `openai` Python client talks to it through nginx over HTTPS: chat, completion,
streams, tools, parsed classes, log probabilities, responses, error classes, timeouts, cancellation.

The client comes from a virtual environment: PYTHON_OPENAI names its python, or
builddir/venv/bin/python is it. Without one the test says so and skips itself."""

import asyncio
import json
import os
import ssl
import sys
import time
import typing

from harness import (BUILDDIR, MODEL_NAME, Stack, Tap, key, memory_folder, need_nginx, skip_all,
                     until)

need_nginx()
try:
    import openai
except ImportError:
    python = os.environ.get("PYTHON_OPENAI") or os.path.join(BUILDDIR, "venv", "bin", "python")
    if os.environ.get("QUIRE_IN_VENV") or not os.path.exists(python):
        skip_all("there is no openai module: make one with `python3 -m venv venv && "
                 "venv/bin/pip install openai jsonschema` in the build folder")
    os.environ["QUIRE_IN_VENV"] = "1"
    os.execv(python, [python] + sys.argv)

import pydantic  # noqa: E402: the client brings it

tap = Tap()
tap.note("openai %s" % openai.__version__)
hello = [{"role": "user", "content": "Hello"}]
HELLO = "Hello! How can I help you today?"


def overhear(response):
    """The client's answers, too, are held against OpenAI's schema."""
    stream = response.stream
    base = next(k for k in type(stream).__mro__ if k.__name__ == "SyncByteStream")

    class Overheard(base):
        def __iter__(self):
            got = b""
            for piece in stream:
                got += piece
                yield piece
            path = response.request.url.path
            if response.headers["Content-Type"].startswith("application/json"):
                Stack.heard(path, response.status_code, got, False)
            for line in got.split(b"\n") if response.status_code == 200 else []:
                if line.startswith(b"data: {"):
                    Stack.heard(path, 200, line[len(b"data: "):], True)

        def close(self):
            stream.close()
    response.stream = Overheard()


def client_of(s, kind=openai.OpenAI, **kw):
    os.environ["SSL_CERT_FILE"] = s.path("cert.pem")
    context = ssl.create_default_context(cafile=s.path("cert.pem"))
    http = (openai.DefaultHttpxClient(verify=context, event_hooks={"response": [overhear]})
            if kind is openai.OpenAI else openai.DefaultAsyncHttpxClient(verify=context))
    return kind(base_url="https://127.0.0.1:%d/v1" % s.port, http_client=http,
                **dict(dict(api_key=key(0), max_retries=0, timeout=30), **kw))


def raises(kind, status, call, name, code=None, param=None):
    try:
        call()
    except openai.APIStatusError as e:
        tap.eq((type(e).__name__, e.status_code), (kind.__name__, status), name)
        if code is not None:
            tap.eq(e.code, code, name + ": the code")
        if param is not None:
            tap.eq(e.param, param, name + ": the field")
        return
    except openai.APIError as e:
        tap.ok(False, name, repr(e))
        return
    tap.ok(False, name, "nothing was raised")


with tap.section("client"), Stack() as s:
    c = client_of(s)
    chat = c.chat.completions
    r = chat.create(model=MODEL_NAME, messages=hello, temperature=0)
    tap.eq((r.choices[0].message.content, r.choices[0].finish_reason, r.choices[0].message.role,
            r.object), (HELLO, "stop", "assistant", "chat.completion"), "chat")
    tap.eq(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens, "usage")
    tap.ok(r.usage.prompt_tokens_details.cached_tokens >= 0, "cached tokens")
    got = list(chat.create(model=MODEL_NAME, messages=hello, temperature=0, stream=True,
                           stream_options={"include_usage": True}))
    text = "".join(x.choices[0].delta.content or "" for x in got if x.choices)
    tap.eq(text, HELLO, "chat, streaming")
    tap.eq(got[-1].usage.completion_tokens, r.usage.completion_tokens, "its usage comes last")
    tap.eq([x.choices[0].finish_reason for x in got if x.choices][-1], "stop", "its reason")
    with chat.stream(model=MODEL_NAME, messages=hello, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    tap.eq(final.choices[0].message.content, HELLO, "the client's stream helper (%d events)" %
           len(kinds))
    r = c.completions.create(model=MODEL_NAME, prompt="Once upon a time", max_tokens=20,
                             temperature=0)
    tap.eq((r.object, r.choices[0].finish_reason, r.usage.completion_tokens),
           ("text_completion", "length", 20), "completion")
    text = "".join(x.choices[0].text for x in c.completions.create(
        model=MODEL_NAME, prompt="Once upon a time", max_tokens=20, temperature=0, stream=True))
    tap.eq(text, r.choices[0].text, "completion, streaming")
    r = c.completions.create(model=MODEL_NAME, prompt=["Once", "Count"], max_tokens=4)
    tap.eq([x.index for x in r.choices], [0, 1], "two prompts")
    tap.eq([m.id for m in c.models.list()], [MODEL_NAME], "models")
    r = chat.create(model=MODEL_NAME, messages=hello, temperature=0,
                    extra_body={"top_k": 1, "ignore_eos": True, "max_tokens": 30})
    tap.eq(r.usage.completion_tokens, 30, "fields of vLLM by extra_body")
    weather = {"type": "function", "function": {
        "name": "get_weather", "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
    ask = [{"role": "user", "content": "What is the weather in Rome?"}]
    r = chat.create(model=MODEL_NAME, messages=ask, tools=[weather], temperature=0)
    call = r.choices[0].message.tool_calls[0]
    tap.eq((r.choices[0].finish_reason, call.function.name, json.loads(call.function.arguments)),
           ("tool_calls", "get_weather", {"city": "Rome"}), "a tool call")
    ask += [r.choices[0].message, {"role": "tool", "tool_call_id": call.id,
                                   "content": '{"temperature": 9, "sky": "cloudy"}'}]
    r = chat.create(model=MODEL_NAME, messages=ask, tools=[weather], temperature=0)
    tap.ok("9" in r.choices[0].message.content, "the answer from its result",
           r.choices[0].message.content)
    with c.chat.completions.stream(model=MODEL_NAME, messages=ask[:1], tools=[weather],
                                   temperature=0) as stream:
        kinds = set(e.type for e in stream)
        whole = stream.get_final_completion().choices[0].message.tool_calls[0]
    tap.eq((whole.function.name, whole.function.arguments),
           ("get_weather", call.function.arguments), "the client's own joining of a stream")
    tap.ok("tool_calls.function.arguments.done" in kinds, "and its events", kinds)
    raw = chat.with_raw_response.create(model=MODEL_NAME, messages=hello, max_tokens=1)
    tap.eq((raw.status_code, raw.http_version), (200, raw.http_version), "raw response")

    raises(openai.BadRequestError, 400,
           lambda: chat.create(model=MODEL_NAME, messages=hello, n=129), "n=129", param="n")
    raises(openai.BadRequestError, 400,
           lambda: chat.create(model=MODEL_NAME, messages=hello, temperature=-9), "temperature -9",
           param="temperature")
    raises(openai.BadRequestError, 400, lambda: chat.create(
        model=MODEL_NAME, messages=[{"role": "user", "content": "Hi " * 5000}]), "a long prompt",
        code="context_length_exceeded", param="messages")
    r = chat.create(model=MODEL_NAME, messages=hello, n=2, extra_body={"colour": 1})
    tap.eq(len(r.choices), 2, "two choices, and an unknown field")
    raises(openai.BadRequestError, 400, lambda: chat.create(
        model=MODEL_NAME, messages=hello, temperature=-9, stream=True), "a stream's error")
    raises(openai.NotFoundError, 404, lambda: chat.create(model="gpt", messages=hello),
           "unknown model", code="model_not_found", param="model")
    raises(openai.NotFoundError, 404, lambda: c.images.generate(model="a", prompt="b"),
           "unknown path")

    async def many():
        async with client_of(s, openai.AsyncOpenAI) as a:
            async def one(i):
                out = ""
                async for x in await a.chat.completions.create(
                        model=MODEL_NAME, messages=hello, temperature=0, stream=True):
                    out += x.choices[0].delta.content or ""
                return out
            return await asyncio.gather(*(one(i) for i in range(32)))
    tap.eq(asyncio.run(many()), [HELLO] * 32, "32 streams of the asynchronous client at once")

    # A client that breaks off its stream.
    stream = chat.create(model=MODEL_NAME, messages=hello, stream=True,
                         extra_body={"ignore_eos": True, "max_tokens": 1800})
    next(iter(stream))
    stream.close()
    tap.ok(until(lambda: s.metric("vllm:num_requests_running") == 0, 5),
           "closing a stream frees it")

class Place(pydantic.BaseModel):
    city: typing.Literal["Paris", "Rome"]


class Weather(pydantic.BaseModel):
    """Get the weather of a city."""
    city: str


with tap.section("forms"), Stack() as s:
    c = client_of(s)
    chat = c.chat.completions
    capital = [{"role": "user", "content": "What is the capital of France?"}]
    ask = dict(model=MODEL_NAME, temperature=0, messages=capital)
    r = chat.parse(response_format=Place, **ask)
    tap.ok(r.choices[0].message.parsed.city in ("Paris", "Rome"), "a chat parsed into a class", r)
    with chat.stream(response_format=Place, **ask) as stream:
        kinds = set(e.type for e in stream)
        final = stream.get_final_completion()
    tap.eq(final.choices[0].message.parsed, r.choices[0].message.parsed, "streamed and parsed")
    tap.ok({"content.delta", "content.done"} <= kinds, "and its events", kinds)
    r = chat.create(response_format={"type": "json_object"}, max_tokens=200, **ask)
    tap.ok(r.choices[0].finish_reason == "length" or
           isinstance(json.loads(r.choices[0].message.content), dict), "json_object", r)
    tools = [openai.pydantic_function_tool(Weather)]
    ask["messages"] = [{"role": "user", "content": "What is the weather in Rome?"}]
    r = chat.parse(tools=tools, tool_choice="required", parallel_tool_calls=False, **ask)
    call = r.choices[0].message.tool_calls[0].function
    tap.ok(isinstance(call.parsed_arguments, Weather), "a strict tool's arguments, parsed", call)
    name, text, ids = "", "", []
    for x in chat.create(tools=tools, stream=True, tool_choice={
            "type": "function", "function": {"name": "Weather"}}, **ask):
        for d in x.choices[0].delta.tool_calls or []:
            name += d.function.name or ""
            text += d.function.arguments or ""
            ids += [d.id] if d.id else []
    tap.eq((name, json.loads(text), len(ids)), ("Weather", call.parsed_arguments.model_dump(), 1),
           "a named tool's call in a plain stream's pieces")
    talk = ask["messages"] + [
        {"role": "assistant", "tool_calls": [{"id": ids[0], "type": "function", "function": {
            "name": name, "arguments": text}}]},
        {"role": "tool", "tool_call_id": ids[0], "content": '{"temperature": 9, "sky": "cloudy"}'}]
    said = "".join(x.choices[0].delta.content or "" for x in chat.create(
        tools=tools, stream=True, **dict(ask, messages=talk)))
    tap.ok("9" in said, "and a streamed answer to its result", said)

with tap.section("log probabilities"), Stack() as s:
    c = client_of(s)
    ask = dict(model=MODEL_NAME, messages=hello, temperature=0, logprobs=True, top_logprobs=3)
    r = c.chat.completions.create(**ask)
    told = r.choices[0].logprobs.content
    tap.eq(("".join(t.token for t in told if not t.token.startswith("<|")), len(told)),
           (HELLO, r.usage.completion_tokens), "one a token")
    tap.ok(all(len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob >= t.logprob and
               bytes(t.bytes).decode() == t.token for t in told), "with three others", told[:2])
    streamed = [t for x in c.chat.completions.create(stream=True, **ask)
                for t in (x.choices[0].logprobs.content if x.choices[0].logprobs else [])]
    tap.eq([t.token for t in streamed], [t.token for t in told], "streamed alike")
    with c.chat.completions.stream(**ask) as stream:
        kinds = set(e.type for e in stream)
    tap.ok("logprobs.content.delta" in kinds, "the stream helper's events", kinds)
    r = c.completions.create(model=MODEL_NAME, prompt="Once upon", max_tokens=3, logprobs=2,
                             temperature=0)
    tap.eq((len(r.choices[0].logprobs.tokens), len(r.choices[0].logprobs.top_logprobs[0])),
           (3, 2), "of a completion")

with tap.section("timeouts and cancellation"), Stack() as s:
    long = dict(model=MODEL_NAME, messages=hello,
                extra_body={"ignore_eos": True, "max_tokens": 1900})

    def freed(name):
        tap.ok(s.idle(10), name + " leaves nothing running")

    def times_out(call, name, kind=openai.APITimeoutError):
        try:
            call()
            tap.ok(False, name, "nothing was raised")
        except openai.APIConnectionError as e:
            tap.eq(type(e).__name__, kind.__name__, name)
    impatient = client_of(s, timeout=0.2)
    times_out(lambda: impatient.chat.completions.create(**long), "an answer that takes too long")
    freed("a timeout")
    times_out(lambda: impatient.responses.create(model=MODEL_NAME, input="Hello", extra_body={
        "max_output_tokens": 1900, "ignore_eos": True}), "a response that takes too long")
    freed("a response's timeout")
    times_out(lambda: openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="x", max_retries=0)
              .models.list(), "no server", openai.APIConnectionError)

    async def cancelled(streamed):
        async with client_of(s, openai.AsyncOpenAI) as a:
            async def work():
                r = await a.chat.completions.create(stream=streamed, **long)
                async for _ in r:
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
    for streamed in (False, True):
        name = "a cancelled %s" % ("stream" if streamed else "answer")
        tap.ok(asyncio.run(cancelled(streamed)), name)
        freed(name)

    async def left():
        async with client_of(s, openai.AsyncOpenAI) as a:
            async with await a.chat.completions.create(stream=True, **long) as stream:
                async for x in stream:
                    return x.object
    tap.eq(asyncio.run(left()), "chat.completion.chunk", "a stream that is left")
    freed("a stream that is left")
    r = client_of(s).with_options(timeout=30).chat.completions.create(
        model=MODEL_NAME, messages=hello, temperature=0)
    tap.eq(r.choices[0].message.content, HELLO, "it serves on")

with tap.section("responses"), Stack() as s:
    responses = client_of(s).responses
    r = responses.create(model=MODEL_NAME, input="Hello", temperature=0, instructions=None)
    tap.eq((r.output_text, r.status, r.object, r.error), (HELLO, "completed", "response", None),
           "a response")
    events = list(responses.create(model=MODEL_NAME, input="Hello", temperature=0, stream=True))
    tap.eq(("".join(e.delta for e in events if e.type == "response.output_text.delta"),
            events[-1].type, events[-1].response.output_text),
           (HELLO, "response.completed", HELLO), "a response, streaming")
    with responses.stream(model=MODEL_NAME, input="Hello", temperature=0) as stream:
        kinds = set(e.type for e in stream)
        final = stream.get_final_response()
    tap.eq((final.output_text, final.usage.output_tokens), (HELLO, r.usage.output_tokens),
           "the client's own joining of its events (%d kinds)" % len(kinds))
    flat = dict(weather["function"], type="function", strict=False)
    talk = [{"role": "user", "content": "What is the weather in Rome?"}]
    r = responses.create(model=MODEL_NAME, input=talk, tools=[flat], temperature=0)
    call = r.output[0]
    tap.eq((call.type, call.name, json.loads(call.arguments)),
           ("function_call", "get_weather", {"city": "Rome"}), "a function call")
    with responses.stream(model=MODEL_NAME, input=talk, tools=[flat], temperature=0) as stream:
        tap.ok("response.function_call_arguments.done" in set(e.type for e in stream),
               "and its events")
        final = stream.get_final_response().output[0]
    tap.eq((final.name, final.arguments), (call.name, call.arguments), "joined")
    talk += r.output + [{"type": "function_call_output", "call_id": call.call_id,
                         "output": '{"temperature": 9, "sky": "cloudy"}'}]
    r = responses.create(model=MODEL_NAME, input=talk, tools=[flat], temperature=0)
    tap.ok("9" in r.output_text, "the answer from its output", r.output_text)

    r = responses.parse(model=MODEL_NAME, input="What is the capital of France?", temperature=0,
                        text_format=Place)
    tap.ok(r.output_parsed.city in ("Paris", "Rome"), "a response parsed into a class", r)
    raises(openai.BadRequestError, 400, lambda: responses.create(
        model=MODEL_NAME, input="Hello", previous_response_id=r.id), "a response before",
        param="previous_response_id")
    raises(openai.BadRequestError, 400, lambda: responses.create(
        model=MODEL_NAME, input="Hello " * 5000), "a long input", code="context_length_exceeded",
        param="input")
    raises(openai.NotFoundError, 404, lambda: responses.retrieve(r.id), "a response that was")

with tap.section("kept responses"), Stack(front=["--responses-dir", memory_folder()]) as s:
    responses = client_of(s).responses
    r = responses.create(model=MODEL_NAME, input="What is the weather in Rome?", tools=[flat],
                         temperature=0)
    tap.eq(responses.retrieve(r.id).to_dict(), r.to_dict(), "a response that was")
    out = {"type": "function_call_output", "call_id": r.output[0].call_id,
           "output": '{"temperature": 9, "sky": "cloudy"}'}
    with responses.stream(model=MODEL_NAME, input=[out], tools=[flat], temperature=0,
                          previous_response_id=r.id) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    tap.ok("9" in final.output_text, "the answer from a call's output alone", final.output_text)
    items = list(responses.input_items.list(final.id, limit=2, order="asc"))
    tap.eq([i.type for i in items], ["message", "function_call", "function_call_output"],
           "its input items, in pages")
    tap.eq(responses.delete(r.id), None, "a response is removed")
    raises(openai.NotFoundError, 404, lambda: responses.retrieve(r.id), "it is gone")
    raises(openai.BadRequestError, 400, lambda: responses.create(
        model=MODEL_NAME, input="Hello", previous_response_id=r.id), "nor gone on from",
        code="previous_response_not_found", param="previous_response_id")

with tap.section("vectors"), Stack(engine=["--runner", "pooling"], front=["--runner", "pooling"]) as s:
    c = client_of(s)
    # The client asks for base64 and decodes it, unless a format is given.
    coded = c.embeddings.create(model=MODEL_NAME, input=["Hello", "Bonjour"])
    plain = c.embeddings.create(model=MODEL_NAME, input=["Hello", "Bonjour"], encoding_format="float")
    vectors = [[d.embedding for d in r.data] for r in (coded, plain)]
    tap.ok(len(vectors[0]) == 2 and len(vectors[0][0]) == 256 and
           max(abs(a - b) for v, w in zip(*vectors) for a, b in zip(v, w)) < 1e-8 and
           coded.usage.prompt_tokens == coded.usage.total_tokens > 1, "embeddings.create(), in both encodings")
    raises(openai.BadRequestError, 400,
           lambda: c.embeddings.create(model=MODEL_NAME, input="Hello", dimensions=8), "dimensions",
           param="dimensions")
    raises(openai.BadRequestError, 400,
           lambda: c.chat.completions.create(model=MODEL_NAME, messages=hello), "a chat with a model that pools",
           code="unsupported")

with tap.section("keys"), Stack() as s:
    raises(openai.AuthenticationError, 401, lambda: client_of(s, api_key="sk-wrong").models.list(),
           "a wrong key", code="invalid_api_key")

with tap.section("full"), Stack(engine=["--lane-slots", 1], n_fronts=1,
                                front=["--engine-wait-ms", 500]) as s:
    c = client_of(s)
    held = s.open_stream("/v1/chat/completions", s.chat("Hello", max_tokens=1900, ignore_eos=True))
    held.response.readline()
    raises(openai.RateLimitError, 429,
           lambda: c.chat.completions.create(model=MODEL_NAME, messages=hello), "a full server",
           code="rate_limit_exceeded")
    held.close()
    s.engine.hold()
    s.engine.kill()
    time.sleep(0.2)
    raises(openai.InternalServerError, 503,
           lambda: c.chat.completions.create(model=MODEL_NAME, messages=hello), "no engine")
    s.engine.release()
    r = client_of(s, max_retries=5).chat.completions.create(model=MODEL_NAME, messages=hello,
                                                            temperature=0)
    tap.eq(r.choices[0].message.content, HELLO, "the client's own retries reach the next engine")

with tap.section("an error in mid-stream"), Stack(env={"QUIRE_FAULT": "engine_step:3"}) as s:
    try:
        for _ in client_of(s).chat.completions.create(model=MODEL_NAME, messages=hello,
                                                      stream=True):
            pass
        tap.ok(False, "a stream that fails raises", "nothing was raised")
    except openai.APIError as e:
        tap.ok(True, "a stream that fails raises %s" % type(e).__name__)
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
