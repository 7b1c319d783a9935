#!/usr/bin/env python3
"""Folders with tiktoken.model, as Kimi's: the ids are those of the package tiktoken, with the
pattern and the special tokens of their class; built, and from the image cache.

No real rank file is at hand: a small one is trained here on texts of the tree, unless RANKS names
another. tiktoken comes from a virtual environment (builddir/venv, or PYTHON_OPENAI names a python
that has it); without it the test says so and skips itself. SEED=n draws other texts."""

import base64
import collections
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from harness import BUILDDIR, SRCDIR, Tap, skip_all
from schema import find_modules

find_modules()
try:
    import tiktoken
    import tiktoken.load
except ImportError:
    python = os.environ.get("PYTHON_OPENAI") or os.path.join(BUILDDIR, "venv", "bin", "python")
    if os.environ.get("QUIRE_IN_VENV") or not os.path.exists(python):
        skip_all("there is no tiktoken module: make one with `python3 -m venv venv && "
                 "venv/bin/pip install tiktoken` in the build folder")
    os.environ["QUIRE_IN_VENV"] = "1"
    os.execv(python, [python] + sys.argv)

tap = Tap()
SEED = int(os.environ.get("SEED", "1"))
LARGE = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join((
    r"[\p{Han}]+", r"[^\r\n\p{L}\p{N}]?" + LARGE + "*" + SMALL + "+" + SHORT,
    r"[^\r\n\p{L}\p{N}]?" + LARGE + "+" + SMALL + "*" + SHORT, r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"))
MORE = ("\u4eca\u5929\u5929\u6c14\u5f88\u597d\u3002" * 20 + "\u0645\u0631\u062d\u0628\u0627 " * 20 +
        "Stra\u00dfe \u041f\u0440\u0438\u0432\u0435\u0442 \u3072\u3089\u304c\u306a " * 20)
PARTS = ["Hello", " world", "'s", "'LL", "12", "1234567", "\u4e2d\u6587", "\u4eca\u5929", "abc",
         "Don't", "iPhone", "e\u0301", "\u3072\u3089", "\n", "\r\n", " \n ", "  ", "\t", "!!",
         "...\n", "#include <stdio.h>\n", "\U0001f468\u200d\U0001f469", "\u0663\u0664", "\u00b2",
         "Stra\u00dfe", "[BOS]", "<|im_end|>", "<|im_end", "|>", "<|tool_call_begin|>",
         "functions.f:0",
         "{\"a\": 1}", "\ufffd", "\u00a0", "\u2028"]


def train(text, n_merges):
    """Token bytes to ranks: the pair that is most frequent becomes the next token."""
    words = collections.Counter(p.encode() for p in text.replace("\n", " \n ").split(" "))
    words = {(bytes([32]) + w if w else w): n for w, n in words.items()}
    parts = {w: [bytes([b]) for b in w] for w in words}
    ranks = {bytes([b]): b for b in range(256)}
    for _ in range(n_merges):
        pairs = collections.Counter()
        for w, p in parts.items():
            for a, b in zip(p, p[1:]):
                pairs[a + b] += words[w]
        fresh = [(n, t) for t, n in pairs.items() if t not in ranks and n > 1]
        if not fresh:
            break
        token = max(fresh)[1]
        ranks[token] = len(ranks)
        for w, p in parts.items():
            i = 0
            while i + 1 < len(p):
                if p[i] + p[i + 1] == token:
                    p[i:i + 2] = [token]
                i += 1
    return ranks


def corpus():
    out = MORE
    for name in ("README.md", "tests/README.md", "src/front/request/fields.c"):
        with open(os.path.join(SRCDIR, name), encoding="utf-8") as f:
            out += f.read()
    return out


def write_folder(folder, ranks, named):
    with open(os.path.join(folder, "tiktoken.model"), "wb") as f:
        for token, rank in ranks.items():
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump({
            "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
            "added_tokens_decoder": {
                str(i): {"content": t, "special": not t.startswith("<|tool"), "lstrip": False,
                         "rstrip": False, "normalized": False, "single_word": False}
                for t, i in named.items()
            }
        }, f)


def ask(folder, cache, texts):
    """[(ids, text, text without special tokens, streams agree)] of quire."""
    data = b"".join(b"T" + struct.pack("<I", len(t)) + t for t in (x.encode() for x in texts))
    out = subprocess.run([os.path.join(BUILDDIR, "tokenize_records"), folder, cache], input=data,
                         capture_output=True, check=True).stdout
    at, answers = 0, []
    for _ in texts:
        row = []
        for size in (4, 1, 1):
            n = struct.unpack_from("<I", out, at)[0]
            row.append(out[at + 4:at + 4 + n * size])
            at += 4 + n * size
        answers.append((list(struct.unpack("<%di" % (len(row[0]) // 4), row[0])), row[1].decode(),
                        row[2].decode(), out[at] == 0))
        at += 1
    return answers


def random_text(rng):
    out = []
    for _ in range(1 + int(rng.random() ** 2 * 20)):
        if rng.random() < 0.7:
            out.append(rng.choice(PARTS))
        elif rng.random() < 0.3:
            out.append(rng.choice(PARTS) * rng.randint(2, 40))
        else:
            low, high = rng.choice(((0x20, 0x7f), (0xa0, 0x500), (0x600, 0x1800), (0x2000, 0x3100),
                                    (0x4e00, 0x9fff), (0xac00, 0xd7a0), (0x1f300, 0x1fa00),
                                    (0x20000, 0x2a6d0)))
            out.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 6))))
    return "".join(out)


def chunks(text):
    """What Kimi's class gives tiktoken one by one: at most 400,000 characters, and at most 25,000
    of white space, or of anything else, in a row."""
    for at in range(0, len(text), 400000):
        part, start, run = text[at:at + 400000], 0, 0
        for i, c in enumerate(part):
            run = run + 1 if i > 0 and c.isspace() == part[i - 1].isspace() or i == 0 else 1
            if run > 25000:
                yield part[start:i]
                start, run = i, 1
        yield part[start:]


def compare(folder, cache, peer, special, texts, name):
    wrong = []
    for text, (ids, whole, plain, streams) in zip(texts, ask(folder, cache, texts)):
        want = peer.encode(text, allowed_special="all")
        kept = [i for i in want if i not in special]
        if (ids, whole, plain, streams) != (want, peer.decode(want), peer.decode(kept), True):
            wrong.append((text, ids, want))
    tap.ok(not wrong, "%s: %d texts" % (name, len(texts)), wrong[:2])


with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
    os.chmod(cache, 0o700)
    if os.environ.get("RANKS"):
        ranks = tiktoken.load.load_tiktoken_bpe(os.environ["RANKS"])
    else:
        ranks = train(corpus(), 1200)
    n = len(ranks)
    named = {"[BOS]": n, "[EOS]": n + 1, "<|im_end|>": n + 2, "<|im_user|>": n + 3,
             "<|tool_call_begin|>": n + 20, "<|tool_call_end|>": n + 22, "[UNK]": n + 254,
             "[PAD]": n + 255}
    by_id = {i: t for t, i in named.items()}
    reserved = {by_id.get(i, "<|reserved_token_%d|>" % i): i for i in range(n, n + 256)}
    write_folder(folder, ranks, named)
    peer = tiktoken.Encoding("ranks", pat_str=PATTERN, mergeable_ranks=ranks,
                             special_tokens=reserved)
    special = {i for t, i in named.items() if not t.startswith("<|tool")}
    rng = random.Random(SEED)
    tap.note("SEED=%d, tiktoken %s, %d ranks" % (SEED, tiktoken.__version__, n))
    fixed = ["", " ", "a", corpus()[:20000], "a" * 3000, "\u4e2d" * 2000, " " * 3000, "ab" * 2000,
             "\n" * 999, "<|reserved_token_%d|>x<|reserved_token_%d|>" % (n + 30, n + 256)]
    texts = fixed + [random_text(rng) for _ in range(4000)]
    compare(folder, "", peer, special, texts, "built")
    compare(folder, cache, peer, special, texts[:200], "written to a cache")
    tap.eq(len(os.listdir(cache)), 1, "one image is there")
    long = [c * k for c in ("x", " ", "\u4e2d\u6587", "ab1", "\x1f \u3000")
            for k in (24999, 25001, 60007)]
    long += [("word " * 30000 + " " * 30000) * 3, "\u4e2d" * 24999 + " " + "y" * 399999]
    want = [[i for c in chunks(t) for i in peer.encode_ordinary(c)] for t in long]
    got = [a[0] for a in ask(folder, "", long)]
    tap.ok(got == want, "long runs are cut as the class cuts them",
           [len(t) for t, g, w in zip(long, got, want) if g != w])
    compare(folder, cache, peer, special, texts[:200], "mapped")
    with open(os.path.join(folder, "tiktoken.model"), "a") as f:
        f.write(base64.b64encode(b"zzqx").decode() + " %d\n" % n)
    r = subprocess.run([os.path.join(BUILDDIR, "tokenize_records"), folder, cache], input="",
                       capture_output=True, text=True)
    tap.ok(r.returncode == 1 and "added token" in r.stderr,
           "another file is another tokenizer, here one whose tokens collide", r.stderr)
tap.done()
