#!/usr/bin/env python3
"""What is pinned or retained stays through floods and kill -9 of the engine, for as long as was
said and no further than its share; what is dropped is a miss, in every tier and for the next
engine; all that by operators' key alone, and a namespace at a time."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import tempfile
import termios
import time

from harness import BUILDDIR, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
text = "/v1/completions"
KEY = "an-operators-own-key-0123456789"
SMALL = ["--num-pages", "64", "--max-num-seqs", "8", "--max-model-len", "400"]
HOST = "12M"  # 64 pages of the demo model
LONG = " ".join("Rule %d: the %s fox carries the lantern over the old bridge." % (i, a)
                for i, a in enumerate(["clever", "quiet", "small", "brave"] * 2))
flooded = 0

keyfile = tempfile.NamedTemporaryFile("w", suffix=".key")
keyfile.write(KEY + "\n")
keyfile.flush()
os.chmod(keyfile.name, 0o600)


def stack(engine=(), front=(), host=HOST, **kw):
    return Stack(engine=SMALL + list(engine), front=["--admin-key-file", keyfile.name] + list(front),
                 host=host, **kw)


def admin(s, method, path, body=None, key=KEY):
    """What is asked of a prompt is asked of the tenant whose key the requests have."""
    if body and "--cache-per-key" not in s.front_argv and ("prompt" in body or "messages" in body or "cache_salt" in body):
        body = dict({"tenant": "tenant0"}, **body)
    return s.request(method, path, body, headers={"Authorization": "Bearer " + key})


def listed(s):
    return admin(s, "GET", "/admin/cache").json


def tier(s, name):
    return listed(s)["tiers"][name]


def pages_of(r):
    """Tokens of the prompt that the cache had, in whole pages: where a prompt leaves what is cached,
    first tokens of another's page serve too."""
    n = r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return n - n % 16


def ask(s, prompt, count=pages_of, **fields):
    r = s.post(text, s.completion(prompt, max_tokens=2, **fields))
    if r.status != 200:
        raise RuntimeError(r.text)
    return count(r)


def tokens_of(r):
    return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def prompt(i):
    return "Prompt %d. %s" % (i, LONG)


def flood(s, n=24):
    """Prompts that no other tenant has, more than all tiers but the disk can hold."""
    global flooded
    flooded += n
    crowd(n, lambda k: ask(s, prompt(1000 + flooded * 100 + k)))


def settled(s):
    """Everything that is to go to a lower tier is there."""
    last = [None]

    def same():
        now = listed(s)["tiers"]
        was, last[0] = last[0], now
        return was == now
    return until(same, 10, 0.3)


def kill(s):
    before = s.engine.pid
    s.engine.kill(signal.SIGKILL)
    return until(lambda: s.engine.pid != before and s.get("/health").status == 200)


def dump(*argv):
    d = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump")] + list(argv), capture_output=True,
                       text=True, timeout=60)
    return d.stdout


def top(s, n_lines=0):
    """What quire top tells of namespaces, on a screen of so many lines or (0) on none."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("4H", n_lines, 80, 0, 0))
    subprocess.run([os.path.join(BUILDDIR, "quire"), "top", "--once", "--seconds", "0.1",
                    "--engine-socket", s.engine_socket], stdout=its, timeout=60)
    said = os.read(ours, 65536).decode()  # less than a terminal holds
    os.close(ours)
    os.close(its)
    if 0 < n_lines <= said.count("\n"):
        raise ValueError("more than %d lines: %s" % (n_lines, said))
    rows = [line.split() for line in said.partition("namespace, in all")[2].splitlines()[1:]]
    return {r[0]: (int(r[1]), int(r[2])) for r in rows
            if r[3] == "%.1f%%" % (100 * int(r[2]) / int(r[1]))}


with tap.section("a pinned system prompt"), stack() as s:
    system = {"role": "system", "content": LONG}

    def question(q):
        r = s.post(chat, s.chat([system, {"role": "user", "content": q}], max_tokens=4))
        return r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    r = admin(s, "POST", "/admin/cache/pin", {"messages": [system]})
    tap.eq(r.status, 200, "is pinned")
    pin = r.json
    tap.ok(pin["retained_tokens"] >= pin["tokens"] - 16 and pin["priority"] == 100 and
           pin["seconds"] is None, "all its pages, without end", pin)
    tap.ok(question("Who are you?") >= pin["retained_tokens"], "a question finds it")
    ask(s, prompt(1))
    tap.ok(ask(s, prompt(1)) > 100, "another prompt is cached as well")
    flood(s)
    tap.eq(ask(s, prompt(1)), 0, "a flood evicts that one")
    tap.ok(question("What is your name?") >= pin["retained_tokens"], "and not what is pinned")
    got = listed(s)
    pages = pin["retained_tokens"] // 16
    tap.eq([(x["priority"], x["until"], x["pinned"], x["pages"]["device"], x["pages"]["host"])
            for x in got["retained"]], [(100, None, True, pages, pages)], "the list tells of it")
    tap.eq([got["tiers"][t]["retained"] for t in ("device", "host")], [pages, pages],
           "in every tier")
    tap.eq(s.metrics()['quire:kv_pages_retained{model_name="demo",engine="0",tier="host"}'], pages,
           "metrics do as well")
    tap.eq(dump("--host", s.host_file).count("pinned"), pages, "lmdb-dump does as well")
    for turn in (1, 2):
        tap.ok(kill(s), "kill -9 of the engine (%d)" % turn)
        tap.ok(question("How old are you?") >= pin["retained_tokens"], "it is still there",
               s.logs())
        flood(s)
        tap.ok(question("Where are you?") >= pin["retained_tokens"], "and pinned")
    tap.ok(s.idle(), "nothing is left")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")
    r = admin(s, "POST", "/admin/cache/drop", {"messages": [system]})
    tap.ok(r.json["dropped_pages"] >= 2 * pages, "it can be dropped", r.text)
    tap.eq(question("And now?"), 0, "then it is a miss")
    tap.eq([tier(s, t)["retained"] for t in ("device", "host")], [0, 0], "and pinned no more")

with tap.section("a hint ends"), stack() as s:
    tap.eq(ask(s, prompt(1), cache_retention={"priority": 80, "seconds": 3600}), 0, "for an hour")
    tap.eq(ask(s, prompt(2), cache_retention={"priority": 80, "seconds": 4}), 0, "for 4 seconds")
    ask(s, prompt(3), cache_retention={"priority": 80, "tokens": 32})
    pages = tier(s, "device")["retained"]
    tap.ok(2 + 2 * 6 <= pages, "%d pages are retained" % pages)
    settled(s)
    tap.ok(until(lambda: tier(s, "device")["retained"] == pages // 2 + 1), "those of one are no more",
           listed(s))
    flood(s)
    tap.ok(ask(s, prompt(1)) > 100, "what has its hour stays")
    tap.eq(ask(s, prompt(2)), 0, "what has not goes")
    tap.eq(ask(s, prompt(3)), 32, "of a start of 32 tokens these are kept")
    kill(s)
    tap.ok(ask(s, prompt(1)) > 100, "the hour outlives the engine")
    kept = listed(s)["retained"]
    tap.ok(any(x["priority"] == 80 and x["until"] and
               3000 < x["until"] - time.time() <= 3600 for x in kept), "with its end", kept)

with tap.section("a greedy client"), stack(store=True) as s:
    for i in range(12):
        ask(s, prompt(i), cache_retention={"priority": 99})
    settled(s)
    got = listed(s)["tiers"]
    tap.ok(got["device"]["retained"] == got["device"]["retained_max"] == 32,
           "its hints take the share and no more", got)
    tap.ok(all(t["retained"] <= t["retained_max"] for t in got.values()), "in every tier", got)
    ask(s, "Others. " + LONG)
    tap.ok(ask(s, "Others. " + LONG) > 100, "others are cached all the same")
    pin = admin(s, "POST", "/admin/cache/pin", {"prompt": "Operators. " + LONG}).json
    tap.ok(pin["retained_tokens"] >= pin["tokens"] - 16, "and a pin finds room", pin)
    ask(s, "More. " + LONG, cache_retention={"priority": 100})
    flood(s)
    tap.ok(ask(s, "Operators. " + LONG) >= pin["retained_tokens"], "that no client takes")
    got = listed(s)
    tap.ok(sum(x["pages"]["device"] for x in got["retained"] if x["pinned"]) ==
           pin["retained_tokens"] // 16, "nor does a client pin: 100 is 99 for it", got)
    r = crowd(8, lambda k: s.post(text, s.completion(prompt(50 + k), max_tokens=100,
                                                     cache_retention={"priority": 99})).status)
    tap.eq(r, [200] * 8, "prompts that need more than is left are served")
    tap.ok(s.idle(), "nothing is left")

with tap.section("hints that are not heeded"), \
        stack(front=["--client-retention-max", "0"], engine=["--kv-retained-pct", "25"]) as s:
    ask(s, prompt(1), cache_retention={"priority": 99})
    tap.eq(listed(s)["retained"], [], "client_retention_max = 0: clients say nothing")
    pin = admin(s, "POST", "/admin/cache/pin", {"prompt": prompt(2), "priority": 70,
                                                "seconds": 100}).json
    tap.eq((pin["priority"], pin["seconds"]), (70, 100), "operators do")
    tap.eq(tier(s, "device")["retained_max"], 16, "kv_retained_pct is the share")

with tap.section("marks of Anthropic's API"), stack() as s:
    block = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    body = {"model": "demo", "max_tokens": 4, "system": [block],
            "messages": [{"role": "user", "content": "Hello"}]}
    tap.eq(s.post("/v1/messages", body).status, 200, "a marked system block")
    kept = listed(s)["retained"]
    tap.ok(len(kept) == 1 and kept[0]["priority"] == 60 and
           3500 < kept[0]["until"] - time.time() <= 3600, "is retained for its hour", kept)
    flood(s)
    tap.ok(s.post("/v1/messages", body).json["usage"]["cache_read_input_tokens"] > 100,
           "through a flood")
    tap.eq(s.post(chat, s.chat([{"role": "user", "content": [block]}], max_tokens=2)).status, 200,
           "a chat's part may have a mark")
    block["cache_control"]["ttl"] = "1d"
    r = s.post("/v1/messages", body)
    tap.eq((r.status, r.error["type"]), (400, "invalid_request_error"), "another ttl is refused")

with tap.section("the disk alone"), stack(host=None, store=True) as s:
    pin = admin(s, "POST", "/admin/cache/pin", {"prompt": prompt(1)}).json
    tap.ok(until(lambda: tier(s, "disk")["retained"] == pin["retained_tokens"] // 16, 20),
           "a pin is written behind", listed(s))
    for turn in (1, 2):
        flood(s)
        kill(s)
        tap.ok(ask(s, prompt(1)) >= pin["retained_tokens"], "and is there for engine %d" % turn,
               s.logs())
    tap.eq(dump(s.store_dir).count("pinned"), pin["retained_tokens"] // 16,
           "lmdb-dump tells of it")
    admin(s, "POST", "/admin/cache/drop", {"prompt": prompt(1)})
    kill(s)
    tap.eq(ask(s, prompt(1)), 0, "until it is dropped")

with tap.section("what is dropped"), stack(store=True) as s:
    for i in range(4):
        ask(s, prompt(i), cache_retention={"priority": 80})
        ask(s, prompt(i))
    settled(s)
    tap.ok(until(lambda: tier(s, "disk")["pages"] >= 20, 10), "pages are in all tiers", listed(s))
    r = admin(s, "POST", "/admin/cache/drop", {"prompt": prompt(0)})
    tap.ok(r.status == 200 and r.json["dropped_pages"] >= 20, "a prompt is dropped from them", r.text)
    tap.eq(ask(s, prompt(0)), 0, "then it is a miss")
    tap.ok(ask(s, prompt(1)) > 100, "others are not")
    r = admin(s, "POST", "/admin/cache/drop", {"prompt": prompt(2)})
    kill(s)
    tap.eq(ask(s, prompt(2)), 0, "a miss for the next engine as well")
    tap.ok(ask(s, prompt(3)) > 100, "that has the others")
    settled(s)
    ids = s.post("/tokenize", {"prompt": prompt(1)}).json["tokens"]
    r = admin(s, "POST", "/admin/cache/drop", {"prompt": ids})
    tap.ok(r.json["dropped_pages"] >= 10, "token ids are a prompt, too", r.text)
    tap.eq(ask(s, prompt(1)), 0, "with the same end")
    # What is not a whole page stands under no name, but it is a prompt's as well.
    short = "Say it all to me now, will you?"
    shared = [x["namespace"] for x in listed(s)["namespaces"] if not x["shared"]][0]
    for body in ({"prompt": short}, {"namespace": shared}, {"all": True}):
        ask(s, short)
        tap.ok(ask(s, short, tokens_of) > 5, "a prompt of less than a page is found")
        tap.eq(admin(s, "POST", "/admin/cache/drop", body).status, 200, "dropped by %s" % body)
        tap.ok(ask(s, short, tokens_of) < 2, "it is a miss but for what all begin with")
    r = admin(s, "POST", "/reset_prefix_cache")
    tap.eq(r.status, 200, "everything is dropped")
    tap.eq([tier(s, t)["pages"] for t in ("device", "host", "disk")], [0, 0, 0], "from all tiers")
    tap.eq([ask(s, prompt(i)) for i in range(4)], [0] * 4, "all are misses")
    tap.ok(s.metric("quire:kv_pages_dropped_total") > 20, "it is counted")
    kill(s)
    tap.eq(s.metric("quire:host_page_faults_total") + s.metric("quire:store_page_faults_total"), 0,
           "nothing is damaged")
    # What runs goes on: its pages lose their names and nothing else.
    bodies = [s.chat("Count from 1 to %d." % (60 + i), max_tokens=150, ignore_eos=True)
              for i in range(8)]
    want = crowd(8, lambda i: s.stream(chat, bodies[i]).text.get(0))
    told = []

    def drop_all(i):
        for _ in range(10):
            time.sleep(0.05)
            told.append(admin(s, "POST", "/admin/cache/drop", {"all": True}).status)
    got = crowd(9, lambda i: drop_all(i) if i == 8 else s.stream(chat, bodies[i]).text.get(0))
    tap.eq(told, [200] * 10, "everything is dropped again and again under 8 streams")
    tap.eq(got[:8], want, "which say what they said")
    tap.ok(s.idle(), "nothing is left")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")

SHARED = ["--cache-per-key", "false"]
with tap.section("namespaces"), stack(store=True, front=SHARED) as s:
    salts = ("red", "blue")
    for salt in salts:
        ask(s, prompt(1), cache_salt=salt)
    first = ask(s, prompt(1), cache_salt="blue")
    tap.ok(first > 100, "each has its own")
    spaces = [x for x in listed(s)["namespaces"] if not x["shared"]]
    tap.eq(len(spaces), 2, "the list has both")
    tap.eq(sorted(x["hits"] // 16 * 16 for x in spaces), [0, first], "and the hits of each")
    tap.ok(all(x["queries"] > 0 and x["pages"]["device"] > 5 for x in spaces), "queries and pages",
           spaces)
    admin(s, "POST", "/admin/cache/pin", {"prompt": prompt(1), "cache_salt": "red"})
    settled(s)
    flood(s)
    tap.eq([ask(s, prompt(1), cache_salt=salt) > 0 for salt in salts], [True, False],
           "a pin in one holds nothing of the other")
    settled(s)
    r = admin(s, "POST", "/admin/cache/drop", {"cache_salt": "red"})
    tap.ok(r.json["dropped_pages"] > 10, "one is dropped", r.text)
    tap.ok(ask(s, prompt(1), cache_salt="blue") > 100, "the other is not")
    tap.eq(ask(s, prompt(1), cache_salt="red"), 0, "it is a miss")
    blue = [x["namespace"] for x in listed(s)["namespaces"]
            if not x["shared"] and x["hits"] > first]
    settled(s)
    held = json.loads(dump("--host", s.host_file, "--json"))
    tap.ok(blue and blue[0] in [x["namespace"] for x in held["salts"]],
           "lmdb-dump has the same names", held.get("salts"))
    if blue:
        r = admin(s, "POST", "/admin/cache/drop", {"namespace": blue[0]})
        tap.ok(r.json["dropped_pages"] > 5, "by its name in the list", r.text)
        tap.eq(ask(s, prompt(1), cache_salt="blue"), 0, "then it is a miss")
        kill(s)
        tap.ok(ask(s, prompt(1), cache_salt="red") > 100, "the rest outlives the engine")
        s.idle()
        was = {x["namespace"]: (x["queries"], x["hits"]) for x in listed(s)["namespaces"]}
        before = s.engine.pid
        s.engine.kill(signal.SIGTERM)
        until(lambda: s.engine.pid != before and s.get("/health").status == 200)
        now = {x["namespace"]: (x["queries"], x["hits"]) for x in listed(s)["namespaces"]}
        tap.eq({k: now.get(k) for k in was}, was, "what was asked and found outlives it as well")
        rates = json.loads(dump("--json", s.store_dir))["rates"]
        tap.eq({x["namespace"]: (x["queries"], x["hits"]) for x in rates},
               {k: v for k, v in was.items() if v[0] > 0}, "lmdb-dump has the same figures")
        tap.ok("cached    share" in dump("--summary", s.store_dir), "in words, too")
        want = {k or "others": v for k, v in was.items() if v[0] > 0}
        tap.ok(until(lambda: top(s) == want, 5), "so has quire top", (top(s), want))
    for i in range(14):
        for _ in range(3 if i < 3 else 1):
            ask(s, prompt(1), cache_salt="salt %d" % i)
    was = [(x["queries"], x["hits"]) for x in listed(s)["namespaces"]]

    def best(n):
        most = sorted(was, reverse=True)
        return sorted(most[:n] + [tuple(map(sum, zip(*most[n:])))])
    tap.ok(until(lambda: sorted(top(s).values()) == best(10), 5),
           "which tells the ten that were asked for most, and the others as one", (top(s), best(10)))
    tap.eq(sorted(top(s, 16).values()), best(4), "on a screen of 16 lines four")
    tap.eq(top(s, 12), {}, "on a lower one none")

with tap.section("a cache for each key"), stack() as s:
    def mine(i, **fields):
        r = s.request("POST", text, s.completion(prompt(1), max_tokens=2, **fields),
                      headers={"Authorization": "Bearer sk-test-%d" % i})
        return pages_of(r)
    tap.eq(mine(1), 0, "no tenant has it")
    tap.ok(mine(1) > 100, "the tenant that asked has it")
    tap.eq(mine(2), 0, "another has not")
    tap.eq(mine(1, cache_salt="a"), 0, "nor has his other salt")
    pin = admin(s, "POST", "/admin/cache/pin", {"prompt": prompt(1), "tenant": "tenant1"}).json
    flood(s)
    tap.eq((mine(1) >= pin["retained_tokens"], mine(2)), (True, 0), "a pin is for one key")
    mine(1, cache_salt="a")
    r = admin(s, "POST", "/admin/cache/drop", {"tenant": "tenant1"})
    tap.eq((r.status, mine(1), mine(2) > 100, mine(1, cache_salt="a") > 100),
           (200, 0, True, True), "so is a drop, of one of its salts")

PIN = "The door's number, which is for the night watch alone to know, is %s%d and no other. " % (
    "7" * 6, 41) + LONG


def tells(s, i, text_, **fields):
    """cached_tokens of a request with the key of tenant i."""
    r = s.request("POST", text, s.completion(text_, max_tokens=1, **fields),
                  headers={"Authorization": "Bearer sk-test-%s" % i})
    return tokens_of(r)


with tap.section("one key learns nothing of another's prompts"):
    for front in ([], SHARED):
        name = "shared: " if front else "by tenant: "
        with stack(front=front) as s:
            tells(s, 1, PIN)
            tap.ok(tells(s, 1, PIN) > 100, name + "the sender is told what was found")
            if not front:
                tap.ok(tells(s, "twin", PIN) > 100, "so is another key of the same tenant")
                tap.eq(tells(s, 2, PIN), 0, "another tenant finds nothing")
            # All of it is guessed, then digits of it one by one.
            guesses = [PIN] + [PIN[:PIN.index("777777") + 6] + str(d) for d in range(10)] + \
                [PIN[:PIN.index("77777741") + 8] + c for c in (" and", ",", "0")]
            told = [tells(s, 3 + i, g) for i, g in enumerate(guesses)]
            tap.eq(told, [0] * len(told), name + "%d guesses are told nothing" % len(told))
            s.idle()
            s.engine.kill(signal.SIGKILL)
            until(lambda: len(s.engine.exits) > 0 and s.get("/health").status == 200)
            tap.eq(tells(s, 20, PIN), 0, name + "nor by the next engine")

with tap.section("keys"), stack(front=SHARED) as s:
    calls = (("GET", "/admin/cache", None), ("POST", "/admin/cache/pin", {"prompt": "a"}),
             ("POST", "/admin/cache/drop", {"all": True}), ("POST", "/reset_prefix_cache", None))
    tap.eq([s.request(m, p, b).status for m, p, b in calls], [401] * 4,
           "a client's key opens nothing")
    tap.eq([s.request(m, p, b, headers={"Authorization": ""}).status for m, p, b in calls],
           [401] * 4, "nor does none")
    tap.eq([admin(s, m, p, b, key=KEY[:-1]).status for m, p, b in calls], [401] * 4,
           "nor a part of the key")
    r = s.request("GET", "/admin/cache")
    tap.eq((r.error["code"], sorted(r.error)),
           ("invalid_api_key", ["code", "message", "param", "type"]), "in OpenAI's shape")
    r = s.request("GET", "/admin/cache", headers={"Quire-Admin-Key": KEY,
                                                  "QUIRE_ADMIN_KEY": KEY})
    tap.eq(r.status, 401, "a header of that name is none")
    tap.eq(admin(s, "GET", "/v1/models").status, 401, "the key opens nothing else")
    tap.eq([admin(s, "GET", "/admin/cache").status, admin(s, "GET", "/admin/other").status,
            admin(s, "POST", "/admin/cache").status], [200, 404, 405], "paths and methods")
    for body, param in (({}, None), ({"all": False}, None), ({"everything": True}, "everything"),
                        ({"cache_salt": ""}, "cache_salt"), ({"namespace": "xyz"}, "namespace"),
                        ({"namespace": "0" * 16}, "namespace"), ({"prompt": ["a", "b"]}, "prompt"),
                        ({"prompt": ""}, "prompt"), ({"messages": []}, "messages"),
                        ({"tenant": "a"}, "tenant")):
        r = admin(s, "POST", "/admin/cache/drop", body)
        tap.eq((r.status, r.error["param"]), (400, param), "drop %s" % json.dumps(body))
    for body, param in (({}, "prompt"), ({"prompt": "a", "priority": 101}, "cache_retention"),
                        ({"prompt": "a", "second": 1}, "second"),
                        ({"prompt": "a", "max_tokens": 9}, "max_tokens")):
        r = admin(s, "POST", "/admin/cache/pin", body)
        tap.eq((r.status, r.error["param"]), (400, param), "pin %s" % json.dumps(body))
    r = crowd(60, lambda i: admin(s, *calls[i % 4][:2], calls[i % 4][2]).status)
    tap.ok(set(r) <= {200, 429} and r.count(200) >= 32, "60 asks at once are answered", r)
    tap.ok(s.idle(), "nothing is left")

with tap.section("no key file"), Stack(engine=SMALL) as s:
    tap.eq([admin(s, m, p, b).status for m, p, b in calls], [404] * 4, "no operators")

with tap.section("faults"):
    for fault in ("host_copy:2", "host_check:1+", "store_note:1+", "store_commit:1+", "host_grow:1"):
        with stack(store=True, env={"QUIRE_FAULT": fault}) as s:
            want = s.post(text, s.completion(prompt(1), max_tokens=20)).json["choices"][0]["text"]
            admin(s, "POST", "/admin/cache/pin", {"prompt": prompt(1)})
            settled(s)
            flood(s, 8)
            kill(s)
            got = [s.post(text, s.completion(prompt(1), max_tokens=20)).json["choices"][0]["text"]]
            r = admin(s, "POST", "/admin/cache/drop", {"prompt": prompt(1)})
            got += [s.post(text, s.completion(prompt(1), max_tokens=20)).json["choices"][0]["text"]]
            tap.eq((r.status, got), (200, [want, want]), "%s: the same text" % fault)
            tap.ok(s.idle(), "nothing is left")
tap.done()
