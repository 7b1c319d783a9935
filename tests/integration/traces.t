#!/usr/bin/env python3
"""Goal: a span per request reaches a collector of OpenTelemetry, with the caller's trace continued, right
numbers and no text; and no state of the collector delays a request, while what is lost is counted. Method:
a small collector in Python that reads each export strictly, and is down, slow, refuses and hangs; nginx's
way to it."""

import concurrent.futures
import contextlib
import http.server
import json
import os
import re
import socket
import subprocess
import threading
import time

from harness import BUILDDIR, SRCDIR, Stack, Supervised, Tap, find_nginx, free_port, need_nginx, until

need_nginx()
tap = Tap()
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SECRET = "a lighthouse keeper named Ottilie"
KINDS = {"stringValue": str, "intValue": str, "doubleValue": (int, float)}


class Collector:
    """Answers with .status; .hangs: not at all."""

    def __init__(self, port=None):
        self.spans, self.bodies, self.wrong, self.n_posts = [], [], [], 0
        self.status, self.hangs = 200, threading.Event()
        self.lock = threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                while outer.hangs.is_set():
                    time.sleep(0.05)
                with outer.lock:
                    outer.n_posts += 1
                    if outer.status == 200:
                        outer.take(self.path, self.headers, body)
                with contextlib.suppress(OSError):  # after a hang there is no listener
                    self.send_response(outer.status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self.server = Server(("127.0.0.1", port or 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, headers, body):
        """Read an ExportTraceServiceRequest as the JSON encoding of OTLP 1.x defines it."""
        self.bodies.append(body)
        try:
            assert path == "/v1/traces" and headers["Content-Type"] == "application/json"
            for resource in json.loads(body)["resourceSpans"]:
                of = attributes(resource["resource"])
                assert of["service.name"] == "quire" and of["service.version"]
                for scope in resource["scopeSpans"]:
                    assert scope["scope"]["name"] == "quire.front"
                    for span in scope["spans"]:
                        assert set(span) <= {"traceId", "spanId", "parentSpanId", "traceState", "name", "kind",
                                             "startTimeUnixNano", "endTimeUnixNano", "attributes", "status"}
                        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and set(span["traceId"]) != {"0"}
                        assert re.fullmatch("[0-9a-f]{16}", span["spanId"]) and set(span["spanId"]) != {"0"}
                        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
                        assert span["kind"] == 2 and span["name"] == "llm_request"
                        span["at"] = attributes(span)
                        self.spans.append(span)
        except (AssertionError, KeyError, ValueError) as e:
            self.wrong.append((repr(e), body[:500]))

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def find(self, request_id, wait_s=15):
        def found():
            with self.lock:
                return [s for s in self.spans if s["at"]["gen_ai.request.id"] == request_id]
        until(found, wait_s)
        return found()


def attributes(of):
    out = {}
    for a in of["attributes"]:
        (kind, value), = a["value"].items()
        assert isinstance(value, KINDS[kind]) and a["key"] not in out
        out[a["key"]] = int(value) if kind == "intValue" else value
    return out


def spans_of(s):
    m = s.metrics()
    return tuple(int(sum(v for k, v in m.items() if k.startswith("quire:trace_spans_total") and result in k))
                 for result in ("sent", "dropped"))


def say(s, name, headers=None, path=COMPLETIONS, **fields):
    body = s.completion(SECRET, max_tokens=5, ignore_eos=True, temperature=0.5, top_p=0.75)
    if path == CHAT:
        body = s.chat(SECRET, max_tokens=5, temperature=0)
    return s.post(path, dict(body, **fields), headers=dict({"X-Request-Id": name}, **(headers or {})))


collector = Collector()
END = "http://127.0.0.1:%d" % collector.port
with Stack(front=["--otlp-traces-endpoint", END + "/v1/traces"]) as s:
    s.until_attached()
    tap.section("a request is a span")
    t0 = time.time()
    r = say(s, "one")
    t1 = time.time()
    span, = collector.find("one")
    at = span["at"]
    usage = r.json["usage"]
    tap.eq((at["gen_ai.usage.prompt_tokens"], at["gen_ai.usage.completion_tokens"]),
           (usage["prompt_tokens"], usage["completion_tokens"]), "tokens")
    tap.eq((at["gen_ai.request.model"], at["gen_ai.response.model"]), ("demo", "demo"), "model")
    tap.eq((at["gen_ai.request.temperature"], at["gen_ai.request.top_p"], at["gen_ai.request.max_tokens"],
            at["gen_ai.request.n"]), (0.5, 0.75, 5, 1), "parameters")
    tap.ok(0 < at["gen_ai.latency.time_in_queue"] <= at["gen_ai.latency.time_to_first_token"] <=
           at["gen_ai.latency.e2e"] <= t1 - t0, "latencies", str(at))
    start, end = (int(span[k]) / 1e9 for k in ("startTimeUnixNano", "endTimeUnixNano"))
    tap.ok(t0 - 0.01 <= start <= end <= t1 + 0.01, "times of the wall clock", "%s" % [t0, start, end, t1])
    tap.ok("parentSpanId" not in span and span["status"] == {}, "no parent, no error")

    tap.section("the caller's trace goes on")
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    say(s, "child", {"traceparent": parent, "tracestate": 'a=1,b="2"'}, path=CHAT, stream=True,
        stream_options={"include_usage": True})
    span, = collector.find("child")
    tap.eq((span["traceId"], span["parentSpanId"], span["traceState"]),
           ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 'a=1,b="2"'), "of a stream")
    tap.eq(span["at"]["gen_ai.usage.completion_tokens"], 5, "its tokens")
    for name, text in (("version", "ff" + parent[2:]), ("zeros", "00-" + "0" * 32 + parent[35:]),
                       ("capitals", parent.upper()), ("short", parent[:-1]), ("long", parent + "-00"),
                       ("no-parent", parent[:36] + "0" * 16 + parent[52:]), ("words", "x" * 55)):
        tap.eq(say(s, name, {"traceparent": text}).status, 200, "traceparent with " + name)
        span, = collector.find(name)
        tap.ok("parentSpanId" not in span and span["traceId"] != parent[3:35], "counts as none")
    say(s, "later", {"traceparent": "01" + parent[2:] + "-and-more"})
    tap.eq(collector.find("later")[0]["traceId"], parent[3:35], "a later version")
    say(s, "quiet", {"traceparent": parent[:-2] + "00"})
    say(s, "after")
    collector.find("after")
    tap.eq(collector.find("quiet", 1), [], "one that is not sampled has no span")
    tap.eq(len({x["spanId"] for x in collector.spans}), len(collector.spans), "span ids differ")

    tap.section("kinds of requests")
    r = s.post(COMPLETIONS, s.completion(["one two", "three four five"], n=2, max_tokens=3,
                                         ignore_eos=True), headers={"X-Request-Id": "many"})
    span, = collector.find("many")
    tap.eq((span["at"]["gen_ai.request.n"], span["at"]["gen_ai.usage.prompt_tokens"],
            span["at"]["gen_ai.usage.completion_tokens"]),
           (2, r.json["usage"]["prompt_tokens"], 12), "two prompts, two choices: one span")
    stream = s.open_stream(COMPLETIONS, s.completion("x", max_tokens=1000, ignore_eos=True),
                           headers={"X-Request-Id": "left"})
    next(iter(stream))
    stream.close()
    span, = collector.find("left")
    tap.eq((span["status"]["code"], span["at"]["error.type"]), (2, "CLIENT_GONE"), "a client that left")
    tap.ok(0 < span["at"]["gen_ai.usage.completion_tokens"] < 1000, "with the tokens until then")
    r = say(s, "late", timeout_s=0.001, max_tokens=900)
    span, = collector.find("late")
    tap.ok(r.status >= 400 and span["status"]["code"] == 2, "one that failed", str(span))
    s.get("/v1/models"), s.get("/metrics"), s.post("/tokenize", {"prompt": "a"})
    tap.eq(say(s, "bad", max_tokens=-1).status, 400, "a bad request")
    say(s, "end")
    collector.find("end")
    tap.ok(all(x["at"]["gen_ai.request.id"] not in ("bad",) for x in collector.spans), "has none")
    tap.eq(collector.wrong, [], "every export is well formed")
    tap.ok(not any(word in body for body in collector.bodies for word in (b"lighthouse", b"Ottilie")) and
           not any(re.search(rb"sk-test|Bearer", body) for body in collector.bodies), "no text and no key in any")
    n = len(collector.spans)
    tap.ok(until(lambda: spans_of(s) == (n, 0)), "the metric counts them", "%s %d" % (spans_of(s), n))

    tap.section("a collector that refuses")
    collector.status = 500
    before = collector.n_posts
    tap.eq(say(s, "lost").status, 200, "500: the request is served")
    tap.ok(until(lambda: spans_of(s) == (n, 1)), "its span is dropped and counted", str(spans_of(s)))
    tap.eq(collector.n_posts - before, 1, "and not sent again")
    tap.ok(until(lambda: "answers 500: 1 spans are dropped" in s.logs()), "a line in the log")
    collector.status = 503
    say(s, "kept")
    until(lambda: collector.n_posts - before > 1)
    collector.status = 200
    tap.eq(len(collector.find("kept")), 1, "503: it is sent again")
    tap.ok(until(lambda: spans_of(s) == (n + 1, 1)), "and counted", str(spans_of(s)))

    tap.section("a collector that is down")
    collector.close()
    say(s, "down")
    time.sleep(1)
    again = Collector(collector.port)
    tap.eq(len(again.find("down")), 1, "it comes back: nothing is lost")
    again.close()
    tap.eq(say(s, "gone").status, 200, "it stays away: the request is served")
    tap.ok(until(lambda: spans_of(s)[1] == 2, 20), "the span is dropped after 7 s", str(spans_of(s)))
    say(s, "last")
tap.eq(s.leftovers, [], "a stop does not wait for it")

tap.section("a collector that hangs")
slow = Collector()
with Stack(n_fronts=1, front=["--otlp-traces-endpoint", "http://127.0.0.1:%d" % slow.port]) as s:
    s.until_attached()

    def crowd(n):
        took = []

        def some(_):
            for _ in range(n // 8):
                t = time.monotonic()
                if s.post(COMPLETIONS, s.completion("x", max_tokens=1)).status == 200:
                    took.append(time.monotonic() - t)
        t = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(some, range(8)))
        return len(took), time.monotonic() - t, max(took)

    crowd(80)
    until(lambda: spans_of(s)[0] == 80)
    usual = crowd(400)
    tap.ok(until(lambda: spans_of(s) == (480, 0)), "480 spans", str(spans_of(s)))
    slow.hangs.set()
    time.sleep(0.6)
    full = crowd(2800)
    tap.eq(full[0], 2800, "each request is answered")
    tap.ok(full[2] < 2, "at once", "%.3f s" % full[2])
    tap.note("400 requests: %.2f ms each, longest %.0f ms; 2800 with a full queue: %.2f ms, %.0f ms" %
             (usual[1] * 1e3 / 400, usual[2] * 1e3, full[1] * 1e3 / 2800, full[2] * 1e3))
    tap.ok(until(lambda: spans_of(s)[1] > 0), "the queue is full: spans are dropped", str(spans_of(s)))
    slow.hangs.clear()
    tap.ok(until(lambda: sum(spans_of(s)) == 3280, 60), "each is sent or counted", str(spans_of(s)))
    tap.eq(slow.wrong, [], "exports are well formed")
    slow.hangs.set()
    say(s, "x")
    time.sleep(0.7)
    t = time.monotonic()
tap.ok(time.monotonic() - t < 6 and s.leftovers == [], "a stop waits 3 s for it at most",
       "%.1f s" % (time.monotonic() - t))
slow.hangs.clear()

tap.section("through nginx")
with Stack(n_fronts=1, front=["--otlp-traces-endpoint", "unix:/tmp/quire-t-traces-%d.sock" % os.getpid()]) as s:
    s.until_attached()
    path, port = "/tmp/quire-t-traces-%d.sock" % os.getpid(), free_port()
    with open(os.path.join(SRCDIR, "nginx", "quire-traces.conf")) as f:
        site = f.read()
    tap.ok("unix:/run/quire-traces.sock" in site and "127.0.0.1:4318" in site, "the site")
    with open(s.path("traces.conf"), "w") as f:
        f.write("pid %s; events {} http { %s }\n" % (s.path("traces.pid"), "\n".join(
            line for line in site.replace("/run/quire-traces.sock", path).replace("127.0.0.1:4318",
            "127.0.0.1:%d" % port).split("\n") if not line.strip().startswith("#"))))
        f.seek(0)
    with open(s.path("traces.conf")) as f:
        text = f.read()
    with open(s.path("traces.conf"), "w") as f:
        f.write(("user root;" if os.getuid() == 0 else "") + "daemon off;" + text)
    way = Supervised([find_nginx(), "-p", s.dir, "-e", s.path("traces-error.log"), "-c", s.path("traces.conf")],
                     s.path("traces.log"), restart=False)
    until(lambda: os.path.exists(path))
    say(s, "early")
    time.sleep(1)
    behind = Collector(port)
    tap.eq(len(behind.find("early")), 1, "nginx answers 502 until the collector is there, then it is sent")
    say(s, "local")
    tap.eq(len(behind.find("local")), 1, "the next one at once")
    tap.eq(behind.wrong, [], "well formed")
    way.stop()
    behind.close()

tap.section("settings")
front = os.path.join(BUILDDIR, "quire-front")
for value in ("https://collector/v1/traces", "collector:4318", "http://", "http://a:b/", "unix:relative", "unix:",
              "http://a/\x01", "http://[::1", "unix:/" + "x" * 200, "grpc://a:4317"):
    p = subprocess.run([front, "--model", "/none", "--otlp-traces-endpoint", value], capture_output=True, text=True,
                       timeout=20)
    tap.ok(p.returncode == 1 and "otlp_traces_endpoint" in p.stderr, "refused: " + repr(value)[:60],
           "%d %s" % (p.returncode, p.stderr[-300:]))
tap.done()
