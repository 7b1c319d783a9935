#!/usr/bin/env python3
"""Log probabilities, biases, allowed ids and bad words, as a client sees them: what is told agrees
with what greedy sampling does, streams with whole answers, a prompt with the same text generated,
a crowd with each alone, and a life after the engine's death with one before."""

import json
import math
import os
import signal
import threading
import time

import twin
from harness import DEVICE, LONG, MODEL, MODEL_NAME, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def near(a, b):
    """On cuda the last bits of a row depend on what shares its step: logits of 30 in bfloat16."""
    return abs(a - b) <= (1e-4 if DEVICE == "cpu" else 0.6 + 0.05 * abs(b))


PROMPT = "The capital of France is"
STORY = "Once upon a time"


def ask(s, path, body, name, status=200):
    r = s.post(path, body)
    if not tap.eq(r.status, status, name):
        tap.note(r.text[:400])
    return r.json


def ids_of(s, text, **more):
    return s.post("/tokenize", dict(prompt=text, **more)).json["tokens"]


def chats(s):
    body = s.chat("What is the capital of France?", max_tokens=12, logprobs=True, top_logprobs=5,
                  return_token_ids=True)
    whole = ask(s, CHAT, body, "a chat with logprobs")["choices"][0]
    content = whole["logprobs"]["content"]
    tap.eq(len(content), len(whole["token_ids"]), "one entry a token, that of the end included")
    tap.ok(all(len(c["top_logprobs"]) == 5 for c in content), "as many alternatives as asked for")
    tap.ok(all(c["top_logprobs"][0]["token"] == c["token"] for c in content),
           "greedy sampling takes the most probable")
    tap.ok(all(c["logprob"] <= 0.0 and c["logprob"] == c["top_logprobs"][0]["logprob"]
               for c in content), "and its probability is told alike")
    tap.ok(all(a["logprob"] >= b["logprob"] for c in content
               for a, b in zip(c["top_logprobs"], c["top_logprobs"][1:])), "in falling order")
    tap.ok(all(sum(math.exp(t["logprob"]) for t in c["top_logprobs"]) <= 1.0 + 1e-4
               for c in content), "probabilities do not exceed 1")
    text = b"".join(bytes(c["bytes"]) for c in content).decode()
    tap.ok(text.startswith(whole["message"]["content"]), "the bytes are those of the text")
    events = list(s.stream(CHAT, body).events)
    streamed = [c for e in events for ch in e["choices"] for c in (ch["logprobs"] or {}).get(
        "content", [])]
    tap.eq([c["token"] for c in streamed], [c["token"] for c in content], "a stream tells the same")
    tap.ok(all(near(a["logprob"], b["logprob"]) for a, b in zip(streamed, content)),
           "the same values")
    # Where a front finds the end's token with the last of the text, they stand in one event.
    short = s.chat("Say a word.", logprobs=True, top_logprobs=5, temperature=1,
                   structured_outputs={"regex": "[a-z]{3,5}"})
    told = [[ch for e in s.stream(CHAT, dict(short, seed=i)).events for ch in e["choices"]]
            for i in range(64)]
    ends = [ch for t in told for ch in t if any(
        c["token"] == "<|im_end|>" for c in (ch["logprobs"] or {}).get("content", []))]
    tap.ok(len(ends) > 9 and all(ch["finish_reason"] == "stop" for ch in ends),
           "the end of each of %d texts is told by the last event" % len(ends),
           [ch for ch in ends if ch["finish_reason"] is None])
    alone = ask(s, CHAT, dict(body, top_logprobs=0), "no alternatives")["choices"][0]
    tap.ok(all(c["top_logprobs"] == [] for c in alone["logprobs"]["content"]), "their list is empty")
    named = ask(s, CHAT, dict(body, return_tokens_as_token_ids=True), "ids for tokens")["choices"][0]
    tap.eq([c["token"] for c in named["logprobs"]["content"]],
           ["token_id:%d" % t for t in whole["token_ids"]], "tokens by their ids")
    plain = ask(s, CHAT, s.chat("Hi", max_tokens=2), "a chat without")["choices"][0]
    tap.eq(plain["logprobs"], None, "has none")


def raw(s):
    """They are of the logits before temperature, penalties and biases."""
    body = s.chat("What is the capital of France?", max_tokens=1, logprobs=True, top_logprobs=20)
    a = ask(s, CHAT, body, "plain")["choices"][0]["logprobs"]["content"][0]
    hot = dict(body, temperature=2.0, seed=3, presence_penalty=1.0, repetition_penalty=1.3)
    b = ask(s, CHAT, hot, "hot")["choices"][0]["logprobs"]["content"][0]
    tap.eq([t["token"] for t in b["top_logprobs"]], [t["token"] for t in a["top_logprobs"]],
           "the same alternatives, however sampled")
    first = ids_of(s, a["token"], add_special_tokens=False)
    if len(first) == 1:
        c = ask(s, CHAT, dict(body, logit_bias={str(first[0]): -100}), "biased")["choices"][0][
            "logprobs"]["content"][0]
        tap.ok(c["token"] != a["token"], "a bias of -100 bans the token")
        tap.ok(near(c["top_logprobs"][0]["logprob"], a["logprob"]),
               "whose probability is told as it was")


def completions(s):
    body = dict(model=MODEL_NAME, prompt=STORY, max_tokens=12, temperature=0, logprobs=3,
                return_token_ids=True)
    c = ask(s, TEXT, body, "a completion with logprobs")["choices"][0]
    p = c["logprobs"]
    tap.eq({len(p[k]) for k in ("tokens", "token_logprobs", "text_offset", "top_logprobs")},
           {len(c["token_ids"])}, "four lists, an entry a token")
    tap.ok("".join(p["tokens"]).startswith(c["text"]), "tokens are the text's")
    tap.eq(p["text_offset"][:3], [0, len(p["tokens"][0]), len(p["tokens"][0] + p["tokens"][1])],
           "offsets count characters")
    parts = [ch["logprobs"] for e in s.stream(TEXT, body).events for ch in e["choices"]
             if ch["logprobs"]]
    for k in ("tokens", "text_offset"):
        tap.eq([t for q in parts for t in q[k]], p[k], "streamed %s agree" % k)
    for n in (1, 3):
        echo = dict(body, prompt=STORY * 12, echo=True, n=n, cache_salt="echo")
        del echo["return_token_ids"]
        whole = ask(s, TEXT, echo, "an echo of several steps")["choices"]
        events = s.stream(TEXT, dict(echo, cache_salt="again")).events
        for c2 in whole:
            parts = [ch["logprobs"] for ev in events for ch in ev["choices"]
                     if ch["index"] == c2["index"] and ch["logprobs"]]
            tap.eq([t for q in parts for t in q["tokens"]], c2["logprobs"]["tokens"],
                   "a streamed echo waits for its log probabilities")
    # The same text, once generated and once given: the model's opinion is the same.
    whole = ask(s, TEXT, dict(body, prompt=STORY + c["text"], echo=True, max_tokens=0, logprobs=1),
                "an echo without generation")
    e = whole["choices"][0]
    tap.eq(e["text"], STORY + c["text"], "echo says the prompt")
    tap.eq(whole["usage"]["completion_tokens"], 0, "and nothing was generated")
    tap.eq(e["logprobs"]["token_logprobs"][0], None, "the first token has no probability")
    n = len(ids_of(s, STORY))
    tail = e["logprobs"]["token_logprobs"][n:]
    tap.ok(len(tail) >= 5 and all(near(a, b)
                                 for a, b in zip(tail, p["token_logprobs"])),
           "given text has the probabilities of generated text", (tail, p["token_logprobs"]))
    tap.eq(len(e["logprobs"]["tokens"]), whole["usage"]["prompt_tokens"], "one entry a token")


def prompts(s, n_words=200):
    text = " ".join("lantern number %d" % i for i in range(n_words))
    n = len(ids_of(s, text))
    body = dict(model=MODEL_NAME, prompt=text, max_tokens=2, temperature=0, prompt_logprobs=2)
    a = ask(s, TEXT, body, "prompt_logprobs of %d tokens" % n)["choices"][0]["prompt_logprobs"]
    tap.eq((a[0], len(a)), (None, n), "one entry a token, none for the first")
    ids = ids_of(s, text)
    tap.ok(all(str(t) in e for t, e in zip(ids[1:], a[1:])), "each tells of the prompt's token")
    tap.ok(all(e[str(t)]["rank"] >= 1 and len(e) in (2, 3) for t, e in zip(ids[1:], a[1:])),
           "with its rank, and the two most probable")
    tap.ok(all((e[str(t)]["rank"] <= 2) == (len(e) == 2) for t, e in zip(ids[1:], a[1:])),
           "ranks agree with the list")
    b = ask(s, TEXT, body, "again")["choices"][0]["prompt_logprobs"]
    tap.ok(all(near(x[str(t)]["logprob"], y[str(t)]["logprob"])
               for t, x, y in zip(ids[1:], a[1:], b[1:])), "a cached prompt tells the same")
    r = ask(s, CHAT, s.chat("Hi", max_tokens=1, prompt_logprobs=0), "a chat's prompt")
    tap.eq(len(r["prompt_logprobs"]), r["usage"]["prompt_tokens"], "beside the choices")
    two = ask(s, TEXT, dict(body, n=2, prompt=[text, PROMPT]), "two prompts, two choices each")
    tap.eq([len(c["prompt_logprobs"]) for c in two["choices"]],
           [n, n, len(ids_of(s, PROMPT)), len(ids_of(s, PROMPT))], "each choice has its prompt's")
    wants = [dict(body, prompt=text[:600 + 31 * i], prompt_logprobs=i % 21, logprobs=20)
             for i in range(0, 24, 1 if LONG else 2)]
    alone = [ask(s, TEXT, w, "alone %d" % i)["choices"][0] for i, w in enumerate(wants)]
    together = crowd(len(wants), lambda i: s.post(TEXT, wants[i]).json["choices"][0])
    bad = [i for i in range(len(wants)) if len(together[i]["prompt_logprobs"])
           != len(alone[i]["prompt_logprobs"]) or any(
               not near(x[k]["logprob"], y[k]["logprob"])
               for x, y in zip(together[i]["prompt_logprobs"][1:], alone[i]["prompt_logprobs"][1:])
               for k in x if k in y)]
    tap.eq(bad, [], "%d at once tell what each tells alone" % len(wants))


def token_rules(s):
    body = dict(model=MODEL_NAME, prompt=PROMPT, max_tokens=8, temperature=0, return_token_ids=True)
    free = ask(s, TEXT, body, "free")["choices"][0]["token_ids"]
    forced = ask(s, TEXT, dict(body, logit_bias={"65": 100}), "a bias of 100")["choices"][0]
    tap.eq(forced["token_ids"], [65] * 8, "forces a token")
    some = [70, 71, 72, 900]
    for more in ({}, {"temperature": 1.5, "seed": 5}, {"presence_penalty": 1.0}):
        got = ask(s, TEXT, dict(body, allowed_token_ids=some, ignore_eos=True, **more),
                  "allowed ids %s" % more)["choices"][0]["token_ids"]
        tap.ok(len(got) == 8 and set(got) <= set(some), "nothing else comes", got)
    banned = dict(body, logit_bias={str(t): -100 for t in set(free)})
    got = ask(s, TEXT, banned, "biases against all that came")["choices"][0]["token_ids"]
    tap.eq(set(got) & set(free), set(), "none of it comes")
    word = " Paris"
    text = ask(s, TEXT, body, "before")["choices"][0]["text"]
    after = ask(s, TEXT, dict(body, bad_words=["Paris"]), "bad_words")["choices"][0]["text"]
    tap.ok("Paris" in text and "Paris" not in after, "a bad word does not come", (text, after))
    long = ask(s, TEXT, dict(body, max_tokens=60, ignore_eos=True), "longer")["choices"][0]["text"]
    words = [w for w in long.split() if len(ids_of(s, " " + w, add_special_tokens=False)) > 1][:2]
    if words:
        after = ask(s, TEXT, dict(body, max_tokens=60, ignore_eos=True, bad_words=words),
                    "words of several tokens %s" % words)["choices"][0]["text"]
        tap.ok(not any(" " + w in after for w in words), "do not come either", after)
    penalised = dict(body, max_tokens=40, ignore_eos=True, repetition_penalty=1.2,
                     allowed_token_ids=list(range(300, 900)), logit_bias={"400": 5.0})
    a = ask(s, TEXT, penalised, "all of it at once")["choices"][0]["token_ids"]
    b = ask(s, TEXT, penalised, "again")["choices"][0]["token_ids"]
    tap.eq(a, b, "is the same each time")


def errors(s):
    r = s.post(TEXT, s.completion("Hello", prompt_logprobs=-1))
    tap.ok("at most 20" in r.error["message"], "-1: the bound is told", r.text)
    said = s.stream(CHAT, s.chat("Hello", max_tokens=3, prompt_logprobs=0))
    tap.eq(said.status, 200, "a stream that asks for no alternatives of its prompt")
    for path, f, param in (
            (CHAT, {"top_logprobs": 3}, "top_logprobs"), (CHAT, {"logprobs": 5}, "logprobs"),
            (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
            (TEXT, {"logprobs": True}, "logprobs"), (TEXT, {"logprobs": -1}, "logprobs"),
            (TEXT, {"logprobs": 21}, "logprobs"), (TEXT, {"max_tokens": 0}, "max_tokens"),
            (TEXT, {"prompt_logprobs": -1}, "prompt_logprobs"),
            (TEXT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
            (TEXT, {"logit_bias": [1]}, "logit_bias"), (TEXT, {"logit_bias": {"x": 1}}, "logit_bias"),
            (TEXT, {"logit_bias": {"-1": 1}}, "logit_bias"),
            (TEXT, {"logit_bias": {"7": 1, "07": 1}}, "logit_bias"),
            (TEXT, {"logit_bias": {"7": "x"}}, "logit_bias"),
            (TEXT, {"logit_bias": {"4000000": 1}}, "logit_bias"),
            (TEXT, {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
            (TEXT, {"allowed_token_ids": []}, "allowed_token_ids"),
            (TEXT, {"allowed_token_ids": [4000000]}, "allowed_token_ids"),
            (TEXT, {"allowed_token_ids": ["a"]}, "allowed_token_ids"),
            (TEXT, {"bad_words": "a"}, "bad_words"), (TEXT, {"bad_words": [1]}, "bad_words"),
            (TEXT, {"bad_words": [" "]}, "bad_words"),
            (TEXT, {"bad_words": ["a"] * 129}, "bad_words"),
            (TEXT, {"bad_words": ["word " * 2000]}, "bad_words")):
        body = s.chat("Hi", **f) if path == CHAT else dict(model=MODEL_NAME, prompt="Hi", **f)
        r = s.post(path, body)
        tap.eq((r.status, r.error.get("param")), (400, param),
               "%s is refused by name" % str(f)[:60])


def mass(alternatives):
    return sum(math.exp(v) for v in alternatives)


def agree(whole, few, name):
    """A whole row begins with what is told one by one, and is all there is."""
    tap.ok(all(near(a[1], b[1]) and (a[0] == b[0] or DEVICE != "cpu")
               for a, b in zip(whole, few)) and len(few) <= len(whole), name, (whole[:3], few[:3]))


def tops(entry):
    return [(t["token"], t["logprob"]) for t in entry["top_logprobs"]]


def whole_chats(s, n_vocab):
    body = s.chat("What is the capital of France?", max_tokens=3, logprobs=True, top_logprobs=20,
                  return_tokens_as_token_ids=True)
    few = ask(s, CHAT, body, "twenty")["choices"][0]["logprobs"]["content"]
    for n, more in ((-1, {}), (n_vocab, {}), (200, {}), (129, {"logprob_token_ids": [7, 9]}),
                    (-1, {"logit_bias": {"65": 5}, "temperature": 1.3, "seed": 5,
                          "presence_penalty": 1.0}),
                    (-1, {"allowed_token_ids": [70, 71, 72], "ignore_eos": True})):
        wide = dict(body, top_logprobs=n, **more)
        name = "%d alternatives %s" % (n, more)
        content = ask(s, CHAT, wide, name)["choices"][0]["logprobs"]["content"]
        wanted = (n_vocab if n < 0 else n) + (2 if "logprob_token_ids" in more else 0)
        tap.eq([len(c["top_logprobs"]) for c in content], [wanted] * 3, "    so many")
        same = len([1 for a, b in zip(content, few) if a["token"] == b["token"]])
        agree(tops(content[0]), tops(few[0]), "    the first are the same")
        if not more:
            tap.eq(same, 3, "    of the same tokens")
            for a, b in zip(content, few):
                agree(tops(a), tops(b), "    and values")
        if n != 200 and n != 129:
            tap.ok(all(abs(mass(v for _, v in tops(c)) - 1) < 1e-3 for c in content),
                   "    probabilities add up to 1", [mass(v for _, v in tops(c)) for c in content])
            tap.ok(all(len({t for t, _ in tops(c)}) == n_vocab for c in content), "    each id once")
            tap.ok(all(near(c["logprob"], dict(tops(c))[c["token"]]) for c in content),
                   "    the token's own is that of the row")
        tap.ok(all(a[1] >= b[1] for c in content
                   for a, b in zip(tops(c)[:n], tops(c)[1:n])), "    in falling order")
        told = [c for e in s.stream(CHAT, wide).events for ch in e["choices"]
                for c in (ch["logprobs"] or {}).get("content", [])]
        tap.ok([c["token"] for c in told] == [c["token"] for c in content] and
               all(len(a["top_logprobs"]) == len(b["top_logprobs"]) and
                   all(near(v, w) for (_, v), (_, w) in zip(tops(a), tops(b)))
                   for a, b in zip(told, content)), "    a stream tells the same")
    two = ask(s, CHAT, dict(body, top_logprobs=-1, n=3), "three choices")["choices"]
    tap.eq([len(c["top_logprobs"]) for ch in two for c in ch["logprobs"]["content"]],
           [n_vocab] * 9, "    each its rows")


def whole_texts(s, n_vocab):
    text = dict(model=MODEL_NAME, prompt=PROMPT, max_tokens=3, temperature=0, logprobs=-1,
                return_tokens_as_token_ids=True)
    c = ask(s, TEXT, text, "a completion")["choices"][0]["logprobs"]
    few = ask(s, TEXT, dict(text, logprobs=20), "and twenty")["choices"][0]["logprobs"]
    tap.eq([len(t) for t in c["top_logprobs"]], [n_vocab] * 3, "    all of them")
    for a, b in zip(c["top_logprobs"], few["top_logprobs"]):
        agree(list(a.items()), list(b.items()), "    the first are the same")
    told = [t for e in s.stream(TEXT, text).events for ch in e["choices"] if ch["logprobs"]
            for t in ch["logprobs"]["top_logprobs"]]
    tap.eq([len(t) for t in told], [n_vocab] * 3, "    streamed as well")
    n = len(ids_of(s, PROMPT))
    for stream in (False, True):
        echo = dict(text, echo=True)
        told = [t for e in s.stream(TEXT, echo).events for ch in e["choices"] if ch["logprobs"]
                for t in ch["logprobs"]["top_logprobs"]] if stream else \
            ask(s, TEXT, echo, "an echo")["choices"][0]["logprobs"]["top_logprobs"]
        tap.eq([t and len(t) for t in told], [None] + [n_vocab] * (n + 2),
               "    the echo's%s" % (" stream" if stream else ""))
    only = dict(text, prompt_logprobs=-1, max_tokens=1)
    del only["logprobs"]
    got = ask(s, TEXT, only, "a prompt's")["choices"][0]["prompt_logprobs"]
    few = ask(s, TEXT, dict(only, prompt_logprobs=20), "and twenty")["choices"][0]["prompt_logprobs"]
    tap.eq([e and len(e) for e in got], [None] + [n_vocab] * (n - 1), "    one row a token")
    tap.ok(all(abs(mass(v["logprob"] for v in e.values()) - 1) < 1e-3 for e in got[1:]),
           "    which add up to 1")
    tap.ok(all(near(a[k]["logprob"], b[k]["logprob"]) and
               (a[k]["rank"] == b[k]["rank"] or DEVICE != "cpu")
               for a, b in zip(got[1:], few[1:]) for k in b), "    the same values and ranks")
    want = s.post(CHAT + "/render", s.chat("Hello", max_tokens=2, logprobs=True, top_logprobs=-1))
    tap.eq(want.json["sampling_params"]["logprobs"], -1, "rendered as it was asked for")
    r = s.post("/inference/v1/generate", want.json)
    tap.eq([len(c["top_logprobs"]) for c in r.json["choices"][0]["logprobs"]["content"]],
           [n_vocab] * 2, "tokens in, tokens out")


def whole_errors(s, n_vocab):
    for path, f, param, words in (
            (CHAT, {"logprobs": True, "top_logprobs": n_vocab + 1}, "top_logprobs",
             (str(n_vocab + 1), "at most %d" % n_vocab)),
            (CHAT, {"logprobs": True, "top_logprobs": -2}, "top_logprobs", ("-2",)),
            (TEXT, {"prompt_logprobs": n_vocab + 1}, "prompt_logprobs", ("at most %d" % n_vocab,)),
            (TEXT, {"logprobs": -1, "n": 4, "use_beam_search": True}, "logprobs", ("at most 128",)),
            (CHAT, {"logprobs": True, "top_logprobs": -1, "n": 120, "max_tokens": 300},
             "top_logprobs", ("36000", "at most %d" % (4194304 // n_vocab)))):
        body = s.chat("Hi", **f) if path == CHAT else dict(model=MODEL_NAME, prompt="Hi", **f)
        r = s.post(path, body)
        tap.eq((r.status, r.error.get("param")), (400, param), "%s is refused" % str(f)[:60])
        tap.ok(all(w in r.error["message"] for w in words), "    with value and range", r.text)


def whole():
    with open(os.path.join(MODEL, "config.json")) as f:
        n_vocab = json.load(f)["vocab_size"]
    with Stack(front=["--max-logprobs", "-1"]) as s:
        for part in (whole_chats, whole_texts, whole_errors):
            with tap.section(part.__name__):
                part(s, n_vocab)
        tap.ok(s.idle(), "nothing is left in the engine")
    with Stack(front=["--max-logprobs", "500"]) as s:
        r = s.post(TEXT, s.completion("Hello", logprobs=-1))
        tap.ok(r.status == 400 and "at most 500" in r.text and str(n_vocab) in r.text,
               "-1 of a vocabulary above max_logprobs", r.text)
        tap.eq(s.post(TEXT, s.completion("Hello", logprobs=501)).status, 400, "501 of 500")
        tap.eq(len(s.post(TEXT, s.completion("Hello", max_tokens=1, logprobs=500,
                                             return_tokens_as_token_ids=True)).json[
            "choices"][0]["logprobs"]["top_logprobs"][0]), 500, "500 of 500")


def rows(e):
    return [len(t) for ch in e["choices"] if ch["logprobs"] for t in ch["logprobs"]["top_logprobs"]]


def large():
    """Rows of 43 rings each, beside others, with drafts, and over kills of the engine."""
    drafts = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}']
    with Stack(model=twin.folder(), front=["--max-logprobs", "-1"], engine=drafts) as s:
        body = dict(model=MODEL_NAME, prompt="1, 2, 3, 4, 1, 2, 3, 4, 1, 2,", max_tokens=3,
                    temperature=0, ignore_eos=True, return_tokens_as_token_ids=True)
        want = ask(s, TEXT, dict(body, logprobs=20), "twenty")["choices"][0]
        wide = dict(body, logprobs=-1)
        got = ask(s, TEXT, wide, "of %d" % twin.N_VOCAB)["choices"][0]
        tap.eq((got["text"], [len(t) for t in got["logprobs"]["top_logprobs"]]),
               (want["text"], [twin.N_VOCAB] * 3), "whole rows, and the text with drafts")
        for a, b in zip(got["logprobs"]["top_logprobs"], want["logprobs"]["top_logprobs"]):
            agree(list(a.items()), list(b.items()), "    the first are the same")
            tap.ok(abs(mass(a.values()) - 1) < 1e-3, "    and add up to 1", mass(a.values()))
        short = dict(body, max_tokens=40)
        alone = s.post(TEXT, short).json["choices"][0]["text"]
        texts = crowd(5, lambda i: s.post(TEXT, wide if i == 0 else short).json["choices"][0]["text"])
        tap.eq(texts, [want["text"]] + [alone] * 4, "others beside it say what they say")
        for moment in (0.2, 0.7):
            told = {}
            t = threading.Thread(target=lambda: told.update(s=s.stream(TEXT, wide)))
            t.start()
            time.sleep(moment)
            s.engine.kill(signal.SIGKILL)
            t.join()
            tap.eq((told["s"].text[0], [n for e in told["s"].events for n in rows(e)]),
                   (want["text"], [twin.N_VOCAB] * 3), "a kill after %.2f s: whole rows" % moment)
        stream = s.open_stream(TEXT, dict(wide, max_tokens=200))
        next(iter(stream))
        stream.close()
        tap.ok(until(s.idle), "a client that leaves in mid-row")
        r = s.post(TEXT, wide | {"max_tokens": 33})
        tap.ok(r.status == 400 and "at most 32" in r.text, "what one answer cannot hold", r.text)


def killed():
    """What an engine said before its death is not said twice, and what it had not said comes."""
    text = " ".join("lantern number %d" % i for i in range(120))
    body = dict(model=MODEL_NAME, prompt=text, max_tokens=200, temperature=0, ignore_eos=True,
                logprobs=2, prompt_logprobs=1, bad_words=["fox"], logit_bias={"300": 1.5},
                allowed_token_ids=list(range(100, 1500)))
    with Stack() as s:
        want = ask(s, TEXT, body, "before")["choices"][0]
        for moment in (0.02, 0.15, 0.4):
            got = {}
            t = threading.Thread(target=lambda: got.update(s.post(TEXT, body).json["choices"][0]))
            t.start()
            time.sleep(moment)
            s.engine.kill(signal.SIGKILL)
            t.join()
            tap.eq((got["text"], got["logprobs"]["tokens"], len(got["prompt_logprobs"])),
                   (want["text"], want["logprobs"]["tokens"], len(want["prompt_logprobs"])),
                   "a kill after %.2f s changes nothing" % moment)


with Stack() as s:
    for part in (chats, raw, completions, prompts, token_rules, errors):
        with tap.section(part.__name__):
            part(s)
    tap.ok(s.idle(), "nothing is left in the engine")
killed()
whole()
large()
with Stack(engine=["--num-pages", "80", "--max-num-seqs", "8", "--max-model-len", "1000"]) as s:
    with tap.section("little room"):
        prompts(s, 120)
    tap.ok(s.metric("vllm:num_preemptions_total") > 0 or DEVICE != "cpu", "some were preempted")
    tap.ok(s.idle(), "nothing is left in the engine")
tap.done()
