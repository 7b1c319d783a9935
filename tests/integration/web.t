#!/usr/bin/env python3
"""What browsers and curious people ask: CORS for the sites of origins.map alone, preflights without
a key; the description of the API, which names every endpoint and field that there is; a server
without keys; bodies with a byte order mark or a coding."""

import gzip
import json
import tempfile

from harness import Stack, Tap, need_nginx

need_nginx()
tap = Tap()
CHAT = "/v1/chat/completions"
SITE = "https://chat.example.org"
NO_KEY = {"Authorization": ""}


def cors(r):
    return {k.lower(): v for k, v in r.headers.items()
            if k.lower().startswith("access-control") or k.lower() == "vary"}


with tap.section("origins"), Stack(n_fronts=1, origins=[SITE]) as s:
    ask = {"Access-Control-Request-Method": "POST",
           "Access-Control-Request-Headers": "authorization,content-type", "Authorization": ""}
    for path in (CHAT, "/v1/messages", "/v1/models", "/tokenize", "/v1"):
        r = s.request("OPTIONS", path, headers=dict(ask, Origin=SITE))
        h = cors(r)
        tap.ok(r.status == 204 and h.get("access-control-allow-origin") == SITE and
               h.get("access-control-allow-headers") == "authorization,content-type" and
               "POST" in h.get("access-control-allow-methods", ""), path + ": a preflight", h)
        r = s.request("OPTIONS", path, headers=dict(ask, Origin="https://evil.example"))
        tap.eq((r.status, cors(r)), (401, {}), path + ": another site gets none")
    hello = s.chat("Hello", max_tokens=2)
    for name, r in (("an answer", s.post(CHAT, hello, headers={"Origin": SITE})),
                    ("a 400", s.post(CHAT, {}, headers={"Origin": SITE})),
                    ("nginx's 401", s.post(CHAT, hello, headers={"Origin": SITE, **NO_KEY})),
                    ("a 404", s.request("GET", "/none", headers={"Origin": SITE}))):
        h = cors(r)
        tap.ok(h.get("access-control-allow-origin") == SITE and h.get("vary") == "Origin" and
               "X-Request-Id" in h.get("access-control-expose-headers", "") and
               r.headers["X-Request-Id"] is not None, name + " can be read by the site",
               "%d %r" % (r.status, dict(r.headers)))
    r = s.post(CHAT, hello, headers={"Origin": "https://evil.example"})
    tap.eq((r.status, cors(r)), (200, {}), "not by another")
    r = s.post(CHAT, hello)
    tap.eq((r.status, cors(r)), (200, {}), "nothing is added where there is no site")

with tap.section("none unless said"), Stack(n_fronts=1) as s:
    r = s.request("OPTIONS", CHAT, headers={"Origin": SITE, **NO_KEY})
    tap.eq((r.status, cors(r)), (401, {}), "no origins, no preflight")

    r = s.request("GET", "/openapi.json", headers=NO_KEY)
    api = r.json
    tap.ok(r.status == 200 and api["openapi"].startswith("3."), "/openapi.json needs no key")
    wrong = []
    OPERATORS = ("/admin", "/reset", "/sleep", "/wake", "/server", "/v1/models/load",
                 "/v1/models/unload", "/v1/load_lora", "/v1/unload_lora")  # no key is set for them
    for path, methods in api["paths"].items():
        for method, op in methods.items():
            keyless = op.get("security") == []
            got = s.request(method.upper(), path, b"" if method == "post" else None, headers=NO_KEY)
            if keyless and path != "/health" and got.status != 200:
                wrong.append((method, path, got.status))
            if not keyless and got.status not in (401, 404):  # 404: no admin key is set
                wrong.append((method, path, got.status))
            if got.status == 404 and not path.startswith(OPERATORS):
                wrong.append((method, path, "does not exist"))
    tap.eq(wrong, [], "%d paths are as it says, keys included" % len(api["paths"]))
    schemas = api["components"]["schemas"]
    fields = schemas["ChatCompletionRequest"]["properties"]
    tap.ok(fields["temperature"] == {"type": "number", "minimum": 0, "maximum": 100} and
           "messages" in fields and len(fields) > 50 and
           "messages" not in schemas["CompletionRequest"]["properties"], "fields and ranges")
    for name, limit in (("temperature", "maximum"), ("n", "maximum"), ("top_p", "maximum")):
        r = s.post(CHAT, s.chat("Hello", max_tokens=1, **{name: fields[name][limit]}))
        over = s.post(CHAT, s.chat("Hello", max_tokens=1, **{name: fields[name][limit] + 1}))
        tap.eq((r.status, over.status), (200, 400), "the %s of %s holds" % (limit, name))
    r = s.request("GET", "/docs", headers=NO_KEY)
    tap.ok(r.status == 200 and r.headers["Content-Type"].startswith("text/html") and
           "openapi.json" in r.text, "/docs is a page", r.text[:200])
    for path in ("/v1", "/v1/"):
        r = s.get(path)
        tap.ok(r.status == 200 and CHAT in r.json["paths"], path + " says what there is", r.text[:200])

    plain = json.dumps(s.chat("Hello", max_tokens=2)).encode()
    r = s.post(CHAT, b"\xef\xbb\xbf" + plain)
    tap.eq(r.status, 200, "a byte order mark is passed over")
    for coding, body in (("gzip", gzip.compress(plain)), ("br", plain), ("gzip, identity", plain)):
        r = s.post(CHAT, body, headers={"Content-Encoding": coding})
        tap.eq((r.status, r.error["code"]), (415, "unsupported_media_type"), coding + " is 415")
    r = s.post(CHAT, plain, headers={"Content-Encoding": "identity"})
    tap.eq(r.status, 200, "identity is none")

with tap.section("defaults"), Stack(n_fronts=1, front=[
        "--override-generation-config", '{"temperature": 0, "max_new_tokens": 3}',
        "--response-role", "bot", "--enable-force-include-usage", "true",
        "--return-tokens-as-token-ids", "true",
        "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_xml"]) as s:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    heard, Stack.heard = Stack.heard, None  # OpenAI knows no such role
    r = s.post(CHAT, dict(body, logprobs=True)).json
    tap.eq((r["usage"]["completion_tokens"], r["choices"][0]["message"]["role"]), (3, "bot"),
           "presets of the operator, a role")
    tap.ok(r["choices"][0]["logprobs"]["content"][0]["token"].startswith("token_id:"),
           "tokens as ids", r["choices"][0]["logprobs"])
    told = s.stream(CHAT, body)
    Stack.heard = heard
    tap.ok(told.usage is not None and told.usage["completion_tokens"] == 3, "streams tell usage")
    for body, has in ((body, "message"), ({"prompt": "Hello"}, "text")):
        Stack.heard = None
        r = s.post("/invocations", body)
        Stack.heard = heard
        tap.ok(r.status == 200 and has in r.json["choices"][0], "/invocations: %s" % has, r.text)
    r = s.post("/invocations", {"input": "Hello"})
    tap.eq((r.status, r.json.get("object")), (200, "response"), "/invocations: input")
    r = s.post("/invocations", {"x": 1})
    tap.eq(r.status, 400, "/invocations: something else")
    r = s.get("/tokenizer_info")
    tap.ok(r.status == 200 and "chat_template" in r.json, "/tokenizer_info", r.text[:200])
    tap.eq(s.request("GET", "/tokenizer_info", headers=NO_KEY).status, 401, "with a key")

with tap.section("kwargs"), tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
    template.write("{{ enable_thinking }} {{ tone }} {{ messages[0].content }}")
    template.flush()
    with Stack(n_fronts=1, front=["--chat-template", template.name, "--default-chat-template-kwargs",
                                  '{"enable_thinking": false, "tone": "calm"}']) as s:
        for f, want in (({}, "False calm Hi"),
                        ({"chat_template_kwargs": {"tone": "loud"}}, "False loud Hi"),
                        ({"chat_template_kwargs": {"enable_thinking": True}}, "True calm Hi"),
                        ({"reasoning_effort": "low"}, "True calm Hi"),
                        ({"reasoning_effort": "none"}, "False calm Hi")):
            r = s.post(CHAT + "/render", s.chat("Hi", **f))
            tap.ok(want in r.text, "defaults of the operator, then the client's: %r" % f, r.text)

with tap.section("server info"), tempfile.NamedTemporaryFile("w") as secret:
    secret.write("admin-secret-0123456789")
    secret.flush()
    with Stack(n_fronts=1, front=["--admin-key-file", secret.name]) as s:
        r = s.request("GET", "/server_info", headers={"Authorization": "Bearer admin-secret-0123456789"})
        tap.ok(r.status == 200 and r.json["settings"]["front_threads"] == 4 and
               "admin-secret-0123456789" not in r.text, "/server_info tells settings, no key", r.text[:300])
        tap.eq(s.get("/server_info").status, 401, "to operators")

with tap.section("keyless"), Stack(n_fronts=1, keys='"~." anyone;\n') as s:
    for headers in (NO_KEY, {"Authorization": "Bearer whatever"}, {"X-Api-Key": "x", **NO_KEY}):
        tap.eq(s.post(CHAT, s.chat("Hello", max_tokens=2), headers=headers).status, 200,
               "everybody is let in: %r" % headers)
    s.get("/v1/models")
    tap.ok('tenant="anyone"' in s.get("/metrics").text and s.post(
        CHAT, s.chat("Hello", max_tokens=2)).status == 200, "as one tenant; named keys go on")

tap.done()
