#!/usr/bin/env python3
"""Goal: many models behind one address, more than there is room for: no request is lost, and each
model's text is that of its engine alone. Method: quire serve --models-dir with five tiny
checkpoints, two seats, and two models that cannot be served; a trace that moves between models, and
the death of an engine under load."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time

from harness import BUILDDIR, MODEL, SRCDIR, Tap, UnixConnection, draw_seed, need_nginx, skip_all, \
    until

need_nginx()
if not os.path.isdir(os.path.join(SRCDIR, "tests/golden/families")):
    skip_all("there are no checkpoints of tests/golden")
tap = Tap()
rng = random.Random(draw_seed(tap))
QUIRE = os.path.join(BUILDDIR, "quire")
NAMES = ["cohere", "granite", "mixtral", "olmo2", "phi3"]
SEATS = 2
WAIT_S = 60
work = tempfile.mkdtemp(prefix="quire-t-", dir="/tmp")
env = dict(os.environ, XDG_RUNTIME_DIR=work)
SETTINGS = ["--device", "cpu", "--cpu-threads", "1", "--api-server-count", "2",
            "--cpu-kv-bytes", "16M", "--max-num-seqs", "16"]


def folder(name):
    """A checkpoint of the goldens with the demo model's tokenizer: prompts are token ids."""
    path = os.path.join(work, "checkpoints", name)
    os.makedirs(path)
    for f in ("config.json", "model.safetensors"):
        os.symlink(os.path.join(SRCDIR, "tests/golden/families", name, f), os.path.join(path, f))
    for f in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.join(MODEL, f), os.path.join(path, f))
    return path


def vocabulary(name):
    with open(os.path.join(SRCDIR, "tests/golden/families", name, "config.json")) as f:
        return json.load(f)["vocab_size"]


class Served:
    """quire serve on a unix socket."""

    n = 0

    def __init__(self, *args, key=None, settings=None):
        Served.n += 1
        self.key = key
        self.uds = os.path.join(work, "%d.sock" % Served.n)
        self.log = os.path.join(work, "%d.log" % Served.n)
        with open(self.log, "w") as err:
            self.proc = subprocess.Popen([QUIRE, "serve", *args, *(settings or SETTINGS), "--uds", self.uds],
                                         stdout=subprocess.PIPE, stderr=err, env=env, text=True,
                                         stdin=subprocess.DEVNULL)
        self.ready = self.proc.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.proc.poll() is None:
            self.proc.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.proc.wait(WAIT_S)
        if self.proc.poll() is None:
            self.proc.kill()

    def said(self):
        with open(self.log) as f:
            return f.read()

    def ask(self, method, path, body=None, key=None):
        c = UnixConnection(self.uds, WAIT_S)
        key = key or self.key
        with contextlib.closing(c):
            c.request(method, path, json.dumps(body) if body is not None else None,
                      dict({"Content-Type": "application/json"},
                           **({"Authorization": "Bearer " + key} if key else {})))
            r = c.getresponse()
            text = r.read()
            if r.getheader("Content-Type", "").startswith("application/json"):
                text = json.loads(text)
            else:
                text = text.decode()
            return r.status, text, dict(r.getheaders())

    def complete(self, name, prompt, max_tokens, key=None):
        return self.ask("POST", "/v1/completions", {
            "model": name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True}, key)

    def stream(self, name, prompt, max_tokens):
        """The events of a stream."""
        c = UnixConnection(self.uds, WAIT_S)
        with contextlib.closing(c):
            c.request("POST", "/v1/completions", json.dumps({
                "model": name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True, "stream": True}),
                {"Content-Type": "application/json",
                 "Authorization": "Bearer %s" % (self.key or "none")})
            for line in c.getresponse():
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if event.get("choices"):
                        yield event

    def states(self, key=None):
        return {m["id"]: m.get("state")
                for m in self.ask("GET", "/v1/models", key=key)[1]["data"]}

    def children(self):
        with open("/proc/%d/task/%d/children" % (self.proc.pid, self.proc.pid)) as f:
            for pid in f.read().split():
                with contextlib.suppress(OSError), open("/proc/%s/cmdline" % pid) as line:
                    yield int(pid), line.read()

    def fronts(self):
        return [pid for pid, line in self.children() if "quire-front" in line]

    def both(self, good):
        """nginx asks the two fronts in turn: is it so at both?"""
        return all(good() for _ in range(4))

    def engine(self, name):
        """The process of a model's engine."""
        for pid, line in self.children():
            if "quire-engine" in line and "/%s.sock" % name in line:
                return pid
        return None


def ids(answer):
    return answer[1]["choices"][0]["token_ids"] if answer[0] == 200 else answer[:2]


tap.section("each engine alone")
prompts = {name: [[rng.randrange(3, vocabulary(name)) for _ in range(rng.randrange(2, 40))]
                  for _ in range(5)] for name in NAMES}
folders = {name: folder(name) for name in NAMES}
alone = {}
for name in NAMES:
    with Served(folders[name]) as s:
        for i, prompt in enumerate(prompts[name]):
            alone[name, i] = ids(s.complete(name, prompt, 300 if i == 0 else 24))
tap.ok(all(isinstance(v, list) and len(v) >= 24 for v in alone.values()), "references",
       str([v for v in alone.values()][:1])[:200])

conf = os.path.join(work, "models")
os.makedirs(conf)
for name in NAMES:
    with open(os.path.join(conf, name + ".conf"), "w") as f:
        f.write("model = %s\n" % folders[name])
        if name == "granite":
            f.write("served_model_name = granite, stone\n")
with open(os.path.join(conf, "demo.conf"), "w") as f:
    f.write("model = %s\n" % MODEL)
with open(os.path.join(conf, "a-typo.conf"), "w") as f:
    f.write("model = %s\nmax_choices = many\n" % MODEL)
with open(os.path.join(conf, "nofolder.conf"), "w") as f:
    f.write("model = %s\n" % os.path.join(work, "missing"))
with open(os.path.join(conf, "nostart.conf"), "w") as f:
    f.write("model = %s\nkv_cache_dtype = nonsense\n" % folders["phi3"])
with open(os.path.join(conf, "notes.txt"), "w") as f:
    f.write("not a model\n")
with open(os.path.join(work, "admin"), "w") as f:
    f.write("operator-0123456789\n")
os.chmod(os.path.join(work, "admin"), 0o600)

with Served("--models-dir", conf, "--models-max", str(SEATS), "--api-key", "all", "--api-key",
            "some", "--admin-key-file", os.path.join(work, "admin"), key="all") as s:
    tap.section("before any request")
    tap.ok("models a-typo, cohere, demo, granite, mixtral, nofolder, nostart, olmo2, phi3;" in s.ready,
           "ready at once", s.ready + s.said()[-2000:])
    states = s.states()
    tap.eq([states[n] for n in NAMES + ["stone", "nofolder", "a-typo"]],
           ["stopped"] * 6 + ["failed"] * 2,
           "no engine runs, and two models cannot be read")
    tap.eq(s.ask("GET", "/health")[0], 200, "healthy")
    private = re.search(r"logs and sockets are in (\S+);", s.said()).group(1)

    def top(name):
        p = subprocess.run([QUIRE, "top", "--once", "--engine-socket",
                            os.path.join(private, "models", name + ".sock")], capture_output=True, text=True,
                           timeout=20)
        return p.returncode, p.stdout + p.stderr

    def wanted(name):
        text = s.ask("GET", "/metrics")[1]
        return [int(re.search(r'%s\{model_name="%s",engine="0"\} (\d)' % (metric, name), text).group(1))
                for metric in ("quire:engine_up", "quire:engine_wanted")]

    status, text = top("phi3")
    tap.ok(status == 0 and "does not run" in text, "quire top of a stopped engine", text)
    time.sleep(0.5)
    tap.eq((s.states()["phi3"], s.engine("phi3")), ("stopped", None), "does not start it")
    tap.eq(wanted("phi3"), [0, 0], "the engine is not up, and no request wants it: no alert")

    tap.section("the first request starts an engine")
    t = time.monotonic()
    tap.eq(ids(s.complete("phi3", prompts["phi3"][1], 24)), alone["phi3", 1], "the text")
    tap.note("started and answered in %.2f s" % (time.monotonic() - t))
    tap.ok(until(lambda: s.states()["phi3"] == "awake"), "awake")
    tap.ok(until(lambda: wanted("phi3") == [1, 1]), "its metrics say so")
    status, text = top("phi3")
    tap.ok(status == 0 and "running" in text and "does not run" not in text, "quire top shows it", text)
    status, text = top("olmo2")
    tap.ok("does not run" in text and s.engine("olmo2") is None, "another is not started by it", text)
    tap.eq(ids(s.complete("stone", prompts["granite"][1], 24)), alone["granite", 1], "an alias")

    tap.section("names and keys")
    status, body, _ = s.ask("POST", "/v1/completions", {"prompt": [5], "max_tokens": 1})
    tap.eq((status, body.get("model")), (200, "cohere"), "no name: the first that can be served")
    status, body, _ = s.complete("unknown", [5], 1)
    tap.eq((status, body["error"]["code"]), (404, "model_not_found"), "an unknown model")
    private = re.search(r"logs and sockets are in (\S+);", s.said()).group(1)
    with open(os.path.join(private, "models.map"), "w") as f:
        f.write('key2 "phi3,stone";\n')
    with open(os.path.join(private, "nginx-master.pid")) as f:
        nginx = int(f.read())

    def workers():
        with open("/proc/%d/task/%d/children" % (nginx, nginx)) as f:
            return set(f.read().split())

    before = workers()
    os.kill(nginx, signal.SIGHUP)
    # A worker with the old lists may accept until it has ended.
    tap.ok(until(lambda: workers() and not workers() & before), "nginx has read the lists")
    tap.ok(until(lambda: sorted(s.states("some")) == ["granite", "phi3", "stone"]),
           "a key sees its models", str(s.states("some")))
    tap.eq(len(s.states()), 10, "another one sees all")
    tap.eq(ids(s.complete("phi3", prompts["phi3"][2], 24, "some")), alone["phi3", 2],
           "it may use them")
    status, body, _ = s.complete("olmo2", [5], 1, "some")
    tap.eq((status, body["error"]["code"]), (404, "model_not_found"), "and no other")
    tap.eq(s.ask("GET", "/v1/models/olmo2", key="some")[0], 404, "nor see it")
    tap.eq(s.ask("POST", "/tokenize", {"model": "olmo2", "prompt": "a"}, "some")[0], 404,
           "nor its tokenizer")

    tap.section("a trace of requests that moves between models")
    lock = threading.Lock()
    wrong, slowest, n_done = [], 0.0, 0

    def one(job):
        global slowest, n_done
        name, i, n = job
        t = time.monotonic()
        got = ids(s.complete(name, prompts[name][i], n))
        with lock:
            n_done += 1
            slowest = max(slowest, time.monotonic() - t)
            if got != alone[name, i][:n]:
                wrong.append((job, got))

    jobs = []
    for phase in range(12):  # two models are in use at a time, and now and then another
        usual = rng.sample(NAMES, 2)
        jobs += [(rng.choice(usual) if rng.random() < 0.9 else rng.choice(NAMES),
                  rng.randrange(1, 5), rng.choice([1, 6, 24])) for _ in range(25)]
    t = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(one, jobs))
    took = time.monotonic() - t
    tap.eq(wrong[:2], [], "all %d texts are those of the engines alone" % len(jobs))
    tap.eq(n_done, 300, "no request is lost")
    tap.ok(took < 60, "in time", "%.1f s" % took)
    tap.note("%d requests in %.1f s, slowest %.2f s" % (n_done, took, slowest))

    tap.section("three models in constant use, two seats")
    jobs = [(NAMES[k % 3], 1 + k % 4, 24) for k in range(150)]
    t = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        list(pool.map(one, jobs))
    tap.eq(wrong[:2], [], "each gets its turn")
    tap.note("%d requests in %.1f s" % (len(jobs), time.monotonic() - t))
    woken = [float(v) for v in re.findall(r"engine: awake after ([0-9.]+) s", s.said())]
    fallen = [float(v) for v in re.findall(r"left the device, in ([0-9.]+) s", s.said())]
    tap.ok(len(woken) > 5 and len(fallen) > 5, "engines slept and woke",
           "%d %d" % (len(woken), len(fallen)))
    tap.note("%d wakes: mean %.3f s, longest %.2f s with the wait for a seat; %d sleeps: mean "
             "%.3f s, longest %.2f s" % (len(woken), sum(woken) / len(woken), max(woken),
                                         len(fallen), sum(fallen) / len(fallen), max(fallen)))
    tap.ok(until(lambda: [s.states()[n] for n in NAMES].count("awake") <= SEATS),
           "no more are awake than there are seats", str(s.states()))

    tap.section("a third model, while two are never idle")
    stop, busy = threading.Event(), {"cohere": 0, "granite": 0}

    def keep_busy(name):
        while not stop.is_set():
            one((name, 0, 300))
            with lock:
                busy[name] += 1

    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        loops = [pool.submit(keep_busy, name) for name in list(busy) * 4]
        tap.ok(until(lambda: min(busy.values()) > 0), "both are in use")
        waits = []
        for i in range(1, 4):
            t = time.monotonic()
            tap.eq(ids(s.complete("phi3", prompts["phi3"][i], 24)), alone["phi3", i], "it answers")
            waits.append(time.monotonic() - t)
            time.sleep(0.5)
        before = dict(busy)
        tap.ok(until(lambda: all(busy[n] > before[n] for n in busy)), "and the two go on")
        stop.set()
        for loop in loops:
            loop.result()
    tap.eq(wrong[:2], [], "with the right texts")
    tap.ok(max(waits) < 20, "within some seconds")
    tap.note("the third waited %s s; requests of the two: %s" %
             (", ".join("%.2f" % w for w in waits), busy))

    tap.section("an engine dies under load")
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        running = [pool.submit(s.complete, "mixtral", prompts["mixtral"][0], 300)
                   for _ in range(3)]
        others = [pool.submit(s.complete, "cohere", prompts["cohere"][1], 24) for _ in range(2)]
        pid, got = None, []
        for event in s.stream("mixtral", prompts["mixtral"][0], 300):
            got += event["choices"][0].get("token_ids") or []
            if len(got) > 5 and pid is None:
                pid = s.engine("mixtral")
                os.kill(pid, signal.SIGKILL)
        tap.eq(got, alone["mixtral", 0], "its stream goes on with the next engine")
        tap.ok(all(ids(r.result()) == alone["mixtral", 0] for r in running),
               "so do its other requests")
        tap.ok(all(ids(r.result()) == alone["cohere", 1] for r in others), "others notice nothing")
    tap.ok("engine mixtral was ended by signal 9" in s.said(), "it was killed")
    tap.ok(s.engine("mixtral") not in (None, pid), "and started again")

    tap.section("load and unload")
    status, body, _ = s.ask("POST", "/v1/models/load", {"model": "olmo2"}, "operator-0123456789")
    tap.eq((status, (body or {}).get("state")), (200, "awake"), "load")
    tap.ok(until(lambda: s.states()["olmo2"] == "awake"), "it is awake")
    status, body, _ = s.ask("POST", "/v1/models/unload", {"model": "olmo2"}, "operator-0123456789")
    tap.eq((status, (body or {}).get("state")), (200, "stopped"), "unload")
    tap.ok(until(lambda: s.engine("olmo2") is None), "its process has ended")
    tap.ok(until(lambda: s.states()["olmo2"] == "stopped"), "it is stopped")
    tap.eq(s.ask("POST", "/v1/models/unload", {"model": "olmo2"}, "operator-0123456789")[1],
           {"model": "olmo2", "state": "stopped"}, "again: no process is started for it")
    tap.eq(s.engine("olmo2"), None, "none was")
    tap.eq(ids(s.complete("olmo2", prompts["olmo2"][2], 24)), alone["olmo2", 2],
           "the next request starts it")
    status, body, _ = s.ask("POST", "/sleep?model=olmo2", {}, "operator-0123456789")
    tap.eq((status, (body or {}).get("state")), (200, "asleep"), "a sleep is another thing")
    pid = s.engine("olmo2")
    tap.ok(pid is not None, "its process stays")
    status, body, _ = s.ask("POST", "/v1/models/unload", {"model": "olmo2"}, "operator-0123456789")
    tap.eq((status, (body or {}).get("state")), (200, "stopped"), "one that sleeps ends, too")
    long = s.stream("phi3", prompts["phi3"][0], 300)
    got = next(long)["choices"][0]["token_ids"]
    tap.eq(s.ask("POST", "/v1/models/unload", {"model": "phi3"}, "operator-0123456789")[0], 409,
           "not while a request runs")
    for event in long:
        got += event["choices"][0].get("token_ids") or []
    tap.eq(got, alone["phi3", 0], "which is whole")
    before = s.said().count("an operator unloads the model")
    jobs = [(NAMES[k % 3], 1 + k % 4, 24) for k in range(60)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        done = pool.map(one, jobs)
        codes = [s.ask("POST", "/v1/models/unload", {"model": NAMES[k % 3]},
                       "operator-0123456789")[0] for k in range(30)]
        list(done)
    tap.ok(set(codes) <= {200, 409, 503}, "unloaded while requests come", str(codes))
    tap.eq(wrong[:2], [], "no request is lost")
    tap.note("%d of 30 ended an engine" % (s.said().count("an operator unloads the model") - before))
    tap.eq(s.ask("POST", "/v1/models/load", {"model": "olmo2"}, "all")[0], 401,
           "not with a client's key")

    tap.section("what is of all models")
    text = s.ask("GET", "/metrics")[1]
    tap.ok(all('quire:engine_up{model_name="%s",engine="0"}' % n in text for n in NAMES) and
           'vllm:num_requests_running{model_name="phi3",engine="0"}' in text,
           "metrics have the model's name", text[:300])
    tap.eq(s.ask("GET", "/tokenizer_info?model=demo")[0], 200, "a model in the query")
    tap.eq(s.ask("GET", "/tokenizer_info?model=none")[0], 404, "an unknown one")
    tap.eq(s.ask("GET", "/is_sleeping")[1], {"is_sleeping": False}, "an engine is awake")

    tap.section("forms, with each model's own vocabulary")
    for name in ("demo", "phi3", "demo"):
        status, body, _ = s.ask("POST", "/v1/completions", {
            "model": name, "prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0,
            "structured_outputs": {"regex": "[0-9]{4}"}})
        tap.ok(status == 200 and re.fullmatch("[0-9]{4}", body["choices"][0]["text"]), name,
               str(body)[:300])

    tap.section("KServe's protocol")
    v2 = "/v2/models/demo"
    status, body, _ = s.ask("POST", "/v1/completions", {
        "model": "demo", "prompt": ["The capital of", "A cat"], "max_tokens": 8,
        "temperature": 0})
    texts = [c["text"] for c in body["choices"]]
    tap.eq([s.ask("GET", p)[:2] for p in ("/v2/health/live", "/v2/health/ready", v2 + "/ready",
                                          v2 + "/versions/1/ready")],
           [(200, {"live": True}), (200, {"ready": True}),
            (200, {"name": "demo", "ready": True}), (200, {"name": "demo", "ready": True})],
           "health")
    tap.eq(s.ask("GET", "/v2")[1]["name"], "quire", "the server")
    tap.eq(s.ask("GET", v2)[1]["inputs"],
           [{"name": "text_input", "datatype": "BYTES", "shape": [-1]}], "the model")
    status, body, _ = s.ask("POST", v2 + "/infer", {
        "id": "7", "inputs": [{"name": "text_input", "shape": [2], "datatype": "BYTES",
                               "data": ["The capital of", "A cat"]}],
        "parameters": {"max_tokens": 8, "temperature": 0}})
    tap.eq((status, body), (200, {
        "model_name": "demo", "model_version": "1", "id": "7", "outputs": [
            {"name": "text_output", "datatype": "BYTES", "shape": [2], "data": texts}]}), "infer")
    status, body, _ = s.ask("POST", v2 + "/generate", {
        "text_input": "A cat", "parameters": {"max_tokens": 8, "temperature": 0}})
    tap.eq((status, body.get("text_output")), (200, texts[1]), "generate")
    for name, path, sent, want in (
            ("an unknown model", "/v2/models/none/generate", {"text_input": "a"}, 404),
            ("no model", "/v2/models/", {"text_input": "a"}, 404),
            ("an unknown verb", v2 + "/compile", {"text_input": "a"}, 404),
            ("numbers", v2 + "/infer", {"inputs": [{"name": "text_input", "datatype": "FP32",
                                                    "shape": [1], "data": [1.0]}]}, 400),
            ("no text", v2 + "/generate", {"text_input": 7}, 400),
            ("a stream", v2 + "/generate", {"text_input": "a", "parameters": {"stream": True}},
             400),
            ("a bad parameter", v2 + "/generate",
             {"text_input": "a", "parameters": {"temperature": -1}}, 400)):
        status, body, _ = s.ask("POST", path, sent)
        tap.ok(status == want and isinstance(body["error"], str), name, "%s %s" % (status, body))
    tap.eq(s.ask("GET", v2, key="some")[0], 404, "a model that the key may not use")

    tap.section("models that cannot be served")
    status, body, _ = s.complete("nofolder", [5], 1)
    tap.ok(status == 503 and "cannot read" in body["error"]["message"], "no folder", str(body))
    tap.eq(s.complete("a-typo", [5], 1)[0], 503, "no settings")
    t = time.monotonic()
    status, body, headers = s.complete("nostart", [5], 1)
    tap.ok(status == 503 and "cannot be started" in body["error"]["message"] and
           int(headers["Retry-After"]) > 0, "no engine", str(body))
    tap.note("refused after %.2f s" % (time.monotonic() - t))
    tap.ok("kv_cache_dtype" in s.said(), "the log has the reason")
    tap.eq(ids(s.complete("phi3", prompts["phi3"][3], 24)), alone["phi3", 3], "others are served")
    tap.eq(s.ask("GET", "/health")[0], 200, "and all is well")

tap.eq(s.proc.returncode, 0, "it ends in good order")
tap.eq((s.said().count("starts it again"), s.said().count("is started again"),
        "anitizer" in s.said()), (1, 0, False), "nothing died but the engine that was killed")

tap.section("models of the command line")
with Served(folders["phi3"], folders["olmo2"], "--models-max", "1") as s:
    tap.ok("(models phi3, olmo2;" in s.ready, "ready", s.ready)
    tap.eq([ids(s.complete(n, prompts[n][1], 24)) for n in ("phi3", "olmo2", "phi3")],
           [alone["phi3", 1], alone["olmo2", 1], alone["phi3", 1]], "they take turns")
tap.eq(s.proc.returncode, 0, "it ends in good order, too")

tap.section("files that come and go")
come = os.path.join(work, "come")
os.makedirs(come)


def put(name, text):
    """Write a model's file as careful programs do it: at once."""
    with open(os.path.join(come, "." + name), "w") as f:
        f.write(text)
    os.rename(os.path.join(come, "." + name), os.path.join(come, name))


put("phi3.conf", "model = %s\n" % folders["phi3"])
put("olmo2.conf", "model = %s\n" % folders["olmo2"])
with Served("--models-dir", come, "--models-max", "2") as s:
    fronts = s.fronts()
    tap.eq(sorted(s.states()), ["olmo2", "phi3"], "two models")
    tap.eq(s.complete("cohere", [5], 1)[0], 404, "no third one")
    stop, lost, n_others = threading.Event(), [], 0

    def others():
        global n_others
        while not stop.is_set():
            got = ids(s.complete("phi3", prompts["phi3"][1], 24))
            n_others += 1
            if got != alone["phi3", 1]:
                lost.append(got)

    thread = threading.Thread(target=others)
    thread.start()
    t = time.monotonic()
    put("cohere.conf", "model = %s\n" % folders["cohere"])
    tap.ok(until(lambda: s.both(lambda: s.complete("cohere", [5], 1)[0] == 200)), "a new file")
    tap.note("served after %.1f s" % (time.monotonic() - t))
    tap.eq(ids(s.complete("cohere", prompts["cohere"][1], 24)), alone["cohere", 1], "its text")
    tap.eq(s.states()["cohere"], "awake", "it is in the list")
    tap.eq(s.ask("GET", "/health")[1]["models"], 3, "and counted")
    put("bad.conf", "model = %s\nmax_choices = many\n" % folders["granite"])
    put("two words.conf", "model = %s\n" % folders["granite"])
    put("double.conf", "model = %s\nserved_model_name = cohere\n" % folders["granite"])
    tap.ok(until(lambda: s.both(lambda: s.complete("bad", [5], 1)[0] == 503)), "a bad file: 503")
    tap.ok(until(lambda: s.said().count("two models") + s.said().count(", too") >= 2),
           "a name that is taken is told", s.said()[-2000:])
    time.sleep(2.5)
    tap.eq([s.said().count(text) for text in (
        "model bad is not served", "two words.conf is left out",
        "model double is not served: model cohere has the name cohere, too")], [2, 3, 2],
        "each is told once by each front, the name by the server, too")
    tap.eq(sorted(s.states()), ["bad", "cohere", "olmo2", "phi3"], "they hinder no other")
    put("bad.conf", "model = %s\n" % folders["granite"])
    tap.ok(until(lambda: s.both(lambda: s.complete("bad", [5], 1)[0] == 200)), "the file is mended")
    tap.eq(ids(s.complete("bad", prompts["granite"][1], 24)), alone["granite", 1], "its text")
    put("olmo2.conf", "model = %s\nmax_num_seqs = 8\n" % folders["olmo2"])
    tap.ok(until(lambda: s.said().count("olmo2.conf has changed: its engine uses it when it starts next") == 2),
           "a change of a model that is served is told")
    pid = s.engine("cohere") or s.complete("cohere", [5], 1) and s.engine("cohere")
    got = []
    for event in s.stream("cohere", prompts["cohere"][0], 300):
        if not got:
            os.unlink(os.path.join(come, "cohere.conf"))
        got += event["choices"][0].get("token_ids") or []
    tap.eq(got, alone["cohere", 0], "a file is removed: its stream is whole")
    tap.ok(until(lambda: s.both(lambda: s.complete("cohere", [5], 1)[0] == 404)), "then 404")
    tap.ok(until(lambda: s.engine("cohere") is None), "its engine ends")
    tap.ok(until(lambda: "cohere.conf is gone: the model is served no more" in s.said()),
           "in good order")
    tap.eq(sorted(s.states()), ["bad", "olmo2", "phi3"], "it is in no list")
    tap.ok(until(lambda: s.both(lambda: 'model_name="cohere"' not in s.ask("GET", "/metrics")[1])),
           "nor among the metrics")
    put("cohere.conf", "model = %s\n" % folders["mixtral"])
    tap.ok(until(lambda: s.both(lambda: s.complete("cohere", [5], 1)[0] == 200)),
           "another file of its name")
    tap.eq(ids(s.complete("cohere", prompts["mixtral"][1], 24)), alone["mixtral", 1],
           "is another model")
    os.rename(come, come + "-away")
    time.sleep(2.2)
    os.rename(come + "-away", come)
    time.sleep(2.2)
    tap.eq(sorted(s.states()), ["bad", "cohere", "olmo2", "phi3"], "the folder was away")
    stop.set()
    thread.join()
    tap.eq(lost[:1], [], "another model's %d requests noticed nothing" % n_others)
    tap.ok(n_others > 20, "some were there")
    tap.eq(s.fronts(), fronts, "the fronts are the same processes")
tap.eq((s.proc.returncode, "anitizer" in s.said()), (0, False), "it ends in good order")

tap.section("a bound on memory")


def seats(folder):
    """The rows of the engines' table: socket, state, bytes."""
    with open(os.path.join(folder, "models/seats"), "rb") as f:
        table = f.read()
    for at in range(8, len(table), ROW.size):
        socket, state, _, _, _, _, _, _, taken, _ = ROW.unpack_from(table, at)
        if socket[0]:
            yield os.path.basename(socket.split(b"\0")[0]).decode()[:-5], state, taken


ROW = struct.Struct("<108s4I4x3Q2Q")
few = os.path.join(work, "few")
os.makedirs(few)
for name, size in (("cohere", 16), ("granite", 24), ("mixtral", 8), ("phi3", 40)):
    with open(os.path.join(few, name + ".conf"), "w") as f:
        f.write("model = %s\ncpu_kv_bytes = %dM\n" % (folders[name], size))
ROOM = 72 << 20
with Served("--models-dir", few, "--models-memory", str(ROOM), settings=[
        a for a in SETTINGS if a not in ("--cpu-kv-bytes", "16M", "--max-num-seqs", "16")]) as s:
    private = re.search(r"logs and sockets are in (\S+);", s.said()).group(1)
    seen, over, over_by = set(), [], threading.Event()

    def watch():
        while not over_by.is_set():
            with contextlib.suppress(OSError):
                held = [(n, taken or ROOM) for n, state, taken in seats(private) if state == 3]
                seen.add(tuple(sorted(n for n, _ in held)))
                if sum(taken for _, taken in held) > ROOM:
                    over.append(held)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    jobs = [(rng.choice(["cohere", "granite", "mixtral", "phi3"]), 1 + k % 4, 24)
            for k in range(120)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(one, jobs))
    over_by.set()
    watcher.join()
    tap.eq(wrong[:2], [], "%d texts are those of the engines alone" % len(jobs))
    tap.eq(over[:1], [], "never more than the bound are awake")
    tap.ok(any(len(names) > 1 for names in seen), "several are, as far as there is room", str(seen))
    told = {n: taken for n, _, taken in seats(private)}
    tap.ok(all(8 << 20 < taken < ROOM for taken in told.values()) and len(told) == 4,
           "each has told its use", str(told))
    tap.ok(told["phi3"] > told["cohere"] > told["mixtral"], "which differs", str(told))
    until(lambda: s.complete("phi3", [5], 1)[0] == 200)
    pid = s.engine("phi3")
    os.kill(pid, signal.SIGKILL)
    tap.ok(until(lambda: s.engine("phi3") is None), "an engine is killed")
    tap.eq([s.complete(n, [5], 1)[0] for n in ("cohere", "mixtral")], [200, 200], "others go on")
    tap.eq(ids(s.complete("phi3", prompts["phi3"][1], 24)), alone["phi3", 1], "it comes back")
    tap.eq({n: taken for n, _, taken in seats(private)}["phi3"], told["phi3"],
           "its use was still known")
tap.eq(s.proc.returncode, 0, "it ends in good order")
with Served(folders["phi3"], folders["olmo2"], "--models-memory", "17M") as s:
    tap.eq(ids(s.complete("phi3", prompts["phi3"][1], 24)), alone["phi3", 1],
           "too little for all pages: fewer")
with Served(folders["phi3"], folders["olmo2"], "--models-memory", "100K",
            settings=SETTINGS[:6]) as s:
    tap.eq(s.complete("phi3", [5], 1)[0], 503, "too little for the weights: refused")
    tap.ok("models_memory leaves" in s.said(), "with the reason", s.said()[-1000:])

tap.section("no seat in time")
with Served(folders["phi3"], MODEL, "--models-max", "1", "--wake-timeout-s", "1") as s:
    name = os.path.basename(MODEL)
    c = UnixConnection(s.uds, WAIT_S)
    c.request("POST", "/v1/completions", json.dumps({
        "model": name, "prompt": "A", "n": 8, "max_tokens": 1300, "stream": True,
        "ignore_eos": True}), {"Content-Type": "application/json"})
    long = c.getresponse()
    tap.eq(long.status, 200, "a long request runs")
    long.readline()
    t = time.monotonic()
    status, body, headers = s.complete("phi3", [5], 1)
    # The engine that is to start gives up at the same time as the front.
    tap.ok(status == 503 and body["error"]["code"] in ("engine_asleep", "engine_unavailable"),
           "refused: an engine to start", str(body))
    tap.ok(int(headers["Retry-After"]) > 0 and 0.9 < time.monotonic() - t < 5, "after a second",
           "%.2f s" % (time.monotonic() - t))
    long.close()
    c.close()
    tap.ok(until(lambda: s.complete("phi3", [5], 1)[0] == 200), "served once the other is idle")
tap.eq([f for f in os.listdir(work) if f.startswith("quire-serve")], [], "nothing is left")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
tap.note("CPU time %.1f s" % (used.ru_utime + used.ru_stime))
shutil.rmtree(work, ignore_errors=True)
tap.done()
