#!/usr/bin/env python3
"""A long prefix from each tier, on a GPU: time to first token when it is computed, on the device,
in host memory after kill -9, on disk after the host's memory was lost; what copies cost prompts that
decode meanwhile; and how long a stream is silent when its engine is killed, beside a cold start.

    builddir=BUILD tests/bench/tiers.py [--model tests/bench/llama-3.1-8b] [--tokens 8192]
        [--host 16G] [--host-file FILE] [--store DIR] [--settings "..."] [--device cuda]

Weights are random; prompts are token ids. --settings are further ones of the engine, such as
"--quantization fp8"; speeds in GB/s are printed without them, for pages of 2 MiB alone, and a model
with other pages has --parts "lives". Prints a line each; the host file, which is on tmpfs
unless it is named, and the store are removed at the end."""
import mmap
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from servers import dummy, first_token, line, parse, parser, prompt  # and finds harness
from harness import MODEL_NAME, Stack, memory_folder, until

p = parser()
p.add_argument("--tokens", type=int, default=8192)
p.add_argument("--host", default="16G")
p.add_argument("--host-file", default="")
p.add_argument("--store", default=tempfile.gettempdir())
p.add_argument("--room", type=int, default=2048, help="tokens of context behind a prefix")
p.add_argument("--settings", default="", help="further settings of the engine")
p.add_argument("--parts", default="lives host cost resumed", help="what is measured")
a = parse(p)
a.host_file = a.host_file or os.path.join(memory_folder(), "pages")

random.seed(1)
PAGES = a.tokens // 16


def ask(s, i):
    return first_token(s, prompt(i, a.tokens) + [7, 8, 9])


def paced(s, i, ms):
    """ask(), and a rest until so much time is over."""
    took, cached = ask(s, i)
    if cached < a.tokens:
        raise RuntimeError("the prefix has left the device")
    time.sleep(max(0.0, ms - took) / 1e3)


def decoding(s, n, tokens):
    """n sequences that decode; returns when all do."""
    threads = [threading.Thread(target=lambda i=i: s.post(
        "/v1/completions", {"model": MODEL_NAME, "prompt": [i + 5] * (a.tokens // 9), "max_tokens": tokens,
                            "temperature": 0, "ignore_eos": True}, timeout=300)) for i in range(n)]
    for t in threads:
        t.start()
    until(lambda: s.metric("vllm:num_requests_running") >= n and
          s.metric("vllm:num_requests_waiting") == 0, 60)
    time.sleep(0.5)
    return threads


def step_ms(s, seconds=None, work=None):
    """Mean time between the tokens of a sequence while that goes on."""
    names = ("vllm:inter_token_latency_seconds_sum", "vllm:inter_token_latency_seconds_count")
    before = [s.metric(n) for n in names]
    if work:
        work()
    else:
        time.sleep(seconds)
    after = [s.metric(n) for n in names]
    return (after[0] - before[0]) / max(1, after[1] - before[1]) * 1e3


def restart(s, sig, lose=False):
    s.engine.hold()
    s.engine.kill(sig)
    until(lambda: not s.engine.alive(), 60)
    if lose:
        os.unlink(a.host_file)
    began = time.monotonic()
    s.engine.release()
    if not until(lambda: s.get("/health").status == 200, 120):
        raise RuntimeError(s.logs())
    return time.monotonic() - began


def engine_args():
    return dummy(a.model, a.tokens + a.room) + a.settings.split() + [
        "--kv-store-dir", os.path.join(a.store, "quire-bench-store"), "--kv-store-bytes", "24G"]


GIB = int(a.host.rstrip("G"))
N = 6
HELD = 0.9 * N * PAGES


def wait_for_memory(s):
    began = time.monotonic()
    full = until(lambda: s.metric("quire:kv_host_slots") >= GIB * 512, 60)
    print("# memory of the host tier is taken: %s, %d pages, in %.1f s"
          % (full, s.metric("quire:kv_host_slots"), time.monotonic() - began))


def settled(s, name, timeout_s=30):
    """A metric that has grown and for a second has not."""
    end, last, since = time.monotonic() + timeout_s, 0, time.monotonic()
    while time.monotonic() < end and (last == 0 or time.monotonic() < since + 1):
        value = s.metric(name)
        if value != last:
            last, since = value, time.monotonic()
        time.sleep(0.05)
    return last


def direct_reads(path, n_threads, size=2 << 20):
    """GB/s of direct reads, as many and as large as a prompt's pages, anywhere in a file."""
    blocks = random.sample(range(os.path.getsize(path) // size), PAGES)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)

    def read(part):
        buffer = mmap.mmap(-1, size)
        for b in part:
            os.preadv(fd, [buffer], b * size)

    threads = [threading.Thread(target=read, args=(blocks[i::n_threads],))
               for i in range(n_threads)]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    os.close(fd)
    return len(blocks) * size / (time.monotonic() - began) / 1e9


def lives():
    """Each tier in turn, engines dying in between."""
    with Stack(engine=engine_args(), host=a.host, host_file=a.host_file) as s:
        line("computed, host memory being taken meanwhile",
             [ask(s, i) for i in range(N)])
        here = line("on the device", [ask(s, i) for i in range(N)])
        print("# in host memory: %d pages" % settled(s, "quire:kv_host_pages"))
        ready = restart(s, signal.SIGKILL)
        again = ask(s, 0)
        print("%-44s %8.1f ms (%d tokens cached; ready %.2f s after the start)"
              % ("first request after kill -9", again[0], again[1], ready))
        line("host memory, pages of an earlier life", [ask(s, i) for i in range(1, N)])
        print("# on disk: %d pages" % settled(s, "quire:store_pages_written_total"))
        restart(s, signal.SIGKILL, lose=True)
        page_file = os.path.join(a.store, "quire-bench-store", "pages.kv")
        times, peers = [], {1: [], 4: [], 6: [], 16: []}
        for i in range(N):  # in turns: disks have better and worse moments
            times.append(ask(s, i))
            for n, speeds in peers.items() if not a.settings else ():
                speeds.append(direct_reads(page_file, n))
        print("# each: " + ", ".join("%.0f ms with %d cached" % t for t in times))
        ms = line("disk, after the host's memory was lost",
                  [t for t in times if t[1] > a.tokens // 2])  # the last may not have got there
        if not a.settings:
            print("%-44s %8.2f GB/s beyond the device's; direct reads in turns with it: %s" %
                  ("that is", PAGES * 2 * 2 ** 20 / 1e6 / (ms - here), ", ".join(
                      "%.2f by %d threads" % (statistics.median(v), n) for n, v in peers.items())))


def host():
    """Host memory within one life: the device has room for few prompts."""
    room = ["--num-pages", str(3 * PAGES)]
    with Stack(engine=engine_args() + room, host=a.host, host_file=a.host_file) as s:
        wait_for_memory(s)
        cold = line("computed", [ask(s, i) for i in range(N)])
        held = until(lambda: s.metric("quire:kv_host_pages") >= HELD, 30)
        print("# in host memory: %s, %d pages" % (held, s.metric("quire:kv_host_pages")))
        here = line("on the device", [ask(s, N - 1) for _ in range(4)])
        times = [ask(s, i % N) for i in range(2 * N)]
        ms = line("host memory", times)
        gb = PAGES * 2 * 2 ** 20 / 1e9
        print("%-44s %8.1f GB/s beyond the device's; %.1f times faster than computing"
              % ("that is", gb / (ms - here) * 1e3, cold / ms))
        threads = decoding(s, 4, a.tokens // 4)
        for i in range(N):  # steps are recorded
            ask(s, i)
        alone = step_ms(s, 1.0)
        busy = step_ms(s, work=lambda: [ask(s, i % N) for i in range(2 * N)])
        known = step_ms(s, work=lambda: [paced(s, N - 1, ms) for _ in range(2 * N)])
        print("%-44s %8.3f ms alone, %.3f ms (%+.1f%%) beside prefixes on the device, as often as "
              "they come from host memory: then %.3f ms (%+.1f%%; the copies %+.1f%%)"
              % ("4 that decode, a step", alone, known, (known / alone - 1) * 100, busy,
                 (busy / alone - 1) * 100, (busy / known - 1) * 100))
        for t in threads:
            t.join()


def cost():
    """The cost of the tier without hits: prompts that are new, then decodes."""
    for tier in (None, a.host):
        with Stack(engine=engine_args(), host=tier, host_file=a.host_file if tier else None) as s:
            ask(s, 999)
            if tier:
                wait_for_memory(s)
            began = time.monotonic()
            threads = [threading.Thread(target=ask, args=(s, 1000 + i)) for i in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            prompts_s = time.monotonic() - began
            threads = decoding(s, 16, a.tokens // 12)
            print("%-44s %8.1f ms for 16 prompts, %.3f ms a step of 16"
                  % ("host tier" if tier else "no host tier", prompts_s * 1e3, step_ms(s, 1.5)))
            for t in threads:
                t.join()
        clean()


def silence(s, i, lose):
    """Seconds from the start of the next engine to the next token of a stream that was under way
    when the one before was killed, and how many tokens came behind it."""
    held = s.metric("quire:kv_host_pages") + 0.98 * PAGES
    came = []
    told = []
    thread = threading.Thread(target=lambda: told.append(s.stream(
        "/v1/completions", s.completion(prompt(i, a.tokens), max_tokens=a.room - 64,
                                        ignore_eos=True),
        on_event=lambda t: came.append(time.monotonic()))))
    thread.start()
    until(lambda: len(came) > 20 and
          s.metric("quire:kv_host_pages") >= held, 20, 0.002)
    s.engine.hold()
    s.engine.kill(signal.SIGKILL)
    until(lambda: not s.engine.alive(), 60)
    if lose:
        os.unlink(a.host_file)
    time.sleep(0.05)  # what had been said reaches us
    began = time.monotonic()
    s.engine.release()
    thread.join(120)
    after = [t for t in came if t > began]
    if not told or not told[0].done or not after:
        raise RuntimeError("the stream was not resumed, or had ended:\n" + s.logs())
    return after[0] - began, len(after)


def resumed():
    """From the start of the next engine to the next token of a stream."""
    with Stack(engine=engine_args(), host=a.host, host_file=a.host_file, n_fronts=1) as s:
        for what, lose in (("resumed from host memory", False), ("resumed, its pages lost", True)):
            for i in range(3):
                took, n = silence(s, i + 10 * lose, lose)
                print("%-44s %8.3f s from the start of the engine to the next token (%d more)"
                      % (what, took, n))
        s.engine.hold()
        s.engine.kill(signal.SIGKILL)
        until(lambda: not s.engine.alive(), 60)
        os.unlink(a.host_file)
        began = time.monotonic()
        s.engine.release()
        ms, cached = ask(s, 77)
        print("%-44s %8.3f s to the first token of a new prompt, %.3f s of it since it was asked "
              "(%d tokens cached)" % ("cold start", time.monotonic() - began, ms / 1e3, cached))


def clean():
    subprocess.run(["rm", "-rf", a.host_file, os.path.join(a.store, "quire-bench-store")],
                   check=False)


def main():
    for part in a.parts.split():
        clean()
        {"lives": lives, "host": host, "cost": cost, "resumed": resumed}[part]()
        sys.stdout.flush()


try:
    main()
finally:
    clean()
