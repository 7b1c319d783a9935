#!/usr/bin/env python3
# Compares quire's tokenizer with Hugging Face's on generated and on real text.
#
#   make tokenize_records
#   python3 compare.py --count 1000000 --seed 1 [--cache DIR] [--text FILE ... --] FOLDER ...
#
# Needs the package tokenizers 0.23.2. Each folder holds a tokenizer.json (families.py makes some);
# a folder without one is a pair of vocab.json and merges.txt, whose peer is its file peer.json.
# Prints a row for each folder (strings, bytes, differences of ids, of texts, of streams) and the
# first differences. Ends with 1 when there was one.
import argparse
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import tokenizers

RANGES = [(0x20, 0x7F)] * 6 + [
    (0x1, 0x20), (0x7F, 0x100), (0xA0, 0x250), (0x250, 0x600), (0x600, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200),
    (0x1200, 0x1680), (0x1680, 0x1A00), (0x1A00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2C00), (0x2C00, 0x3000),
    (0x3000, 0x3100), (0x3100, 0x3400), (0x3400, 0x4E00), (0x4E00, 0x9FFF), (0x4E00, 0x9FFF), (0xA000, 0xAC00),
    (0xAC00, 0xD7FF), (0xE000, 0xF900), (0xF900, 0xFB50), (0xFB50, 0x10000), (0x10000, 0x11000), (0x11000, 0x12000),
    (0x16000, 0x18000), (0x1B000, 0x1C000), (0x1D100, 0x1D800), (0x1E000, 0x1F000), (0x1F300, 0x1FB00),
    (0x20000, 0x2FA20), (0x30000, 0x33480), (0xE0000, 0xE01F0), (0x10FF00, 0x110000), (0x0, 0xD7FF), (0x10000, 0x110000)]
SPACES = [" ", "  ", "   ", "    ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\n \n", " \n", "\n ", "\u00a0", "\u3000",
          "\u2028", "\u2029", "\u0085", "\u200b", "\u180e", "\u1680", "\u2003", "\x0b", "\x0c", "\x1c", "\x1f", "\ufeff",
          "\u202f", "\u205f"]
WORDS = ["'s", "'S", "'LL", "'Re", "'ve", "'d", "'x", "'", "\u017f", "'\u017f", "12", "123", "1234", "12345", "45678901",
         "\u0663\u0664\u0665\u0666", "\u00b2\u00b3", "\u2167", "abc", "Don't", "DON'T", "HelloWorld", "helloWORLD", "iPhone", "XMLHttp",
         "e\u0301", "\u00e9", "a\u0323\u0307", "E\u0301a", "\u1100\u1161\u11a8", "\u2126", "\u212b", "\u0958", "\ufb1d", "\u4e2d\u6587",
         "\u3072\u3089\u304c\u306a", "\u30ab\u30ca", "\u3000\u3001", "hello", " world", " the", "The", "of", "and", "_", "__", "!!", "...",
         "...\n", "//", "/", "\\n", "://", "http://", "#include <stdio.h>\n", "    return 0;\n", "{\"a\": 1}", "\u2581", "\u2581a", " \u2581",
         "<", ">", "<0x41>", "<0xE4>", "\ufffd", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea",
         "\u01c5", "\u02b0", "\u0e01\u0e33\u0e25\u0e31\u0e07", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u05e9\u05dc\u05d5\u05dd", "\u0645\u0631\u062d\u0628\u0627",
         "\u041f\u0440\u0438\u0432\u0435\u0442", " \u043c\u0438\u0440", "\uc548\ub155", "Stra\u00dfe", "\u0130", "\u00df", "\u00c9", "\u0378",
         "\u2014", "\u201c", "\u201d", "\u2026", "\u20ac", "\u00a3", "+", "=", "$", "^", "`", "~", "|", "(", ")", "[", "]"]


def text_of(rng, added):
    parts = []
    n = rng.random()
    for _ in range(1 + int(n * n * 14)):
        r = rng.random()
        if r < 0.36:
            parts.append(rng.choice(WORDS))
        elif r < 0.52:
            parts.append(rng.choice(SPACES))
        elif r < 0.60 and added:
            token = rng.choice(added)
            if r < 0.54:
                cut = rng.randrange(len(token) + 1)
                token = token[:cut] if r < 0.53 else token[cut:]
            parts.append(token)
        elif r < 0.62:
            run = rng.choice(WORDS) if r < 0.61 else rng.choice(SPACES)
            parts.append(run * rng.randint(2, 60))
        else:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"
                                 for c in (rng.randrange(low, high) for _ in range(rng.randint(1, 6)))))
    return "".join(parts)


def broken(rng, text):
    raw = bytearray(text.encode())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(raw) + 1)
        how = rng.randrange(3)
        if how == 0:
            raw[at:at] = bytes([rng.choice([0x80, 0xBF, 0xC0, 0xC3, 0xE0, 0xE4, 0xED, 0xF0, 0xF4, 0xF5, 0xFF])])
        elif how == 1:
            del raw[at:at + 1]
        else:
            raw = raw[:at]
    return bytes(raw)


def records(rng, count, added, n_ids, files):
    for path in files:
        with open(path, "rb") as f:
            raw = f.read(1 << 22)
        for size in (300, 3000, 60000):
            for at in range(0, min(len(raw), size * 200), size):
                yield "T", raw[at:at + size]
    for _ in range(count):
        r = rng.random()
        if r < 0.05:
            yield "I", struct.pack("<%di" % (n := rng.randint(1, 12)), *(rng.randrange(n_ids + 3) for _ in range(n)))
        elif r < 0.10:
            yield "T", broken(rng, text_of(rng, added))
        else:
            yield ("S" if r < 0.30 else "T"), text_of(rng, added).encode()


def parse(out):
    at = 0
    while at < len(out):
        n, = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from("<%di" % n, out, at + 4))
        at += 4 + 4 * n
        texts = []
        for _ in range(2):
            n, = struct.unpack_from("<I", out, at)
            texts.append(out[at + 4:at + 4 + n].decode(errors="surrogateescape"))
            at += 4 + n
        yield ids, texts, out[at]
        at += 1


def expected(tok, batch):
    want = [None] * len(batch)
    for kind in "TS":
        places = [i for i, (k, _) in enumerate(batch) if k == kind]
        texts = [batch[i][1].decode(errors="replace") for i in places]
        for i, e in zip(places, tok.encode_batch_fast(texts, add_special_tokens=kind == "S")):
            want[i] = e.ids
    for i, (kind, raw) in enumerate(batch):
        if kind == "I":
            want[i] = list(struct.unpack("<%di" % (len(raw) // 4), raw))
    return want


def apply_config(tok, folder):
    """What transformers does to the post-processor of Llama's classes when it loads them."""
    path = os.path.join(folder, "tokenizer_config.json")
    config = json.load(open(path)) if os.path.exists(path) else {}
    if config.get("tokenizer_class", "").removesuffix("Fast") not in ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer"):
        return
    if "add_bos_token" not in config and "add_eos_token" not in config:
        return
    name = lambda key: config[key]["content"] if isinstance(config[key], dict) else config[key]
    bos = [name("bos_token")] if config.get("add_bos_token", True) else []
    eos = [name("eos_token")] if config.get("add_eos_token", False) else []
    tok.post_processor = tokenizers.processors.TemplateProcessing(
        single=[t + ":0" for t in bos] + ["$A:0"] + [t + ":0" for t in eos], special_tokens=[(t, tok.token_to_id(t)) for t in bos + eos])


def compare(args, folder):
    path = os.path.join(folder, "tokenizer.json")
    tok = tokenizers.Tokenizer.from_file(path if os.path.exists(path) else os.path.join(folder, "peer.json"))
    apply_config(tok, folder)
    tok.no_truncation()
    tok.no_padding()
    added = [t.content for t in tok.get_added_tokens_decoder().values()]
    n_ids = tok.get_vocab_size()
    rng = random.Random(args.seed)
    found = {"strings": 0, "bytes": 0, "ids": 0, "texts": 0, "streams": 0}
    shown = 0
    batch = []

    def run():
        nonlocal shown
        data = b"".join(k.encode() + struct.pack("<I", len(raw)) + raw for k, raw in batch)
        with tempfile.TemporaryFile() as f:
            f.write(data)
            f.seek(0)
            out = subprocess.run([args.driver, folder, args.cache], stdin=f, stdout=subprocess.PIPE, check=True).stdout
        want = expected(tok, batch)
        plain = tok.decode_batch(want, skip_special_tokens=False)
        skipped = tok.decode_batch(want, skip_special_tokens=True)
        for (kind, raw), ids, text, short, (got, texts, wrong) in zip(batch, want, plain, skipped, parse(out), strict=True):
            found["strings"] += 1
            found["bytes"] += len(raw)
            bad = []
            if got != ids:
                bad.append("ids")
            elif texts != [text, short]:
                bad.append("texts")
            if wrong:
                bad.append("streams")
            for b in bad:
                found[b] += 1
            if bad and shown < args.show:
                shown += 1
                print("#", folder, bad, kind, repr(raw if kind == "I" else raw.decode(errors="replace"))[:300])
                print("#   want", ids[:40], repr(text)[:200], repr(short)[:100])
                print("#   got ", got[:40], repr(texts[0])[:200], repr(texts[1])[:100], wrong)
        batch.clear()

    for record in records(rng, args.count, added, n_ids, args.text):
        batch.append(record)
        if len(batch) >= 20000:
            run()
    run()
    print("| %s | %d | %d | %d | %d | %d |" % (os.path.basename(folder.rstrip("/")), *found.values()), flush=True)
    return found["ids"] + found["texts"] + found["streams"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--count", type=int, default=10000)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--show", type=int, default=3)
    p.add_argument("--cache", default="", help="folder of compiled tokenizers; empty: none")
    p.add_argument("--driver", default="./tokenize_records")
    p.add_argument("--text", nargs="*", default=[], help="files whose parts are compared as well")
    p.add_argument("folders", nargs="+")
    args = p.parse_args()
    print("tokenizers", tokenizers.__version__, "seed", args.seed)
    print("| folder | strings | bytes | ids differ | texts differ | streams differ |\n|---|---|---|---|---|---|")
    return 1 if sum(compare(args, f) for f in args.folders) else 0


if __name__ == "__main__":
    sys.exit(main())
