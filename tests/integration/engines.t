#!/usr/bin/env python3
"""Several engines of one model behind the same fronts: the texts are those of one engine, a request
goes where its prefix is, and nothing of a stream is lost, wrong or doubled when engines are killed,
drain, sleep, hang or never come back. Nothing is measured in time.

KILLS rounds (2; 3 at full length) of two kills each among 16 streams (24)."""

import os
import random
import re
import signal
import subprocess
import tempfile
import threading
import time

from harness import BUILDDIR, DEVICE, LONG, STORY, Stack, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
draw_seed(tap)
PATH = "/v1/completions"
CHAT = "/v1/chat/completions"
KEY = "an-operators-own-key-0123456789"
PAGE = 16
KILLS = int(os.environ.get("KILLS") or (3 if LONG else 2))
keyfile = tempfile.NamedTemporaryFile("w", suffix=".key")
keyfile.write(KEY + "\n")
keyfile.flush()
os.chmod(keyfile.name, 0o600)
ADMIN = ["--admin-key-file", keyfile.name]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]},
                                                    "minItems": 5, "maxItems": 9}},
          "required": ["name", "tags"], "additionalProperties": False}


def admin(s, method, path, body=None):
    if body and "prompt" in body:
        body = dict({"tenant": "tenant0"}, **body)
    return s.request(method, path, body, headers={"Authorization": "Bearer " + KEY})


def of(s, name, **labels):
    """{engine: value} of one metric."""
    out = {}
    for k, v in s.metrics().items():
        if k.split("{")[0] == name and all('%s="%s"' % x in k for x in labels.items()):
            out[int(re.search('engine="(\\d+)"', k).group(1))] = v
    return out


def n_served(s):
    """Requests that each engine has ended well."""
    m = s.metrics()
    return [sum(v for k, v in m.items() if k.startswith("vllm:request_success_total") and
                'engine="%d"' % i in k) for i in range(s.n_engines)]


def bodies(s, n, length=90):
    """Streams of every kind."""
    kinds = [dict(ignore_eos=True), dict(temperature=1.0, seed=5, ignore_eos=True),
             dict(temperature=0.8, top_p=0.9, presence_penalty=0.7, seed=6, n=2, ignore_eos=True),
             dict(logprobs=True, top_logprobs=2, ignore_eos=True),
             dict(response_format={"type": "json_schema", "json_schema": {
                 "name": "p", "strict": True, "schema": SCHEMA}}),
             dict(stop=["lantern"])]
    return [s.chat("Tale %d: of a clever fox, and count to %d." % (i, i + 20), max_tokens=length,
                   stream_options={"include_usage": True}, **kinds[i % len(kinds)])
            for i in range(n)]


def told(t):
    """Everything that a client sees of a stream, but for names, times and what was cached."""
    deltas = {}
    for e in t.events:
        for c in e.get("choices", ()):
            d = deltas.setdefault(c["index"], {"text": "", "tokens": [], "end": None})
            d["text"] += c["delta"].get("content") or ""
            d["tokens"] += [x["token"] for x in (c.get("logprobs") or {}).get("content", ())]
            d["end"] = c["finish_reason"] or d["end"]
    usage = t.usage and (t.usage["prompt_tokens"], t.usage["completion_tokens"])
    return (t.done, t.error, deltas, usage)


def streams(s, asked):
    return [told(t) for t in crowd(len(asked), lambda i: s.stream(CHAT, asked[i]), 300)]


def alike(got, want):
    """Whole texts on the cpu; a GPU's last bits depend on what shares a step: far ends may part."""
    return got == want if DEVICE == "cpu" else got is not None and got[:40] == want[:40]


def is_same(got, want):
    if DEVICE == "cpu":
        return got == want
    return got[0] and got[1] is None and all(
        got[2][i]["end"] is not None and alike(got[2][i]["text"], d["text"])
        for i, d in want[2].items())


def same(tap, got, want, name):
    bad = [i for i in range(len(want)) if not is_same(got[i], want[i])]
    if not tap.eq(bad, [], name):
        tap.note("got  %s\nwant %s" % (str(got[bad[0]])[:800], str(want[bad[0]])[:800]))


def all_back(s, exits):
    """Every engine has ended as often as told, runs again and is attached."""
    return until(lambda: [len(e.exits) for e in s.engines] == exits, 60) and s.until_attached()


# --- one engine says what all must say -----------------------------------------------------------

with Stack() as s:
    asked = bodies(s, 24 if LONG else 16)
    want = streams(s, asked)
    tap.eq([i for i, w in enumerate(want) if not w[0] or w[1]], [], "one engine: streams are whole")
    slow = s.completion("Count", max_tokens=1500 if LONG else 500, ignore_eos=True, temperature=1, seed=3)
    want_slow = s.stream(PATH, slow).text[0]
    beams = s.completion("Once upon a time", n=3, use_beam_search=True, max_tokens=8)
    want_beams = [c["text"] for c in s.post(PATH, beams).json["choices"]]

for n in (2, 3):
    with tap.section("%d engines" % n), Stack(n_engines=n) as s:
        same(tap, streams(s, asked), want, "%d engines: every text is that of one engine" % n)
        tap.ok(min(n_served(s)) > 0, "each has served some", n_served(s))
        tap.eq([c["text"] for c in s.post(PATH, beams).json["choices"]], want_beams,
               "beams are the same, too")
        many = s.completion(["Story %d." % i for i in range(12)], max_tokens=4)
        r = s.post(PATH, many).json
        tap.eq(sorted(c["index"] for c in r["choices"]), list(range(12)),
               "a list of prompts is answered whole")
        tap.eq(of(s, "quire:engine_up"), {i: 1 for i in range(n)}, "metrics name every engine")
        tap.eq(s.get("/load").json["server_load"], 0, "/load is the sum")
        tap.eq(s.get("/health").status, 200, "/health is well")
        tap.eq(s.get("/health?deep=1").status, 200, "and deeper")

with tap.section("quire top"), Stack(n_engines=2, nginx=False) as s:
    until(lambda: all(os.path.exists(p) for p in s.engine_sockets))
    r = subprocess.run([os.path.join(BUILDDIR, "quire"), "top", "--once", "--seconds", "0.1",
                        "--engine-socket", ",".join(s.engine_sockets)],
                       capture_output=True, text=True, timeout=60)
    tap.ok(r.returncode == 0 and [x for x in r.stdout.splitlines() if x.startswith("--- ")] ==
           ["--- " + x for x in s.engine_sockets], "quire top shows both", r.stdout + r.stderr)

with tap.section("full"), \
        Stack(n_engines=2, engine=["--max-num-seqs", 1, "--max-num-queued-reqs", 2]) as s:
    long = s.completion("Count", max_tokens=600 if LONG else 300, ignore_eos=True)
    got = crowd(40, lambda i: s.post(PATH, long))
    refused = [r for r in got if r.status == 429]
    tap.eq({r.status for r in got} - {200, 429}, set(), "requests are served or refused")
    tap.ok(all(int(r.headers["Retry-After"]) >= 1 for r in refused),
           "refused ones know when to come")
    tap.ok(min(n_served(s)) >= 1, "both engines are used before any is refused: %s served" %
           n_served(s))
    tap.eq(s.metric("quire:requests_rejected_total"), len(refused), "each refusal is counted once")

# --- where a request goes ------------------------------------------------------------------------

with tap.section("prefixes"), Stack(n_engines=3, front=ADMIN, host="32M", store=True) as s:
    chats = [[{"role": "user", "content": "Chat %d. %s" % (i, STORY)}] for i in range(9)]
    misses, longest, n_pages = [], [0] * len(chats), 0
    for turn in range(4):
        order = list(range(len(chats)))
        random.shuffle(order)
        for i in order:
            r = s.post(CHAT, s.chat(chats[i], max_tokens=8)).json
            cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
            # The prompt before is a prefix of this one, but for its generation prompt.
            if turn > 0 and cached < longest[i] - 2 * PAGE:
                misses.append((turn, i, cached, longest[i]))
            longest[i] = r["usage"]["prompt_tokens"]
            chats[i] += [r["choices"][0]["message"],
                         {"role": "user", "content": "Go on %d." % turn}]
            chats[i][-2] = {"role": "assistant", "content": chats[i][-2]["content"] or "."}
    tap.eq(misses, [], "every turn of 9 chats finds the turn before it, whichever front it meets")
    served = n_served(s)
    tap.ok(min(served) > 0, "chats are shared out: %s" % served)

    # What was there before an engine was started, on disk, is found again by name alone.
    exits = [len(e.exits) for e in s.engines]
    for e in s.engines:
        e.kill(signal.SIGTERM)
    tap.ok(all_back(s, [n + 1 for n in exits]), "all engines restart", s.logs())

    def finds(i):
        r = s.post(CHAT, s.chat(chats[i], max_tokens=1)).json
        return r["usage"]["prompt_tokens_details"]["cached_tokens"] >= longest[i] - 2 * PAGE
    # The engines look through their tiers in the background, beginning when fronts attach.
    tap.ok(until(lambda: finds(0), 30, 0.3), "a chat of before the restart finds its engine")
    found = [finds(i) for i in range(1, len(chats))]
    tap.ok(sum(found) >= len(found) - 1, "the others, too: %s" % found)

    # A drop reaches every engine, and what was dropped is not looked for there.
    before = s.post(PATH, s.completion("Drop this. " + STORY, max_tokens=1)).json
    r = admin(s, "POST", "/admin/cache/drop", {"all": True})
    tap.ok(r.status == 200 and r.json["dropped_pages"] > 0, "a drop reaches them: " + r.text)
    r = s.post(PATH, s.completion("Drop this. " + STORY, max_tokens=1)).json
    tap.eq(r["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "nothing of it is found")
    r = admin(s, "POST", "/admin/cache/pin", {"prompt": "Pin this. " + STORY})
    tap.ok(r.status == 200 and r.json["retained_tokens"] > 0, "a pin: " + r.text)
    r = admin(s, "GET", "/admin/cache").json
    tap.eq([e["engine"] for e in r["engines"]], [0, 1, 2], "the list has every engine")
    tap.eq([sum(h["pinned"] for h in e["retained"]) for e in r["engines"]], [1, 1, 1],
           "and the pin in each")
    r = admin(s, "POST", "/reset_prefix_cache")
    tap.eq(r.status, 200, "vLLM's reset: " + r.text)

# --- engines that die ----------------------------------------------------------------------------

with tap.section("kills"), Stack(n_engines=3) as s:
    exits = [0] * 3
    for turn in range(KILLS):
        def kill():
            # Two per round: the third death during one request would be blamed on it.
            for i in random.sample(range(3), 2):
                time.sleep(random.uniform(0.0, 0.5))
                s.engines[i].kill()
                exits[i] += 1
        killer = threading.Thread(target=kill)
        killer.start()
        got = streams(s, asked)
        killer.join()
        same(tap, got, want, "round %d: two of three engines are killed, and no stream shows it" %
             turn)
        tap.ok(all_back(s, exits), "they come back and are used", s.logs())
    tap.ok(s.idle(), "nothing runs on")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")
    n = n_served(s)
    streams(s, asked)
    tap.ok(min(b - a for a, b in zip(n, n_served(s))) > 0, "every engine serves again")

with tap.section("drain"), Stack(n_engines=2, engine=["--drain-timeout-s", 0]) as s:
    for turn in range(3 if LONG else 2):
        i = turn % 2
        s.engines[i].hold()
        half = threading.Event()

        def on_event(t):
            if len(t.events) == 5:
                half.set()
        results = []
        threads = [threading.Thread(target=lambda: results.append(
            s.stream(PATH, slow, on_event=on_event))) for _ in range(4)]
        for t in threads:
            t.start()
        half.wait(60)
        s.engines[i].kill(signal.SIGTERM)
        r = s.post(PATH, s.completion("Once upon a time", max_tokens=4))
        tap.eq(r.status, 200, "while engine %d drains, requests are served" % i)
        for t in threads:
            t.join(120)
        tap.ok(len(results) == 4 and
               all(t.done and alike(t.text.get(0), want_slow) for t in results),
               "its streams go on with the other, token by token",
               [(t.status, t.error, t.broken, len(t.text.get(0, ""))) for t in results])
        s.engines[i].release()
        tap.ok(s.until_attached(), "it comes back")
    tap.ok(until(lambda: all(e.exits and set(e.exits) == {0} for e in s.engines)),
           "drained engines ended well", [e.exits for e in s.engines])

with tap.section("one that never comes back"), \
        Stack(n_engines=3, front=ADMIN + ["--engine-wait-ms", "1500"]) as s:
    s.engines[1].hold()
    s.engines[1].kill()
    same(tap, streams(s, asked), want, "without one of three every stream is whole")
    tap.ok(until(lambda: of(s, "quire:engine_up") == {0: 1, 1: 0, 2: 1}), "metrics say which")
    tap.eq(sorted(of(s, "vllm:num_requests_running")), [0, 2], "and show none of its numbers")
    r = s.get("/health")
    tap.eq((r.status, r.json), (200, {"engines": 3, "healthy": 2}), "/health counts the others")
    r = admin(s, "POST", "/reset_prefix_cache")
    tap.ok(r.status == 503, "a drop that cannot reach it fails: " + r.text)
    tap.eq(len(admin(s, "GET", "/admin/cache").json["engines"]), 2, "the list has the others")
    s.engines[1].release()
    tap.ok(s.until_attached(), "it does come back")
    tap.eq(admin(s, "POST", "/reset_prefix_cache").status, 200, "then a drop succeeds")

with tap.section("none"), Stack(n_engines=2, front=["--engine-wait-ms", "60000"]) as s:
    half, results = threading.Event(), []

    def on_half(t):
        if len(t.events) == 20:
            half.set()
    threads = [threading.Thread(target=lambda: results.append(
        s.stream(PATH, slow, on_event=on_half))) for _ in range(4)]
    for t in threads:
        t.start()
    half.wait(60)
    for e in s.engines:
        e.hold()
        e.kill()
    tap.ok(until(lambda: s.get("/health").status == 503), "without engines /health fails")
    late = []
    asks = threading.Thread(target=lambda: late.append(
        s.post(PATH, s.completion("Once upon a time", max_tokens=4))))
    asks.start()
    s.engines[1].release()
    for t in threads + [asks]:
        t.join(120)
    tap.ok(all(t.done and alike(t.text.get(0), want_slow) for t in results) and len(results) == 4,
           "streams wait for the first that comes, and are whole",
           [(t.status, t.error, t.broken) for t in results])
    tap.eq([r.status for r in late], [200], "so does a request that came meanwhile")
    s.engines[0].release()

with tap.section("one that hangs"), Stack(n_engines=2, n_fronts=1) as s:
    s.engines[0].kill(signal.SIGSTOP)
    # A front that starts now cannot attach to it, and must serve nevertheless.
    pid = s.fronts[0].pid
    s.fronts[0].kill()
    until(lambda: s.fronts[0].pid != pid)
    tap.ok(until(lambda: s.get("/health").status == 200),
           "a front attaches to the one that answers")
    tap.ok(alike(s.stream(PATH, slow).text[0], want_slow), "and its streams are whole")
    tap.eq(of(s, "quire:engine_up"), {0: 0, 1: 1}, "the other is not attached")
    s.engines[0].kill(signal.SIGCONT)
    tap.ok(s.until_attached(), "it is, once it goes on")
    s.engines[0].kill(signal.SIGSTOP)
    time.sleep(3)  # its last sign of life is old now
    got = crowd(8, lambda i: s.post(PATH, s.completion("Story %d." % i, max_tokens=2)).status, 60)
    tap.eq(got, [200] * 8, "an attached one that stands still gets no requests")
    s.engines[0].kill(signal.SIGCONT)
    tap.ok(until(lambda: s.get("/health").json == {"engines": 2, "healthy": 2}), "both are well")

with tap.section("sleep"), \
        Stack(n_engines=3, front=ADMIN, host="32M", engine=["--sleep-after-s", 1000]) as s:
    tap.eq(admin(s, "POST", "/sleep").json, {"is_sleeping": True}, "all are put to sleep")
    tap.ok(s.is_sleeping(), "/is_sleeping says so")
    tap.eq(of(s, "vllm:engine_sleep_state", sleep_state="awake"), {0: 0, 1: 0, 2: 0},
           "so do metrics")
    tap.eq(s.get("/health").json, {"state": "asleep"}, "and /health, which is well")
    for i in range(6):
        s.post(PATH, s.completion("Story %d." % i, max_tokens=2))
    awake = of(s, "vllm:engine_sleep_state", sleep_state="awake")
    tap.eq(sum(awake.values()), 1, "requests one after another wake one engine only")
    tap.ok(not s.is_sleeping(), "then the server is awake")
    tap.eq(admin(s, "POST", "/wake_up").json, {"is_sleeping": False}, "the others are woken")
    tap.eq(sum(of(s, "vllm:engine_sleep_state", sleep_state="awake").values()), 3, "all")
    same(tap, streams(s, asked), want, "and texts are as before")
    slow_one = s.open_stream(PATH, dict(slow, max_tokens=1900))
    slow_one.response.readline()
    r = admin(s, "POST", "/sleep")
    tap.ok(r.status == 409 or of(s, "vllm:num_requests_running") == {0: 0, 1: 0, 2: 0},
           "an engine that computes does not sleep: %d %s" % (r.status, r.text))
    slow_one.close()

tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
