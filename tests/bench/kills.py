#!/usr/bin/env python3
"""Kills of everything for as long as you like: does every client know whether its answer is whole?

    builddir=build tests/bench/kills.py [--minutes 30] [--clients 24] [--seed N]
        [--family windows|states|mixed] [--engine-only] [--kills N] [--ranks N]

A server in a private folder (nginx, two fronts, an engine, on the cpu device if not told otherwise, host tier and
page store, the fronts' watchdog). Clients ask all four APIs, streamed or not, over HTTP/1.1 and HTTP/2
(curl), for answers that are known from an undisturbed run. Meanwhile every few seconds a process is
killed: the engine, a front, an nginx worker or its master, by SIGKILL, SIGTERM or, a front,
SIGSTOP. An answer is

    whole      it says so itself, and the connection ended in order: the text must be the known one
    refused    an error in the API's shape before or in a stream
    cut        the connection says so: a reset, a missing last chunk, fewer bytes than announced

With --family the model is a twin of the demo model that does not keep all tokens in all layers
(tests/integration/twin.py), and completions tell log probabilities, which have to be the known ones
as well.

On a GPU (QUIRE_TEST_DEVICE=cuda) whole texts may be others, and are counted. Anything else is a
client that was deceived. Prints a table, exit status 1 if there was one."""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
os.environ.setdefault("srcdir", os.path.dirname(os.path.dirname(HERE)))
import twin  # noqa: E402
from harness import MODEL, Stack, Supervised, find_nginx, key, until  # noqa: E402

CURL = shutil.which("curl")
STORIES = ["Tell me a long story.", "Count from 1 to 100.", "What is the capital of France?",
           "Once upon a time there was a lantern. " * 12]


def requests(family):
    """(name, path, body): each has one right answer."""
    for i, story in enumerate(STORIES if family is None else STORIES + [s * 9 for s in STORIES]):
        if family is not None:
            for stream in (False, True):
                yield "told", "/v1/completions", dict(
                    model="demo", prompt=story, max_tokens=8 + 4 * i, temperature=0, logprobs=0,
                    ignore_eos=True, stream=stream)
        say = [{"role": "user", "content": story}]
        n = 40 + 37 * i
        some = dict(model="demo", temperature=0 if i % 2 else 0.8, seed=11 + i, ignore_eos=True)
        for stream in (False, True):
            yield "chat", "/v1/chat/completions", dict(some, messages=say, max_tokens=n, stream=stream)
            yield "text", "/v1/completions", dict(some, prompt=story, max_tokens=n, stream=stream)
            yield "messages", "/v1/messages", dict(some, messages=say, max_tokens=n, stream=stream)
            yield "responses", "/v1/responses", dict(some, input=story, max_output_tokens=n,
                                                     stream=stream)


def events(text):
    return [json.loads(line[6:]) for line in text.splitlines()
            if line.startswith("data: ") and line != "data: [DONE]"]


def said(path, stream, text):
    """(the text, is it whole by its own word, is it an error) of a body."""
    if not stream:
        v = json.loads(text)
        if "error" in v and v["error"]:
            return "", False, True
        if "choices" in v:
            c = v["choices"][0]
            if c.get("logprobs"):
                return c["text"] + str(c["logprobs"]["token_logprobs"]), True, False
            return c.get("text") or c["message"]["content"], c["finish_reason"] is not None, False
        if path == "/v1/messages":
            return "".join(b.get("text", "") for b in v["content"]), v["stop_reason"] is not None, False
        return "".join(p.get("text", "") for o in v["output"] for p in o.get("content") or []), \
            v["status"] in ("completed", "incomplete"), False
    out, whole, wrong, told = "", "data: [DONE]" in text, False, []
    for e in events(text):
        if e.get("error") or e.get("type") in ("error", "response.failed"):
            wrong = True
        for c in e.get("choices", []):
            told += (c.get("logprobs") or {}).get("token_logprobs", [])
            out += c["text"] if "text" in c else c["delta"].get("content") or ""
        if e.get("type") == "content_block_delta":
            out += e["delta"].get("text", "")
        if e.get("type") == "response.output_text.delta":
            out += e["delta"]
        whole = whole or e.get("type") in ("message_stop", "response.completed", "response.incomplete")
    return out + (str(told) if told else ""), whole and not wrong, wrong


def ask_http1(s, tls, i, path, body):
    """(status, text, how the connection ended: None in order)."""
    c = http.client.HTTPSConnection("127.0.0.1", s.port, timeout=120, context=tls)
    status, text = 0, b""
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json",
                                                   "Authorization": "Bearer " + key(i)})
        r = c.getresponse()
        status = r.status
        while part := r.read1(65536):
            text += part
        if r.length not in (None, 0):
            return status, text.decode(errors="replace"), "short"
        return status, text.decode(), None
    except (OSError, http.client.HTTPException) as e:
        return status, text.decode(errors="replace"), type(e).__name__
    finally:
        c.close()


def ask_http2(s, i, path, body):
    r = subprocess.run([CURL, "-sS", "-N", "--http2", "-k", "-m", "120", "-w", "\n%{http_code}", "-H",
                        "Authorization: Bearer " + key(i), "-H", "Content-Type: application/json",
                        "-d", json.dumps(body), "https://localhost:%d%s" % (s.port, path)],
                       capture_output=True)
    text, _, status = r.stdout.decode(errors="replace").rpartition("\n")
    return int(status or 0), text, "curl %d" % r.returncode if r.returncode else None


def judge(path, stream, want, status, text, ended):
    if ended is not None or status == 0:
        return "cut"
    try:
        got, whole, wrong = said(path, stream, text)
    except (ValueError, KeyError, TypeError):
        return "DECEIVED: no JSON"
    if status != 200 or wrong:
        return "refused"
    if not whole:
        return "DECEIVED: no end"
    if got == want:
        return "whole"
    # On a GPU sums depend on how many rows are computed together, and so may tokens.
    return "DECEIVED: another text" if DEVICE == "cpu" else "whole, another text"


class Client(threading.Thread):
    def __init__(self, s, i, known, told, over):
        super().__init__(daemon=True)
        self.s, self.i, self.known, self.told, self.over = s, i, known, told, over
        self.random = random.Random(i)
        self.tls = ssl._create_unverified_context()

    def run(self):
        while not self.over.is_set():
            name, path, body, want = self.random.choice(self.known)
            way = "http2" if CURL and self.random.random() < 0.3 else "http1.1"
            args = (self.s, self.i, path, body)
            status, text, ended = ask_http2(*args) if way == "http2" else \
                ask_http1(self.s, self.tls, *args[1:])
            verdict = judge(path, body["stream"], want, status, text, ended)
            self.told.append((way, name, body["stream"], verdict, status, ended))
            if verdict.startswith("DECEIVED"):
                print("%s: %s %s %s\n  want %r\n  got  %r" % (verdict, way, path, body, want, text[-600:]),
                      flush=True)
            if verdict != "whole":
                time.sleep(0.2)


def worker_of(pid):
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(p) for p in out.stdout.split()]


def kill_one(s, r, kills, engine_only):
    what = "engine" if engine_only else r.choice(["engine", "engine", "front", "front", "front stopped", "worker", "master"])
    sig = signal.SIGKILL if r.random() < 0.7 else signal.SIGTERM
    try:
        if what == "engine":
            s.engine.kill(sig)
        elif what == "front":
            r.choice(s.fronts).kill(sig)
        elif what == "front stopped":
            sig = signal.SIGSTOP
            r.choice(s.fronts).kill(sig)
        else:
            pid = s.nginx.pid
            for p in worker_of(pid) if what == "worker" else [pid]:
                os.kill(p, sig)
    except ProcessLookupError:
        return
    kills[what, sig.name] += 1


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--minutes", type=float, default=30)
    a.add_argument("--clients", type=int, default=24)
    a.add_argument("--seed", type=int, default=int(time.time()))
    a.add_argument("--pause", type=float, default=4, help="seconds between kills, in the mean")
    a.add_argument("--family", choices=["windows", "states", "mixed"])
    a.add_argument("--engine-only", action="store_true")
    a.add_argument("--ranks", type=int, default=1, help="tensor_parallel_size of the engine")
    a.add_argument("--kills", type=int, default=0, help="end after so many, before the minutes are over")
    a = a.parse_args()
    model = {None: lambda: MODEL, "windows": lambda: twin.windows(48, (2, 5)),
             "states": lambda: twin.states("rfrfrr"), "mixed": lambda: twin.states("rfwrwf")}
    r = random.Random(a.seed)
    kills, told, over = Counter(), [], threading.Event()
    with Stack(engine=["--tensor-parallel-size", a.ranks], host="32M", store=True,
               front_watchdog_s=5, many_keys=True, model=model[a.family]()) as s:
        known = []
        for name, path, body in requests(a.family):
            status, text, ended = ask_http1(s, ssl._create_unverified_context(), 0, path, body)
            got, whole, _ = said(path, body["stream"], text)
            if status != 200 or ended or not whole:
                sys.exit("an undisturbed answer is not whole: %s %s %s" % (path, status, text[:300]))
            known.append((name, path, body, got))
        # nginx too is started again from here on; it does not remove its socket when it is killed.
        s.nginx.stop()
        script = "rm -f %s; exec %s -p %s -e %s -c %s" % (
            s.socket, find_nginx(), s.dir, s.path("nginx-error.log"), s.path("nginx.conf"))
        s.nginx = Supervised(["/bin/sh", "-c", script], s.path("nginx.log"))
        until(lambda: s._nginx_listens())
        clients = [Client(s, i, known, told, over) for i in range(a.clients)]
        for c in clients:
            c.start()
        end = time.monotonic() + 60 * a.minutes
        while time.monotonic() < end and not 0 < a.kills <= sum(kills.values()):
            time.sleep(r.expovariate(1 / a.pause))
            kill_one(s, r, kills, a.engine_only)
        over.set()
        for c in clients:
            c.join(150)
        idle = s.idle(60)
        leaked = s.metric("vllm:kv_cache_usage_perc")
        odd = [e for e in s.engine.exits if e not in (0, -9)] + \
              [e for f in s.fronts for e in f.exits if e not in (0, -9)]
    verdicts = Counter((v if v.startswith("DECEIVED") else v, way, "stream" if st else "whole body")
                       for way, _, st, v, _, _ in told)
    print("seed %d, %.0f minutes, %d clients: %d answers, %d kills" %
          (a.seed, a.minutes, a.clients, len(told), sum(kills.values())))
    for k, n in sorted(kills.items()):
        print("  killed %-14s %-8s %5d" % (*k, n))
    for k, n in sorted(verdicts.items()):
        print("  %-24s %-8s %-10s %6d" % (*k, n))
    print("  idle afterwards: %s; pages in use: %s; odd exits: %s; did not stop: %s" %
          (bool(idle), leaked, odd, s.leftovers))
    bad = any(v.startswith("DECEIVED") for v, _, _ in verdicts) or not idle or leaked or odd
    sys.exit(1 if bad else 0)


main()
