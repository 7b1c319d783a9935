#!/usr/bin/env python3
"""Data parallel: output tokens a second of N engines behind one front set, each with GPUs of its
own, beside one engine; whole servers with nginx. Weights are random; prompts are token ids, all
different.

    builddir=BUILD tests/bench/replicas.py [--model tests/bench/llama-3.1-8b] [--engines 1,2]
        [--at-once 240] [--requests 480] [--input 1024] [--output 1024] [--device cuda] [--watch]

--at-once and --requests are those of one engine, which has 16 places more, so that an engine with
some requests more than another does not compute the last ones alone. Above 256 in a step a GPU
computes one more tile of rows. Prints a line per number of engines; every answer must be whole, or
the exit status is 1."""
import asyncio
import json
import statistics
import sys
import time

from servers import dummy, parse, parser, prompt  # and finds harness
from harness import MODEL_NAME, Stack, key

p = parser()
p.add_argument("--engines", default="1,2")
for name, preset in (("at-once", 240), ("requests", 480), ("input", 1024), ("output", 1024)):
    p.add_argument("--" + name, type=int, default=preset)
p.add_argument("--watch", action="store_true", help="requests of each engine, every second")
p.add_argument("--engine-arg", action="append", default=[], help="one more argument of the engines")
a = parse(p)


async def ask(s, body):
    """Output tokens of one whole answer."""
    reader, writer = await asyncio.open_unix_connection(s.socket, limit=1 << 22)
    text = json.dumps(body).encode()
    writer.write(b"POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer "
                 + key(0).encode() + b"\r\nContent-Type: application/json\r\nContent-Length: "
                 + str(len(text)).encode() + b"\r\n\r\n" + text)
    head, _, answer = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise RuntimeError(head.decode() + answer.decode())
    return json.loads(answer)["usage"]["completion_tokens"]


async def load(s, n_requests, at_once, first):
    slots = asyncio.Semaphore(at_once)
    took = []

    async def one(i):
        async with slots:
            began = time.monotonic()
            n = await ask(s, {"model": MODEL_NAME, "prompt": prompt(first + i, a.input),
                              "max_tokens": a.output, "ignore_eos": True, "seed": 1})
            took.append(time.monotonic() - began)
            return n
    began = time.monotonic()
    tokens = sum(await asyncio.gather(*[one(i) for i in range(n_requests)]))
    return tokens / (time.monotonic() - began), statistics.median(took)


async def watch(s):
    """Running and waiting requests of each engine, every second until it is cancelled."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(1)
        m = await asyncio.to_thread(s.metrics)
        of = lambda name: [v for k, v in sorted(m.items()) if k.startswith(name + "{")]
        print("# %4.1f s: %s" % (time.monotonic() - began, " ".join(
            "%d+%d" % each for each in zip(of("vllm:num_requests_running"),
                                           of("vllm:num_requests_waiting")))), flush=True)


async def watched(s, n_requests, at_once):
    task = asyncio.create_task(watch(s)) if a.watch else None
    result = await load(s, n_requests, at_once, 0)
    if task:
        task.cancel()
    return result


def measure(n):
    engine = dummy(a.model, a.input + a.output + 64) + ["--max-num-seqs", a.at_once + 16] + a.engine_arg
    with Stack(engine=engine, n_fronts=4, n_engines=n, own_gpus=True) as s:
        asyncio.run(load(s, 16 * n, 16 * n, 1 << 20))  # warm
        rate, seconds = asyncio.run(watched(s, a.requests * n, a.at_once * n))
        each = [v for k, v in sorted(s.metrics().items())
                if k.startswith("vllm:generation_tokens_total")]
    print("%d engines: %.0f output tok/s; a request %.1f s (median); tokens of each engine: %s"
          % (n, rate, seconds, " ".join("%d" % v for v in each)))
    sys.stdout.flush()
    return rate


def main():
    rates = {}
    for n in (int(n) for n in a.engines.split(",")):
        rates[n] = measure(n)
    if 1 in rates:
        for n, rate in rates.items():
            if n != 1:
                print("%d engines against one: %.2f" % (n, rate / rates[1]))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as e:
        sys.exit("replicas.py: " + str(e))
