#!/usr/bin/env python3
# Writes src/text/unicode.inc and src/text/nfc.inc: what the tokenizers and templates must know of Unicode.
#
#   pip install tokenizers==0.23.2 && python3 tools/unicode-table.py src/text
#
# Classes, white space and word characters are asked of `tokenizers` itself, whose tables decide
# the ids (Unicode 16.0 for classes, 9.0 for NFC). Case mappings are Python's own.
import sys
import unicodedata

from tokenizers import Regex, Tokenizer, AddedToken, normalizers, pre_tokenizers
import tokenizers

assert tokenizers.__version__ == "0.23.2"
CATEGORIES = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
SPACE, WORD, NFC_CHECK = 0x20, 0x40, 0x80
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
TEXT = "".join(map(chr, CODES))


def matching(pattern):
    """Code points that the pattern (one character) matches."""
    split = pre_tokenizers.Split(Regex("(?:%s)+" % pattern), behavior="removed", invert=True)
    found = set()
    for _, (start, end) in split.pre_tokenize_str(TEXT):
        found.update(CODES[start:end])
    return found


def word_characters():
    """Code points that keep a single_word token from matching after them."""
    from tokenizers import models
    found = set()
    tok = Tokenizer(models.WordLevel({"[U]": 0}, unk_token="[U]"))
    tok.add_tokens([AddedToken("qqqq", single_word=True, normalized=False)])
    qid = tok.token_to_id("qqqq")
    for at in range(0, len(CODES), 4096):
        part = CODES[at:at + 4096]
        text = "".join("," + chr(c) + "qqqq" for c in part)
        hits = {o[0] for i, o in zip(*(lambda e: (e.ids, e.offsets))(tok.encode(text))) if i == qid}
        found.update(c for n, c in enumerate(part) if n * 6 + 2 not in hits)
    return found


def emit(name, kind, items, columns):
    print("static const %s %s[] = {" % (kind, name))
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 99:
            print(line)
            line = "   "
        line += " " + item + ","
    print(line)
    print("};")


def nfc_tables():
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    ccc, decompose, compose = {}, {}, []
    for c in CODES:
        if 0xAC00 <= c < 0xD7A4:
            continue
        d = nfd.normalize_str(chr(c))
        if d != chr(c):
            decompose[c] = [ord(x) for x in d]
        k = unicodedata.combining(chr(c))
        if k > 1 and nfd.normalize_str("a" + chr(c) + "\u0334") == "a\u0334" + chr(c):
            ccc[c] = k
        elif k == 1 and nfd.normalize_str("a\u0301" + chr(c)) == "a" + chr(c) + "\u0301":
            ccc[c] = k
    for c in decompose:
        parts = unicodedata.decomposition(chr(c)).split()
        if len(parts) == 2 and nfc.normalize_str(chr(int(parts[0], 16)) + chr(int(parts[1], 16))) == chr(c):
            compose.append((int(parts[0], 16), int(parts[1], 16), c))
    return ccc, decompose, sorted(compose)


def main(folder):
    category = dict.fromkeys(CODES, 0)
    for n, name in enumerate(CATEGORIES):
        if n > 0:
            for c in matching(r"\p{%s}" % name):
                category[c] = n
    space = matching(r"\s")
    assert len(space) == 25, len(space)
    word = word_characters()
    ccc, decompose, compose = nfc_tables()
    check = set(ccc) | set(decompose) | {b for _, b, _ in compose} | set(range(0x1161, 0x1176)) | set(range(0x11A7, 0x11C3))
    head = ("/* Made by tools/unicode-table.py with tokenizers %s, Python's Unicode %s; not edited by hand. */"
            % (tokenizers.__version__, unicodedata.unidata_version))
    runs, last = [], None
    for c in range(0x110000):
        flags = category.get(c, 0)
        flags |= SPACE * (c in space) | WORD * (c in word) | NFC_CHECK * (c in check)
        if flags != last:
            runs.append("0x%xu" % (c << 8 | flags))
            last = flags
    sys.stdout = open(folder + "/unicode.inc", "w")
    print(head)
    print("/* First code point << 8 | class of each run of equal classes. */")
    emit("unicode_runs", "uint32_t", runs, 9)
    print("/* Code point, its upper, lower and title case, where they are one character each. */")
    cases, special = [], []
    for c in CODES:
        forms = [chr(c).upper(), chr(c).lower(), chr(c).title()]
        if all(f == chr(c) for f in forms):
            continue
        cases.append("{0x%x, {0x%x, 0x%x, 0x%x}}" % ((c,) + tuple(ord(f) if len(f) == 1 else 0 for f in forms)))
        for n, f in enumerate(forms):
            if len(f) > 1:
                special.append("{0x%x, %d, {%s}}" % (c, n, ", ".join("0x%x" % ord(x) for x in f)))
    emit("unicode_cases", "struct unicode_case", cases, 3)
    print("/* Code point, case (0 upper, 1 lower, 2 title), the characters it becomes. */")
    emit("unicode_special_cases", "struct unicode_special_case", special, 3)
    sys.stdout = open(folder + "/nfc.inc", "w")
    print(head)
    print("/* Code point, combining class. */")
    emit("unicode_ccc", "struct unicode_ccc", ["{0x%x, %d}" % x for x in sorted(ccc.items())], 6)
    flat, where = [], []
    for c, d in sorted(decompose.items()):
        where.append("{0x%x, %d, %d}" % (c, len(flat), len(d)))
        flat += d
    print("/* Code point, place in unicode_parts, number of parts of its full decomposition. */")
    emit("unicode_decompose", "struct unicode_decompose", where, 6)
    emit("unicode_parts", "uint32_t", ["0x%x" % x for x in flat], 9)
    print("/* First, second, composed. */")
    emit("unicode_compose", "struct unicode_compose", ["{0x%x, 0x%x, 0x%x}" % x for x in compose], 4)


main(sys.argv[1])
