#!/usr/bin/env python3
"""A whole server under a mixture of everything, for as many steps as an hour has; nothing may grow.

    builddir=BUILD tests/bench/soak.py [--steps 900000] [--seconds 0] [--at-once N] [--clients N]
        [--device cuda] [--model FOLDER] [--seed 1]

It ends after --steps steps of the engine (900000: an hour of steps of 4 ms) or, when that is not 0,
after --seconds. Tiers are small, so that pages are evicted, written and read again all the time.
Twenty-four times the load stops, and what is left is measured: then the engine sleeps and wakes.
The first measure is taken after a tenth of the way, when caches are warm. Prints a line for each
thing that is measured, and ends with 1 when something grew, an answer was none, a count was not
what the clients counted or, on the cpu device, an answer to the same request was another."""
import collections
import json
import math
import multiprocessing
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time

from servers import parse, parser  # and finds harness
from harness import MODEL_NAME, Stack, crowd, find_nginx, key, until

p = parser()
p.set_defaults(model="")
p.add_argument("--steps", type=int, default=900000)
p.add_argument("--seconds", type=float, default=0, help="0: as long as the steps take")
p.add_argument("--at-once", type=int, default=0, help="at most; 0: 48 on cuda, 12 on cpu")
p.add_argument("--clients", type=int, default=0, help="processes; 0: a third of the cores")
p.add_argument("--seed", type=int, default=1)
a = parse(p)
a.at_once = a.at_once or (12 if a.device == "cpu" else 48)

CHAT, TEXT, MESSAGES, RESPONSES = ("/v1/chat/completions", "/v1/completions", "/v1/messages",
                                   "/v1/responses")
OPERATOR = "an-operators-own-key-0123456789"
MIB = 1 << 20
HOST_BYTES, STORE_BYTES = 24 * MIB, 48 * MIB
LABEL_BYTES = 1280  # of a page of the host tier, beside its keys and values, at most
DEVICE_PAGES = 384
SERVER = ["--num-pages", DEVICE_PAGES, "--max-model-len", 1024, "--max-num-seqs", 32,
          "--max-num-queued-reqs", 32, "--sleep-after-s", 3600]  # or it may not be told to
N_MEASURES = 24
PHASE_S = 2.0
STUCK_S = 120  # nothing that is asked here takes so long

# The least that is called a leak: one object of 64 bytes, a small one, for each request.
LEAK_KB = 64 * 1000 / 1024
LEAK_FDS = 0  # for each thousand of requests; any is one too many, if it is sure


# --- what is asked -----------------------------------------------------------------------------


class Ask:
    """One request, and what may become of it."""

    def __init__(self, path, body, n=1, status=(200,), known=False, hang_up=None):
        self.path, self.body, self.n = path, body, n
        self.status = status    # the server may also say 429 when it is full
        self.known = known      # the same text whenever it is asked
        self.hang_up = hang_up  # bytes of the answer after which the client has gone


QUESTIONS = ["What is the capital of France?", "Count from 1 to 20.", "Tell me a short story.",
             "What is 2 + 2?", "Hello", "What is the weather in Paris?"]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "properties": {what: {"type": "string", "maxLength": 12}},
    "required": [what], "additionalProperties": False}}}
         for name, what in (("get_weather", "city"), ("now", "place"), ("find", "thing"))]


def token_ids(r, n):
    return [r.randrange(100, 2000) for _ in range(n)]


def shared_ids(r):
    """One of 40 prefixes, the first ones most often: more pages than the device has."""
    i = min(39, int(r.expovariate(0.1)))
    q = random.Random(1000 + i)
    return token_ids(q, q.randrange(60, 500))


def chat(r, question=None, **fields):
    question = question or r.choice(QUESTIONS)
    return dict({"model": MODEL_NAME, "messages": [{"role": "user", "content": question}],
                 "max_tokens": 40, "stream": r.random() < 0.5}, **fields)


def completion(r, prompt, **fields):
    return dict({"model": MODEL_NAME, "prompt": prompt, "ignore_eos": True, "temperature": 0,
                 "max_tokens": 40, "stream": r.random() < 0.5}, **fields)


def ask_greedy(r):
    return Ask(CHAT, chat(r, temperature=0), known=True)


def ask_drawn(r):
    fields = [{}, {"presence_penalty": 1.0}, {"frequency_penalty": 0.7},
              {"repetition_penalty": 1.3}, {"top_k": 20, "top_p": 0.9}, {"min_p": 0.05},
              {"logit_bias": {"300": 5}}, {"bad_words": ["the"]}]
    return Ask(CHAT, chat(r, temperature=1.2, seed=r.randrange(4), **r.choice(fields)), known=True)


def ask_shared(r):
    prompt = shared_ids(r) + token_ids(r, r.randrange(1, 40))
    return Ask(TEXT, completion(r, prompt, max_tokens=r.randrange(1, 60)))


def ask_new(r):
    size = r.choice([1, 5, 30, 120, 400, 900])
    return Ask(TEXT, completion(r, token_ids(r, size), max_tokens=r.choice([1, 8, 64])))


def ask_long(r):
    return Ask(TEXT, completion(r, token_ids(r, 8), max_tokens=r.randrange(200, 500),
                                temperature=r.choice([0, 1])))


def ask_many(r):
    n = r.randrange(2, 5)
    if r.random() < 0.5:
        return Ask(CHAT, chat(r, n=n, temperature=1), n=n)
    return Ask(TEXT, completion(r, ["Once upon a time", "Count from"], n=n, temperature=1),
               n=2 * n)


def ask_logprobs(r):
    if r.random() < 0.5:
        return Ask(CHAT, chat(r, logprobs=True, top_logprobs=5, seed=3))
    return Ask(TEXT, completion(r, token_ids(r, 50), logprobs=3, prompt_logprobs=2, echo=True,
                                stream=False, max_tokens=10))


def ask_form(r):
    """Of 300 schemas, so that the automata that are kept turn over as well."""
    i = r.randrange(300)
    schema = {"type": "object", "properties": {
        "field_%d" % i: {"type": "string", "maxLength": 10}, "n": {"type": "integer"},
        "kind": {"enum": ["a%d" % i, "b"]}}, "required": ["field_%d" % i, "kind"],
              "additionalProperties": False}
    form = r.choice([
        {"response_format": {"type": "json_schema",
                             "json_schema": {"name": "f", "schema": schema}}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "[a-z]{3,%d} [0-9]+" % (5 + i)}},
        {"structured_outputs": {"choice": ["yes %d" % i, "no", "perhaps"]}},
        {"structured_outputs": {"grammar": 'root ::= "a%d" ("b" | "c")*' % i}}])
    return Ask(CHAT, chat(r, max_tokens=60, temperature=1, **form))


def ask_tools(r):
    choice = r.choice(["required", "auto",
                       {"type": "function", "function": {"name": "find"}}])
    return Ask(CHAT, chat(r, tools=TOOLS, tool_choice=choice, max_tokens=60,
                          temperature=r.choice([0, 1])))


def ask_others(r):
    """The other APIs."""
    if r.random() < 0.5:
        return Ask(MESSAGES, chat(r, max_tokens=30))
    return Ask(RESPONSES, {"model": MODEL_NAME, "input": r.choice(QUESTIONS),
                           "max_output_tokens": 30, "stream": r.random() < 0.5})


def ask_stopped(r):
    return Ask(CHAT, chat(r, "Count from 1 to 20.", stop=["7, 8", "zzz"], temperature=0,
                          max_tokens=60), known=True)


def ask_kept(r):
    return Ask(TEXT, completion(r, shared_ids(r), max_tokens=4, cache_retention={
        "priority": r.choice([0, 60, 80]), "seconds": r.randrange(1, 30)},
        cache_salt=r.choice(["a", "b"])))


def ask_tokens(r):
    if r.random() < 0.5:
        return Ask("/tokenize", {"prompt": r.choice(QUESTIONS) * r.randrange(1, 50)}, n=0)
    return Ask(CHAT + "/render", chat(r, stream=False), n=0)


def ask_refused(r):
    body = r.choice([{"model": "none"}, {"temperature": 101}, {"messages": 5}, {"n": 0},
                     {"tools": [{}]}, {"structured_outputs": {"regex": "("}}, {"seed": "a"},
                     {"max_tokens": -1}, {"stop": ["x" * 9999]},
                     {"response_format": {"type": "json_schema", "json_schema": {
                         "name": "f", "schema": {"$ref": "#/nowhere"}}}}])
    if r.random() < 0.1:
        return Ask(TEXT, completion(r, token_ids(r, 1500)), n=0, status=(400,))
    return Ask(CHAT, chat(r, **body), n=0, status=(400, 404))


def ask_hurried(r):
    return Ask(TEXT, completion(r, token_ids(r, 200), max_tokens=300, timeout_s=0.05),
               status=(200, 504))


def ask_hung(r):
    """A client that goes: at once, at the first bytes, or in the middle."""
    after = r.choice([0, 0, 1, 1000, 4000, 20000])
    if r.random() < 0.5:
        return Ask(TEXT, completion(r, shared_ids(r), max_tokens=400, stream=True), hang_up=after)
    return Ask(CHAT, chat(r, max_tokens=200, n=2, ignore_eos=True), n=2, hang_up=after)


KINDS = [(ask_greedy, 10), (ask_drawn, 10), (ask_shared, 20), (ask_new, 12), (ask_long, 10),
         (ask_many, 6), (ask_logprobs, 5), (ask_form, 8), (ask_tools, 6), (ask_others, 6),
         (ask_stopped, 4), (ask_kept, 5), (ask_tokens, 4), (ask_refused, 6), (ask_hurried, 3),
         (ask_hung, 10)]


# --- clients -----------------------------------------------------------------------------------


def send(path_of_socket, ask, bearer):
    """Status and the bytes behind the head; None when the client hung up. HTTP/1.0: what comes is
    the body as it is, to the end of the connection."""
    text = json.dumps(ask.body).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as k:
        k.settimeout(STUCK_S)
        k.connect(path_of_socket)
        k.sendall(b"POST %s HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n"
                  b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                  % (ask.path.encode(), bearer.encode(), len(text)) + text)
        parts, n = [], 0
        while ask.hang_up is None or n < ask.hang_up:
            part = k.recv(1 << 16)
            if not part:
                break
            parts.append(part)
            n += len(part)
        else:
            return None
    head, _, body = b"".join(parts).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), body


def whole(ask, body):
    """Is the answer complete, and without an error? Looked at as bytes: parsing all of it would
    cost more than the server does."""
    if not ask.body.get("stream"):
        return body.rstrip().endswith(b"}")
    if b'data: {"error"' in body or b"event: error" in body:
        return False
    if ask.path == MESSAGES:
        return b"event: message_stop" in body
    if ask.path == RESPONSES:
        return b"event: response.completed" in body or b"event: response.incomplete" in body
    return body.endswith(b"data: [DONE]\n\n")


def text_of(ask, body):
    """What a chat said, streamed or not."""
    if not ask.body["stream"]:
        return json.loads(body)["choices"][0]["message"]["content"]
    return "".join(c["delta"].get("content") or "" for line in body.split(b"\n")
                   if line.startswith(b"data: {")
                   for c in json.loads(line[6:])["choices"])


COUNTS = ("asked", "done", "hung", "full", "late", "refused", "tokenized", "known", "failed")


class Client:
    """A process of threads. Shared with the one that measures: how many may ask, and counters."""

    def __init__(self, number, n_clients, at_once, errors):
        self.number, self.n_clients = number, n_clients
        self.at_once, self.errors = at_once, errors
        self.busy = multiprocessing.Value("i", 0)
        self.counts = multiprocessing.Array("q", len(COUNTS), lock=False)
        self.where, self.there = multiprocessing.Pipe()
        self.lock = threading.Lock()
        self.said = {}
        self.process = multiprocessing.Process(target=self._run, daemon=True)
        self.process.start()

    def _run(self):
        path = self.there.recv()
        threads = [threading.Thread(target=self._ask_on, args=(path, i), daemon=True)
                   for i in range(self.number, a.at_once, self.n_clients)]
        for t in threads:
            t.start()
        self.there.recv()  # the end

    def _count(self, what, n=1):
        with self.lock:
            self.counts[COUNTS.index(what)] += n

    def _fail(self, ask, why):
        self._count("failed")
        self.errors.put("%s %s: %s" % (ask.path, json.dumps(ask.body)[:300], str(why)[:300]))

    def _ask_on(self, path, i):
        r = random.Random(a.seed * 1000 + i)
        makers, weights = zip(*KINDS)
        while True:
            # Said to be busy before the word is read: a measurement needs none busy.
            with self.busy.get_lock():
                self.busy.value += 1
            allowed = i < self.at_once.value
            if allowed:
                ask = r.choices(makers, weights)[0](r)
                try:
                    self._ask(path, ask, key(r.randrange(32)))
                except (OSError, ValueError, KeyError, IndexError) as e:
                    self._fail(ask, repr(e))
            with self.busy.get_lock():
                self.busy.value -= 1
            if not allowed:
                time.sleep(0.1)

    def _ask(self, path, ask, bearer):
        self._count("asked")
        got = send(path, ask, bearer)
        if got is None:
            return self._count("hung", ask.n)
        status, body = got
        if status == 429:
            self._count("full", ask.n)
            time.sleep(0.05)
        elif status not in ask.status:
            self._fail(ask, "%d %s" % (status, body))
        elif status == 504:
            self._count("late", ask.n)
        elif status != 200:
            self._count("refused")
        elif not whole(ask, body):
            # One whose time is over ends with an error, wherever it is.
            self._count("late", ask.n) if 504 in ask.status else self._fail(ask, body[-300:])
        else:
            self._count("done" if ask.n else "tokenized", ask.n or 1)
            if ask.hang_up is None and ask.known:
                self._compare(ask, text_of(ask, body))
        return None

    def _compare(self, ask, text):
        name = json.dumps(dict(ask.body, stream=None), sort_keys=True)
        with self.lock:
            first = self.said.setdefault(name, text)
        self._count("known")
        if text != first and a.device == "cpu":  # a GPU's last bits depend on the step
            self._fail(ask, "said %r, before %r" % (text, first))


# --- what is measured --------------------------------------------------------------------------


def status_of(pid):
    with open("/proc/%d/status" % pid) as f:
        return dict(line.rstrip("\n").split(":", 1) for line in f)


def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(c) for c in f.read().split()]


def n_mapped(pid):
    """Mappings of files and shared memory."""
    with open("/proc/%d/maps" % pid) as f:
        return sum(line.split()[4] != "0" for line in f)


def bytes_of(files):
    return sum(os.stat(f).st_blocks for f in files) * 512


def device_mib(pid):
    """Of the process where the driver names it, else all that is in use; None without a GPU."""
    if a.device == "cpu":
        return None

    def ask(what):
        return subprocess.run(["nvidia-smi", what, "--format=csv,noheader,nounits"], check=True,
                              capture_output=True, text=True).stdout.splitlines()
    for line in ask("--query-compute-apps=pid,used_memory"):
        who, mib = line.split(",")
        if int(who) == pid and mib.strip().isdigit():
            return float(mib)
    return sum(float(line) for line in ask("--query-gpu=memory.used"))


def settled_fds(pid):
    """Connections that have just ended are closed within moments."""
    seen = [-1]

    def same():
        seen.append(len(os.listdir("/proc/%d/fd" % pid)))
        return seen[-1] == seen[-2]
    until(same, 5, 0.2)
    return seen[-1]


class Soak:
    """The server, its clients, and what was measured of them."""

    def __init__(self, server, clients, at_once, errors, store):
        self.s, self.clients, self.at_once, self.errors = server, clients, at_once, errors
        self.store = store
        self.rows = collections.OrderedDict()  # name -> values, one a measure
        self.requests = []                     # thousands that had been asked at each
        self.faults = []
        self.greedy = []
        self.n_alone = 0
        self.steps = 0
        self.began = time.monotonic()

    def fault(self, text):
        self.faults.append(text)
        print("# FAULT " + text)
        sys.stdout.flush()

    def tell_errors(self):
        while not self.errors.empty():
            self.fault(self.errors.get())

    def count(self, what):
        return sum(c.counts[COUNTS.index(what)] for c in self.clients)

    def operate(self, path, status=(200,)):
        r = self.s.request("POST" if path != "/admin/cache" else "GET", path,
                           None if path == "/admin/cache" else {},
                           headers={"Authorization": "Bearer " + OPERATOR})
        if r.status not in status:
            self.fault("%s: %d %s" % (path, r.status, r.text))
        return r.json

    def processes(self):
        nginx = self.s.nginx.pid
        named = [("engine", self.s.engine.pid)]
        named += [("front %d" % i, f.pid) for i, f in enumerate(self.s.fronts)]
        named += [("nginx", nginx)]
        return named + [("nginx worker %d" % i, c) for i, c in enumerate(sorted(children(nginx)))]

    # --- the load ---

    def share(self):
        """How much of the way is done."""
        self.steps = self.s.metric("quire:steps_total")
        by_time = (time.monotonic() - self.began) / a.seconds if a.seconds else 0
        return max(self.steps / a.steps, by_time)

    def pause(self):
        self.at_once.value = 0
        if not until(lambda: not any(c.busy.value for c in self.clients), STUCK_S + 10):
            self.fault("requests do not end")
        if not self.s.idle(10):
            self.fault("the engine is not idle: %s" % self.s.get("/metrics").text[:2000])

    def fill_caches(self):
        """A front keeps up to 256 automata that it has uploaded to the engine (wire_control.h), with a
        descriptor for each; the engine maps them. Until those are there both grow."""
        n = 700

        def some(first):
            for i in range(first, n, 8):
                r = self.s.post(CHAT, {"model": MODEL_NAME, "max_tokens": 1, "messages": [
                    {"role": "user", "content": "Hello"}], "structured_outputs": {
                        "choice": ["warm %d" % i, "cold"]}})
                if r.status != 200:
                    raise RuntimeError("%d %s" % (r.status, r.text))
        for got in crowd(8, some):
            if got is not None:
                self.fault("while caches are filled: %r" % got)
        self.n_alone += n

    def ask_alone(self):
        """Greedy requests, one at a time."""
        r = random.Random(7)
        asks = [Ask(CHAT, chat(r, q, temperature=0, stream=False)) for q in QUESTIONS]
        asks += [Ask(TEXT, completion(r, shared_ids(r), max_tokens=20, stream=False))
                 for _ in range(4)]
        texts = []
        for ask in asks:
            r = self.s.post(ask.path, ask.body)
            if r.status != 200:
                return self.fault("%d %s, asked alone" % (r.status, r.text))
            choice = r.json["choices"][0]
            texts.append(choice["text"] if ask.path == TEXT else choice["message"])
        self.n_alone += len(asks)
        self.greedy = self.greedy or texts
        if a.device == "cpu" and texts != self.greedy:
            self.fault("greedy answers changed: %r, before %r" % (texts, self.greedy))
        return None

    def nap(self):
        """The engine sleeps and wakes; every other time it is told to amid requests first, and says
        that it cannot, or sleeps and is woken by the next of them."""
        if len(self.requests) % 2 == 0:
            self.at_once.value = 2
            time.sleep(0.5)
            self.operate("/sleep", (200, 409))
            self.pause()
        self.operate("/sleep")
        if not until(lambda: self.s.get("/is_sleeping").json["is_sleeping"], 60):
            return self.fault("it does not fall asleep")
        if len(self.requests) % 3:  # else the next request wakes it
            self.operate("/wake_up")
        return None

    # --- a measure ---

    def put(self, name, value):
        if value is not None:
            self.rows.setdefault(name, []).append(value)

    def measure(self):
        self.pause()
        self.tell_errors()
        self.ask_alone()
        until(lambda: self.s.metric("vllm:kv_cache_usage_perc") == 0, 10)
        self.requests.append((self.count("asked") + self.n_alone) / 1000)
        for name, pid in self.processes():
            status = status_of(pid)
            kb = {k: int(status[k].split()[0]) for k in ("RssAnon", "RssFile", "RssShmem")}
            self.put(name + ": resident, its own, KB", kb["RssAnon"])
            # Pages of what is mapped come as they are looked at, up to the files' sizes, which have
            # bounds: nothing can grow but the number of mappings.
            self.put(name + ": resident, of files", kb["RssFile"] + kb["RssShmem"])
            self.put(name + ": mappings of files", n_mapped(pid))
            self.put(name + ": descriptors", settled_fds(pid))
            self.put(name + ": threads", int(status["Threads"]))
        self.put("device memory, MiB", device_mib(self.s.engine.pid))
        self.put("bytes of the store's folder", bytes_of(os.scandir(self.store)))
        self.put("bytes of the host tier's file", bytes_of([self.s.host_file]))
        self.measure_counters()
        print("# %3.0f%%: %d steps, %s" % (100 * self.share(), self.steps, ", ".join(
            "%d %s" % (self.count(c), c) for c in COUNTS)))
        sys.stdout.flush()

    def measure_counters(self):
        m = self.s.metrics()

        def value(name):
            return sum(v for k, v in m.items() if k.split("{")[0] == name)
        for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running",
                     "vllm:num_requests_waiting", "quire:kv_pages", "quire:fronts_attached",
                     "quire:device_memory_bytes", "quire:kv_host_slots",
                     "quire:lane_bad_entries_total", "quire:store_page_faults_total",
                     "quire:host_page_faults_total"):
            self.put(name, value(name))
        self.put("requests that fronts have", max(self.s.get("/load").json["server_load"]
                                                  for _ in range(4)))
        tiers = self.operate("/admin/cache")["tiers"]
        for name, t in tiers.items():
            self.put("pages in tier " + name, t["pages"])
            if not t["pages"] <= t["slots"] or not t["retained"] <= t["retained_max"]:
                self.fault("tier %s has %r" % (name, t))
        self.check_ends({k.split('reason="')[1].split('"')[0]: v for k, v in m.items()
                         if k.startswith("vllm:request_success_total")})

    def check_ends(self, ended):
        """Every generation has ended once, by a reason that its client knows of."""
        done = self.count("done") + self.n_alone
        gone, none = self.count("hung"), self.count("full") + self.count("late")
        well, every = ended["stop"] + ended["length"], sum(ended.values())
        if not done <= well <= done + gone + none or not done <= every <= done + gone + none:
            self.fault("%d answered, %d hung up, %d refused or late: the engine has %r"
                       % (done, gone, none, ended))

    # --- the end ---

    def report(self):
        half = len(self.requests) // 2
        for name, values in self.rows.items():
            line = "%-42s first %10.0f  last %10.0f  largest %10.0f" % (
                name, values[0], values[-1], max(values))
            if name.endswith("KB") or name.endswith("MiB"):
                kb = 1024 if name.endswith("MiB") else 1
                least, likely, most = slope(self.requests[half:], [v * kb for v in values[half:]])
                line += "  %+.1f KB per 1000 requests (%.1f to %.1f)" % (likely, least, most)
                if least > LEAK_KB:
                    self.fault("grows: " + name)
            elif name.split(": ")[-1] in ("descriptors", "threads", "mappings of files"):
                # Kept automata come and go by ones, so more than before is not yet a leak.
                least, _, _ = slope(self.requests[half:], values[half:])
                if least > LEAK_FDS and values[-1] > max(values[:half]):
                    self.fault("grow: " + name)
            elif name.startswith(("pages in tier", "bytes of ")) or "resident" in name:
                pass  # they have bounds, which are looked at elsewhere
            elif len(set(values)) > 1:
                self.fault("not the same whenever it is idle: " + name)
            print(line)
        for name in ("vllm:kv_cache_usage_perc", "vllm:num_requests_running",
                     "vllm:num_requests_waiting", "requests that fronts have",
                     "quire:lane_bad_entries_total", "quire:store_page_faults_total",
                     "quire:host_page_faults_total"):
            if any(self.rows[name]):
                self.fault("not 0: " + name)
        if max(self.rows["bytes of the store's folder"]) > STORE_BYTES + 4 * MIB:  # its index
            self.fault("the store's folder is larger than it may be")
        labels = LABEL_BYTES * max(self.rows["pages in tier host"])
        if max(self.rows["bytes of the host tier's file"]) > HOST_BYTES + labels:
            self.fault("the host tier's file is larger than it may be")
        for what, proc in [("engine", self.s.engine)] + [("a front", f) for f in self.s.fronts]:
            if proc.exits:
                self.fault("%s ended: %r" % (what, proc.exits))


def slope(x, y):
    """Least squares: the least, the likely and the most that y grows by with x; outside of that is
    one case in five hundred. The measures' own scatter about the line says how sure that is: what
    an allocator keeps now and gives back later is in it."""
    n = len(x)
    mx, my = sum(x) / n, sum(y) / n
    sxx = sum((v - mx) ** 2 for v in x)
    b = sum((v - mx) * (w - my) for v, w in zip(x, y)) / sxx
    rest = sum((w - my - b * (v - mx)) ** 2 for v, w in zip(x, y))
    free, z = n - 2, 3.09
    # Student's quantile from the normal one, by the first terms of Cornish and Fisher's series.
    t = z + (z ** 3 + z) / (4 * free) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * free ** 2)
    error = t * math.sqrt(rest / free / sxx)
    return b - error, b, b + error


def soak(k):
    phases = [1, a.at_once, 4, a.at_once // 3, 2, a.at_once // 2, 8, a.at_once]
    n = 0
    for i in range(N_MEASURES):
        upto = 0.1 + 0.9 * i / (N_MEASURES - 1)
        while k.share() < upto:
            k.at_once.value = phases[n % len(phases)]
            n += 1
            left = (upto - k.share()) * a.seconds if a.seconds else PHASE_S
            time.sleep(max(0.1, min(PHASE_S, left)))
            if k.count("failed") > 20 or k.s.engine.exits:
                k.fault("given up")
                return
        k.measure()
        if i + 1 < N_MEASURES:
            k.nap()


def main():
    if find_nginx() is None:
        sys.exit("soak.py: there is no nginx")
    errors = multiprocessing.Queue()
    at_once = multiprocessing.Value("i", 0)
    n = a.clients or max(1, (os.cpu_count() or 1) // 3)
    clients = [Client(i, n, at_once, errors) for i in range(n)]  # before there are threads
    with tempfile.TemporaryDirectory() as dir:
        key_file = os.path.join(dir, "operator.key")
        with open(os.open(key_file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
            f.write(OPERATOR + "\n")
        store = os.path.join(dir, "store")
        engine = SERVER + ["--kv-store-dir", store, "--kv-store-bytes", STORE_BYTES]
        with Stack(engine=engine + (["--model", a.model] if a.model else []), host=str(HOST_BYTES),
                   front=["--admin-key-file", key_file]) as s:
            k = Soak(s, clients, at_once, errors, store)
            for c in clients:
                c.where.send(s.socket)
            try:
                k.fill_caches()
                soak(k)
            finally:
                at_once.value = 0
            seconds = time.monotonic() - k.began
            k.tell_errors()
            if len(k.requests) == N_MEASURES:
                k.report()
            print("%d steps in %.0f s, %.0f a second; %d requests; %d answers compared"
                  % (k.steps, seconds, k.steps / seconds, k.count("asked") + k.n_alone,
                     k.count("known") + k.n_alone))
            for c in clients:
                c.where.send(None)
            if k.faults:
                print(s.logs(10))
    print("nothing grew" if not k.faults else "FAILED: %d" % len(k.faults))
    sys.exit(1 if k.faults else 0)


if __name__ == "__main__":
    main()
