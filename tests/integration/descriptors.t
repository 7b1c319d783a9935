#!/usr/bin/env python3
"""A front and an engine that have no descriptor left for a new connection: they say so once, wait
without work, lose no connection, and take all when there are descriptors again."""

import contextlib
import os
import resource
import socket
import threading
import time

from harness import Stack, Tap, cpu_seconds, crowd, need_nginx, until

need_nginx()
tap = Tap()
LOOK_S = 2.0
BUSY = 0.2  # of a core; one that spins has all of it


@contextlib.contextmanager
def spare(pid, n):
    """The process has n descriptors left, for this while."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(fd) for fd in os.listdir("/proc/%d/fd" % pid)}
    limit = [fd for fd in range(len(used) + n + 1) if fd not in used][n]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def connect(path, kind, n):
    """So many connections that send nothing."""
    out = [socket.socket(socket.AF_UNIX, kind) for _ in range(n)]
    for k in out:
        k.connect(path)
    return out


def busy(pid):
    before, since = cpu_seconds(pid), time.monotonic()
    time.sleep(LOOK_S)
    return (cpu_seconds(pid) - before) / (time.monotonic() - since)


def told(p):
    return [line for line in p.said().splitlines() if "descriptor" in line]


with tap.section("a front"), Stack(n_fronts=1) as s:
    front = s.fronts[0]
    with spare(front.pid, 8):
        silent = connect(s.front_path(0), socket.SOCK_STREAM, 12)
        share = busy(front.pid)
        tap.ok(share < BUSY, "a front without a descriptor waits (%.2f of a core)" % share)

        def ask(i):
            if i == 0:  # the others are there
                time.sleep(0.5)
                for k in silent:
                    k.close()
            return s.get("/version").status
        tap.eq(crowd(40, ask), [200] * 40, "40 that came meanwhile are answered when some are free")
        tap.eq(len(told(front)), 1, "it is said once")
    tap.eq(front.exits, [], "the front lives")

with tap.section("an engine"), Stack(n_fronts=2) as s:
    with spare(s.engine.pid, 1):
        silent = connect(s.engine_socket, socket.SOCK_SEQPACKET, 8)
        share = busy(s.engine.pid)
        tap.ok(share < BUSY, "so does an engine (%.2f of a core)" % share)
        r = s.post("/v1/completions", s.completion("Hello", max_tokens=4))
        tap.eq(r.status, 200, "it serves the connections that it has")
        for k in silent:
            k.close()
        s.fronts[0].kill()
        tap.ok(until(lambda: s.fronts[0].exits and s.metric("quire:fronts_attached") == 2),
               "a front that comes then is attached", s.logs())
        tap.eq(len(told(s.engine)), 1, "it is said once")
    s.fronts[0].hold()
    left = "front %d left" % s.fronts[0].kill()
    tap.ok(until(lambda: left in s.engine.said()), "a front is away", s.logs())
    with spare(s.engine.pid, 1):  # for the connection, and none for its lane
        s.fronts[0].release()
        time.sleep(LOOK_S)
        n = s.engine.said().count("no memory for a lane")
        tap.ok(1 <= n <= 2 * LOOK_S, "a lane that cannot be made is tried now and then (%d)" % n)
    tap.ok(until(lambda: s.metric("quire:fronts_attached") == 2), "it comes when it can", s.logs())
    tap.eq(s.engine.exits, [], "the engine lives")

with tap.section("a front without a descriptor for its lane"), Stack(n_fronts=1) as s:
    front = s.fronts[0]
    s.engine.hold()
    s.engine.kill()
    tap.ok(until(lambda: "connection to the engine is lost" in front.said()), "the engine is away", s.logs())
    heard = s.engine.said().count("ready on")
    for n in (0, 2):  # none for its socket; one too few for what comes through it
        with spare(front.pid, n):
            s.engine.release()
            until(lambda: s.engine.said().count("ready on") > heard)
            time.sleep(LOOK_S + 1.5)  # attempts come once in a second
    tap.eq(len(told(front)), 1, "it is said once")
    tap.eq(s.engine.said().count("attached"), 1, "the engine makes no lane for nothing")
    tap.ok(until(lambda: s.metric("quire:fronts_attached") == 1), "it is attached when it can",
           s.logs())
    tap.eq(front.exits, [], "the front lives")


def one_of(words):
    """A request whose answer is one of these: each list is an automaton of its own."""
    return s.completion("Hello", max_tokens=16, structured_outputs={"choice": words})


def answers(words):
    r = s.post("/v1/completions", one_of(words))
    return r.status == 200 and r.json["choices"][0]["text"] in words


def refused(words):
    r = s.post("/v1/completions", one_of(words))
    return (r.status, r.error["type"], r.error["code"]) if r.status != 200 else r.status


NO_ROOM = (503, "server_error", "overloaded")

with tap.section("an automaton that the engine has no descriptor for"), Stack(n_fronts=1) as s:
    with spare(s.engine.pid, 0):  # not even for the vocabulary, which goes before it
        tap.eq(crowd(4, lambda i: refused(["no", "nay"])), [NO_ROOM] * 4,
               "the first of all are refused")
        tap.eq(s.post("/v1/completions", s.completion("Hello", max_tokens=4)).status, 200,
               "others are served")
    tap.ok(answers(["no", "nay"]), "and so is the same again, when there is one")
    with spare(s.engine.pid, 0):
        stream = threading.Thread(target=lambda: streams.append(s.stream(
            "/v1/completions", s.completion("Once upon", max_tokens=600, ignore_eos=True))))
        streams = []
        stream.start()
        tap.eq([refused(["yes", "yea"]) for _ in range(3)], [NO_ROOM] * 3,
               "a form that comes then is refused, each time")
        tap.ok(answers(["no", "nay"]), "one that the engine has is served")
        choices = s.post("/v1/completions", dict(one_of(["up", "down"]), n=3))
        tap.eq((choices.status, choices.error["code"]), (503, "overloaded"),
               "an answer of several choices is refused whole")
        stream.join()
        tap.ok(streams[0].done and streams[0].error is None, "a stream meanwhile comes to its end",
               repr(streams[0].error))
    tap.eq(crowd(8, lambda i: answers([["yes", "yea"], ["up", "down"]][i % 2])), [True] * 8,
           "all are served when there are descriptors again")
    tap.eq(len(told(s.engine)), 1, "it is said once")
    tap.ok(s.engine.said().count("attached") == 1 and
           "dropped" not in s.engine.said(), "the front's lane is the first one", s.logs())
    tap.eq(s.engine.exits + s.fronts[0].exits, [], "engine and front live")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
