"""OpenAI's own description of its API, as a judge of answers."""

import glob
import json
import os
import sys
import threading

from harness import BUILDDIR, SRCDIR, Stack

# What a path answers: whole, and as an event of a stream.
PATHS = {
    "/v1/chat/completions": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
    "/v1/completions": ("CreateCompletionResponse", "CreateCompletionResponse"),
    "/v1/responses": ("Response", "ResponseStreamEvent"),
    "/v1/models": ("ListModelsResponse", None),
    "/v1/embeddings": ("CreateEmbeddingResponse", None),
}
TOLD_MAX = 20000  # answers and events that are kept
# Texts and numbers of any value: in these answers of one shape differ.
FREE = {
    "id", "item_id", "call_id", "response_id", "content", "text", "delta", "arguments", "token",
    "tokens", "reasoning", "reasoning_content", "message", "obfuscation", "previous_response_id",
    "first_id", "last_id", "system_fingerprint"
}
BY_TOKEN = {"top_logprobs", "prompt_logprobs"}  # of completions: their keys are tokens


def find_modules():
    """tools/check puts modules into the build folder's own environment."""
    sys.path += glob.glob(
        os.path.join(BUILDDIR, "venv", "lib", "python%d.%d" % sys.version_info[:2],
                     "site-packages"))


def schema_checker():
    """check(name, value): OpenAI's own schema; None without it or without jsonschema."""
    data = os.environ.get("QUIRE_TEST_DATA") or os.path.join(SRCDIR, "..", "shared", "data")
    path = os.environ.get("OPENAI_SPEC") or os.path.join(data, "openapi", "openapi.json")
    find_modules()
    try:
        import jsonschema
    except ImportError:
        return None, "there is no jsonschema module"
    if not os.path.exists(path):
        return None, "there is no OpenAPI description at OPENAI_SPEC"
    with open(path) as f:
        spec = json.load(f)

    def nullable(v):  # OpenAPI 3.0's word for it, where it still occurs
        if isinstance(v, dict):
            out = {k: nullable(x) for k, x in v.items() if k != "nullable"}
            return {"anyOf": [out, {"type": "null"}]} if v.get("nullable") is True else out
        return [nullable(x) for x in v] if isinstance(v, list) else v

    schemas = nullable(spec["components"]["schemas"])
    validators = {}

    def check(name, value):
        if name not in validators:
            root = {"$ref": "#/components/schemas/" + name, "components": {"schemas": schemas}}
            validators[name] = jsonschema.Draft202012Validator(root)
        return [
            "%s: %s" % ("/".join(map(str, e.absolute_path)), e.message[:200])
            for e in validators[name].iter_errors(value)
        ][:5]

    return check, ""


def as_described(value):
    """A completion's answer or event as the schema wants it: the description knows only whole
    answers, and OpenAI itself sends null for what is not known yet, and for an echo's first token."""
    choices = []
    for c in value["choices"]:
        c = dict(c, finish_reason=c["finish_reason"] or "stop")
        p = c.get("logprobs")
        if p and p["token_logprobs"][:1] == [None]:
            c["logprobs"] = {k: v[1:] if isinstance(v, list) else v for k, v in p.items()}
        choices.append(c)
    out = dict(value, choices=choices)
    if out.get("usage", 0) is None:
        del out["usage"]
    return out


def without_nulls(value):
    """A chat's answer without the nulls that vLLM's clients rely on and OpenAI leaves out."""
    choices = []
    for c in value["choices"]:
        m = {k: v for k, v in c["message"].items()
             if v is not None or k not in ("annotations", "function_call")}
        choices.append(dict(c, message=m))
    return dict(value, choices=choices)


def some(v):
    """Of a list too long to look at whole, such as the scores of a vocabulary: a hundred of it."""
    return v if len(v) <= 100 else v[:33] + v[33:-33:max(1, len(v) // 33)] + v[-33:]


def shape(v, name=None):
    """What a schema could find wrong with it: free texts, and lists of what is alike, are cut."""
    if isinstance(v, dict) and name in BY_TOKEN and "token" not in v:
        return shape(list(v.values()))
    if isinstance(v, dict):
        return {k: shape(v[k], k) for k in some(list(v))}
    if isinstance(v, list):
        return sorted({json.dumps(shape(x, name), sort_keys=True) for x in some(v)})
    if isinstance(v, str):
        return "" if name in FREE else v
    if isinstance(v, bool) or v is None:
        return v
    return "%s %d" % (type(v).__name__, (v > 0) - (v < 0))


def one_of_each(v):
    """The value with one element of each shape in its lists: a schema finds no more in others."""
    if isinstance(v, dict):
        return {k: one_of_each(v[k]) for k in some(list(v))}
    if isinstance(v, list):
        return [one_of_each(x) for x in
                {json.dumps(shape(x), sort_keys=True): x for x in some(v)}.values()]
    return v


class Judge:
    """Hears every answer and every event that a test's stacks get, and in the end has them all
    checked. Those of one shape are checked once."""
    def __init__(self, tap):
        self.tap = tap
        self.check, self.why = schema_checker()
        self.n = {"answers": 0, "events": 0, "errors": 0}
        self.shapes = {}
        self.told = []  # what is still to be looked at: not while a test measures
        self.lock = threading.Lock()
        Stack.heard = self.hear

    def hear(self, path, status, value, streamed):
        self.told.append((path.split("?")[0], status, value, streamed))
        if len(self.told) >= TOLD_MAX:
            self.look()

    def look(self):
        with self.lock:
            told, self.told = self.told, []
            for path, status, value, streamed in told if self.check else []:
                self.sort(path, status, json.loads(value) if isinstance(value, bytes) else value,
                          streamed)

    def sort(self, path, status, value, streamed):
        whole, event = PATHS.get(path, (None, None))
        name = event if streamed else whole
        if path.startswith("/v1/responses/") and "deleted" not in value:
            name = "ResponseItemList" if path.endswith("/input_items") else "Response"
        if path.startswith("/v1/messages") or not isinstance(value, dict):
            return
        if status != 200 or "error" in value and len(value) == 1:
            name = "ErrorResponse"
        if name is None:
            return
        self.n["errors" if name == "ErrorResponse" else "events" if streamed else "answers"] += 1
        if name == "CreateEmbeddingResponse" and isinstance(value["data"][0]["embedding"], str):
            return  # base64, which the description leaves out
        if name == "CreateCompletionResponse":
            value = as_described(value)
        if name == "CreateChatCompletionResponse":
            value = without_nulls(value)
        key = (name, json.dumps(shape(value), sort_keys=True))
        if key not in self.shapes:
            self.shapes[key] = one_of_each(value)

    def tell(self):
        """One result, before the test's plan."""
        Stack.heard = None
        if self.check is None:
            if self.told != []:
                self.tap.skip("OpenAI's schema", self.why)
            return
        self.look()
        if sum(self.n.values()) == 0:
            return
        bad = []
        for (name, _), value in self.shapes.items():
            bad += [
                "%s: %s in %s" % (name, e, json.dumps(value)[:300])
                for e in self.check(name, value)
            ]
        self.tap.ok(
            bad == [],
            "%d answers, %d events and %d errors follow OpenAI's schema (%d shapes)" %
            (*self.n.values(), len(self.shapes)), "\n".join(bad))
