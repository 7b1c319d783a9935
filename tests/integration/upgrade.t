#!/usr/bin/env python3
"""Another build takes over, with another layout of the lane: what runs ends where it began, what has
not begun is asked for again at the new fronts, and no client notices. The other build is this one,
compiled with a layout that differs."""

import filecmp
import os
import shutil
import signal
import tempfile
import threading
import time

from harness import BUILDDIR, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
OURS, OTHER = BUILDDIR, os.path.join(BUILDDIR, "tests", "upgrade")
N_STREAMS, N_CALLERS = 12, 6
PROGRAMS = ("quire-engine", "quire-front")


def install(build, to):
    """As a package manager does: the new file takes the name, the old one loses it."""
    for name in PROGRAMS:
        shutil.copy2(os.path.join(build, name), os.path.join(to, name + ".new"))
        os.replace(os.path.join(to, name + ".new"), os.path.join(to, name))


def runs(process, build, name):
    try:
        return filecmp.cmp("/proc/%d/exe" % process.pid, os.path.join(build, name), shallow=False)
    except OSError:
        return False


def attached(s):
    r = s.get("/metrics")
    return r.status == 200 and b'fronts_attached{model_name="demo",engine="0"} 2\n' in r.body


def all_run(s, build):
    return runs(s.engine, build, "quire-engine") and all(
        runs(f, build, "quire-front") for f in s.fronts) and attached(s)


class Callers:
    """Clients that ask for a little, one time after the other."""

    def __init__(self, s):
        self.s, self.bad, self.n, self.stop = s, [], 0, False
        self.threads = [threading.Thread(target=self.run, args=(i,), daemon=True) for i in range(N_CALLERS)]
        for t in self.threads:
            t.start()

    def run(self, i):
        while not self.stop:
            try:
                r = self.s.post(chat, self.s.chat("Say %d" % i, max_tokens=8), timeout=90)
                if r.status != 200:
                    self.bad.append(r.text[:200])
            except Exception as e:
                self.bad.append(repr(e))
            self.n += 1
            time.sleep(0.01)

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()


def asked(s, i, n):
    return s.chat("Story %d: tell me of a clever fox." % i, max_tokens=n + i, ignore_eos=True)


def told(t):
    return t.done, t.error, t.text, t.broken


def begin(s, n, n_tokens):
    """n streams that have said something; what they told in the end, and their threads."""
    begun = threading.Semaphore(0)
    got = [None] * n

    def stream(i):
        seen = []

        def first(t):
            if t.text and not seen:
                seen.append(True)
                begun.release()
        got[i] = told(s.stream(chat, asked(s, i, n_tokens), on_event=first))
    threads = [threading.Thread(target=stream, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    for _ in threads:
        begun.acquire(timeout=60)
    return got, threads


def take_over(s, build, programs, restart, what):
    """Streams and short requests while another build takes over."""
    want = [told(t) for t in crowd(N_STREAMS, lambda i: s.stream(chat, asked(s, i, 150)), 120)]
    tap.ok(all(w[0] and w[1] is None for w in want), what + ": streams are whole without it", want)
    fronts = [f.pid for f in s.fronts]
    got, threads = begin(s, N_STREAMS, 150)
    callers = Callers(s)
    install(build, programs)
    restart()
    tap.ok(until(lambda: all_run(s, build), 60), what + ": every process is of the new build", s.logs())
    for t in threads:
        t.join(120)
    n = callers.n
    until(lambda: callers.n >= n + 2 * N_CALLERS, 60)
    callers.end()
    tap.eq([i for i in range(N_STREAMS) if got[i] != want[i]], [],
           what + ": streams that had begun say what they say without it")
    tap.ok(not callers.bad, what + ": %d requests meanwhile were served" % callers.n, callers.bad[:3])
    tap.ok(all(f.pid != was for f, was in zip(s.fronts, fronts)), what + ": the fronts are new")
    tap.ok(s.idle(), what + ": nothing runs on")


programs = tempfile.mkdtemp(prefix="quire-t-programs-")
try:
    install(OURS, programs)
    with Stack(host="64M", programs=programs, env={"QUIRE_LOG_LEVEL": "info"}) as s:
        with tap.section("the engine is restarted"):
            take_over(s, OTHER, programs, lambda: s.engine.kill(signal.SIGTERM),
                      "the engine is restarted")
            tap.eq(set(s.engine.exits) | set(e for f in s.fronts for e in f.exits), {0},
                   "no process had to be killed")
            said = s.fronts[0].said()
            tap.ok("are of different builds" in said and "another build: stopping" in said,
                   "the front says why it goes", said[-1500:])

        with tap.section("all are restarted"):
            def restart():
                for p in s.fronts + [s.engine]:
                    p.kill(signal.SIGTERM)
            take_over(s, OURS, programs, restart, "all are restarted at once, and back")

        with tap.section("killed"):
            got, threads = begin(s, 4, 1500)
            install(OTHER, programs)
            s.engine.kill(signal.SIGKILL)
            callers = Callers(s)
            for t in threads:
                t.join(60)
            tap.ok(all(not t[0] and t[1] and t[2] for t in got),
                   "killed for another build: streams that had begun end with an error", got)
            until(lambda: all_run(s, OTHER) and callers.n > 2 * N_CALLERS, 60)
            callers.end()
            tap.ok(not callers.bad, "what had not begun is served (%d)" % callers.n, callers.bad[:3])
    tap.ok(not s.leftovers, "every process followed SIGTERM", s.leftovers)

    # Only the engine is of another build: the fronts are no use to it, but they stay.
    install(OURS, programs)
    with tap.section("only the engine"), \
            Stack(programs=programs, front=["--engine-wait-ms", 1500]) as s:
        fronts = [f.pid for f in s.fronts]
        s.engine.argv = [os.path.join(OTHER, "quire-engine")] + s.engine.argv[1:]
        s.engine.kill(signal.SIGTERM)
        until(lambda: runs(s.engine, OTHER, "quire-engine") and
              "are of different builds" in s.fronts[0].said())
        r = s.post(chat, s.chat("Hello", max_tokens=4))
        tap.ok(r.status == 503 and "error" in r.json, "a front without an engine of its build: 503",
               r.text)
        tap.eq([f.pid for f in s.fronts], fronts, "it stays: its file is still the same")
        s.engine.argv = [os.path.join(programs, "quire-engine")] + s.engine.argv[1:]
        s.engine.kill(signal.SIGTERM)
        tap.ok(until(lambda: s.post(chat, s.chat("Hello", max_tokens=4)).status == 200),
               "and serves again with one")

    # The engine is of another build, and the fronts' file only later: they have waited together.
    install(OURS, programs)
    with tap.section("the fronts later"), \
            Stack(programs=programs, front=["--engine-wait-ms", 60000]) as s:
        s.engine.argv = [os.path.join(OTHER, "quire-engine")] + s.engine.argv[1:]
        s.engine.kill(signal.SIGTERM)
        until(lambda: all("are of different builds" in f.said() for f in s.fronts))
        time.sleep(1.5)  # longer than a front holds what it hands back
        waits = threading.Thread(target=lambda: waited.extend(crowd(
            40, lambda i: s.post(chat, s.chat("Say %d" % i, max_tokens=4)).status)))
        waited = []
        waits.start()
        time.sleep(0.5)
        # The other front notices a little later, as it may: what the first one hands back must not
        # come to it before.
        s.fronts[1].kill(signal.SIGSTOP)
        install(OTHER, programs)
        until(lambda: "another build: stopping" in s.fronts[0].said(), 20, 0.005)
        time.sleep(0.3)
        s.fronts[1].kill(signal.SIGCONT)
        waits.join()
        tap.eq(waited, [200] * 40, "fronts whose file comes after the engine: no request is lost")
finally:
    shutil.rmtree(programs, ignore_errors=True)
tap.done()
