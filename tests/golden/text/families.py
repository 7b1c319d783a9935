#!/usr/bin/env python3
# Makes tokenizer folders for compare.py: each family's components around vocabularies that are at
# hand, or around small ones trained on generated text.
#
#   python3 families.py OUT [--gpt2 FOLDER] [--llama2 FOLDER] [--ranks NAME=FILE ...] [--spm NAME=FILE ...]
#
#   --gpt2    a folder whose tokenizer.json has GPT-2's vocabulary (phi-2's has)
#   --llama2  a folder with Llama-2's tokenizer.json
#   --ranks   tiktoken files (lines of base64 and rank) or tekken.json: llama3, llama4, o200k, qwen, tekken
#   --spm     SentencePiece BPE models: mistral, mistral-v3; needs the package sentencepiece
#
# Needs the package tokenizers 0.23.2. Without options it makes the families that are trained.
import argparse
import base64
import json
import os
import random

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
MINICPM = LLAMA3.replace("{1,3}", "+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
O200K = (BEFORE + UP + "*" + LOW + "+" + C + "?|" + BEFORE + UP + "+" + LOW + "*" + C
         + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
TEKKEN = BEFORE + UP + "*" + LOW + "+|" + BEFORE + UP + "+" + LOW + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL
LING = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
KIMI = "|".join([r"[\p{Han}]+",
                 BEFORE + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+" + C + "?",
                 BEFORE + r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*" + C + "?",
                 r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*"]) + TAIL
DS = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WITH_REGEX = dict(LEVEL, use_regex=True)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def chain(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


CHAINS = {  # around GPT-2's vocabulary: the chain is what differs
    "gpt2": WITH_REGEX,
    "gpt2-prefix": dict(WITH_REGEX, add_prefix_space=True),
    "smollm2": chain({"type": "Digits", "individual_digits": True}, WITH_REGEX),
    "digits-runs": chain({"type": "Digits", "individual_digits": False}, WITH_REGEX),
    "minicpm5": chain(split(r"\p{N}{1,3}"), split(MINICPM), LEVEL),
    "laguna": chain(split(r"(?:\r?\n)+(?!\r?\n)", "MergedWithNext"), split(QWEN2), LEVEL),
    "deepseek-coder": chain(*[split(p) for p in CODER], {"type": "Digits", "individual_digits": True}, LEVEL),
    "bloom": chain(split(BLOOM), LEVEL),
    "ling": chain(split(LING), LEVEL),
    "kimi": chain(split(KIMI), LEVEL),
    "falcon": chain({"type": "Punctuation", "behavior": "Contiguous"}, WITH_REGEX,
                    {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]")),
    "punctuation": chain({"type": "Punctuation", "behavior": "Isolated"}, LEVEL),
    "punctuation-next": chain({"type": "Punctuation", "behavior": "MergedWithNext"}, LEVEL),
    "removed": chain(split(r"\s+", "Removed"), LEVEL),
    "inverted": chain(split(r"\p{L}+", "MergedWithPrevious", True), LEVEL),
    "empty-matches": chain(split(r"(?=\p{Lu})"), LEVEL),
}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
SPM_END = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def alphabet():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def template(bos, bos_id):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}}}


def token(i, content, special=True, **flags):
    return dict({"id": i, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": special}, **flags)


def write(out, name, vocab, merges, pre, decoder, normalizer=None, post=None, added=(), config=None, pairs=True, **model):
    folder = os.path.join(out, name)
    os.makedirs(folder, exist_ok=True)
    added, free = list(added), max(vocab.values()) + 1
    for t in added:  # as Hugging Face numbers them: the model's own id, else the next
        t["id"] = vocab.get(t["content"], free)
        free += t["id"] == free
    data = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added), "normalizer": normalizer,
            "pre_tokenizer": pre, "post_processor": post, "decoder": decoder,
            "model": dict({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}, **model,
                          vocab=vocab, merges=[list(m) for m in merges] if pairs else [" ".join(m) for m in merges])}
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(data, f, ensure_ascii=False)
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config or {"tokenizer_class": "PreTrainedTokenizerFast"}, f)


def mixed(first, special=True):
    """Added tokens with every flag, after the usual special ones."""
    flags = [("<|start|>", True, {}), ("<|end|>", True, {}), ("<think>", False, {}), ("</think>", False, {}),
             ("keep", False, {"single_word": True}), ("wide", False, {"lstrip": True, "rstrip": True}),
             ("<|left|>", True, {"lstrip": True}), ("<|right|>", True, {"rstrip": True}), ("hello", False, {"normalized": True}),
             ("<|en", False, {"normalized": True}), ("\u2126e\u0301", False, {"normalized": True}), ("\u00fc\u00e9", False, {}),
             ("the end", False, {"normalized": True, "single_word": True, "lstrip": True})]
    return [token(first + i, content, is_special and special, **f) for i, (content, is_special, f) in enumerate(flags)]


# --- vocabularies -------------------------------------------------------------------------------
def read_ranks(path, limit=None):
    if path.endswith(".json"):
        entries = json.load(open(path))["vocab"]
        ranks = [base64.b64decode(e["token_bytes"]) for e in entries]
    else:
        ranks = [base64.b64decode(line.split()[0]) for line in open(path, "rb") if line.strip()]
    return ranks[:limit]


def ranked(ranks):
    """Vocabulary and merges of a rank list, by the rule of Hugging Face's converter."""
    letters = alphabet()
    by_bytes = {b: i for i, b in enumerate(ranks)}
    spell = ["".join(letters[c] for c in b) for b in ranks]
    merges = []
    for i, b in enumerate(ranks):
        if len(b) == 1:
            continue
        local = [(by_bytes[b[:k]], by_bytes[b[k:]]) for k in range(1, len(b)) if b[:k] in by_bytes and b[k:] in by_bytes]
        merges.extend(sorted(local))
    return {s: i for i, s in enumerate(spell)}, [(spell[a], spell[b]) for a, b in merges]


def read_spm(path):
    import sentencepiece
    sp = sentencepiece.SentencePieceProcessor(model_file=path)
    vocab = {sp.id_to_piece(i): i for i in range(sp.get_piece_size())}
    scores = {p: sp.get_score(i) for p, i in vocab.items()}
    merges = []
    for piece in vocab:
        local = [(piece[:k], piece[k:]) for k in range(1, len(piece)) if piece[:k] in vocab and piece[k:] in vocab]
        merges.extend((scores[piece], -vocab[l], -vocab[r], l, r) for l, r in local)
    special = [i for i in range(sp.get_piece_size()) if sp.is_control(i) or sp.is_unknown(i)]
    merges.sort(key=lambda m: (-m[0], -m[1], -m[2]))
    return vocab, [(l, r) for *_, l, r in merges], [(i, sp.id_to_piece(i)) for i in special]


def sample(rng, words=4000):
    syllables = [a + b for a in ["", *"bcdfghklmnprstvwz", "th", "sch", "пр", "к", "中", "日", "語", "ㄱ", "ש"]
                 for b in ["a", "e", "i", "o", "u", "ee", "ou", "ä", "é", "о", "я", "文", "本", "の", "가", "ל"]]
    stock = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(words)]
    ends = [". ", ", ", "; ", "\n", "\n\n", "! ", " (", ") ", ": ", "\t", "  ", " 12 ", " 2024 ", "'s ", " - ", "/", "="]
    for _ in range(400):
        yield "".join(w.capitalize() + e if rng.random() < .1 else w + e for w, e in
                      zip(rng.choices(stock, k=80), rng.choices([" "] * 30 + ends, k=80)))


def trained_chars(size):
    """A SentencePiece-like vocabulary: specials, the 256 bytes, characters, merges."""
    tok = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    lines = [("▁" + t).replace(" ", "▁") for t in sample(random.Random(5))]
    tok.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    tok.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=specials))
    data = json.loads(tok.to_str())["model"]
    return data["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in data["merges"]]


def trained_bytes(size, pattern):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.train_from_iterator(sample(random.Random(6)), trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    data = json.loads(tok.to_str())["model"]
    return data["vocab"], [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in data["merges"]]


# --- families -----------------------------------------------------------------------------------
def spm_families(out, prefix, vocab, merges, v3_special=()):
    n = len(vocab)
    three = [token(0, "<unk>"), token(1, "<s>"), token(2, "</s>")]
    llama = [dict(t, normalized=True) for t in three]
    model = dict(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    bos = template("<s>", 1)
    put = lambda name, *a, **k: write(out, prefix + name, vocab, merges, *a, **k, **model)
    put("llama2", None, {"type": "Sequence", "decoders": SPM_END + [STRIP]}, {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, bos, llama,
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>"})
    put("phi3", None, {"type": "Sequence", "decoders": SPM_END + [STRIP]}, {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None,
        three[:2] + [token(2, "</s>", False, rstrip=True)] + [token(n + i, c, rstrip=True) for i, c in
                                                              enumerate(["<|user|>", "<|assistant|>", "<|end|>"])])
    put("mistral", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        {"type": "Sequence", "decoders": SPM_END + [STRIP]}, None, bos, [*three, *v3_special, *mixed(n)])
    put("mistral-always", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, None, bos, [*three, *mixed(n)])
    put("gemma", split(" ", "MergedWithPrevious", kind="String"), {"type": "Sequence", "decoders": SPM_END}, REPLACE, bos,
        [*three, token(n, "<start_of_turn>", False), token(n + 1, "\n\n", False), token(n + 2, "▁▁", False), token(n + 3, "<b>", False),
         token(n + 4, "\n", False)])
    put("gemma1", None, {"type": "Sequence", "decoders": SPM_END}, REPLACE, bos, three,
        {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"})
    few = {k: v for k, v in vocab.items() if not (k.startswith("<0x") and int(k[3:5], 16) >= 0x90)}
    few = {k: i for i, k in enumerate(few)}
    three = [token(few[c], c) for c in ("<unk>", "<s>", "</s>")]
    for name, change in (("unk", dict(fuse_unk=False)), ("unk-fused", {}), ("unk-none", dict(unk_token=None)),
                         ("no-bytes", dict(byte_fallback=False))):
        write(out, prefix + name, few, merges, None, {"type": "Sequence", "decoders": SPM_END + [STRIP]},
              {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}, None, [*three, *mixed(len(few))], **{**model, **change})


def byte_families(out, prefix, vocab, merges, names):
    n = len(vocab)
    nfc = {"type": "NFC"}
    bos = {"type": "Sequence", "processors": [BYTES, template("<|start|>", n)]}
    table = {
        "llama3": dict(pre=chain(split(LLAMA3), LEVEL), post=bos, ignore_merges=True),
        "llama4": dict(pre=chain(split(O200K, "Removed", True), LEVEL), post=bos, ignore_merges=True),
        "phi4": dict(pre=chain(split(LLAMA3, "Removed", True), LEVEL), pairs=False),
        "gpt-oss": dict(pre=chain(split(O200K), LEVEL), ignore_merges=True),
        "o200k-merging": dict(pre=chain(split(O200K), LEVEL)),
        "qwen2": dict(pre=chain(split(QWEN2), LEVEL), normalizer=nfc, pairs=False),
        "qwen35": dict(pre=chain(split(QWEN35), LEVEL), normalizer=nfc),
        "tekken": dict(pre=chain(split(TEKKEN), LEVEL), ignore_merges=True),
        "deepseek": dict(pre=chain(*[split(p) for p in DS], LEVEL), normalizer={"type": "Sequence", "normalizers": []}),
    }
    for name in names:
        options = dict(table[name])
        write(out, prefix + name, vocab, merges, options.pop("pre"), BYTES, added=mixed(n), **options)


def opt_pair(out, vocab, merges):
    """vocab.json and merges.txt as OPT has them, and the tokenizer that Hugging Face builds of them."""
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, **{k: i + 4 for k, i in vocab.items()}}
    special = [token(2, "</s>", normalized=True), token(1, "<pad>", normalized=True)]
    write(out, "opt", vocab, merges, WITH_REGEX, BYTES, post=template("</s>", 2), added=special,
          config={"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "add_prefix_space": False,
                  **{k: "</s>" for k in ("bos_token", "eos_token", "unk_token")}, "pad_token": "<pad>"})
    folder = os.path.join(out, "opt")
    os.rename(os.path.join(folder, "tokenizer.json"), os.path.join(folder, "peer.json"))
    json.dump(vocab, open(os.path.join(folder, "vocab.json"), "w"))
    with open(os.path.join(folder, "merges.txt"), "w") as f:
        f.write("#version: 0.2\n" + "".join("%s %s\n" % m for m in merges))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("--gpt2")
    p.add_argument("--llama2")
    p.add_argument("--ranks", nargs="*", default=[])
    p.add_argument("--spm", nargs="*", default=[])
    args = p.parse_args()
    vocab, merges = trained_chars(3000)
    spm_families(args.out, "trained-", vocab, merges)
    vocab, merges = trained_bytes(3000, LLAMA3)
    byte_families(args.out, "trained-", vocab, merges, ["llama3", "phi4", "gpt-oss", "qwen2", "qwen35", "tekken", "deepseek"])
    if args.gpt2:
        data = json.load(open(os.path.join(args.gpt2, "tokenizer.json")))["model"]
        vocab = {k: i for k, i in data["vocab"].items() if i < 50257}
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in data["merges"]]
    for name, pre in CHAINS.items():
        write(args.out, name, vocab, merges, pre, BYTES, added=mixed(len(vocab)), pairs=False)
    opt_pair(args.out, {k: i for k, i in vocab.items() if k not in ("<s>", "<pad>", "</s>", "<unk>")}, merges)
    if args.llama2:
        data = json.load(open(os.path.join(args.llama2, "tokenizer.json")))
        # One copy that is about has merges of nothing but spaces, which Hugging Face refuses.
        data["model"]["merges"] = [m for m in data["model"]["merges"] if isinstance(m, list) or m.count(" ") == 1]
        os.makedirs(os.path.join(args.out, "real-llama2"), exist_ok=True)
        json.dump(data, open(os.path.join(args.out, "real-llama2", "tokenizer.json"), "w"), ensure_ascii=False)
        json.dump({}, open(os.path.join(args.out, "real-llama2", "tokenizer_config.json"), "w"))
        merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in data["model"]["merges"]]
        spm_families(args.out, "llama2-", data["model"]["vocab"], merges)
    for item in args.ranks:
        name, path = item.split("=", 1)
        vocab, merges = ranked(read_ranks(path, 130072 if name == "tekken" else None))
        names = {"llama3": ["llama3", "phi4"], "llama4": ["llama4"], "o200k": ["gpt-oss", "o200k-merging"],
                 "qwen": ["qwen2", "qwen35"], "tekken": ["tekken"]}[name]
        byte_families(args.out, "real-", vocab, merges, names)
    for item in args.spm:
        name, path = item.split("=", 1)
        vocab, merges, special = read_spm(path)
        spm_families(args.out, name + "-", vocab, merges, [token(i, c) for i, c in special if i > 2])


if __name__ == "__main__":
    main()
