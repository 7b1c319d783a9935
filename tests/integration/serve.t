#!/usr/bin/env python3
"""Goal: quire serve is a whole server in the foreground: it answers and streams, goes on when its
engine is killed, says why it cannot start, and leaves neither processes nor folders. Method: the
program itself, with a runtime folder of the test's, which must be empty at the end."""

import contextlib
import glob
import http.client
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time

from harness import BUILDDIR, DEVICE, MODEL, SRCDIR, Stream, Supervised, Tap, free_port, need_nginx, until

need_nginx()
tap = Tap()
QUIRE = os.path.join(BUILDDIR, "quire")
SETTINGS = ["--device", DEVICE, "--cpu-threads", "2"] + \
    (["--num-pages", "8192"] if DEVICE == "cuda" else [])
WAIT_S = 60
runtime = tempfile.mkdtemp(prefix="quire-t-", dir="/tmp")
env = dict(os.environ, XDG_RUNTIME_DIR=runtime)


def children(pid):
    """The processes below one."""
    with contextlib.suppress(OSError):
        with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
            mine = [int(p) for p in f.read().split()]
        return mine + [q for p in mine for q in children(p)]
    return []


def program(pid):
    with contextlib.suppress(OSError):
        with open("/proc/%d/cmdline" % pid) as f:
            return f.read().split("\0")
    return [""]


def alive(pid):
    with contextlib.suppress(OSError):
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    return False


class Served:
    """quire serve, until it is ready or has ended."""

    def __init__(self, *args, key=None):
        self.key = key
        self.err = tempfile.TemporaryFile("w+")
        self.proc = subprocess.Popen([QUIRE, "serve", *map(str, args)], stdout=subprocess.PIPE,
                                     stderr=self.err, stdin=subprocess.DEVNULL, env=env, text=True)
        lines = queue.Queue()
        threading.Thread(target=lambda: [lines.put(x) for x in self.proc.stdout] + [lines.put("")],
                         daemon=True).start()
        self.ready = lines.get(timeout=WAIT_S)
        found = re.match(r"ready: (http://127\.0\.0\.1:(\d+)/v1|unix:\S+)  "
                         r"\(model (\S+); Ctrl-C ends it\)$", self.ready)
        self.url, port, self.model = found.groups() if found else ("", 0, "")
        self.port = int(port or 0)
        self.pids = children(self.proc.pid)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.end()
        for pid in [self.proc.pid] * (self.proc.poll() is None):
            os.kill(pid, signal.SIGKILL)

    def said(self):
        self.err.seek(0)
        return self.err.read()

    def end(self, sig=signal.SIGTERM):
        if self.proc.poll() is None:
            self.proc.send_signal(sig)
        return self.proc.wait(WAIT_S)

    def pid_of(self, name):
        return [p for p in children(self.proc.pid) if name in os.path.basename(program(p)[0])
                or name in program(p)[0]][0]

    def ask(self, method, path, body=None, **kw):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = "Bearer " + self.key
        c.request(method, path, json.dumps(body) if body else None, headers)
        return c, c.getresponse()

    def json(self, method, path, body=None):
        c, r = self.ask(method, path, body)
        with contextlib.closing(c):
            return r.status, json.loads(r.read())

    def body(self, **fields):
        return dict({"model": self.model, "temperature": 0, "messages": [
            {"role": "user", "content": "What is the capital of France?"}]}, **fields)

    def stream(self, body, on_piece=None):
        """The text of a stream, and whether it came to its end."""
        c, r = self.ask("POST", "/v1/completions", dict(body, stream=True))
        text, s = "", Stream(c, r, "/v1/completions")
        self.gap_s, last = 0, time.monotonic()  # the longest time without an event
        for event in s:
            self.gap_s, last = max(self.gap_s, time.monotonic() - last), time.monotonic()
            text += event["choices"][0]["text"] if event["choices"] else ""
            if on_piece:
                on_piece(text)
        return text, s.done


def refused(*args):
    """Status and last line of a start that fails."""
    p = subprocess.run([QUIRE, "serve", *map(str, args)], stdout=subprocess.PIPE, env=env,
                       stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=WAIT_S)
    return p.returncode, p.stderr


def story(**fields):
    return dict({"model": "demo", "prompt": "Tell me a short story.", "temperature": 0,
                 "max_tokens": 700, "ignore_eos": True}, **fields)


with tap.section("serve"), Served(MODEL, "--port", 0, "--served-model-name", "demo", "second",
                                  *SETTINGS) as s:
    tap.ok(s.port > 0, "one line says that it is ready, and where", s.ready + s.said())
    status, answer = s.json("POST", "/v1/chat/completions", s.body())
    tap.eq((status, answer["choices"][0]["message"]["content"]),
           (200, "The capital of France is Paris."), "it answers a chat without a key")
    tap.eq([m["id"] for m in s.json("GET", "/v1/models")[1]["data"]][:1], ["demo"],
           "under the name that was given")
    tap.eq(s.json("POST", "/v1/chat/completions", s.body(model="second"))[0], 200,
           "and the second name")
    c, r = s.ask("GET", "/ui/")
    page = r.read()
    tap.ok(r.status == 200 and b"main.js" in page and "a page for browsers: http://127.0.0.1:%d/" % s.port
           in s.said(), "a page for browsers, which is told", s.said())
    for name in ("main.js", "chat.js", "page.css"):
        with open(os.path.join(SRCDIR, "nginx", "page", name), "rb") as f:
            tap.ok(s.ask("GET", "/ui/" + name)[1].read() == f.read(), "its %s is that of nginx/page" % name)
    whole, done = s.stream(story())
    tap.ok(done and len(whole) > 500, "it streams", whole)
    tap.ok("engine: ready" in s.said(), "the engine's log is shown", s.said())

    engine, killed = s.pid_of("quire-engine"), []

    def kill_once(text):
        if len(text) > 100 and not killed:
            killed.append(engine)
            os.kill(engine, signal.SIGKILL)
    text, done = s.stream(story(), kill_once)
    tap.ok(killed and done and text == whole, "a stream survives kill -9 of the engine",
           "%r %r\n%s\n%s" % (killed, done, text, s.said()))
    tap.ok(s.gap_s > 0.9, "after a pause, while another engine starts", s.gap_s)
    tap.ok("engine was ended by signal 9 (Killed); it is started again" in s.said(),
           "which is told", s.said())
    tap.ok(s.pid_of("quire-engine") != engine, "another engine runs")
    front = s.pid_of("quire-front")
    os.kill(front, signal.SIGKILL)
    tap.ok(until(lambda: len([p for p in children(s.proc.pid)
                              if "quire-front" in program(p)[0] and p != front]) == 2, WAIT_S),
           "a front that dies is started again", s.said())
    tap.eq(s.json("POST", "/v1/chat/completions", s.body())[0], 200, "and requests go on")

    code, said = refused(MODEL, "--port", s.port, *SETTINGS)
    tap.eq((code, len(said.splitlines())), (1, 1), "a port in use: one line")
    tap.ok("port %d of 127.0.0.1 is in use" % s.port in said, "which says so", said)

    folders = glob.glob(runtime + "/*")
    tap.eq([(os.path.basename(f)[:12], oct(os.stat(f).st_mode & 0o777)) for f in folders],
           [("quire-serve-", "0o700")], "there is one private folder")
    memory = [a.split("=")[1] for a in program(s.pid_of("quire-engine"))
              if a.startswith("--kv-host-file=")]
    pids, begun, ended = children(s.proc.pid), threading.Event(), []
    reader = threading.Thread(target=lambda: ended.append(s.stream(story(), lambda t: begun.set())))
    reader.start()
    tap.ok(begun.wait(WAIT_S), "a stream begins")
    tap.eq(s.end(), 0, "SIGTERM ends it with status 0")
    reader.join(WAIT_S)
    tap.eq(ended, [(whole, True)], "after the stream, which is whole")
    tap.ok(len(pids) >= 5 and until(lambda: not any(map(alive, pids)), WAIT_S),
           "no process is left", [program(p) for p in pids if alive(p)])
    tap.eq([f for f in glob.glob(runtime + "/*") + [os.path.dirname(m) for m in memory]
            if os.path.exists(f)], [], "and no folder")

with tap.section("vLLM's spellings"):
    config = os.path.join(runtime, "quire.conf")
    with open(config, "w") as f:
        f.write("max_num_seqs = 8\n# a comment\nmax_logprobs = 3\n")
    with Served(MODEL, "--port=0", "--max-model-len", 512, "--block-size", 32, "--dtype", "auto",
                "--enable-prefix-caching", "--no-enable-expert-parallel", "--api-key", "sk-one",
                "--trust-remote-code", "--no-page", "--metrics-from", "127.0.0.2", "--config", config, *SETTINGS, key="sk-one") as s:
        tap.eq((s.ask("GET", "/ui/")[1].status, "browsers" in s.said()), (404, False), "--no-page: the API alone")
        seen = []
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=WAIT_S, source_address=(source, 0))
            c.request("GET", "/metrics")
            seen.append(c.getresponse().status)
            c.close()
        tap.eq(seen, [200, 200, 403], "--metrics-from lets an address read /metrics")
        tap.eq(s.model, "model", "the folder's name is the model's")
        tap.eq(s.json("GET", "/v1/models")[1]["data"][0]["max_model_len"], 512, "--max-model-len")
        tap.ok(re.search(r"pages of 32 tokens, up to 8 seq", s.said()),
               "--block-size, and the file of --config", s.said())
        tap.ok("--dtype has no effect" in s.said(), "what has no effect is told", s.said())
        tap.eq(s.json("POST", "/v1/chat/completions", s.body(logprobs=True, top_logprobs=4))[0],
               400, "the fronts read the file as well")
        s.key = None
        tap.eq(s.json("POST", "/v1/chat/completions", s.body())[0], 401, "--api-key")
        tap.eq(s.end(signal.SIGINT), 0, "Ctrl-C ends it with status 0")
    os.unlink(config)

with tap.section("vLLM's older spellings"):
    hub = os.path.join(runtime, "hub", "models--some--demo")
    os.makedirs(os.path.join(hub, "refs"))
    os.makedirs(os.path.join(hub, "snapshots"))
    with open(os.path.join(hub, "refs", "main"), "w") as f:
        f.write("0123abcd")
    os.symlink(MODEL, os.path.join(hub, "snapshots", "0123abcd"))
    env["HF_HUB_CACHE"] = os.path.join(runtime, "hub")
    with Served("some/demo", "--port=0", "--speculative-model", MODEL, "--num-speculative-tokens", 5,
                "--swap-space", 4, "--enforce-eager", "--disable-log-requests", *SETTINGS) as s:
        tap.eq(s.model, "some/demo", "a name of the hub is found in its cache, and is the model's name")
        tap.eq(s.json("POST", "/v1/chat/completions", s.body())[1]["choices"][0]["message"]["content"],
               "The capital of France is Paris.", "with a draft model")
        tap.ok("up to 5 drafts of " + MODEL in s.said(), "which the log names", s.said())
        tap.eq([o for o in ("swap-space", "enforce-eager", "disable-log-requests")
                if "--%s has no effect: " % o not in s.said()], [], "what has no effect is told")
        tap.eq(s.end(), 0, "it ends with status 0")
    for names in (["cs=/nowhere/cs", "fin=/nowhere/fin"], ["--max-loras=3"],
                  ['{"name": "cs", "path": "/nowhere/cs"}', '{"name": "fin", "path": "/nowhere/fin"}']):
        code, said = refused("--lora-modules", *(names if names[-1][0] != "-" else ["cs=/nowhere/cs"] + names), MODEL,
                             "--port=0", *SETTINGS)
        tap.ok(code == 1 and "LoRA adapter cs=/nowhere/cs: " in said, "adapters, as vLLM takes them: %s" % names, said)
    shutil.rmtree(os.path.join(runtime, "hub"))
    code, said = refused("some/demo")
    tap.ok(code == 2 and "hf download some/demo" in said, "a name that the cache has not: how to fetch it", said)
    del env["HF_HUB_CACHE"]

with tap.section("two nodes"):
    port, nodes = free_port(), ["--pipeline-parallel-size=2", "--nnodes=2", "--master-addr=localhost"]
    nodes.append("--master-port=%d" % port)
    other = Supervised([os.path.join(BUILDDIR, "quire-engine"), "--model=" + MODEL, "--node-rank=1", *nodes, *SETTINGS,
                        "--engine-socket=" + runtime + "/node1.sock"], os.path.join(runtime, "node1.log"))
    with Served(MODEL, "--port=0", "--served-model-name=demo", *nodes, *SETTINGS) as s:
        tap.eq(s.json("POST", "/v1/chat/completions", s.body())[1]["choices"][0]["message"]["content"],
               "The capital of France is Paris.", "quire serve is node 0 of a model on two nodes")
        was = other.pid
        other.kill(signal.SIGKILL)
        tap.ok(until(lambda: other.pid not in (0, was), WAIT_S), "the other one is killed, and started again")
        tap.eq(s.json("POST", "/v1/chat/completions", s.body())[1]["choices"][0]["message"]["content"],
               "The capital of France is Paris.", "and so is node 0: requests wait for both")
        tap.eq(s.end(), 0, "it ends with status 0")
    other.stop()
    for file in ("node1.sock", "node1.sock.adapters", "node1.log"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(runtime, file))
    code, said = refused(MODEL, "--nnodes=2", "--node-rank=1")
    tap.ok(code == 2 and "quire-engine alone" in said, "but not node 1", said)

with tap.section("the program itself"):
    for args, status, word in ((["--version"], 0, "quire "), (["--help"], 0, "quire serve"), (["-h"], 0, "quire serve"),
                               (["servee"], 2, 'is "serve" meant?'), (["dance"], 2, "see quire --help"),
                               ([], 2, "usage: "), (["serve", "-h"], 0, "usage: quire serve")):
        p = subprocess.run([QUIRE, *args], capture_output=True, text=True, timeout=WAIT_S)
        tap.ok(p.returncode == status and word in (p.stderr if status else p.stdout),
               "quire %s" % " ".join(args), p.stdout + p.stderr)

with tap.section("two engines, a unix socket"):
    with Served("--served-model-name", "twice", MODEL, "--uds", runtime + "/socket", "-dp", 2,
                "--api-key", "sk-one", *SETTINGS) as s:
        tap.eq((s.url, s.model), ("unix:%s/socket" % runtime, "twice"), "both are told")
        p = subprocess.run([QUIRE, "generate", "--url", s.url, "--api-key", "sk-one", "--prompt",
                            "What is the capital of France?", "--temperature", "0"],
                           capture_output=True, text=True, timeout=WAIT_S)
        tap.eq(p.stdout, "The capital of France is Paris.\n", "quire generate reaches it")
        tap.eq(len([p for p in s.pids if "quire-engine" in program(p)[0]]), 2, "two engines run")
        tap.eq(s.end(), 0, "it ends with status 0")

with tap.section("the options of docs/coming-from-vllm.md"):
    with open(os.path.join(SRCDIR, "docs", "coming-from-vllm.md")) as f:
        table = f.read().split("| vLLM option |")[1].split("\n\n")[0]
    options = [o for row in table.splitlines()[2:] for o in re.findall(r"`(--[a-z-]+)",
                                                                      row.split("|")[1])]
    unknown = [o for o in options if "unknown option" in refused("/nowhere", o + "=1")[1]]
    tap.ok(len(options) > 60, "the table has options", options)
    tap.eq(unknown, [], "each is taken, or the reason is told")

with tap.section("vLLM's options"):
    YARN = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}'
    for args, word in (
            (["--max-model-len", "1k"], "max_model_len 1000,"),
            (["--max-model-len", "1.5K"], "max_model_len 1536,"),
            (["--max-model-len", "auto"], "max_model_len 2048,"),
            (["--max-model-len=-1"], "max_model_len 2048,"),
            (["-O3"], "-O3 has no effect"),
            (["--no-async-scheduling"], "--no-async-scheduling has no effect"),
            (["--attention-backend", "FLASH_ATTN"], "has no effect: kernels"),
            (["--load-format", "safetensors", "--kv-cache-dtype", "bfloat16"], "model: ready"),
            (["--rope-theta", "1000000"], "hf_overrides replaces rope_theta"),
            (["--rope-scaling", YARN, "--max-model-len", "8k"], "max_model_len 8000,"),
            (["--hf-overrides", '{"rope_scaling": %s}' % YARN], "max_model_len 8192,"),
            (["--hf-overrides", '{"max_position_embeddings": 256}'], "max_model_len 256,"),
            (["--spec-method", "ngram", "--spec-tokens", "3"], "model: ready")):
        with Served(MODEL, "--port", 0, *args, *SETTINGS) as s:
            tap.ok(until(lambda: word in s.said() and "model: ready" in s.said(), WAIT_S),
                   "taken: " + " ".join(args), s.said())
    for args, word in (
            (["--kv-transfer-config", "{}"], "there are no connectors"),
            (["--max-model-len", "1.77777k"], "must be a whole number"),
            (["--rope-theta", "5", "--hf-overrides", "{}"], "--hf-overrides: give them there"),
            (["--spec-tokens", "3"], "belong together"),
            (["--quantization", "awq", "--port", 0, *SETTINGS], "is not the checkpoint's format"),
            (["--rope-scaling", YARN, "--max-model-len", "8193", "--port", 0, *SETTINGS],
             "more than the model's 8192"),
            (["--hf-overrides", "[]", "--port", 0, *SETTINGS], "hf_overrides: it must be a JSON")):
        code, said = refused(MODEL, *args)
        tap.ok(code != 0 and word in said, "refused: " + " ".join(map(str, args[:2])), said)

with tap.section("what cannot start"):
    folder = tempfile.mkdtemp(prefix="quire-t-")
    shutil.copy(os.path.join(MODEL, "config.json"), folder)
    for name, args, status, word in (
            ("no model", [], 2, "which model?"),
            ("a missing model", ["/nowhere/model"], 2, "no model at /nowhere/model"),
            ("a folder without a model", ["/"], 2, "config.json"),
            ("an unknown option", [MODEL, "--no-such-thing", "1"], 2, '"--no-such-thing"'),
            ("a mistyped option", [MODEL, "--max-model-lenn", "1"], 2, "is --max-model-len meant?"),
            ("half of a draft", [MODEL, "--num-speculative-tokens", "3"], 2, "--speculative-model"),
            ("a bad value", [MODEL, "--max-num-seqs", "many"], 2, "max_num_seqs"),
            ("a bad port", [MODEL, "--port", "70000"], 2, "--port"),
            ("a setting of its own", [MODEL, "--listen", "/x"], 2, "--listen"),
            ("a model twice", [MODEL, MODEL], 2, "two models have the name"),
            ("half of TLS", [MODEL, "--ssl-certfile", QUIRE], 2, "--ssl-keyfile")):
        code, said = refused(*args)
        tap.ok(code == status and word in said and len(said.splitlines()) == 1,
               "%s is refused in one line" % name, "%d\n%s" % (code, said))
    code, said = refused(folder, "--port", 0, *SETTINGS)
    tap.ok(code == 1 and re.search(r"(engine|front \d) ended with exit status \d.*; all is stopped",
                                   said), "a program that cannot start is named, with the reason",
           "%d\n%s" % (code, said))
    tap.ok("ERROR" in said, "after its log's lines", said)
    shutil.rmtree(folder)

with tap.section("killed"):
    with Served(MODEL, "--port", 0, *SETTINGS) as s:
        left, pids = glob.glob(runtime + "/*"), children(s.proc.pid)
        os.kill(s.proc.pid, signal.SIGKILL)
        tap.ok(until(lambda: not any(map(alive, pids)), WAIT_S),
               "its children end when it is killed", [program(p) for p in pids if alive(p)])
        tap.eq(len(left), 1, "its folder stays")
    with Served(MODEL, "--port", 0, *SETTINGS) as s:
        gone = set()

        def another():
            new = [p for p in children(s.proc.pid) if "quire-engine" in program(p)[0]]
            gone.update(new)
            for p in new:
                os.kill(p, signal.SIGKILL)
            return s.proc.poll()
        tap.eq(until(another, WAIT_S, 0.1), 1, "an engine that dies again and again ends it")
        tap.eq((len(gone), s.said().count("is started again")), (6, 5), "after five starts")
        tap.ok("again; all is stopped" in s.said(), "which is told", s.said())
    with Served(MODEL, "--port", 0, *SETTINGS) as s:
        tap.ok(s.port and not os.path.exists(left[0]), "and the next ones remove it", s.said())
        os.kill(s.pid_of("nginx"), signal.SIGKILL)
        tap.eq(s.proc.wait(WAIT_S), 1, "without nginx all is stopped, with status 1")
        tap.ok("nginx was ended by signal 9 (Killed); all is stopped" in s.said(), "and told",
               s.said())
    tap.ok(until(lambda: not any(map(alive, s.pids)), WAIT_S), "no process is left")

tap.eq(os.listdir(runtime), [], "nothing is left in the runtime folder")
shutil.rmtree(runtime)
tap.done()
