#!/usr/bin/env python3
"""200 concurrent streams through nginx on two cores, each complete and in order; a client that
stops reading harms no other; a full server says 429 before any byte; an idle one is idle."""

import json
import os
import signal
import socket
import time

from harness import LONG, Stack, Tap, cpu_seconds, crowd, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
N = 200 if LONG else 100
N_SLOW = 600 if LONG else 400  # tokens of each choice of a slow reader


def numbers(text):
    """How far a text counts in order: '1, 2, 3, ...'."""
    got = text.rstrip(".").split(", ")
    return got == [str(i + 1) for i in range(len(got))] and len(got)


with tap.section("many streams"), Stack() as s:
    def one(i):
        # Each waits a little of its own: admissions and ends do not fall together.
        time.sleep((i % 20) * 0.01)
        return s.stream(chat, s.chat("Count from 1 to 20.", max_tokens=100 + i % 3,
                                     stream_options={"include_usage": True}))
    want = one(0).text
    began = time.monotonic()
    cpu = [cpu_seconds(p) for p in (s.engine.pid, s.fronts[0].pid, s.fronts[1].pid)]
    told = crowd(N, one, 100)
    took = time.monotonic() - began
    cpu = [cpu_seconds(p) - c for p, c in
           zip((s.engine.pid, s.fronts[0].pid, s.fronts[1].pid), cpu)]
    tokens = sum(t.usage["completion_tokens"] for t in told if getattr(t, "usage", None))
    tap.eq(sum(getattr(t, "done", False) for t in told), N, "%d streams are complete" % N)
    tap.ok(all(numbers(t.text[0]) == 20 for t in told), "each counts to 20 in order")
    tap.ok(all(t.text == want for t in told), "each as alone")
    ids = [set(e["id"] for e in t.events) for t in told]
    tap.ok(all(len(i) == 1 for i in ids) and len(set.union(*ids)) == N,
           "one id a stream, %d different" % N)
    tap.note("%.1f s, %d tokens; CPU seconds: engine %.2f, fronts %.2f + %.2f" %
             (took, tokens, *cpu))
    tap.ok(s.idle(), "idle afterwards")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "every page came back")

    # A client that goes away.
    with_stream = [s.open_stream(chat, s.chat("Count from 1 to 100.", max_tokens=1500,
                                              ignore_eos=True)) for _ in range(6)]
    for k in with_stream:
        k.response.readline()
    tap.ok(until(lambda: s.metric("vllm:num_requests_running") == 6), "six streams run")
    said = s.metric("vllm:generation_tokens_total")
    for k in with_stream:
        k.connection.sock.shutdown(socket.SHUT_RDWR)
        k.close()
    gone = until(lambda: s.metric("vllm:num_requests_running") == 0)
    tap.ok(gone, "disconnects free the sequences")
    said = s.metric("vllm:generation_tokens_total") - said
    tap.ok(said < 6 * 1400, "before they have said all (%d tokens more)" % said)

    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "and their pages")

    # One that waits for a whole answer and goes away.
    k = s.connect()
    k.request("POST", chat, json.dumps(s.chat("Hello", max_tokens=1500, ignore_eos=True)),
              {"Authorization": s.bearer()})
    tap.ok(until(lambda: s.metric("vllm:num_requests_running") == 1), "one request runs")
    k.sock.shutdown(socket.SHUT_RDWR)
    k.close()
    tap.ok(until(lambda: s.metric("vllm:num_requests_running") == 0, 3),
           "a disconnect without streaming frees it as well")

with tap.section("idle"), Stack() as s:
    s.post(chat, s.chat("Hello", max_tokens=20))
    time.sleep(1)
    pids = [s.engine.pid] + [f.pid for f in s.fronts]
    before = [cpu_seconds(p) for p in pids]
    began = time.monotonic()
    time.sleep(6)
    used = sum(cpu_seconds(p) for p in pids) - sum(before)
    share = 100 * used / (time.monotonic() - began)
    tap.ok(share < 1.0, "idle engine and fronts use %.2f %% of a core" % share)
    # An engine that is away costs little as well.
    s.engine.hold()
    s.engine.kill()
    time.sleep(0.5)
    pids = [f.pid for f in s.fronts]
    before = sum(cpu_seconds(p) for p in pids)
    time.sleep(3)
    share = 100 * (sum(cpu_seconds(p) for p in pids) - before) / 3
    tap.ok(share < 5.0, "fronts that look for an engine use %.2f %% of a core" % share)
    s.engine.release()

# Small buffers everywhere, so that a client that reads nothing is felt: nginx takes what fits its
# own buffers and the sockets', then the front must hold back.
with tap.section("client that stops reading"), Stack(front=["--client-stall-s", 3]) as s:
    # Some 250 bytes an event: 1900 tokens are half a megabyte, more than all buffers together
    # when four prompts share a stream.
    many = {"model": "demo", "temperature": 0, "ignore_eos": True, "max_tokens": 1900,
            "prompt": ["Count"] * 8}
    data = json.dumps(dict(many, stream=True)).encode()
    stuck = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stuck.connect(s.socket)
    stuck.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nAuthorization: " +
                  s.bearer().encode() + b"\r\nContent-Type: application/json\r\n"
                  b"Content-Length: %d\r\n\r\n" % len(data) + data)
    tap.ok(until(lambda: s.metric("vllm:num_requests_running") == 8), "the stuck client's run")
    want = None
    for turn in range(3):
        told = crowd(16, lambda i: s.stream(chat, s.chat("Count from 1 to 20.", max_tokens=100)))
        tap.ok(all(t.done and numbers(t.text[0]) == 20 for t in told),
               "others finish meanwhile, turn %d" % turn)
    dropped = until(lambda: s.metric("vllm:num_requests_running") == 0, 40)
    tap.ok(dropped, "the stuck client is dropped after --client-stall-s", s.logs())
    aborted = s.metrics()['vllm:request_success_total{model_name="demo",engine="0",'
                          'finished_reason="abort"}']
    tap.ok(aborted > 0, "its sequences count as aborted (%d)" % aborted)
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "its pages are back")
    stuck.close()

    # A slow one that reads on gets everything.
    slow = s.open_stream("/v1/completions", dict(many, prompt=["Count"] * 2, max_tokens=N_SLOW),
                         receive_bytes=2048)
    n, text = 0, {0: "", 1: ""}
    for event in slow:
        for c in event["choices"]:
            text[c["index"]] += c["text"]
        n += 1
        if n % 100 == 0:
            time.sleep(0.2)
    quick = s.post("/v1/completions", dict(many, prompt=["Count"] * 2, max_tokens=N_SLOW))
    tap.ok(slow.done, "a slow reader gets its [DONE]")
    tap.eq([text[0], text[1]], [c["text"] for c in quick.json["choices"]], "and the whole text")


def refusals(replies):
    return [r for r in replies if getattr(r, "status", 0) == 429]


def check_full(s, name, n, n_min_refused):
    body = s.chat("Count from 1 to 100.", max_tokens=300)
    want = s.post(chat, body).json["choices"]
    plain = crowd(n, lambda i: s.post(chat, body))
    refused = refusals(plain)
    served = [r for r in plain if getattr(r, "status", 0) == 200]
    tap.ok(len(refused) >= n_min_refused and len(refused) + len(served) == n,
           "%s: %d served, %d refused" % (name, len(served), len(refused)),
           [getattr(r, "status", r) for r in plain])
    tap.ok(all(r.json["choices"] == want for r in served), name + ": the accepted ones complete")
    tap.ok(all(int(r.headers.get("Retry-After", 0)) >= 1 for r in refused),
           name + ": 429 has Retry-After")
    tap.ok(all(set(r.error) == {"message", "type", "param", "code"} and
               r.error["code"] == "rate_limit_exceeded" for r in refused),
           name + ": in OpenAI's shape", refused and refused[0].text)
    told = crowd(n, lambda i: s.stream(chat, body))
    tap.ok(all((t.status == 429 and not t.events) or (t.done and t.finish) for t in told),
           name + ": a stream is refused before its first byte or whole",
           [(t.status, t.done, t.error) for t in told])
    tap.ok(any(t.status == 429 for t in told), name + ": streams are refused, too")
    tap.ok(s.idle(), name + ": idle afterwards")
    tap.eq(s.post(chat, body).status, 200, name + ": and serves again")


with tap.section("slots are full"), Stack(engine=["--lane-slots", 4], n_fronts=1) as s:
    check_full(s, "4 slots", 24, 8)
with tap.section("queue is full"), \
        Stack(engine=["--max-num-queued-reqs", 4, "--max-num-seqs", 2]) as s:
    check_full(s, "queue of 4", 24, 8)
    tap.ok(s.metric("quire:requests_rejected_total") > 0, "the metric counts refusals")
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
