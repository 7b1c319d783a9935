#!/usr/bin/env python3
"""What browsers and curious people ask: CORS for the sites of origins.map alone, preflights without
a key; the description of the API, which names every endpoint and field that there is; a server
without keys; bodies with a byte order mark or a coding."""

import gzip
import json

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
    for path, methods in api["paths"].items():
        for method, op in methods.items():
            keyless = op.get("security") == []
            got = s.request(method.upper(), path, b"" if method == "post" else None, headers=NO_KEY)
            if keyless and path != "/health" and got.status != 200:
                wrong.append((method, path, got.status))
            if not keyless and got.status not in (401, 404):  # 404: no admin key is set
                wrong.append((method, path, got.status))
            if got.status == 404 and not path.startswith(("/admin", "/reset", "/sleep", "/wake")):
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

with tap.section("keyless"), Stack(n_fronts=1, keys='"~." anyone;\n') as s:
    for headers in (NO_KEY, {"Authorization": "Bearer whatever"}, {"X-Api-Key": "x", **NO_KEY}):
        tap.eq(s.post(CHAT, s.chat("Hello", max_tokens=2), headers=headers).status, 200,
               "everybody is let in: %r" % headers)
    s.get("/v1/models")
    tap.ok('tenant="anyone"' in s.get("/metrics").text and s.post(
        CHAT, s.chat("Hello", max_tokens=2)).status == 200, "as one tenant; named keys go on")

tap.done()
