#!/usr/bin/env python3
"""Speed of speculative decoding: a text that is edited, one that has nothing to copy, and one whose
guesses are all wrong, each beside a server without speculation.

    builddir=BUILD tests/bench/drafts.py [--model tests/bench/llama-3.1-8b] [--dir FOLDER]
        [--methods ngram,suffix] [--tokens 512] [--runs 5] [--device cuda]

The model has the shapes of --model and weights made so that its greedy text is known: after token t
comes t + 1, because what the layers add to the residual is near 0 and the row of the output matrix
for t + 1 is the embedding of t.  All matrices are random, so that a step costs as much as a real
one.  Its prompts are

    edit    the text that will be said, with every 12th token another one: the model corrects it
    new     random tokens, none of which is said
    wrong   the pairs of tokens that will be said, each before a token that will not be

Prints a line each: tokens per second of one sequence (median of the runs) and of 16 at once, and
both methods' ratio to none.  The same text is demanded of all.
"""
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time

from servers import SRCDIR, parse, parser  # and finds harness
from harness import MODEL_NAME, Stack

import numpy

p = parser()
p.add_argument("--dir", default=os.path.join(tempfile.gettempdir(), "quire-bench-drafts"))
p.add_argument("--methods", default="ngram,suffix")
p.add_argument("--tokens", type=int, default=512, help="of an answer")
p.add_argument("--runs", type=int, default=5)
a = parse(p)

LOW, HIGH = 100, 1900  # the ids that are said
CROWD = 16


def bits(rng, shape, size, block=1 << 22):
    """Random bfloat16 of about this size: a block of noise, again and again."""
    n = int(numpy.prod(shape))
    block = (rng.standard_normal(min(n, block)) * size).astype(numpy.float32)
    block = (block.view(numpy.uint32) >> 16).astype(numpy.uint16)
    return numpy.resize(block, n).reshape(shape)


def tensors(c):
    """Names and shapes, in the file's order."""
    dim, hd = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
    kv, ff = c["num_key_value_heads"] * hd, c["intermediate_size"]
    yield "model.embed_tokens.weight", (c["vocab_size"], dim)
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        for name, shape in (("self_attn.q_proj", (dim, dim)), ("self_attn.k_proj", (kv, dim)),
                            ("self_attn.v_proj", (kv, dim)), ("self_attn.o_proj", (dim, dim)),
                            ("mlp.gate_proj", (ff, dim)), ("mlp.up_proj", (ff, dim)),
                            ("mlp.down_proj", (dim, ff)), ("input_layernorm", (dim,)),
                            ("post_attention_layernorm", (dim,))):
            yield layer + name + ".weight", shape
    yield "model.norm.weight", (dim,)
    yield "lm_head.weight", (c["vocab_size"], dim)


def values(rng, name, shape, embed):
    if "norm" in name:
        return numpy.full(shape, 0x3f80, numpy.uint16)
    if "embed" in name:
        embed.append(bits(rng, shape, 1.0))
        said = (HIGH - LOW, shape[1])  # rows that differ from each other
        embed[0][LOW:HIGH] = bits(rng, said, 1.0, said[0] * said[1])
        return embed[0]
    if "lm_head" in name:
        head = bits(rng, shape, 0.01)
        head[LOW + 1:HIGH] = embed[0][LOW:HIGH - 1]
        head[LOW] = embed[0][HIGH - 1]
        return head
    return bits(rng, shape, 1e-6 if "o_proj" in name or "down" in name else 0.02)


def make_model():
    with open(os.path.join(a.model, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    os.makedirs(a.dir, exist_ok=True)
    shutil.copy(os.path.join(a.model, "config.json"), a.dir)
    header, at = {}, 0
    for name, shape in tensors(config):
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng, embed = numpy.random.default_rng(1), []
    with open(os.path.join(a.dir, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors(config):
            f.write(values(rng, name, shape, embed).data)


def following(first, n):
    return [LOW + (first - LOW + i) % (HIGH - LOW) for i in range(n)]


def prompts(kind, i):
    """A prompt of the kind, and the text that follows it."""
    r = random.Random(i)
    first = r.randrange(LOW, HIGH)
    said = following(first + 1, a.tokens)
    if kind == "edit":
        doc = [r.randrange(LOW, HIGH) if k % 12 == 11 else t for k, t in enumerate(said)]
    elif kind == "new":
        doc = [r.randrange(2, LOW) for _ in said]
    else:
        doc = [t for k in range(0, a.tokens, 3) for t in said[k:k + 2] + [r.randrange(2, LOW)]]
    return doc + [first], said


def ask(s, kind, i):
    """Tokens per second after the first one."""
    doc, said = prompts(kind, i)
    began, ids = None, []
    for event in s.open_stream("/v1/completions", s.completion(
            doc, max_tokens=a.tokens, ignore_eos=True, return_token_ids=True)):
        if "error" in event:
            raise RuntimeError(event)
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
        if began is None and ids:
            began, had = time.monotonic(), len(ids)
    ended = time.monotonic()
    if ids != said:
        raise RuntimeError("%s: another text than the one that is due: %s ..., %s ..."
                           % (kind, ids[:8], said[:8]))
    return (len(ids) - had) / (ended - began)


def crowd(s, kind):
    threads = [threading.Thread(target=ask, args=(s, kind, 1000 + i)) for i in range(CROWD)]
    began = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return CROWD * a.tokens / (time.monotonic() - began)


def measure(method):
    speculation = []
    if method != "none":
        speculation = ["--speculative-config", json.dumps({"method": method})]
    engine = ["--model", a.dir, "--max-model-len", "4096", "--max-num-seqs", "64",
              "--gemm-table", os.path.join(SRCDIR, "kernels", "gemm-h200.txt")] + speculation
    rates = {}
    with Stack(engine=engine) as s:
        for kind in ("edit", "new", "wrong"):
            ask(s, kind, 99)  # records graphs
            rates[kind, 1] = statistics.median(ask(s, kind, i) for i in range(a.runs))
            crowd(s, kind)
            rates[kind, CROWD] = statistics.median(crowd(s, kind) for _ in range(3))
    return rates


make_model()
base = measure("none")
for key, rate in base.items():
    print("none     %-6s %2d sequences %9.1f tok/s" % (key[0], key[1], rate), flush=True)
for name in a.methods.split(","):
    for key, rate in measure(name).items():
        print("%-8s %-6s %2d sequences %9.1f tok/s, %.3f of none"
              % (name, key[0], key[1], rate, rate / base[key]), flush=True)
shutil.rmtree(a.dir)
