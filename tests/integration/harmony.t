#!/usr/bin/env python3
"""gpt-oss from the request to the answer, with its own chat template: channels become reasoning and
content, calls go out and come back, texts end where the model's tokens say, efforts reach the
prompt, and no text of a reply that is not harmony is lost.

The model says a known text as a completion of a chat's prompt (spoken.py); derender, whose parser
is that of chats, makes the chat's answer of its tokens. In chats it draws: their forms are held to, streamed as whole."""

import json

import harmony
from harness import Stack, Tap, need_nginx
from spoken import CHAT, Joined, message_of, post, prompt, streamed, whole

need_nginx()
tap = Tap()
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather", "parameters": {
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"type": "string", "description": "where"}}}}}
NOW = {"type": "function", "function": {
    "name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}}
THINKS = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"
CALL = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
PARIS = '{"city": "Paris"}'
FINAL = "<|channel|>final<|message|>It is 5.<|return|>"

# (name, text of the model, reasoning, content, calls, finish_reason)
REPLIES = [
    ("a final message", THINKS + FINAL, "Let me see.", "It is 5.", [], "stop"),
    ("no reasoning", FINAL, None, "It is 5.", [], "stop"),
    ("a call", THINKS + CALL + PARIS + "<|call|>", "Let me see.", None,
     [("get_weather", PARIS)], "tool_calls"),
    ("a call, its recipient before the channel",
     THINKS + " to=functions.get_weather<|channel|>commentary json<|message|>" + PARIS +
     "<|call|>", "Let me see.", None, [("get_weather", PARIS)], "tool_calls"),
    ("the recipient first of all", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
     None, None, [("now", "{}")], "tool_calls"),
    ("a preamble", "<|channel|>commentary<|message|>I shall look.<|end|><|start|>assistant" + CALL +
     PARIS + "<|call|>", None, "I shall look.", [("get_weather", PARIS)], "tool_calls"),
    ("an end of all texts", "<|channel|>final<|message|>So far.<|endoftext|>", None, "So far.", [],
     "stop"),
    ("a channel without a name", "<|channel|><|message|>Some text.<|return|>", None, "Some text.",
     [], "stop"),
    ("another channel", "<|channel|>poem<|message|>Some text.<|return|>", None, "Some text.", [],
     "stop"),
    ("no channels", "Just text, as it is.<|return|>", None, "Just text, as it is.", [], "stop"),
    ("no message", "<|channel|>final so it is<|return|>", None, "<|channel|>final so it is", [],
     "stop"),
    ("text before the channel", "Well then.<|channel|>final<|message|>It is 5.<|return|>", None,
     "Well then.It is 5.", [], "stop"),
    ("text between messages",
     "<|channel|>analysis<|message|>Let me see.<|end|>Stray words.<|start|>assistant" + FINAL,
     "Let me see.", "Stray words.It is 5.", [], "stop"),
    ("text after the messages", "<|channel|>final<|message|>It is 5.<|end|>More words.<|return|>",
     None, "It is 5.More words.", [], "stop"),
    ("reasoning without its end", "<|channel|>analysis<|message|>Let me see.<|return|>",
     "Let me see.", None, [], "stop"),
]


def replies(s):
    for name, text, *want in REPLIES:
        with tap.section(name):
            got = whole(s, harmony, text, [WEATHER, NOW])["choices"][0]
            tap.eq(message_of(got), tuple(want), name + ", whole")
            told = streamed(s, harmony, text, [WEATHER, NOW])
            tap.eq(told.message(), tuple(want), name + ", streamed")


def chats(s):
    """Drawn: reasoning of any length, or none; then what the form allows. Seeds that do not come
    to an end are cut by max_tokens, and have no content or call but a beginning."""
    end = {str(harmony.token_id("<|end|>")): 4}
    paris = dict(WEATHER["function"], parameters={
        "type": "object", "required": ["city"], "additionalProperties": False,
        "properties": {"city": {"enum": ["Paris"], "description": "where"}}})
    n_pieces = 0
    forms = (
        ("a choice", {"structured_outputs": {"choice": ["It is 5."]}}, "It is 5.", [], "stop"),
        ("a required call", {"tools": [{"type": "function", "function": paris}],
                             "tool_choice": "required"}, None, ["get_weather"], "tool_calls"))
    for name, form, content, names, finish in forms:
        n_ended = n_reasoned = 0
        for seed in range(12):
            body = s.chat("What is it?", temperature=1, seed=seed, max_tokens=600, logit_bias=end,
                          **form)
            got = message_of(post(s, CHAT, body)["choices"][0])
            told = Joined()
            for e in s.stream(CHAT, body).events:
                told.add(e)
            tap.eq(told.message(), got, "%s, seed %d: streamed as whole" % (name, seed))
            n_pieces = max(n_pieces, len(told.reasoning))
            if got[3] == "length":
                continue
            n_ended += 1
            n_reasoned += got[0] is not None
            tap.ok(got[1] == content and [c[0] for c in got[2]] == names and got[3] == finish and
                   all(json.loads(c[1]) == {"city": "Paris"} for c in got[2]),
                   "%s, seed %d: held to" % (name, seed), got)
        tap.ok(n_ended > 0 and n_reasoned > 0, name + ": some seeds end, some after reasoning",
               (n_ended, n_reasoned))
    tap.ok(n_pieces > 1, "reasoning comes in pieces")


def efforts(s):
    """By the number of a prompt's tokens, and by what the template makes of the same words."""
    counts = {}
    for effort in ("low", "medium", "high"):
        text = prompt(s, [{"role": "user", "content": "Hello"}],
                      chat_template_kwargs={"reasoning_effort": effort})
        tap.ok("reasoning: %s\n" % effort in text.lower(), "the prompt names effort %s" % effort, text)
        n = len(s.post("/tokenize", {"model": "demo", "prompt": text}).json["tokens"])
        r = s.post(CHAT, s.chat("Hello", reasoning_effort=effort, max_tokens=1))
        counts[effort] = r.json["usage"]["prompt_tokens"]
        tap.eq(counts[effort], n, "a chat's reasoning_effort %s is in its prompt" % effort)
    tap.ok(len(set(counts.values())) > 1, "efforts are told apart by that", counts)
    text = prompt(s, [{"role": "user", "content": "Hello"}])
    tap.ok("reasoning: medium\n" in text.lower(), "medium is the template's own", text)
    tap.ok(text.endswith("<|end|><|start|>assistant"), "a prompt ends where a message begins", text)


def back_in(s):
    """A call as the server gave it, with its result, in the next prompt; then the answer."""
    message = whole(s, harmony, THINKS + CALL + PARIS + "<|call|>", [WEATHER, NOW])["choices"][0]["message"]
    call = message["tool_calls"][0]
    messages = [{"role": "user", "content": "The weather?"}, message,
                {"role": "tool", "tool_call_id": call["id"], "content": "warm"}]
    text = prompt(s, messages, tools=[WEATHER])
    tap.ok("namespace functions {" in text and "type get_weather = (_: {" in text,
           "the prompt declares the tool", text)
    tap.ok("<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>" +
           PARIS + "<|" in text, "the call is in the prompt", text)
    tap.ok('<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"warm"'
           "<|end|><|start|>assistant" in text, "and its result", text)
    r = s.post(CHAT, s.chat(messages, tools=[WEATHER], max_tokens=1))
    tap.eq(r.json["usage"]["prompt_tokens"] if r.status == 200 else r.text,
           len(post(s, "/tokenize", {"messages": messages, "tools": [WEATHER]})["tokens"]),
           "a chat has that prompt")


with Stack(model=harmony.folder(), n_fronts=1) as s:
    for section in (replies, chats, efforts, back_in):
        with tap.section(section.__name__):
            section(s)
tap.done()
