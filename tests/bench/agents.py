#!/usr/bin/env python3
"""Agents on N engines: does the choice of an engine by its prefix cache pay?

An agent begins with one of 8 tool descriptions, then asks, waits for a tool, and asks again with
the whole conversation before it. Weights are random and prompts are token ids, so only lengths
matter. Two servers in turn:

  prefix   each front knows every engine and chooses by cached prefix and queue
  robin    each front knows one engine, and nginx takes the fronts in turn

    builddir=BUILD tests/bench/agents.py [--model tests/bench/llama-3.1-8b] [--engines 4]
        [--agents 256] [--turns 6] [--tools 3000] [--tool-answer 400] [--output 64] [--device cuda]

Prints a line per server: the time to the first token, the time of a request, the share of prompt
tokens that were cached, output tokens a second. Every answer must be whole, or the exit status
is 1."""
import asyncio
import json
import random
import statistics
import sys
import time

from servers import dummy, parse, parser, prompt  # and finds harness
from harness import MODEL_NAME, Stack, key, until

p = parser()
for name, preset in (("engines", 4), ("agents", 256), ("turns", 6), ("tools", 3000),
                     ("tool-answer", 400), ("output", 64)):
    p.add_argument("--" + name, type=int, default=preset)
a = parse(p)


class Pinned(Stack):
    """Front i knows engine i alone."""

    def _start_front(self, i):
        whole = self.front_argv
        at = whole.index("--data-parallel-size")
        self.front_argv = whole[:at] + whole[at + 2:] + ["--engine-socket",
                                                         self.engine_sockets[i % self.n_engines]]
        super()._start_front(i)
        self.front_argv = whole

    def until_attached(self, engines=None):
        return until(lambda: all(self.get("/health").status == 200
                                 for _ in range(4 * self.n_fronts)))


async def ask(s, tokens):
    """(seconds to the first token, seconds of the whole, cached prompt tokens, output ids)."""
    reader, writer = await asyncio.open_unix_connection(s.socket, limit=1 << 22)
    body = json.dumps({"model": MODEL_NAME, "prompt": tokens, "max_tokens": a.output,
                       "ignore_eos": True, "stream": True, "return_token_ids": True,
                       "stream_options": {"include_usage": True}}).encode()
    began = time.monotonic()
    writer.write(b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer "
                 + key(0).encode() + b"\r\nContent-Type: application/json\r\nContent-Length: "
                 + str(len(body)).encode() + b"\r\n\r\n" + body)
    first, ids, cached = None, [], 0
    async for line in reader:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event.get("choices", ()):
            ids += choice.get("token_ids") or []
        if ids and first is None:
            first = time.monotonic() - began
        if event.get("usage"):
            cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    writer.close()
    if len(ids) != a.output:
        raise RuntimeError("an answer of %d tokens" % len(ids))
    return first, time.monotonic() - began, cached, ids


async def agent(s, i, results):
    r = random.Random(i)
    tokens = prompt(r.randrange(8), a.tools)
    await asyncio.sleep(r.random() * 2)
    for turn in range(a.turns):
        tokens = tokens + prompt(1000 * i + turn + 100, a.tool_answer)
        first, whole, cached, ids = await ask(s, tokens)
        results.append((first, whole, cached, len(tokens)))
        tokens = tokens + ids
        await asyncio.sleep(r.random())


async def trace(s):
    results = []
    began = time.monotonic()
    await asyncio.gather(*[agent(s, i, results) for i in range(a.agents)])
    return results, time.monotonic() - began


def measure(name, kind):
    length = a.tools + a.turns * (a.tool_answer + a.output) + 64
    with kind(engine=dummy(a.model, length), n_fronts=a.engines, n_engines=a.engines,
              own_gpus=True) as s:
        results, seconds = asyncio.run(trace(s))
    firsts = sorted(r[0] for r in results)
    print("%s: first token %.0f ms (p95 %.0f), a request %.0f ms, cached %.1f%%, %.0f output tok/s"
          % (name, statistics.median(firsts) * 1e3, firsts[len(firsts) * 95 // 100] * 1e3,
             statistics.median(r[1] for r in results) * 1e3,
             100.0 * sum(r[2] for r in results) / sum(r[3] for r in results),
             len(results) * a.output / seconds))
    sys.stdout.flush()


if __name__ == "__main__":
    try:
        measure("robin", Pinned)
        measure("prefix", Stack)
    except (RuntimeError, OSError) as e:
        sys.exit("agents.py: " + str(e))
