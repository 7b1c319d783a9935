#!/usr/bin/env python3
"""A front that dies or hangs: every client can tell that its answer was cut, over HTTP/1.1 and
HTTP/2, streamed or not, at every API; what had not begun is answered by another front. HTTP/1.0 has no
chunks, so there a stream's own last event is the only sign of its end. A front that hangs is killed
by the watchdog of its unit, whose seconds are read from systemd/."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

from harness import DEVICE, SRCDIR, Stack, Tap, crowd, key, need_nginx, until

need_nginx()
tap = Tap()
CURL = shutil.which("curl")
STORY = "Tell me a long story."


def unit(name):
    """A [Service] setting of the fronts' unit."""
    with open(os.path.join(SRCDIR, "systemd", "quire-front@.service.in")) as f:
        found = re.search(r"^%s=(.*)$" % name, f.read(), re.M)
    return found and found.group(1)


def bodies(s, n):
    """(path, body) of one request per API, streamed or not."""
    say = [{"role": "user", "content": STORY}]
    long = dict(model="demo", temperature=0, ignore_eos=True)
    for stream in (True, False):
        yield "/v1/chat/completions", dict(long, messages=say, max_tokens=n, stream=stream)
        yield "/v1/completions", dict(long, prompt=STORY, max_tokens=n, stream=stream)
        yield "/v1/messages", dict(long, messages=say, max_tokens=n, stream=stream)
        yield "/v1/responses", dict(long, input=STORY, max_output_tokens=n, stream=stream)


def curl(s, i, way, path, body):
    """(exit code, status, body) of curl."""
    argv = [CURL, "-sS", "-N", "-w", "\n%{http_code}", "-H", "Authorization: Bearer " + key(i), "-H",
            "Content-Type: application/json", "-d", json.dumps(body)]
    if way == "http2":
        argv += ["--http2", "--cacert", s.path("cert.pem"), "https://localhost:%d%s" % (s.port, path)]
    else:
        argv += ["--" + way, "--unix-socket", s.socket, "http://localhost" + path]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    text, _, status = r.stdout.rpartition("\n")
    return r.returncode, int(status or 0), text


def is_whole(path, stream, text):
    """Does the answer say itself that it is complete?"""
    if not stream:
        try:
            return "usage" in json.loads(text)
        except ValueError:
            return False
    last = {"/v1/messages": "message_stop", "/v1/responses": "response.(completed|incomplete)"}
    return re.search(last.get(path, r"\[DONE\]"), text) is not None


def killed_at(s, way, after_s):
    """Ask everything at once, kill both fronts when after_s are over; [(path, stream, curl's)]."""
    asked = list(bodies(s, 400 if DEVICE == "cpu" else 1900))  # a GPU says 400 in no time

    def one(i):
        if i == len(asked):
            time.sleep(after_s)
            for f in s.fronts:
                f.kill()
            return None
        path, body = asked[i]
        return path, body["stream"], curl(s, i, way, path, body)
    return crowd(len(asked) + 1, one, 150)[:-1]


if CURL is None:
    tap.skip("clients", "there is no curl")
else:
    with tap.section("killed"), Stack() as s:
        begun = {}
        for way in ("http1.1", "http2"):
            for after_s in (0.3, 0.8):
                results = killed_at(s, way, after_s)
                wrong = [r for r in results if isinstance(r, Exception) or
                         (r[2][0] == 0 and r[2][1] == 200 and not is_whole(r[0], r[1], r[2][2]))]
                tap.eq(wrong, [], "%s, killed after %.1f s: no cut answer looks whole" % (way, after_s))
                begun[way] = begun.get(way, 0) + sum(
                    1 for r in results if not isinstance(r, Exception) and r[2][0] != 0 and
                    r[2][1] == 200)
                until(lambda: s.get("/health").status == 200)
            tap.ok(begun[way] > 0, "%s: %d answers were cut, and curl says so" % (way, begun[way]))
        tap.ok(s.idle(), "nothing runs on")

    with tap.section("whole"), Stack() as s:
        for way in ("http1.0", "http1.1", "http2"):
            results = crowd(8, lambda i: (list(bodies(s, 5))[i],
                                          curl(s, i, way, *list(bodies(s, 5))[i])))
            wrong = [r for r in results if isinstance(r, Exception) or r[1][0] != 0 or
                     r[1][1] != 200 or not is_whole(r[0][0], r[0][1]["stream"], r[1][2])]
            tap.eq(wrong, [], "%s: undisturbed answers are whole, and curl agrees" % way)

with tap.section("hung"):
    seconds = float(re.match(r"\d+", unit("WatchdogSec")).group())
    tap.ok(seconds <= 5 and unit("WatchdogSignal") == "SIGKILL",
           "the unit's watchdog ends a front that is silent for seconds, stopped or not")
    with Stack(front_watchdog_s=seconds) as s:
        time.sleep(1.5 * seconds)
        for f in s.fronts:  # both are fed; only one hangs
            tap.eq(f.watchdog.kills, 0, "a front that lives is let alone")
        s.fronts[0].kill(signal.SIGSTOP)
        results = crowd(12, lambda i: s.post("/v1/completions", s.completion("Hello", max_tokens=3)))
        tap.eq([getattr(r, "status", r) for r in results], [200] * 12,
               "all are answered while one front hangs")
        tap.eq([f.watchdog.kills for f in s.fronts], [1, 0], "after the watchdog ended it")
        tap.ok(until(lambda: s.metric("quire:fronts_attached") == 2), "and it is back")

tap.done()
