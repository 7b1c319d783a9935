#!/usr/bin/env python3
"""Gemma 4's format of chats from the request to the answer: a channel becomes reasoning, calls go out
and come back, texts end where the model's tokens say, thinking is switched by the template.

The model says a known text as a completion of a chat's prompt (spoken.py); derender, whose parser
is that of chats, makes the chat's answer of its tokens. In chats it draws: forced calls are held to
their tools, streamed as whole."""

import json

import gemma4
from harness import Stack, Tap, need_nginx
from spoken import CHAT, Joined, message_of, post, prompt, streamed, whole

need_nginx()
tap = Tap()
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather", "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "description": "where"},
                       "days": {"type": "integer"}}}}}
NOW = {"type": "function", "function": {
    "name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
THINKS = "<|channel>thought\nLet me see.\n<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
PARIS = '{"city": "Paris"}'
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}

# (name, text of the model, reasoning, content, calls, finish_reason)
REPLIES = [
    ("an answer", "It is 5.<turn|>", None, "It is 5.", [], "stop"),
    ("reasoning", THINKS + "It is 5.<turn|>", "Let me see.", "It is 5.", [], "stop"),
    ("reasoning that is empty", "<|channel>thought\n<channel|>It is 5.<turn|>", None, "It is 5.", [],
     "stop"),
    ("a call", THINKS + CALL + "<|tool_response>", "Let me see.", None, [("get_weather", PARIS)],
     "tool_calls"),
    ("text and two calls", "I shall look." + CALL + "<|tool_call>call:now{}<tool_call|><turn|>", None,
     "I shall look.", [("get_weather", PARIS), ("now", "{}")], "tool_calls"),
    ("values of all kinds",
     '<|tool_call>call:get_weather{city:<|"|>a "b", {c}\\<|"|>,days:3,x:[1.5,true,null,{y:<|"|><|"|>}]}'
     "<tool_call|><eos>", None, None,
     [("get_weather", '{"city": "a \\"b\\", {c}\\\\", "days": 3, "x": [1.5, true, null, {"y": ""}]}')],
     "tool_calls"),
    ("reasoning without its end", "<|channel>thought\nLet me see.<turn|>", "Let me see.", None, [],
     "stop"),
    ("no call", "<|tool_call>get_weather()<tool_call|><turn|>", None,
     "<|tool_call>get_weather()<tool_call|>", [], "stop"),
]


def replies(s):
    for name, text, *want in REPLIES:
        with tap.section(name):
            got = whole(s, gemma4, text, [WEATHER, NOW], **THINKING)["choices"][0]
            tap.eq(message_of(got), tuple(want), name + ", whole")
            told = streamed(s, gemma4, text, [WEATHER, NOW], **THINKING)
            tap.eq(told.message(), tuple(want), name + ", streamed")


def chats(s):
    """Drawn: what the grammar of a required call allows. Seeds that do not come to an end are cut by
    max_tokens, and have no call but a beginning."""
    n_ended = 0
    for seed in range(12):
        body = s.chat("What is it?", temperature=1, seed=seed, max_tokens=400,
                      tools=[WEATHER, NOW], tool_choice="required",
                      logit_bias={str(gemma4.token_id('<|"|>')): 4,
                                  str(gemma4.token_id("<turn|>")): 9})
        got = message_of(post(s, CHAT, body)["choices"][0])
        told = Joined()
        for e in s.stream(CHAT, body).events:
            told.add(e)
        tap.eq(told.message(), got, "seed %d: streamed as whole" % seed)
        if got[3] == "length":
            continue
        n_ended += 1
        tap.ok(got[1] is None and got[2] and got[3] == "tool_calls" and all(
            set(json.loads(args)) <= {"city", "days"} and "city" in json.loads(args)
            for call, args in got[2] if call == "get_weather"), "seed %d: calls alone" % seed, got)
    tap.ok(n_ended > 0, "some seeds end", n_ended)


def thinking(s):
    """The template's switch, and a prompt that closes the channel: what follows is content."""
    hello = [{"role": "user", "content": "Hello"}]
    text = prompt(s, hello)
    tap.ok(text.endswith("<|turn>model\n<|channel>thought\n<channel|>"), "it is off", text)
    text = prompt(s, hello, **THINKING)
    tap.ok("<|think|>" in text and text.endswith("<|turn>model\n"), "and on", text)
    got = message_of(whole(s, gemma4, "It is 5.<turn|>", [NOW])["choices"][0])
    tap.eq(got, (None, "It is 5.", [], "stop"), "an answer without thinking")
    r = s.post(CHAT, s.chat("Hello", max_tokens=60, thinking_token_budget=3, **THINKING))
    tap.eq(r.status, 200, "reasoning may have a budget")


def back_in(s):
    """A call as the server gave it, with its result, in the next prompt; then the answer."""
    message = whole(s, gemma4, CALL + "<|tool_response>", [WEATHER])["choices"][0]["message"]
    call = message["tool_calls"][0]
    messages = [{"role": "user", "content": "The weather?"}, message,
                {"role": "tool", "tool_call_id": call["id"], "name": "get_weather",
                 "content": "warm"}]
    text = prompt(s, messages, tools=[WEATHER])
    tap.ok("<|tool>declaration:get_weather{" in text, "the prompt declares the tool", text)
    tap.ok(CALL + '<|tool_response>response:get_weather{value:<|"|>warm<|"|>}<tool_response|>' in
           text, "the call is in the prompt, and its result", text)
    r = s.post(CHAT, s.chat(messages, tools=[WEATHER], max_tokens=1))
    tap.eq(r.json["usage"]["prompt_tokens"] if r.status == 200 else r.text,
           len(post(s, "/tokenize", {"messages": messages, "tools": [WEATHER]})["tokens"]),
           "a chat has that prompt")


with Stack(model=gemma4.folder(), n_fronts=1) as s:
    for section in (replies, chats, thinking, back_in):
        with tap.section(section.__name__):
            section(s)
tap.done()
