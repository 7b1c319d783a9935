#!/usr/bin/env python3
"""Five models behind one address with seats for two: what a request waits for when its engine has to
start, to wake, or to wait until another one sleeps; then a day's trace in a minute.

    builddir=BUILD tests/bench/models.py [--seats 2] [--seconds 60] [--share 0.45] [--host 1G]
        [--shapes 8b,3b,1b] [--device cuda]

Shapes are Llama's, weights random; prompts are token ids. In the trace two thirds of the requests
are for the model of the hour, the others for any of the five, two clients a model. Answers to the
same prompt are compared: on a GPU the last bits depend on what else a step has, and random weights
make near choices, so other texts are counted, not refused. Prints a line each; exit status 1: a
request was lost."""
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from servers import parse, parser, prompt  # and finds harness
from harness import BUILDDIR, MODEL, UnixConnection

SHAPES = {"8b": {}, "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24,
                           "num_hidden_layers": 28, "head_dim": 128, "tie_word_embeddings": True},
          "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
                 "head_dim": 64, "tie_word_embeddings": True}}
N_MODELS = 5

p = parser()
p.add_argument("--seats", type=int, default=2)
p.add_argument("--seconds", type=float, default=60, help="of the trace")
p.add_argument("--share", default="0.45", help="of the GPU's memory, for each engine")
p.add_argument("--host", default="1G", help="host tier of each model")
p.add_argument("--shapes", default="8b,3b,1b")
a = parse(p)
work = tempfile.mkdtemp(prefix="quire-bench-")
uds = os.path.join(work, "sock")
shapes = [(a.shapes.split(",") * N_MODELS)[i] for i in range(N_MODELS)]
NAMES = ["%s-%d" % (shape, i) for i, shape in enumerate(shapes)]


def write(name, shape):
    """A model's folder, and its file of settings."""
    folder, conf = os.path.join(work, "folders", name), os.path.join(work, "models")
    os.makedirs(folder)
    os.makedirs(conf, exist_ok=True)
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        config = dict(json.load(f), **SHAPES[shape])
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    for f in ("tokenizer.json", "tokenizer_config.json"):
        os.symlink(os.path.join(MODEL, f), os.path.join(folder, f))
    with open(os.path.join(conf, name + ".conf"), "w", encoding="utf-8") as f:
        f.write("model = %s\nkv_host_bytes = %s\n" % (folder, a.host))
    return conf


def call(method, path, body=None):
    with contextlib.closing(UnixConnection(uds, 120)) as c:
        c.request(method, path, json.dumps(body) if body else None,
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        return r.status, r.read().decode()


texts, others, lost, lock = {}, [], [], threading.Lock()


def ask(name, i, n=16):
    """Milliseconds to the first token, and to the last one of n."""
    began, first, ids = time.monotonic(), None, []
    with contextlib.closing(UnixConnection(uds, 120)) as c:
        c.request("POST", "/v1/completions", json.dumps(
            {"model": name, "prompt": prompt(i, 512), "max_tokens": n, "temperature": 0,
             "ignore_eos": True, "return_token_ids": True, "stream": True}),
            {"Content-Type": "application/json"})
        r = c.getresponse()
        for line in r if r.status == 200 else ():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                for choice in event.get("choices", ()):
                    ids += choice.get("token_ids") or []
                first = first or time.monotonic()
    with lock:
        if len(ids) != n:
            lost.append((name, i, r.status, len(ids)))
        elif texts.setdefault((name, i), ids) != ids:
            others.append((name, i))
    return ((first or time.monotonic()) - began) * 1e3, (time.monotonic() - began) * 1e3


def line(what, times):
    ms = sorted(times)
    if ms:
        print("%-44s %8.1f ms, the slowest %.1f (%d)" % (what, statistics.median(ms), ms[-1], len(ms)))
    sys.stdout.flush()


def states():
    return {m["id"]: m.get("state") for m in json.loads(call("GET", "/v1/models")[1])["data"]}


def one_by_one():
    """Each kind of waiting, alone. Models beyond the seats send others to sleep."""
    first, again, awake = [], [], []
    for name in NAMES:
        first.append(ask(name, 0)[0])
        awake.append(ask(name, 1)[0])
    line("the engine starts, another may have to sleep", first)
    line("awake, a new prompt", awake)
    for turn in range(3):
        for name in NAMES:
            again.append((name, ask(name, 2 + turn)[0]))
    for shape in dict.fromkeys(shapes):
        line("another sleeps, then this wakes: " + shape,
             [ms for name, ms in again if name.startswith(shape)])


def trace():
    """Two clients a model; the model of the hour changes every 12th of the time."""
    began, kinds = time.monotonic(), {"awake": [], "not awake": []}

    def client(seed):
        r = random.Random(seed)
        while time.monotonic() < began + a.seconds:
            hour = int((time.monotonic() - began) / a.seconds * 12)
            name = NAMES[hour * 2 % N_MODELS] if r.random() < 2 / 3 else r.choice(NAMES)
            state = states().get(name)
            ms = ask(name, r.randrange(40))[0]
            with lock:
                kinds["awake" if state == "awake" else "not awake"].append(ms)
            time.sleep(r.expovariate(1 / 0.4))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(2 * N_MODELS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    n = sum(len(v) for v in kinds.values())
    for kind, times in kinds.items():
        line("in the trace, %s when asked" % kind, times)
    print("%-44s %8d requests in %.0f s; of all %d lost, %d with another text than before"
          % ("the trace", n, a.seconds, len(lost), len(others)))


def metrics():
    """How often engines woke, and how long that took; the operators' view."""
    text = call("GET", "/metrics")[1]
    sums = {}
    for name, value in re.findall(r"^quire:engine_(wakes_total|wake_seconds_sum|wake_seconds_count|"
                                  r"sleeps_total)\{[^}]*\} ([0-9.e+-]+)$", text, re.M):
        sums[name] = sums.get(name, 0.0) + float(value)
    print("# " + ", ".join("%s %.2f" % item for item in sorted(sums.items())))


for name, shape in zip(NAMES, shapes):
    conf = write(name, shape)
settings = ["--load-format", "dummy", "--max-model-len", "4096", "--max-num-seqs", "32",
            "--gpu-memory-utilization", a.share, "--device", a.device]
with open(os.path.join(work, "log"), "w", encoding="utf-8") as err, subprocess.Popen(
        [os.path.join(BUILDDIR, "quire"), "serve", "--models-dir", conf, "--models-max", str(a.seats),
         "--uds", uds, *settings], stdout=subprocess.PIPE, stderr=err, text=True,
        env=dict(os.environ, XDG_RUNTIME_DIR=work)) as server:
    try:
        server.stdout.readline()
        one_by_one()
        trace()
        metrics()
        for text in lost[:5]:
            print("# lost: %s" % (text,))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
with open(os.path.join(work, "log"), encoding="utf-8") as f:
    print("".join("# " + text for text in f.read().splitlines(True)[-3:]), end="")
subprocess.run(["rm", "-rf", work], check=False)
sys.exit(1 if lost else 0)
