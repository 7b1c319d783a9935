#!/usr/bin/env python3
"""Pages in three tiers: what the device has no room for comes back from host memory, also after
the engine was killed, and from the disk after the host's memory was lost; damaged memory is a miss;
whatever fails on the way, the text is the same."""

import json
import os
import random
import signal
import tempfile
import subprocess
import time

from harness import BUILDDIR, STORY, Stack, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
draw_seed(tap)

N = 6
SMALL = ["--num-pages", "40", "--max-num-seqs", "8", "--max-model-len", "400"]


def body(s, i):
    return s.chat("Story %d. %s What did the fox carry?" % (i, STORY[i:]), max_tokens=8)


def ask(s, i, name):
    r = s.post(chat, body(s, i))
    if not tap.eq(r.status, 200, "%s %d" % (name, i)):
        tap.note(r.text)
        return "", 0
    return (r.json["choices"][0]["message"]["content"],
            r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def tool(*argv):
    return subprocess.run([os.path.join(BUILDDIR, argv[0])] + list(argv[1:]), capture_output=True,
                          encoding="utf-8", errors="replace", timeout=60)


def hits(s, tier="host"):
    return s.metric("quire:host_prefix_cache_hits_total" if tier == "host"
                    else "vllm:external_prefix_cache_hits_total")


def saved(s, n):
    return until(lambda: s.metric("quire:kv_host_pages") >= n, 10)


def tiers(**kw):
    return Stack(engine=SMALL, host="64M", **kw)


with Stack(engine=["--enable-prefix-caching", "false"]) as s:
    want = [ask(s, i, "without a cache")[0] for i in range(N)]

with tap.section("host memory"), tiers() as s:
    first = [ask(s, i, "first") for i in range(N)]
    tap.eq([t for t, _ in first], want, "the same text")
    tap.ok(saved(s, 6 * 12), "pages go to host memory")
    before = hits(s)
    again = [ask(s, i, "again") for i in range(N)]
    tap.eq([t for t, _ in again], want, "the same text from host memory")
    tap.ok(all(c > 100 for _, c in again), "most of each prompt was there", again)
    tap.ok(hits(s) - before > 100 * (N - 2), "in host memory (%d tokens)" % (hits(s) - before))
    s.engine.kill(signal.SIGKILL)
    killed = [ask(s, i, "after kill -9") for i in range(N)]
    tap.eq([t for t, _ in killed], want, "the same text after kill -9")
    tap.ok(all(c > 100 for _, c in killed), "most of each prompt was still there", killed)
    tap.ok(hits(s) > 100 * (N - 2), "in host memory (%d tokens)" % hits(s))
    tap.eq(s.metric("quire:host_page_faults_total"), 0, "no page was damaged")
    d = tool("lmdb-dump", "--host", s.host_file, "--verify", "--json")
    held = json.loads(d.stdout)
    tap.eq((d.returncode, held["damaged"], held["pages"]), (0, 0, len(held["entries"])),
           "lmdb-dump reads the tier beside the engine")
    tap.eq(held["pages"], s.metric("quire:kv_host_pages"), "and counts as the engine does")
    d = tool("quire", "top", "--once", "--seconds", "0.2", "--engine-socket", s.engine_socket)
    tap.ok(d.returncode == 0 and "host %d" % held["pages"] in d.stdout, "so does quire top",
           d.stdout)
    tap.eq(s.metric("quire:fronts_attached"), 2, "which takes no lane")
    tap.ok(s.idle(), "nothing is left")

# Five texts of 24 pages in turn, of which the device holds four and most of the fifth: each is the
# least recently used one when it comes again, so pages that it lacks must not take its own.
with tap.section("one more than there is room for"), Stack(
        engine=["--num-pages", "110", "--max-model-len", "400"], host="64M") as s:
    texts = [[256 + (i * 97 + k * 31) % 1000 for k in range(24 * 16 + 1)] for i in range(5)]

    def cached(tokens):
        r = s.post("/v1/completions", s.completion(tokens, max_tokens=1))
        return r.json["usage"]["prompt_tokens_details"]["cached_tokens"] if r.status == 200 else r.text
    tap.eq([cached(t) for t in texts], [0] * 5, "new texts")
    tap.ok(saved(s, 5 * 24), "pages go to host memory")
    for turn in ("second", "third", "fourth"):
        tap.eq([cached(t) for t in texts], [24 * 16] * 5, "all of each text, the %s time" % turn)

with tap.section("a crowd that is preempted"), tiers() as s:
    answers = crowd(3 * N, lambda k: s.post(chat, dict(body(s, k % N), max_tokens=40)).json[
        "choices"][0]["message"]["content"])
    tap.ok(all(a == answers[i % N] for i, a in enumerate(answers)), "each says the same")
    tap.note("%d preemptions, %d tokens from host memory"
             % (s.metric("vllm:num_preemptions_total"), hits(s)))
    tap.ok(s.idle(), "nothing is left")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")

with tap.section("damaged memory"), tiers() as s:
    for i in range(N):
        ask(s, i, "first")
    tap.ok(saved(s, 6 * 12), "pages go to host memory")
    for turn in range(4):
        s.engine.hold()
        s.engine.kill(signal.SIGKILL)
        until(lambda: not s.engine.alive(), 10)
        size = os.path.getsize(s.host_file)
        with open(s.host_file, "r+b") as f:
            for _ in range(400):
                f.seek(random.randrange(size if turn else 4096 * 40))
                f.write(bytes([random.randrange(256)]))
            if turn == 3:
                f.truncate(size // 2)
        s.engine.release()
        d = tool("lmdb-dump", "--host", s.host_file, "--verify", "--summary")
        tap.ok(d.returncode in (0, 2, 3), "lmdb-dump survives it (%d)" % d.returncode, d.stderr)
        tap.eq([ask(s, i, "damaged")[0] for i in range(N)], want, "the same text (%d)" % turn)
    tap.ok(s.idle(), "nothing is left")
    with open(s.host_file, "rb") as f, tempfile.NamedTemporaryFile() as copy:
        whole = bytearray(f.read())
        for at in (len(whole) + 1, len(whole) - 1, 1 << 63):
            whole[32:40] = at.to_bytes(8, "little")  # payloads_at of struct host_file
            copy.seek(0)
            copy.write(whole)
            copy.flush()
            d = tool("lmdb-dump", "--host", copy.name, "--verify", "--summary")
            tap.eq(d.returncode, 2, "payloads at %d of %d bytes are refused" % (at, len(whole)))

with tap.section("the disk behind it"), tiers(store=True) as s:
    for i in range(N):
        ask(s, i, "first")
    tap.ok(saved(s, 6 * 12), "pages go to host memory")
    tap.eq(s.metric("quire:store_pages_written_total"), 0, "what was used once does not go to disk")
    for i in range(N):
        ask(s, i, "again")
    tap.ok(until(lambda: s.metric("quire:store_pages_written_total") >= 30, 20),
           "what is used again does (%d)" % s.metric("quire:store_pages_written_total"))
    s.engine.hold()
    s.engine.kill(signal.SIGTERM)
    until(lambda: not s.engine.alive(), 10)
    os.unlink(s.host_file)
    s.engine.release()
    lost = [ask(s, i, "without host memory") for i in range(N)]
    tap.eq([t for t, _ in lost], want, "the same text from the disk")
    tap.ok(hits(s, "disk") > 100, "from the disk (%d tokens)" % hits(s, "disk"))
    tap.ok(s.idle(), "nothing is left")

with tap.section("another engine"), tiers() as s:
    ask(s, 0, "first")
    tap.ok(saved(s, 10), "pages go to host memory")
    with Stack(engine=SMALL, host="64M", host_file=s.host_file) as other:
        tap.eq(ask(other, 0, "a second engine")[0], want[0], "serves without the tier")
        tap.ok("another engine uses" in other.engine.said(), "and says why")
    tap.eq(ask(s, 0, "the first")[0], want[0], "the first goes on")
    s.engine.hold()
    s.engine.kill(signal.SIGTERM)
    until(lambda: not s.engine.alive(), 10)
    s.engine.argv += ["--page-tokens", "32"]
    s.engine.release()
    tap.eq(ask(s, 0, "pages of another size")[0], want[0], "the same text")
    tap.ok("begun anew" in s.engine.said(), "what another engine left is thrown away")



def end(s):
    """SIGTERM; the next one is not started. (seconds, return code), or None when it does not end."""
    s.engine.hold()
    began, n = time.monotonic(), len(s.engine.exits)
    s.engine.kill(signal.SIGTERM)
    if not until(lambda: len(s.engine.exits) > n, 20):
        s.engine.kill(signal.SIGKILL)
        until(lambda: len(s.engine.exits) > n)
        return None
    return time.monotonic() - began, s.engine.exits[-1]


def go_on(s, fault=None):
    s.engine.env.pop("QUIRE_FAULT", None)
    if fault is not None:
        s.engine.env["QUIRE_FAULT"] = fault
    s.engine.release()
    until(lambda: s.get("/health").status == 200)


with tap.section("copies that never end"), tiers() as s:
    ask(s, 0, "first")
    tap.ok(end(s) is not None, "an engine stops and saves")
    go_on(s, "copy_stuck:1+")
    tap.eq(ask(s, 1, "copies are stuck")[0], want[1], "the same text")
    took = end(s)
    tap.ok(took is not None and took[1] == 3, "it stops all the same", took)
    tap.ok("pages are not saved" in s.engine.said(), "and says what is lost", s.logs())
    go_on(s)
    before = hits(s)
    tap.eq([ask(s, i, "afterwards")[0] for i in (0, 1)], want[:2], "the same text")
    tap.ok(hits(s) - before > 100, "what was saved before is there (%d tokens)" % (hits(s) - before))

with tap.section("copies from the disk that never end"), Stack(
        engine=["--num-pages", "200", "--max-num-seqs", "8"], store=True) as s:
    long = s.completion("The fox. " * 400, max_tokens=1)
    n = s.post("/v1/completions", long).json["usage"]["prompt_tokens"]
    tap.ok(n > 65 * 16, "a prompt of more pages than the store has buffers (%d tokens)" % n)
    tap.ok(end(s) is not None, "an engine stops and saves")
    go_on(s, "copy_stuck:1+")
    ask(s, 0, "pages to be saved")
    c = s.connect(timeout=60)
    c.request("POST", "/v1/completions", json.dumps(long), {
        "Content-Type": "application/json", "Authorization": s.bearer()})
    tap.ok(until(lambda: s.metric("vllm:num_requests_waiting") == 1), "it waits for its pages")
    c.close()
    tap.ok(s.idle(), "and has left: they are on their way all the same")
    ask(s, 1, "more pages to be saved")
    took = end(s)
    tap.ok(took is not None and took[1] == 3, "it stops all the same", took)
    go_on(s)
    cached = s.post("/v1/completions", long).json["usage"]["prompt_tokens_details"]["cached_tokens"]
    tap.ok(cached > n - 32, "what was saved before is there (%d tokens)" % cached)

with tap.section("a device that fails"), tiers() as s:
    end(s)
    go_on(s, "copy_failed:1+")
    s.engine.hold()

    def mend():
        until(lambda: s.engine.exits[1:])
        go_on(s)
    got = crowd(2, lambda i: mend() if i else ask(s, 0, "a copy fails and the next engine goes on")[0])
    tap.eq((got[0], s.engine.exits), (want[0], [0, 3]), "an engine ends when its device fails")

with tap.section("a store in use"), Stack(engine=SMALL, store=True) as s:
    argv = list(s.engine_argv)
    for what, socket in (("store", s.path("other.sock")), ("socket", s.engine_socket)):
        argv[argv.index("--engine-socket") + 1] = socket
        if what == "socket":
            argv[argv.index("--kv-store-dir") + 1] = s.path("other")
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        tap.eq(r.returncode, 2, what + " of another engine: systemd may start this one again")
        tap.ok("another" in r.stderr and "only one may use" in r.stderr and
               "limit of requests" not in r.stderr, "and it says why", r.stderr)

with tap.section("no disk"):
    with tempfile.NamedTemporaryFile() as file, Stack(
            engine=SMALL + ["--kv-store-dir", os.path.join(file.name, "store")]) as s:
        tap.eq(ask(s, 0, "no disk")[0], want[0], "an engine whose store cannot be opened serves")
        tap.ok("no pages are kept on disk" in s.engine.said(), "and says so")

with tap.section("faults"):
    for fault in ("host_grow", "host_copy", "host_check", "store_read", "store_write"):
        for n in ("1", "4", "17", "3+"):
            with tiers(store=True, env={"QUIRE_FAULT": "%s:%s" % (fault, n)}) as s:
                got = [ask(s, i, "%s:%s" % (fault, n))[0] for i in (0, 1, 2, 3, 0, 1, 2, 3)]
                s.engine.kill(signal.SIGKILL)
                got += [ask(s, i, "and killed")[0] for i in range(4)]
                tap.eq(got, 3 * want[:4], "%s:%s: the same text" % (fault, n))
                tap.ok(s.idle(), "nothing is left")
tap.done()
