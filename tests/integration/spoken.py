"""Models without weights, made at run time, in memory, whose logits are all equal: they say a known
text as a completion that allows one text alone, a structural tag (a chat's tags may apply inside a
message only). derender, whose parser is that of chats, makes the chat's answer of its tokens.

The vocabulary is that of tests/golden/text/o200k, with control tokens of the model's own.
"""

import json
import math
import os
import struct

from harness import SRCDIR, memory_folder

TOKENIZER = os.path.join(SRCDIR, "tests", "golden", "text", "o200k")
ONE = struct.pack("<H", 0x3f80)  # 1 in bfloat16
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


# --- the model --------------------------------------------------------------------------------


def read_tokenizer(control):
    """tokenizer.json as Python, and the ids of the control tokens."""
    with open(os.path.join(TOKENIZER, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    n = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] = [{
        "id": n + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True
    } for i, name in enumerate(control)]
    return tokenizer, {name: n + i for i, name in enumerate(control)}


def write_weights(path, shapes):
    """Zeros, but for the weights of norms."""
    head, parts, at = {}, [], 0
    for name, shape in shapes.items():
        n = math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
        parts.append(ONE * n if name.endswith("norm.weight") else bytes(2 * n))
        at += 2 * n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def make_folder(name, model, template):
    """A folder with the model: CONTROL, ENDS and SPECIAL (bos, eos, pad) of its tokens, config() and
    tensor_shapes() by their number."""
    path = os.path.join(memory_folder(), name)
    tokenizer, ids = read_tokenizer(model.CONTROL)
    n_vocab = len(tokenizer["model"]["vocab"]) + len(ids)
    os.mkdir(path)
    write_weights(os.path.join(path, "model.safetensors"), model.tensor_shapes(n_vocab))
    special = dict(zip(("bos_token", "eos_token", "pad_token"), model.SPECIAL))
    for name, content in (("config.json", model.config(n_vocab)), ("tokenizer.json", tokenizer),
                          ("generation_config.json",
                           {"eos_token_id": [ids[e] for e in model.ENDS]}),
                          ("tokenizer_config.json", {
                              **special, "tokenizer_class": "PreTrainedTokenizerFast"
                          })):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(template)
    return path


def says(model, text):
    """Fields of a completion whose text is this one, up to and with the token that ends it."""
    end = next(e for e in model.ENDS if text.endswith(e))
    form = {"type": "const_string", "value": text[:-len(end)]}
    return {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": form}},
            "logit_bias": {str(read_tokenizer(model.CONTROL)[1][end]): 50}, "max_tokens": 300}


# --- its answers ------------------------------------------------------------------------------

def post(s, path, body):
    r = s.post(path, body)
    if r.status != 200:
        raise RuntimeError("%s: %d %s" % (path, r.status, r.text))
    return r.json


def message_of(choice):
    """(reasoning, content, calls, finish_reason) of a choice."""
    m = choice["message"]
    return m.get("reasoning") or None, m["content"] or None, calls_of(m), choice["finish_reason"]


def calls_of(message):
    return [(c["function"]["name"], c["function"]["arguments"])
            for c in message.get("tool_calls") or []]


class Joined:
    """What a stream's chunks add up to."""

    def __init__(self):
        self.reasoning, self.content, self.calls, self.finish = [], [], [], None

    def add(self, chunk):
        for c in chunk["choices"]:
            d = c["delta"]
            self.reasoning += [d["reasoning"]] if d.get("reasoning") else []
            self.content += [d["content"]] if d.get("content") else []
            for t in d.get("tool_calls") or []:
                if t["index"] == len(self.calls):
                    self.calls.append((t["function"]["name"], ""))
                name, args = self.calls[t["index"]]
                self.calls[t["index"]] = name, args + (t["function"].get("arguments") or "")
            self.finish = c["finish_reason"] or self.finish

    def message(self):
        return ("".join(self.reasoning) or None, "".join(self.content) or None, self.calls,
                self.finish)


def rendered(s, model, text, tools, **fields):
    """A chat's body, and the completion that says this text after the chat's prompt."""
    body = s.chat("What is it?", tools=tools, **fields)
    names = ("messages", "tools", "chat_template_kwargs")
    ids = post(s, "/tokenize", {k: body[k] for k in names if k in body})["tokens"]
    return body, s.completion(ids, return_token_ids=True, stream=fields.get("stream", False),
                              **says(model, text))


def generated(event):
    """A completion's event as one of a generation."""
    return {"request_id": event["id"], "choices": [
        {k: c.get(k) for k in ("index", "token_ids", "finish_reason")} for c in event["choices"]]}


def whole(s, model, text, tools, **fields):
    body, request = rendered(s, model, text, tools, **fields)
    return post(s, CHAT + "/derender", {
        "chat_request": body, "generate_response": generated(post(s, TEXT, request))})


def streamed(s, model, text, tools, **fields):
    body, request = rendered(s, model, text, tools, stream=True, **fields)
    told, state = Joined(), None
    for e in s.open_stream(TEXT, request):
        r = post(s, CHAT + "/derender", {
            "chat_request": body, "stream": True, "generate_chunk": generated(e),
            "stream_state": state})
        state = r["stream_state"]
        told.add(r["chunk"])
    return told


def prompt(s, messages, **fields):
    """A chat's prompt as text."""
    ids = post(s, "/tokenize", {"model": "demo", "messages": messages, **fields})["tokens"]
    return post(s, "/detokenize", {"model": "demo", "tokens": ids})["prompt"]
