#!/usr/bin/env python3
"""What only a client at a front's own socket can send: few parameters, broken records, silence.
At most that front ends; its supervisor brings it back and nothing leaks in the engine."""

import contextlib
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import BUILDDIR, MODEL, MODEL_NAME, Stack, Supervised, Tap, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
draw_seed(tap)
BEGIN, ABORT, END, PARAMS, STDIN, STDOUT = 1, 2, 3, 4, 5, 6


def record(kind, body=b"", request_id=1, version=1, length=None):
    return struct.pack(">BBHHBB", version, kind, request_id, len(body) if length is None else length,
                       0, 0) + body


def begin(keep=0, role=1):
    return record(BEGIN, struct.pack(">HB5x", role, keep))


def pairs(params):
    out = b""
    for k, v in params.items():
        k, v = k.encode(), v.encode()
        for x in (k, v):
            out += bytes([len(x)]) if len(x) < 128 else struct.pack(">I", len(x) | 1 << 31)
        out += k + v
    return out


def padded(kind, body, n):
    """A record with n bytes of padding, which are heads of other records."""
    head = struct.pack(">BBHHBB", 1, kind, 1, len(body), n, 0)
    return head + body + (record(ABORT) * 32)[:n]


def request(params, body=b""):
    out = begin() + (record(PARAMS, pairs(params)) if params else b"") + record(PARAMS)
    for i in range(0, len(body), 60000):
        out += record(STDIN, body[i:i + 60000])
    return out + record(STDIN)


def connect(path, timeout=15):
    k = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    k.settimeout(timeout)
    k.connect(path)
    return k


def listens(path):
    """A socket's file is there before its owner listens."""
    try:
        connect(path).close()
        return True
    except OSError:
        return False


def gone(k):
    """Has the other side closed this connection? Nothing is to be read of it."""
    return select.select([k], [], [], 0)[0] != []


def talk(path, data, timeout=15):
    """Send bytes, read to the end; what came on FCGI_STDOUT."""
    with connect(path, timeout) as k:
        try:
            k.sendall(data)
        except OSError:
            pass  # closed on us: what it said is still there
        got = b""
        try:
            while True:
                part = k.recv(65536)
                if part == b"":
                    break
                got += part
        except ConnectionError:
            pass
    out = b""
    while len(got) >= 8:
        _, kind, _, n, pad, _ = struct.unpack(">BBHHBB", got[:8])
        if kind == STDOUT:
            out += got[8:8 + n]
        got = got[8 + n + pad:]
    return out


def paths(s):
    """A front takes no path from another one, or from what is no socket."""
    first, plain = s.path("own.sock"), s.path("plain")
    with open(plain, "w") as f:
        f.write("kept")

    def start(path):
        return subprocess.Popen([os.path.join(BUILDDIR, "quire-front"), "--model", MODEL, "--listen",
                                 path, "--engine-socket", s.engine_socket], cwd=s.dir,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    def serves():
        try:
            return talk(first, request({"REQUEST_METHOD": "GET", "REQUEST_URI": "/version"})
                        ).startswith(b"Status: 200")
        except OSError:
            return False
    with start(first) as one:
        tap.ok(until(lambda: os.path.exists(first)), "a front by itself")
        for path, word in ((first, "another process"), (plain, "not a socket"),
                           ("127.0.0.1:9000", "'/'")):
            with start(path) as other:
                try:
                    said = other.communicate(timeout=20)[0]
                except subprocess.TimeoutExpired:
                    other.kill()
                    said = other.communicate()[0]
                tap.ok(other.returncode in (1, 2) and word in said, "%s is refused" % word, said)
        tap.eq(open(plain).read(), "kept", "the file is as it was")
        tap.ok(serves() and one.poll() is None, "the first one serves")
        one.kill()
        one.communicate()
    with start(first) as two:
        tap.ok(until(serves), "the next takes a dead one's path")
        two.kill()
        two.communicate()


def settings(s):
    conf = s.path("bad.conf")
    with open(conf, "w") as f:
        f.write("# sizes\nkv_host_bytes = 5X\n")

    def said(program, *args):
        return subprocess.run([os.path.join(BUILDDIR, program), *args], capture_output=True,
                              text=True, timeout=20)
    for program in ("quire-engine", "quire-front"):
        r = said(program, "--config", conf)
        tap.ok(r.returncode == 1 and "bad.conf:2" in r.stderr and "K, M, G, T" in r.stderr,
               program + " says where a bad value stands, and what it may be", r.stderr)
        r = said(program, "--help")
        tap.ok(r.returncode == 0 and r.stdout.startswith("usage: " + program), "a usage", r.stdout)
        tap.ok(said(program, "--version").stdout.startswith("quire "), "a version")


with Stack() as s:
    path = s.front_path(0)
    with tap.section("paths"):
        paths(s)
    with tap.section("settings"):
        settings(s)
    full = {"REQUEST_METHOD": "POST", "REQUEST_URI": "/v1/chat/completions"}
    body = b'{"model":"demo","temperature":0,"max_tokens":9,"messages":[{"role":"user",' \
           b'"content":"Hello"}]}'

    with tap.section("few parameters"):
        out = talk(path, request(dict(full, CONTENT_LENGTH=str(len(body))), body))
        tap.ok(out.startswith(b"Status: 200") and b"Hello!" in out, "a whole request", out)
        for params, status, name in (
                ({}, b"404", "no parameters"),
                ({"REQUEST_METHOD": "GET"}, b"404", "no path"),
                ({"REQUEST_URI": "/health"}, b"405", "no method"),
                ({"REQUEST_METHOD": "GET", "REQUEST_URI": ""}, b"404", "an empty path"),
                ({"REQUEST_METHOD": "GET", "REQUEST_URI": "/" * 5000}, b"404", "a long path"),
                ({"REQUEST_METHOD": "M" * 5000, "REQUEST_URI": "/health"}, b"405", "a long method"),
                (full, b"400", "no CONTENT_LENGTH"),
                (dict(full, CONTENT_LENGTH="x"), b"400", "a CONTENT_LENGTH of letters"),
                (dict(full, CONTENT_LENGTH="-1"), b"413", "a negative CONTENT_LENGTH"),
                (dict(full, CONTENT_LENGTH="99999999999999999999"), b"413", "a huge one"),
                (dict(full, CONTENT_LENGTH="5"), b"400", "one that is too small")):
            out = talk(path, request(params, body if "CONTENT_LENGTH" in params else b""))
            tap.ok(out.startswith(b"Status: " + status) and b'"error"' in out, name, out[:200])
        out = talk(path, request(dict(full, CONTENT_LENGTH="5000"), body))
        tap.ok(not out.startswith(b"Status: 200"), "a body that ends early", out[:200])
        values = pairs(dict(full, CONTENT_LENGTH=str(len(body)), EMPTY="", LONG="x" * 5000))
        for n in (1, 8, 255):
            cuts = sorted(random.sample(range(1, len(values)), 9))
            out = talk(path, padded(BEGIN, struct.pack(">HB5x", 1, 0), n) +
                       b"".join(padded(PARAMS, values[a:b], n) for a, b in
                                zip([0] + cuts, cuts + [len(values)])) + padded(PARAMS, b"", n) +
                       b"".join(padded(STDIN, body[i:i + 20], n) for i in range(0, len(body), 20)) +
                       record(STDIN))
            tap.ok(out.startswith(b"Status: 200") and b"Hello!" in out,
                   "records of any length with %d bytes of padding" % n, out[:200])
        tap.eq(s.fronts[0].exits, [], "the front lives")

    with tap.section("broken records"):
        rand = [os.urandom(n) for n in (1, 7, 8, 64, 5000)]
        deaths = 0
        for name, data in [("nothing", b"")] + [("%d random bytes" % len(r), r) for r in rand] + [
                ("another version", record(BEGIN, b"\0" * 8, version=7)),
                ("parameters first", record(PARAMS, pairs(full)) + record(PARAMS)),
                ("a body first", record(STDIN, b"x")),
                ("another role", begin(role=3) + record(PARAMS)),
                ("a long name that never comes",
                 begin() + record(PARAMS, b"\xff\xff\xff\xfe\x00" + b"x" * 50) + record(PARAMS)),
                ("lengths whose sum overflows",
                 begin() + record(PARAMS, b"\xff\xff\xff\xff\xff\xff\xff\xff" + b"x" * 50) +
                 record(PARAMS)),
                ("a record that is cut", begin() + record(PARAMS, b"xx", length=500)),
                ("a management record", record(9, b"\x0eFCGI_MAX_CONNS\x00", request_id=0)),
                ("an abort", begin() + record(ABORT)),
                ("an unknown record", record(77, b"x"))]:
            before, ends = s.fronts[0].pid, len(s.fronts[0].exits)
            try:
                with connect(path) as k:
                    k.sendall(data)
                    k.shutdown(socket.SHUT_WR)
                    while k.recv(65536):
                        pass
            except OSError:
                pass
            time.sleep(0.03)
            died = len(s.fronts[0].exits) > ends
            deaths += died

            def serves():
                try:
                    return talk(path, request(dict(full, CONTENT_LENGTH=str(len(body))),
                                              body)).startswith(b"Status: 200")
                except OSError:
                    return False
            tap.ok(until(serves, 20), "%s: %s and serves" %
                   (name, "ends, comes back" if died else "lives"), s.logs())
        tap.eq(deaths, 0, "none of them ended the front")
        tap.eq(s.fronts[1].exits, [], "the other front lives")
        tap.eq(s.engine.exits, [], "the engine lives")
        tap.ok(until(lambda: s.metric("quire:fronts_attached") == 2), "two lanes are attached")

    with tap.section("a slow beginning"):
        # A peer that lost its core between connect and write, on a machine that is busy.
        with connect(path) as k:
            time.sleep(0.4)
            try:
                k.sendall(request({"REQUEST_METHOD": "GET", "REQUEST_URI": "/health"}))
                got = k.recv(4096)
            except OSError as e:
                got = e
        tap.ok(isinstance(got, bytes) and b"Status: 200" in got, "it is waited for", got)

    with tap.section("silence"):
        # Many more silent peers than there are reader threads, and than may be silent at once.
        # Were they to hold readers, an answer would come when their time is over and they go.
        # A machine that stands still for seconds lets them go as well: then it is tried again.
        for _ in range(5):
            quiet = [connect(path) for _ in range(60)]
            for _ in range(20):
                out = talk(path, request({"REQUEST_METHOD": "GET", "REQUEST_URI": "/health"}), 30)
            stay = not any(gone(k) for k in quiet)
            if stay:
                break
            for k in quiet:
                k.close()
        tap.ok(out.startswith(b"Status: 200") and stay, "20 are answered while 60 stay silent", out)
        more = [connect(path) for _ in range(60)]
        tap.ok(until(lambda: sum(gone(k) for k in quiet + more) == 120 - 64),
               "the first have to go when more than 64 are silent")
        tap.eq(sum(gone(k) for k in quiet), 120 - 64, "and only they")
        more[-1].sendall(request({"REQUEST_METHOD": "GET", "REQUEST_URI": "/version"}))
        tap.ok(b"Status: 200" in more[-1].recv(4096), "a client that speaks at last is answered")
        for k in quiet:
            k.close()
        # These, and two that fall silent in the middle, are looked at below, when their time is over.
        halves = [connect(path) for _ in range(2)]
        for k in halves:
            k.sendall(request(dict(full, CONTENT_LENGTH="5000"))[:60])
        silent_since = time.monotonic()

    with tap.section("keep-conn"):
        # A peer that asks to keep the connection gets one answer and the end.
        out = talk(path, begin(keep=1) + record(PARAMS, pairs(
            {"REQUEST_METHOD": "GET", "REQUEST_URI": "/version"})) + record(PARAMS) + record(STDIN))
        tap.ok(out.startswith(b"Status: 200"), "a peer that asks to keep the connection", out)

    with tap.section("a long answer, read slowly"):
        # Far more than the socket holds: records are cut wherever it was full, and none is lost.
        text = json.dumps({"model": MODEL_NAME, "prompt": "a b c d " * 40000}).encode()
        got = b""
        with connect(path) as k:
            k.sendall(request({"REQUEST_METHOD": "POST", "REQUEST_URI": "/tokenize",
                               "CONTENT_LENGTH": str(len(text))}, text))
            while True:
                part = k.recv(7001)
                if part == b"":
                    break
                got += part
                time.sleep(0.001)
        kinds, out = [], b""
        while len(got) >= 8:
            version, kind, number, n, pad, _ = struct.unpack(">BBHHBB", got[:8])
            kinds.append((version, kind, number, n > 0))
            out += got[8:8 + n] if kind == STDOUT else b""
            got = got[8 + n + pad:]
        head, _, answer = out.partition(b"\r\n\r\n")
        tap.ok(kinds[-2:] == [(1, STDOUT, 1, False), (1, END, 1, True)] and
               set(kinds[:-2]) == {(1, STDOUT, 1, True)} and got == b"",
               "every record is whole, the end is the last", kinds[-5:])
        tap.ok(len(answer) > 600000 and b"Content-Length: %d" % len(answer) in head and
               json.loads(answer)["count"] == len(json.loads(answer)["tokens"]),
               "%d bytes arrive in order" % len(answer), head)

    with tap.section("many that leave"):
        # Connections that close at every point, among ones that stay.
        data = request(dict(full, CONTENT_LENGTH=str(len(body))), body)

        def leave(i):
            if i % 4 == 0:
                return talk(path, data).startswith(b"Status: 200")
            with connect(path) as k:
                k.sendall(data[:len(data) * (i % 40) // 40] if i % 2 else data)
                time.sleep((i % 7) * 0.002)
            return True
        tap.ok(all(crowd(160, leave, 60)), "the ones that stay are served")
        tap.ok(s.idle(), "nothing runs on")
        tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")

    with tap.section("the end of silence"):
        tap.ok(until(lambda: all(gone(k) for k in more[:-1] + halves), 15),
               "a client that says nothing is sent away")
        took = time.monotonic() - silent_since
        tap.ok(took > 4, "after some time (%.1f s)" % took)
        tap.eq(s.fronts[1].exits, [], "the other front lives")

with tap.section("--listen"), Stack() as s:
    # Without systemd: the front makes its socket, replaces a dead one's and removes it.
    path = s.path("own.sock")
    argv = s.front_argv + ["--listen", path]
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    p = Supervised(argv, s.path("own.log"))
    ask = request({"REQUEST_METHOD": "GET", "REQUEST_URI": "/health"})

    def up():
        try:
            return talk(path, ask).startswith(b"Status: 200")
        except OSError:
            return False
    tap.ok(until(up, 15), "a front at --listen serves", s.logs())
    p.kill()
    tap.ok(until(lambda: p.exits, 5) and until(up, 15), "again after kill -9, over the old socket")
    tap.eq(oct(os.stat(path).st_mode & 0o777), "0o660", "its mode is 0660")
    for threads in (1, 64):
        q = Supervised(s.front_argv + ["--listen", s.path("q.sock"), "--front-threads",
                                       str(threads)], s.path("q.log"))
        until(lambda: os.path.exists(s.path("q.sock")), 10)
        time.sleep(0.2)
        took = q.stop(60)
        tap.ok(took is not None, "%d blocked readers stop on SIGTERM (%r s)" % (threads, took))
    # Readers that wait for a body that does not come must not outlive the drain.
    q = Supervised(s.front_argv + ["--listen", s.path("r.sock"), "--drain-timeout-s", "1"],
                   s.path("r.log"))
    until(lambda: listens(s.path("r.sock")), 10)
    held = [connect(s.path("r.sock")) for _ in range(2)]
    for k in held:
        k.sendall(begin() + record(PARAMS, pairs(dict(
            REQUEST_METHOD="POST", REQUEST_URI="/v1/completions", CONTENT_LENGTH="100"))) +
            record(PARAMS) + record(STDIN, b"half"))
    time.sleep(0.3)
    stopped = threading.Event()

    def drip(k):  # a byte a second: by their silence they would be let go
        while not stopped.wait(1):
            with contextlib.suppress(OSError):
                k.sendall(record(STDIN, b"x"))
    drips = [threading.Thread(target=drip, args=(k,), daemon=True) for k in held]
    for d in drips:
        d.start()
    took = q.stop(60)
    stopped.set()
    for d in drips:
        d.join()
    tap.ok(took is not None, "readers in mid-body stop on SIGTERM (%r s)" % took)
    for k in held:
        k.close()
    took = p.stop(60)
    tap.ok(took is not None and not os.path.exists(path), "SIGTERM removes the socket")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
