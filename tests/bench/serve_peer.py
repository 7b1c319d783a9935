#!/usr/bin/env python3
"""`quire bench serve` beside guidellm, another project's load generator: what both say of one server.

    tests/bench/serve_peer.py BUILD-FOLDER GUIDELLM [--model FOLDER] [--streams 2] [--rate 4]
                              [--requests 60] [--rounds 5] [--input 48] [--output 64]
                              [--loads streams,rate] [--mock MILLISECONDS] [serve's options]

GUIDELLM is that program, such as venv/bin/guidellm after `venv/bin/pip install guidellm`. Starts
`quire serve` with the demo model, then lets both send prompts of one kind at the same time, so that they
see the same server in the same state: each with a fixed number of streams, then each at a rate, as a
Poisson process. Of guidellm, which starts slowly, the requests count that fall into the other's run. A
line per measure: the medians over all requests of all rounds, in ms. ITL is the mean time between the
tokens of a request (guidellm's inter_token_latency, vLLM's TPOT); E2E ends with the last token.

With --mock the engine is one that plays a token to all requests each so many milliseconds
(mock_engine.c) behind nginx and two fronts, so its times do not depend on the load: then each load
generator has it alone, one after the other, at an even rate.

With fixed streams the next request of a client comes at once after an answer, thus at the end of a step,
or later, as the client is quick or slow; so the times of first tokens differ. At a rate they do not depend
on the client."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORDS = "a clever fox carried the lantern over an old bridge and told its story to the river".split()
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("build")
parser.add_argument("guidellm")
parser.add_argument("--model", default=os.path.join(TOP, "tools", "demo-model", "model"))
for name, preset in (("streams", 2), ("rate", 4), ("requests", 60), ("rounds", 5), ("input", 48), ("output", 64)):
    parser.add_argument("--" + name, type=float if name == "rate" else int, default=preset)
parser.add_argument("--loads", default="streams,rate")
parser.add_argument("--mock", type=float, default=0)
args, more = parser.parse_known_args()
quire = os.path.join(args.build, "quire")


def write_prompts(path):
    draw = random.Random(1)
    with open(path, "w") as f:
        for _ in range(args.requests):
            text = " ".join(draw.choice(WORDS) for _ in range(args.input))
            f.write(json.dumps({"prompt": text, "output_tokens": args.output,
                                "output_tokens_count": args.output}) + "\n")


def guidellm(url, prompts, out, load, n, key=None):
    """Begin a run of n requests."""
    return subprocess.Popen(
        [args.guidellm, "run", "--backend",
         "kind=openai_http,target=%s,model=demo,request_format=/v1/completions" % url.removesuffix("/v1") +
         (",api_key=" + key if key else ""),
         "--profile", "kind=concurrent,streams=%d" % args.streams if load == "streams" else
         "kind=%s,rate=%g" % ("constant" if args.mock else "poisson", args.rate),
         "--constraint", "kind=max_requests,count=%d" % n,
         "--tokenizer", "kind=huggingface_auto,model=" + args.model, "--data", "kind=json_file,path=" + prompts,
         "--output", "kind=json,path=" + out, "--disable-progress"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})


def quire_bench(url, prompts, out, load, key=None):
    subprocess.run(
        [quire, "bench", "serve", "--base-url", url, "--dataset-name", "custom", "--dataset-path", prompts,
         "--num-prompts", str(args.requests), "--ignore-eos", "--save-detailed", "--result", out, *(
             ["--max-concurrency", str(args.streams)] if load == "streams" else
             ["--request-rate", str(args.rate)]), *(["--burstiness", "1e6", "--api-key", key] if key else [])],
        check=True, stdout=subprocess.DEVNULL, timeout=600)


def of_quire(path):
    """[(begin, TTFT, ITL, E2E)] of the requests, in seconds of the monotonic clock and in ms."""
    with open(path) as f:
        r = json.load(f)
    assert r["failed"] == 0 and set(r["output_lens"]) == {args.output}, r["errors"]
    return [(begin, first * 1e3, sum(gaps) * 1e3 / (args.output - 1), (first + sum(gaps)) * 1e3)
            for begin, first, gaps in zip(r["start_times"], r["ttfts"], r["itls"])]


def of_guidellm(path):
    with open(path) as f:
        requests = json.load(f)["benchmarks"][0]["requests"]
    assert not requests["errored"] and {q["output_tokens"] for q in requests["successful"]} == {args.output}, \
        requests["errored"] or [q["output_tokens"] for q in requests["successful"]]
    ahead = time.time() - time.monotonic()
    # Its request_latency goes on until the connection is read to its end; vLLM's and quire's E2E end with the
    # last token.
    return [(q["request_start_time"] - ahead, q["time_to_first_token_ms"], q["inter_token_latency_ms"],
             q["time_to_first_token_ms"] + q["inter_token_latency_ms"] * (args.output - 1))
            for q in requests["successful"]]


def n_prompts(url):
    """Prompts that the server has computed so far."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=60) as r:
        return sum(float(n) for n in re.findall(r"^vllm:prompt_tokens_total\{.*\} (\S+)", r.read().decode(), re.M))


def one_round(url, folder, load):
    prompts, ours, theirs = (os.path.join(folder, x) for x in ("prompts.jsonl", "ours.json", "theirs.json"))
    before = n_prompts(url)
    other = guidellm(url, prompts, theirs, load, 2 * args.requests)
    while n_prompts(url) == before:
        if other.poll() is not None:
            sys.exit(other.stdout.read())
        time.sleep(0.1)
    quire_bench(url, prompts, ours, load)
    said = other.communicate(timeout=600)[0]
    if other.returncode != 0:
        sys.exit(said)
    mine = of_quire(ours)
    begin, end = min(x[0] for x in mine), max(x[0] for x in mine)
    return mine, [x for x in of_guidellm(theirs) if begin <= x[0] <= end]


def play():
    """A server whose engine plays tokens: it, its URL and a key."""
    path = os.path.join(TOP, "tests", "bench", "fronts")
    loader = importlib.machinery.SourceFileLoader("fronts", path)
    fronts = importlib.util.module_from_spec(importlib.util.spec_from_loader("fronts", loader))
    loader.exec_module(fronts)
    bench = fronts.Bench(os.path.abspath(args.build))
    with open(bench.path("nginx.conf"), "r+") as f:  # its port without TLS
        text = f.read().replace(" ssl http2", "")
        f.seek(0), f.truncate(), f.write(text)
    os.kill(bench.nginx.pid, signal.SIGHUP)
    with open(bench.times.name, "r+b") as f:
        f.write(int(args.mock * 1000).to_bytes(8, "little"))
    time.sleep(1)
    return bench, "http://127.0.0.1:%d/v1" % bench.port, fronts.harness.key(0)


def one_after_other(url, key, folder, load):
    prompts, ours, theirs = (os.path.join(folder, x) for x in ("prompts.jsonl", "ours.json", "theirs.json"))
    quire_bench(url, prompts, ours, load, key)
    other = guidellm(url, prompts, theirs, load, args.requests, key)
    said = other.communicate(timeout=600)[0]
    if other.returncode != 0:
        sys.exit(said)
    return of_quire(ours), of_guidellm(theirs)


def compare(url, folder, load, key=None):
    mine, others = [], []
    for _ in range(args.rounds):
        found = one_after_other(url, key, folder, load) if key else one_round(url, folder, load)
        mine, others = mine + found[0], others + found[1]
    print("%s each, %d and %d requests" % ("%d streams" % args.streams if load == "streams" else
                                           "%g requests a second" % args.rate, len(mine), len(others)))
    for k, name in enumerate(("TTFT", "ITL", "E2E"), 1):
        a, b = (statistics.median(x[k] for x in found) for found in (mine, others))
        print("  %-5s quire %8.3f  guidellm %8.3f  %+5.1f%%" % (name, a, b, 100 * (a / b - 1)), flush=True)


with tempfile.TemporaryDirectory(prefix="quire-peer-") as folder:
    write_prompts(os.path.join(folder, "prompts.jsonl"))
    if args.mock:
        bench, url, key = play()
        with bench:
            for load in args.loads.split(","):
                compare(url, folder, load, key)
        sys.exit(0)
    with open(os.path.join(folder, "log"), "w") as log:
        server = subprocess.Popen([quire, "serve", args.model, "--port=0", "--served-model-name=demo",
                                   "--no-enable-prefix-caching", *more],  # the first to ask has no disadvantage
                                  
                                  stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        found = re.match(r"ready: (\S+)  ", server.stdout.readline())
        if not found:
            sys.exit(open(os.path.join(folder, "log")).read())
        for load in args.loads.split(","):
            compare(found.group(1), folder, load)
    finally:
        server.terminate()
        server.wait(60)
