"""Random requests for tests of drafts: draw(random, stack) gives the path and the body of one, of up to
five fields, whose text repeats itself, mostly; ask() its answer without what differs by chance."""

import json
import re

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOOLS = [{"type": "function", "function": {"name": "now", "strict": True, "parameters": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"],
    "additionalProperties": False}}}]
REPORT = {"type": "object", "properties": {
    "temperature_celsius": {"type": "integer", "minimum": -20, "maximum": 50},
    "description": {"type": "string", "maxLength": 12},
    "conditions": {"type": "array", "minItems": 2, "maxItems": 3,
                   "items": {"enum": ["partly cloudy", "thunderstorm", "clear"]}},
    "is_measured": {"type": "boolean"}},
    "required": ["temperature_celsius", "description", "conditions", "is_measured"],
    "additionalProperties": False}
FIELDS = {
    "temperature": [0, 0, 0.2, 0.7, 1.3], "top_k": [1, 5, -1], "top_p": [0.5, 1], "min_p": [0, 0.3],
    "n": [1, 2, 3], "min_tokens": [0, 3, 50], "stop": ["100", ["\n", "lo"]],
    "stop_token_ids": [[30], [5, 6], list(range(300, 340))],
    "ignore_eos": [True], "include_stop_str_in_output": [True],
    "logit_bias": [{"40": 3}, {"655": -100, "0": 5}], "allowed_token_ids": [list(range(300, 700))],
    "bad_words": [["Hello"], ["!", " How"]], "repetition_penalty": [0.9, 1.2],
    "presence_penalty": [1], "frequency_penalty": [-1, 0.5], "return_token_ids": [True],
    "structured_outputs": [{"regex": "([ab]{3} )+"}, {"json": {"type": "object"}},
                           {"regex": "[a-z ]{5,200}"}, {"choice": ["the cat sat", "the mat"]}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {
        "name": "report", "strict": True, "schema": REPORT}}],
    "echo": [True], "priority": [1, -1], "cache_salt": ["a", "b"]}
CHATS = {"top_logprobs": [0, 3, 20], "tools": [TOOLS], "tool_choice": ["auto", "required"]}
TEXTS = {"logprobs": [0, 3, 20], "prompt_logprobs": [1]}
FORMS = ("structured_outputs", "response_format", "tool_choice", "tools")  # they make an automaton
LINES = ["the cat sat on the mat. ", "100 + 1 = 101. ", "for i in range(10): print(i)\n",
         "A, B, C, D, E, F, G. ", "I am only a small demo model, and I do not know that. "]


def draw(r, s):
    """A request of up to five fields whose text repeats itself, mostly."""
    chat = r.random() < 0.3
    fields = dict(FIELDS, **(CHATS if chat else TEXTS))
    some = {k: r.choice(fields[k]) for k in r.sample(sorted(fields), r.randint(0, 5))}
    if "structured_outputs" in some:
        some.pop("response_format", None)
    if "top_logprobs" in some:
        some["logprobs"] = True
    if "tool_choice" in some:
        some["tools"] = TOOLS
    some.setdefault("temperature", 0)
    some["seed"] = r.randrange(1000)
    some["max_tokens"] = r.choice([1, 2, 17, 60, 60, 120])
    if "min_tokens" in some:
        some["min_tokens"] = min(some["min_tokens"], some["max_tokens"])
    story = r.choice(LINES) * r.randint(1, 12)
    if chat:
        return CHAT, dict(s.chat("Say again: " + story), **some)
    return TEXT, dict(s.completion(r.choice([story, [story, "Count from 1"]])), **some)


def ask(s, path, body):
    r = s.post(path, body)
    if r.status != 200:
        return r.status, r.error["message"]
    calls = re.sub(r'"call_[0-9a-f]+"', '""', json.dumps(r.json["choices"]))
    return r.status, (calls, r.json["usage"]["completion_tokens"])
