#!/usr/bin/env python3
"""Load on a running server: N completions at once, token-id prompts, streamed; what came out.

    tests/bench/serve.py RUN-FOLDER [--at-once 256] [--requests 256] [--input 1024] [--output 1024]
                         [--vocabulary 2000]

RUN-FOLDER is that of tools/run-local. Speaks plain HTTP over its unix socket. Prints output
tokens a second, time to first token and time between tokens (median, 99th percentile). Tokens without text (ids that the front's tokenizer does not have) make no event. Every
request must end complete, or the measurement is none: exit status 1."""
import argparse
import asyncio
import json
import os
import random
import re
import sys
import time


async def request(run, key, body, said):
    reader, writer = await asyncio.open_unix_connection(os.path.join(run, "nginx.sock"),
                                                        limit=1 << 20)
    text = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                 b"Authorization: Bearer " + key.encode() + b"\r\nContent-Length: "
                 + str(len(text)).encode() + b"\r\n\r\n" + text)
    began = time.monotonic()
    times = []
    usage = None
    status = await reader.readline()
    if b" 200 " not in status:  # 429: nginx's limits for one key stand in quire-http.conf
        raise RuntimeError(status.decode().strip())
    async for line in reader:  # chunk sizes stand on lines of their own: passed over
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            if event["choices"]:
                times.append(time.monotonic())
            else:
                usage = event["usage"]
    writer.close()
    if usage is None:
        raise RuntimeError("a stream broke off")
    said.append((began, times, usage["completion_tokens"]))


async def engine_times(run):
    """Sum and count of vLLM's inter-token histogram: what the engine itself saw."""
    reader, writer = await asyncio.open_unix_connection(os.path.join(run, "nginx.sock"))
    writer.write(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    return [float(re.search(r"^vllm:inter_token_latency_seconds_%s\S* (\S+)" % part, text,
                            re.M).group(1)) for part in ("sum", "count")]


def at(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1e3


async def load(a):
    with open(os.path.join(a.run, "key")) as f:
        key = f.read().strip()
    random.seed(1)
    slots = asyncio.Semaphore(a.at_once)
    said = []

    async def one():
        async with slots:
            prompt = [random.randrange(3, a.vocabulary) for _ in range(a.input)]
            await request(a.run, key, {"model": "demo", "prompt": prompt, "stream": True,
                                       "max_tokens": a.output, "ignore_eos": True, "seed": 1,
                                       "stream_options": {"include_usage": True}}, said)
    before = await engine_times(a.run)
    began = time.monotonic()
    await asyncio.gather(*[one() for _ in range(a.requests)])
    seconds = time.monotonic() - began
    after = await engine_times(a.run)
    tokens = sum(s[2] for s in said)
    first = [s[1][0] - s[0] for s in said]
    gaps = [b - c for s in said for b, c in zip(s[1][1:], s[1])]
    print("%d requests, %d at once, %d in, %d out: %.0f output tok/s, %.1f s; first token %.0f / "
          "%.0f ms; between events %.1f / %.1f ms (median / p99); the engine's mean time between "
          "tokens %.2f ms"
          % (a.requests, a.at_once, a.input, a.output, tokens / seconds, seconds, at(first, .5),
             at(first, .99), at(gaps, .5), at(gaps, .99),
             (after[0] - before[0]) / max(1.0, after[1] - before[1]) * 1e3))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("run")
    for name, preset in (("at-once", 256), ("requests", 256), ("input", 1024), ("output", 1024),
                         ("vocabulary", 2000)):
        p.add_argument("--" + name, type=int, default=preset)
    try:
        asyncio.run(load(p.parse_args()))
    except (RuntimeError, OSError) as e:
        sys.exit("serve.py: " + str(e))


if __name__ == "__main__":
    main()
