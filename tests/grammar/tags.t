#!/usr/bin/env python3
"""Random structural tags, judged by a checker that knows no automata.

Each tag is asked of short texts over a small alphabet and of random ones, and texts are drawn under
masks from it, of a small vocabulary and of one of 131,072 tokens, by tests/grammar/judge of the build. The checker below says for each what the tag
means: it looks for what may be written where, place by place. Refusals are counted by their words.
TAGS=n makes more of them, SEED=n others, VERBOSE=1 tells those that no text fitted.
"""

import collections
import itertools
import os
import random
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "integration")]

import suites  # noqa: E402
from harness import BUILDDIR, Tap  # noqa: E402

LETTERS = "ab<1"
WORDS = ["a", "b", "<", "ab", "<a", "a<", "<<", "b1", "ba", "<ab"]
SHORT = ["".join(t) for n in range(6) for t in itertools.product(LETTERS, repeat=n)]
PATTERNS = ["a+", "b?", "[ab]*", "(ab|a)", "1"]
NUMBERS = [1, 11]
LARGE = 3  # walks with the large vocabulary


# --- tags ------------------------------------------------------------------------------------

def excludes(rng):
    return rng.sample(WORDS, rng.randint(1, 2)) if rng.random() < 0.2 else []


def make_tag(rng, depth, begin=None):
    end = rng.choice(WORDS) if rng.random() < 0.7 else rng.sample(WORDS, 2)
    return {"type": "tag", "begin": begin if begin is not None else rng.choice(WORDS + [""]),
            "content": make(rng, depth - 1), "end": "" if rng.random() < 0.1 else end}


def make_free(rng, depth):
    kind = rng.choice(["any_text", "triggered_tags", "dispatch"] if depth > 0 else ["any_text"])
    v = {"type": kind}
    if rng.random() < 0.3:
        v["excludes"] = excludes(rng)
    if kind == "dispatch":
        v["rules"] = [[w, make(rng, depth - 1)] for w in rng.sample(WORDS, rng.randint(1, 2))]
        v["loop"] = rng.random() < 0.5
    elif kind == "triggered_tags":
        v["triggers"] = rng.sample(WORDS, rng.randint(1, 2))
        v["tags"] = [make_tag(rng, depth, w + rng.choice(["", "a", "b"])) for w in v["triggers"]]
        v["at_least_one"], v["stop_after_first"] = rng.random() < 0.3, rng.random() < 0.3
    return v


def make(rng, depth):
    kind = rng.choice(["const", "regex", "schema", "free", "free", "free"] +
                      (["sequence", "sequence", "or", "repeat", "tag", "tag", "separated"]
                       if depth > 0 else []))
    if kind == "const":
        return {"type": "const_string", "value": rng.choice(WORDS)}
    if kind == "regex":
        return {"type": "regex", "pattern": rng.choice(PATTERNS)}
    if kind == "schema":
        return {"type": "json_schema", "json_schema": {"enum": NUMBERS}}
    if kind == "free":
        return make_free(rng, depth)
    if kind == "tag":
        return make_tag(rng, depth)
    if kind == "separated":
        return {"type": "tags_with_separator", "separator": rng.choice(WORDS + [""]),
                "tags": [make_tag(rng, depth) for _ in range(rng.randint(1, 2))],
                "at_least_one": rng.random() < 0.5, "stop_after_first": rng.random() < 0.3}
    if kind == "repeat":
        kind = rng.choice(["optional", "star", "plus", "repeat"])
        v = {"type": kind, "content": make(rng, depth - 1)}
        return dict(v, min=rng.randint(0, 2), max=rng.choice([-1, 2, 3])) if kind == "repeat" else v
    return {"type": kind, "elements": [make(rng, depth - 1) for _ in range(rng.randint(1, 3))]}


# --- the checker -----------------------------------------------------------------------------

def listed(v):
    return [v] if isinstance(v, str) else v


class Checker:
    """All places at which a format that begins at a place can be over, its end included."""

    def __init__(self, text):
        self.text = text

    def behind(self, places, end):
        if end is None:
            return places
        return {p + len(e) for p in places for e in end if self.text.startswith(e, p)}

    def scan(self, at, stops, triggers, never):
        """Free text: where it may stop, and the first text in it that is watched for. Of those
        that end at the same place it is the longest, of alike ones the first kind."""
        plain = []
        for p in range(at, len(self.text) + 1):
            found = [(len(w), -kind, w) for kind, ws in enumerate((stops, triggers, never))
                     for w in ws if p - at >= len(w) and self.text[at:p].endswith(w)]
            if found:
                length, kind, word = max(found)
                return plain, -kind, word, p
            plain.append(p)
        return plain, None, None, None

    def free(self, v, at, end, rules, once):
        """rules: (trigger, function from a place to places)."""
        out, seen, left = set(), set(), {(at, False)}
        while left:
            p, last = left.pop()
            if (p, last) in seen:
                continue
            seen.add((p, last))
            if last:
                out |= self.behind({p}, end)
                continue
            plain, kind, word, then = self.scan(p, end or [], [w for w, _ in rules],
                                                v.get("excludes") or [])
            if end is None:
                out |= set(plain)
            elif kind == 0:
                out.add(then)
            if kind == 1:
                for w, rest in rules:
                    if w == word:
                        left |= {(q, once) for q in rest(then)}
        return out

    def inside(self, v, at, end):
        own = [e for e in listed(v["end"]) if e]
        return self.behind(self.places(v["content"], at, own), end) if own else \
            self.places(v["content"], at, end)

    def tag(self, v, at, end):
        return self.inside(v, at + len(v["begin"]), end) \
            if self.text.startswith(v["begin"], at) else set()

    def repeat(self, at, low, high, once, between):
        out, now, n, before = set(), {at}, 0, None
        while now and n <= len(self.text) + 3:
            if n >= low:
                if now <= out and before == now:
                    break
                out |= now
            if n == high:
                break
            before, n = now, n + 1
            now = {q for p in now for b in ([p] if n == 1 or not between else
                                            self.behind({p}, [between])) for q in once(b)}
        return out

    def sequence(self, elements, at, end):
        now, i = {at}, 0
        while i < len(elements):
            v, last = elements[i], i + 1 == len(elements)
            following = None if last else elements[i + 1]
            first = following and (following.get("value") or following.get("begin"))
            if v["type"] in ("any_text", "triggered_tags", "dispatch") and first and not (
                    v.get("at_least_one") and v.get("stop_after_first")):
                then = self.sequence_rest(following, end if i + 2 == len(elements) else None)
                now = {q for p in now for r in self.places(v, p, [first]) for q in then(r)}
                i += 2
                continue
            now = {q for p in now for q in self.places(v, p, end if last else None)}
            i += 1
        return now

    def sequence_rest(self, v, end):
        """What is behind the text with which a const_string or a tag begins."""
        if v["type"] == "tag":
            return lambda p: self.inside(v, p, end)
        return lambda p: self.behind({p}, end)

    def triggered(self, v, at, end):
        once = v["stop_after_first"]
        rules = [(w, lambda p, w=w: {q for t in v["tags"] if t["begin"].startswith(w) and
                                     self.text.startswith(t["begin"][len(w):], p)
                                     for q in self.inside(t, p + len(t["begin"]) - len(w), None)})
                 for w in v["triggers"]]
        if not v["at_least_one"]:
            return self.free(v, at, end, rules, once)
        first = {q for t in v["tags"] for q in self.tag(t, at, None)}
        if once:
            return self.behind(first, end)
        return {q for p in first for q in self.free(v, p, end, rules, False)}

    def places(self, v, at, end):
        kind = v["type"]
        if at > len(self.text):
            return set()
        if kind == "const_string":
            return self.behind(self.behind({at}, [v["value"]]), end)
        if kind == "regex":
            return self.behind({p for p in range(at, len(self.text) + 1)
                                if re.fullmatch(v["pattern"], self.text[at:p])}, end)
        if kind == "json_schema":
            return self.behind(self.behind({at}, [str(n) for n in NUMBERS]), end)
        if kind == "any_text":
            return self.free(v, at, end, [], False)
        if kind == "dispatch":
            return self.free(v, at, end, [(w, lambda p, f=f: self.places(f, p, None))
                                          for w, f in v["rules"]], not v["loop"])
        if kind == "triggered_tags":
            return self.triggered(v, at, end)
        if kind == "tag":
            return self.tag(v, at, end)
        if kind == "or":
            return {q for f in v["elements"] for q in self.places(f, at, end)}
        if kind == "sequence":
            return self.sequence(v["elements"], at, end)
        if kind == "tags_with_separator":
            low, high = int(v["at_least_one"]), 1 if v["stop_after_first"] else -1
            return self.behind(self.repeat(at, low, high, lambda p: {
                q for t in v["tags"] for q in self.tag(t, p, None)}, v["separator"]), end)
        low, high = {"optional": (0, 1), "star": (0, -1), "plus": (1, -1)}.get(kind) or \
            (v["min"], v["max"])
        return self.behind(self.repeat(at, low, high, lambda p: self.places(v["content"], p, None),
                                       ""), end)


def fits(v, text):
    return len(text) in Checker(text).places(v, 0, None)


# --- all of it -------------------------------------------------------------------------------

def main():
    tap = Tap()
    judge = suites.Judge(os.path.join(BUILDDIR, "tests", "grammar", "judge"))
    wanted, seed = int(os.environ.get("TAGS", "400")), int(os.environ.get("SEED", "1"))
    rng = random.Random(seed)
    n, refused = collections.Counter(), collections.Counter()
    tap.note("SEED=%d, %d tags" % (seed, wanted))
    for _ in range(wanted):
        v = make(rng, 3)
        texts = rng.sample(SHORT, 200) + ["".join(rng.choice(WORDS + list(LETTERS)) for _ in range(
            rng.randint(1, 8))) for _ in range(300)]
        answer = judge.ask({"tags": {"format": v}, "texts": texts, "walks": 20, "large": LARGE,
                            "seed": seed})
        n["tags"] += 1
        if "error" in answer:
            n["refused"] += 1
            refused[re.sub(r"'[^']*'", "'...'", answer["text"])] += 1
            continue
        walks, got = answer["answers"][:20 + LARGE], answer["answers"][20 + LARGE:]
        wrong = [(t, "is taken" if g else "is refused") for t, g in zip(texts, got)
                 if g != fits(v, t)]
        for text in walks:
            if text is None:
                n["walks too long"] += 1
            elif text.endswith("<nothing may follow>"):
                wrong.append((text, "dead end"))
            elif not fits(v, text):
                wrong.append((text, "was written"))
        n["texts"] += len(texts) + len(walks)
        n["texts that fit"] += sum(got)
        n["without any text"] += not any(got)
        if not any(got) and os.environ.get("VERBOSE"):
            tap.note("nothing fits: %s" % v)
        if wrong:
            n["WRONG"] += 1
            if n["WRONG"] <= 10:
                tap.note("%s\n  %s" % (v, wrong[:3]))
    tap.note(", ".join("%s %d" % item for item in n.items()))
    for words, count in refused.most_common():
        tap.note("  %d %s" % (count, words))
    tap.eq(n["WRONG"], 0, "masks and the checker agree on %d texts" % n["texts"])
    tap.ok(n["texts that fit"] > n["texts"] / 20 and n["refused"] < wanted / 2,
           "of which many fit, and most tags are taken")
    tap.done()


main()
