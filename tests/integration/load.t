#!/usr/bin/env python3
"""Goal: quire bench serve sends what was asked for, and its figures are those of the answers.
Method: a whole server with the demo model for every kind of request, up to 200 at once; and a
server of the test's own that answers at known times, or breaks off, so that times to the token,
gaps, goodput and reasons of failures are known beforehand."""

import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import threading
import time

from harness import BUILDDIR, DEVICE, MODEL, Tap, need_nginx

need_nginx()
tap = Tap()
QUIRE = os.path.join(BUILDDIR, "quire")
folder = tempfile.TemporaryDirectory(prefix="quire-t-")


def bench(url, *args, rc=0):
    """The table and the JSON of a run."""
    path = os.path.join(folder.name, "result.json")
    if os.path.exists(path):
        os.unlink(path)
    p = subprocess.run([QUIRE, "bench", "serve", "--url", url, "--result", path,
                        *map(str, args)], capture_output=True, text=True, timeout=300)
    if p.returncode != rc:
        print("# ended with %d: %s" % (p.returncode, p.stderr[-500:]))
    if not os.path.exists(path):
        return p, {}
    with open(path) as f:
        return p, json.load(f)


class Timed(threading.Thread):
    """A server whose answers have the times that `plan` says: (seconds before it, bytes) each."""

    def __init__(self, plan):
        super().__init__(daemon=True)
        self.plan, self.bodies = plan, []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        self.start()

    def run(self):
        while True:
            conn, _ = self.socket.accept()
            threading.Thread(target=self.answer, args=(conn,), daemon=True).start()

    def answer(self, conn):
        text = b""
        while b"\r\n\r\n" not in text:
            more = conn.recv(65536)
            if more == b"":
                return  # only looked whether there is a server
            text += more
        head, body = text.split(b"\r\n\r\n", 1)
        n = int(re.search(rb"Content-Length: (\d+)", head).group(1))
        while len(body) < n:
            body += conn.recv(65536)
        self.bodies.append((time.monotonic(), json.loads(body)))
        for pause, piece in self.plan:
            time.sleep(pause)
            conn.sendall(piece)
        conn.close()


def chunk(text):
    return b"%x\r\n%s\r\n" % (len(text), text)


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PART = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}\n\n'
END = chunk(USAGE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

# --- known times ------------------------------------------------------------------------------

timed = Timed([(0.1, HEAD), (0.1, chunk(PART)), (0.05, chunk(PART[:20])), (0.05, chunk(PART[20:])),
               (0.3, chunk(PART)), (0, b""), (0.1, chunk(PART)), (0.1, chunk(PART) + END)])
p, r = bench(timed.url, "--model", "m", "--num-prompts", 4, "--max-concurrency", 2,
             "--random-input-len", 5, "--random-output-len", 3, "--save-detailed", "--goodput",
             "ttft:2000", "tpot:1500")
tap.ok(p.returncode == 0 and r["completed"] == 4 and r["failed"] == 0, "four answers end")
tap.ok(200 <= r["median_ttft_ms"] < 500, "TTFT is until the first part (%.1f ms)"
       % r["median_ttft_ms"])
tap.ok(300 <= r["max_itl_ms"] < 900 and 90 < r["median_itl_ms"] < 250,
       "the largest gap is the one of 300 ms (%.1f; median %.1f)"
       % (r["max_itl_ms"], r["median_itl_ms"]))
tap.ok(150 <= r["median_tpot_ms"] < 300, "TPOT is by the tokens of the usage (%.1f ms)"
       % r["median_tpot_ms"])
tap.ok(800 <= r["median_e2el_ms"] < 1500, "E2E is until the last part (%.1f)" % r["median_e2el_ms"])
tap.ok(r["total_input_tokens"] == 28 and r["total_output_tokens"] == 20, "tokens are the server's")
tap.ok(1.6 <= r["duration"] < 4 and abs(r["output_throughput"] - 20 / r["duration"]) < 1e-6,
       "two at a time take two rounds (%.2f s)" % r["duration"])
tap.ok(abs(r["request_goodput"] - 4 / r["duration"]) < 1e-6, "all have met the goals")
tap.ok(all(len(x) == 4 for x in r["itls"]) and len(r["ttfts"]) == 4 and
       abs(statistics.mean(r["ttfts"]) * 1e3 - r["mean_ttft_ms"]) < 0.01,
       "the details are the times of the means")
tap.ok(r["max_output_tokens_per_s"] >= 8 and r["max_concurrent_requests"] == 2 and
       len(r["start_times"]) == 4, "and what was the most in a second and at once")
tap.ok("ttft" in p.stdout.lower() and "this client" in p.stdout, "the table is there")
body = timed.bodies[0][1]
tap.ok(len(body["prompt"]) == 5 and body["max_tokens"] == 3 and body["stream"] is True and
       body["model"] == "m" and "ignore_eos" not in body, "the request is as asked for")
tap.eq(len({tuple(b["prompt"]) for _, b in timed.bodies}), 4, "and prompts differ")
p, r = bench(timed.url, "--model", "m", "--num-prompts", 2, "--goodput", "ttft:150")
tap.ok(r["request_goodput"] == 0, "none meets a goal of 150 ms")

# --- rates ------------------------------------------------------------------------------------

quick = Timed([(0, HEAD + chunk(PART) + END)])
for seed in (1, 1, 2):
    p, r = bench(quick.url, "--model", "m", "--num-prompts", 60, "--request-rate", 40, "--seed",
                 seed, "--ignore-eos", "--random-range-ratio", 0.5, "--random-output-len", 100,
                 "--extra-body", '{"top_k": 3}')
sent = quick.bodies
runs = [sent[:60], sent[60:120], sent[120:]]
gaps = [b[0] - a[0] for run in runs for a, b in zip(run, run[1:])]
# A loaded machine sends some of them late, but not all: the mean stays.
tap.ok(0.7 < statistics.mean(gaps) * 40 < 1.5, "40 a second come %.1f ms apart"
       % (statistics.mean(gaps) * 1e3))
tap.ok(0.6 < statistics.stdev(gaps) / statistics.mean(gaps) < 4,  # a stalled machine: many at once
       "unevenly, as a Poisson process: the deviation is %.2f of the mean"
       % (statistics.stdev(gaps) / statistics.mean(gaps)))
same = [sorted(json.dumps(b) for _, b in run) for run in runs]
tap.ok(same[0] == same[1] and same[0] != same[2], "a seed repeats the requests")
lens = [b["max_tokens"] for run in runs for _, b in run]
tap.ok(50 <= min(lens) < 60 and 140 < max(lens) <= 150, "lengths are within the ratio (%d to %d)"
       % (min(lens), max(lens)))
tap.ok(all(b["ignore_eos"] is True and b["top_k"] == 3 for _, b in sent), "fields are passed on")

# --- failures ---------------------------------------------------------------------------------

MESSAGE = b'{"error": {"message": "too many", "type": "x", "code": 429}}'
for what, plan, why in (
        ("a refusal", [(0, b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: %d\r\n\r\n"
                        % len(MESSAGE) + MESSAGE)], "status 429: too many"),
        ("a stream that is cut", [(0, HEAD + chunk(PART))], "closed the connection"),
        ("one without its end", [(0, HEAD + chunk(PART) + b"0\r\n\r\n")], "the stream was cut"),
        ("an error in the stream", [(0, HEAD + chunk(PART) + chunk(b"data: " + MESSAGE + b"\n\n") +
                                     b"0\r\n\r\n")], "too many"),
        ("what is not HTTP", [(0, b"SSH-2.0-OpenSSH\r\n\r\n")], "not HTTP"),
        ("a whole answer", [(0, b"HTTP/1.0 200 OK\r\n\r\n" + PART + USAGE + b"data: [DONE]\n\n")],
         None)):
    p, r = bench(Timed(plan).url, "--model", "m", "--num-prompts", 3, "--save-detailed",
                 rc=0 if why is None else 1)
    tap.ok(p.returncode == (0 if why is None else 1) and r["failed"] == (0 if why is None else 3)
           and (why is None or ("failed      3: " in p.stdout and why in p.stdout)),
           "%s: %s" % (what, why))
p, r = bench("http://127.0.0.1:9", "--model", "m", "--num-prompts", 2, rc=1)
tap.ok(p.returncode == 1 and "Connection refused" in p.stdout, "without a server both fail")
for args in (["--request-rate", "0"], ["--random-range-ratio", "2"], ["--goodput", "itl:3"],
             ["--num-prompts", "0"], ["--dataset-name", "sharegpt"], ["--backend", "x"],
             ["--metric-percentiles", "101"], ["--no-such"], ["word"], ["--url", "https://x"]):
    p = subprocess.run([QUIRE, "bench", "serve", *args], capture_output=True, text=True, timeout=30)
    tap.ok(p.returncode == 2 and p.stderr != "", "refused: " + " ".join(args))

# --- the demo model ---------------------------------------------------------------------------

log = open(os.path.join(folder.name, "serve.log"), "w+")
server = subprocess.Popen([QUIRE, "serve", MODEL, "--device", DEVICE, "--cpu-threads", "2",
                           "--port", "0"], stdout=subprocess.PIPE, stderr=log, text=True,
                          env=dict(os.environ, XDG_RUNTIME_DIR=folder.name))
try:
    url = re.match(r"ready: (http://127\.0\.0\.1:\d+)/v1", server.stdout.readline()).group(1)
    p, r = bench(url, "--num-prompts", 200, "--random-input-len", 32, "--random-output-len", 8,
                 "--ignore-eos", "--num-warmups", 2)
    tap.ok(p.returncode == 0 and r["completed"] == 200 and r["total_output_tokens"] == 1600 and
           r["total_input_tokens"] == 6400, "200 at once: every token is counted")
    tap.ok(r["max_concurrent_requests"] > 100, "%d of them were open together"
           % r["max_concurrent_requests"])
    p, r = bench(url, "--num-prompts", 20, "--dataset-name", "sharegpt-like", "--ignore-eos",
                 "--max-concurrency", 8, "--extra-body", '{"max_tokens": 5}')
    tap.ok(p.returncode == 0 and r["completed"] == 20, "lengths as people have them")
    p, r = bench(url, "--num-prompts", 10, "--backend", "openai-chat", "--random-input-len", 20,
                 "--random-output-len", 6, "--max-concurrency", 5)
    tap.ok(p.returncode == 0 and r["completed"] == 10 and r["backend"] == "openai-chat", "chats")
    path = os.path.join(folder.name, "sharegpt.json")
    ask = "What is the capital of %s? Please answer in one sentence."
    people = [{"id": "a", "conversations": [
        {"from": "human", "value": ask % "France"},
        {"from": "gpt", "value": "The capital of France is Paris, \"of course\" {."}]},
        {"conversations": [{"from": "human", "value": "no answer"}]},
        {"messages": [{"role": "system", "content": "short"},
                      {"role": "user", "content": ask % "Spain"},
                      {"role": "assistant", "content": "The capital of Spain is Madrid."}]},
        {"conversations": [{"from": "human", "value": "word " * 5000},
                           {"from": "gpt", "value": "too long to be taken, that is"}]},
        {"prompt": ask % "Italy", "output_tokens": 9}]
    for form, text in (("a list", json.dumps(people)),
                       ("lines", "".join(json.dumps(x) + "\n" for x in people))):
        with open(path, "w") as f:
            f.write(text)
        p, r = bench(url, "--dataset-path", path, "--num-prompts", 9, "--ignore-eos",
                     "--max-concurrency", 3, "--save-detailed")
        tap.ok(p.returncode == 0 and r["completed"] == 9 and "used again" in p.stderr and
               sorted(r["output_lens"])[0] >= 4 and len(set(r["output_lens"])) == 3,
               "%s of conversations, lengths counted by the server: %s"
               % (form, sorted(r.get("output_lens", []))))
    tap.ok("estimated" not in p.stdout, "none of them is an estimate")
    with open(path, "w") as f:
        f.write('[{"conversations": []}]')
    p, r = bench(url, "--dataset-path", path, "--num-prompts", 2, rc=1)
    tap.ok(p.returncode == 1 and "no prompt" in p.stderr, "a file without prompts is refused")
finally:
    server.terminate()
    server.wait(timeout=30)
tap.done()
