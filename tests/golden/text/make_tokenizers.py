#!/usr/bin/env python3
# Makes the tokenizer goldens: tiny models, trained here, and what Hugging Face's
# tokenizers says of a few hundred strings each.
#
#   pip install tokenizers==0.23.2 && python3 tests/golden/text/make_tokenizers.py
#
# Output: tests/golden/text/<name>/{tokenizer.json,tokenizer_config.json,cases.json}. A case is
# [text, ids without special tokens, ids with them, their text, their text without special ones].
import json
import os
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

assert tokenizers.__version__ == "0.23.2"
HERE = os.path.dirname(os.path.abspath(__file__))
C = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN2 = C + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL
QWEN35 = C + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + TAIL
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+" + C + "?|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW + "*" + C
         + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
DS = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
      r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^" + "\r\n" + r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
      + "\r\n]*|" + r"\s*[" + "\r\n]+" + r"|\s+(?!\S)|\s+"]
NO_HAN = r"[%s&&[^\p{Han}]]"
KIMI_UP, KIMI_LOW = NO_HAN % UP[1:-1], NO_HAN % LOW[1:-1]
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?" + KIMI_UP + "*" + KIMI_LOW + "+" + C + r"?|[^\r\n\p{L}\p{N}]?" + KIMI_UP + "+"
        + KIMI_LOW + "*" + C + r"?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + TAIL)
SAMPLE = """The quick brown fox doesn't jump over 1234567 lazy dogs; they're there, I've seen 'em.
She said: "Hello, world! It's 3.14159..."  def main(argc, argv):\n    return {'a': [1, 2, 3]}\n\n
Der schnelle braune Fuchs überspringt den faulen Hund. Ça va très bien, merci à tous.
Быстрая коричневая лиса прыгает через ленивую собаку. 敏捷的棕色狐狸跳过了懒狗。素早い茶色の狐。
안녕하세요 세계. שלום עולם مرحبا بالعالم नमस्ते दुनिया 😀😃👍🏽 <b>bold</b>\t\ttabs   spaces
hello hello world world the the and and of of in in to to \n\n\n for (int i = 0; i < n; i++) {\n"""


def chain(*patterns, behavior="isolated", invert=False):
    steps = [pre_tokenizers.Split(Regex(p), behavior=behavior, invert=invert) for p in patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
TEKKEN = (r"[^\r\n\p{L}\p{N}]?" + UP + "*" + LOW + "+|" + r"[^\r\n\p{L}\p{N}]?" + UP + "+" + LOW
          + r"*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + TAIL)
MODELS = {
    "gpt2": dict(pre=BYTE_LEVEL),
    "gpt2-prefix": dict(pre=pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)),
    "llama3": dict(pre=chain(LLAMA3), ignore=True, bos=True, flags=True),
    "qwen2": dict(pre=chain(QWEN2), nfc=True, flags=True, pairs=True),
    "qwen35": dict(pre=chain(QWEN35), nfc=True),
    "phi4": dict(pre=chain(LLAMA3, behavior="removed", invert=True)),
    "smollm": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTE_LEVEL])),
    "o200k": dict(pre=chain(O200K), ignore=True),
    "deepseek": dict(pre=chain(*DS)),
    "merged": dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"(?:\r?\n)+(?!\r?\n)"), behavior="merged_with_next"),
        pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        pre_tokenizers.Split(Regex("[0-9a-f]"), behavior="contiguous"),
        pre_tokenizers.Digits(individual_digits=False), BYTE_LEVEL])),
    "tekken": dict(pre=chain(TEKKEN), ignore=True, cases=90),
    "falcon": dict(pre=pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), BYTE_LEVEL, pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")]), cases=90),
    "bloom": dict(pre=chain(r" ?[^(\s|[.,!?…。，、।۔،])]+"), cases=90),
    "kimi": dict(pre=chain(KIMI), cases=110),
    "coder": dict(pre=pre_tokenizers.Sequence([
        *[pre_tokenizers.Split(Regex(p), behavior="isolated") for p in CODER], pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), cases=90),
}
PREPEND = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
ENDS = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
CHARS = {  # SentencePiece-style: from characters, with byte fallback
    "llama2": dict(normalizer=PREPEND, decoder=decoders.Sequence([*ENDS, decoders.Strip(" ", 1, 0)]), bos=True),
    "mistral": dict(pre=pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False), bos=True, flags=True,
                    decoder=decoders.Sequence([*ENDS, decoders.Strip(" ", 1, 0)])),
    "gemma": dict(normalizer=normalizers.Replace(" ", "▁"), pre=pre_tokenizers.Split(" ", "merged_with_previous"),
                  decoder=decoders.Sequence(ENDS), bos=True, flags=True),
    "metaspace": dict(pre=pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True), fallback=False,
                      decoder=decoders.Metaspace("▁", prepend_scheme="always", split=True)),
}


def random_text(rng):
    ranges = [(0x20, 0x7f), (0x20, 0x7f), (0x20, 0x7f), (0xa0, 0x250), (0x250, 0x600), (0x600, 0xe00),
              (0x1100, 0x1200), (0x1680, 0x1a00), (0x2000, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3100),
              (0x4e00, 0x9fff), (0xac00, 0xd7b0), (0xf900, 0xfb50), (0x10000, 0x11000), (0x1d100, 0x1d800),
              (0x1f300, 0x1fb00), (0x20000, 0x2fa20), (0xe0000, 0xe01f0), (0x1, 0x20)]
    words = ["'s", "'LL", "'Re", "\u017f", "'\u017f", " ", "  ", "   ", "\n", "\r\n", "\n \n", "\t", "123", "45678", "abc",
             "Don't", "<|end|>", " <|end|> ", "<|start|>", "<|end", "keep", "xkeepx", "keep ", "  wide  ", "wide", "é", "e\u0301",
             "a\u0323\u0307", "\u1100\u1161\u11a8", "\u2126", "\u0958", "\u180e", "\u0085", "\u00a0", "中文", "ひらがな", "カナ",
             "hello", " world", "_", "!!", "...\n", "//", "\ufffd", "\U0001f468\u200d\U0001f469"]
    out = []
    for _ in range(rng.randint(1, 9)):
        if rng.random() < 0.55:
            out.append(rng.choice(words))
        else:
            low, high = rng.choice(ranges)
            out.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 4))))
    return "".join(out)


def build_chars(name, decoder, normalizer=None, pre=None, bos=False, flags=False, fallback=True):
    trainee = Tokenizer(models.BPE(byte_fallback=fallback, fuse_unk=True, unk_token="<unk>"))
    trainee.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256 if fallback else 0)]
    trainee.train_from_iterator(["▁" + line.replace(" ", "▁") for line in SAMPLE.splitlines(True)] * 4, trainers.BpeTrainer(
        vocab_size=620, show_progress=False, special_tokens=specials))
    data = json.loads(trainee.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    tok = Tokenizer.from_str(json.dumps(data))
    tok.normalizer, tok.pre_tokenizer, tok.decoder = normalizer, pre, decoder
    if flags:
        tok.add_tokens([AddedToken("keep", single_word=True, normalized=False), AddedToken("hello", normalized=True),
                        AddedToken("wide", lstrip=True, rstrip=True, normalized=False)])
    if bos:
        tok.post_processor = processors.TemplateProcessing(single="<s>:0 $A:0", special_tokens=[("<s>", 1)])
    finish(name, json.loads(tok.to_str()), {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}, 90)


def build(name, pre, ignore=False, nfc=False, bos=False, flags=False, pairs=False, cases=200):
    tok = Tokenizer(models.BPE(ignore_merges=ignore))
    tok.pre_tokenizer = pre
    if nfc:
        tok.normalizer = normalizers.NFC()
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator([SAMPLE] * 4, trainers.BpeTrainer(
        vocab_size=460, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens(["<|start|>", "<|end|>"])
    if flags:
        tok.add_tokens([AddedToken("keep", single_word=True, normalized=False),
                        AddedToken("wide", lstrip=True, rstrip=True, normalized=False),
                        AddedToken("hello", normalized=True), AddedToken("<|en", normalized=True),
                        AddedToken("\u2126e\u0301", normalized=True), AddedToken("\u00fc\u00e9", normalized=False)])
    if bos:
        start = tok.token_to_id("<|start|>")
        tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|start|>:0 $A:0", special_tokens=[("<|start|>", start)])])
    data = json.loads(tok.to_str())
    if not pairs:
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    if bos:
        data["model"]["merges"] = data["model"]["merges"][:-40]  # tokens that only ignore_merges yields
    finish(name, data, {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}, "pad_token": None}, cases)


def finish(name, data, config, count):
    tok = Tokenizer.from_str(json.dumps(data))
    rng = random.Random(name)
    cases = []
    for text in [SAMPLE, "", " ", "\n", "a" * 70, " " * 70, "ab" * 60] + [random_text(rng) for _ in range(count)]:
        if len(cases) and len(text) > 200:
            continue
        plain = tok.encode(text, add_special_tokens=False).ids
        special = tok.encode(text).ids
        cases.append([text, plain, special, tok.decode(special, skip_special_tokens=False), tok.decode(special)])
    for _ in range(count // 2):
        ids = [rng.randrange(tok.get_vocab_size() + 3) for _ in range(rng.randint(1, 12))]
        if "\0" in tok.decode(ids):
            continue  # quire's JSON reader refuses \u0000 in a name
        cases.append([None, ids, ids, tok.decode(ids, skip_special_tokens=False), tok.decode(ids)])
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(config, f)
    with open(os.path.join(folder, "cases.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases) + "\n]\n")


for model_name, options in MODELS.items():
    build(model_name, **options)
for model_name, options in CHARS.items():
    build_chars(model_name, **options)
