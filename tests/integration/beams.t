#!/usr/bin/env python3
"""Beam search: the same beams as a search written here over single tokens, for widths, penalties of
length and ends of every kind; over engines that die; with log probabilities, echoes and chats; and
what it does not take is refused by name."""

import json
import os
import random
import threading
import time

from harness import DEVICE, MODEL, Stack, Tap, draw_seed, need_nginx

need_nginx()
tap = Tap()
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
draw_seed(tap)


def single(s, beams, width):
    """The 2 * width most probable tokens behind each of the beams: [(id, log probability)]."""
    r = s.post(TEXT, dict(prompt=beams, max_tokens=1, temperature=0, logprobs=2 * width,
                          return_tokens_as_token_ids=True, ignore_eos=True))
    assert r.status == 200, r.text
    out = []
    for c in sorted(r.json["choices"], key=lambda c: c["index"]):
        top = c["logprobs"]["top_logprobs"][0]
        out.append(sorted(((int(k.split(":")[1]), v) for k, v in top.items()),
                          key=lambda kv: -kv[1])[:2 * width])
    return out


def search(s, prompt, width, length, penalty=1.0, ends=()):
    """As vLLM does it: no early end, scores over prompt and output."""
    live, done = [([], 0.0)], []
    for _ in range(length):
        new = []
        tops = single(s, [prompt + b[0] for b in live], width)
        for (out, total), top in zip(live, tops):
            for i, p in top:
                if i in ends:
                    done.append((out + [i], total + p, (total + p) / (
                        (len(prompt) + len(out)) ** penalty), "stop"))
                else:
                    new.append((out + [i], total + p))
        live = sorted(new, key=lambda b: -b[1])[:width]
    done += [(out, total, total / (len(prompt) + len(out)) ** penalty, "length")
             for out, total in live]
    return sorted(done, key=lambda b: -b[2])[:width]


def beams(s, prompt, width, length, **more):
    return s.post(TEXT, dict(prompt=prompt, n=width, max_tokens=length, use_beam_search=True,
                             return_token_ids=True, **more))


def found(r):
    return [(c["token_ids"], c["finish_reason"]) for c in r.json["choices"]]


def agree(s, prompt, width, length, name, ends=(), penalty=1.0, **more):
    r = beams(s, prompt, width, length, length_penalty=penalty, **more)
    if not tap.eq(r.status, 200, "%s: an answer" % name):
        tap.note(r.text[:300])
        return None
    want = [(out, why) for out, _, _, why in search(s, prompt, width, length, penalty, ends)]
    if DEVICE == "cpu":
        tap.eq(found(r), want, "%s: the same beams" % name)
    else:  # sums of two paths part in their last bits: the best beam begins alike
        tap.eq(found(r)[0][0][:2], want[0][0][:2], "%s: the best beam begins alike" % name)
    return r


def ids_of(s, text):
    return s.post("/tokenize", dict(prompt=text)).json["tokens"]


def common_token(s, prompt):
    """One that stands in many beams: with it as an end, beams of all lengths are complete."""
    seen = [i for out, _, _, _ in search(s, prompt, 4, 8) for i in out[1:]]
    return max(set(seen), key=seen.count)


def end_of_text(s):
    r = s.post(CHAT, s.chat("What is the capital of France?", max_tokens=100,
                            return_token_ids=True)).json["choices"][0]
    assert r["finish_reason"] == "stop"
    return r["token_ids"][-1]


with Stack(store=True) as s:
    with open(os.path.join(MODEL, "generation_config.json")) as config:
        EOS = tuple(json.load(config)["eos_token_id"])
    tap.ok(end_of_text(s) in EOS, "a chat ends by one of them")
    story = ids_of(s, "Once upon a time there was a")
    for width in (1, 2, 3, 8):
        agree(s, story, width, 10, "%d wide" % width, ends=EOS)
    greedy = s.post(TEXT, dict(prompt=story, max_tokens=10, temperature=0, return_token_ids=True))
    if DEVICE == "cpu":
        tap.eq(found(beams(s, story, 1, 10)), found(greedy), "one beam is greedy sampling")

    tap.section("ends")
    end = common_token(s, story)
    for penalty in (1.0, 0.0, 0.3, 2.0, -1.0, 5.0):
        r = agree(s, story, 4, 12, "ends, penalty %g" % penalty, ends=EOS + (end,), penalty=penalty,
                  stop_token_ids=[end])
        stopped = [c for c in r.json["choices"] if c["finish_reason"] == "stop"]
        if stopped:
            tap.ok(all(c["stop_reason"] in (end, None) for c in stopped), "the end is named")
    agree(s, story, 4, 12, "ends beside ignore_eos", ends=(end,), stop_token_ids=[end],
          ignore_eos=True)
    r = beams(s, story, 3, 40, stop_token_ids=[end], early_stopping=True)
    tap.ok(all(c["finish_reason"] == "stop" for c in r.json["choices"]),
           "early_stopping: the first complete ones")
    with_end = beams(s, story, 4, 12, stop_token_ids=[end], include_stop_str_in_output=True).json
    without = beams(s, story, 4, 12, stop_token_ids=[end]).json
    tap.ok(all(a["text"].startswith(b["text"]) for a, b in
               zip(with_end["choices"], without["choices"])), "the end's text stands if asked for")

    chat = s.post("/tokenize", dict(messages=[{"role": "user", "content":
                                               "What is the capital of France?"}])).json["tokens"]
    r = agree(s, chat, 4, 24, "ends by themselves", ends=EOS)
    tap.ok("stop" in [c["finish_reason"] for c in r.json["choices"]], "a beam has ended")

    tap.section("random prompts")
    for i in range(6):
        prompt = [random.randrange(300, 2000) for _ in range(random.randrange(1, 60))]
        width, length = random.randrange(1, 7), random.randrange(1, 9)
        ends = random.sample(range(300, 2000), 16)
        agree(s, prompt, width, length, "prompt %d" % i, ends=tuple(ends) + EOS,
              penalty=random.choice([0.5, 1.0, 1.5]), stop_token_ids=ends)

    tap.section("around it")
    alone = [found(beams(s, p, 3, 6)) for p in (story, story[:4])]
    r = beams(s, [story, story[:4]], 3, 6)
    if DEVICE == "cpu":
        tap.eq(found(r), alone[0] + alone[1], "two prompts are two searches")
    tap.eq([c["index"] for c in r.json["choices"]], list(range(6)), "in the order of the prompts")
    tap.eq(r.json["usage"]["completion_tokens"], sum(len(c["token_ids"]) for c in
                                                     r.json["choices"]), "usage counts the answer")
    tap.eq(r.json["usage"]["prompt_tokens"], len(story) + 4, "and each prompt once")
    told = beams(s, story, 3, 6, logprobs=2, return_tokens_as_token_ids=True).json["choices"]
    tap.ok(all([int(t.split(":")[1]) for t in c["logprobs"]["tokens"]] == c["token_ids"]
               for c in told), "log probabilities are of the beam's tokens")
    sums = [sum(c["logprobs"]["token_logprobs"]) for c in told]
    want = [b[1] for b in search(s, story, 3, 6, ends=EOS)]
    tap.ok(all(abs(a - b) < (1e-3 if DEVICE == "cpu" else 2.0) for a, b in zip(sums, want)),
           "and add up to its sum", "%s %s" % (sums, want))
    tap.ok(all(2 <= len(t) <= 3 for c in told for t in c["logprobs"]["top_logprobs"]),
           "with as many alternatives as asked for")
    r = beams(s, "Once upon a time", 2, 5, echo=True)
    tap.ok(all(c["text"].startswith("Once upon a time") for c in r.json["choices"]), "echo")
    r = s.post(CHAT, s.chat("Tell me of a fox.", n=3, max_tokens=8, use_beam_search=True,
                            logprobs=True, top_logprobs=1))
    tap.eq(r.status, 200, "a chat")
    texts = [c["message"]["content"] for c in r.json["choices"]]
    tap.eq(len(set(texts)), 3, "has three different answers")
    tap.ok(all(len(c["logprobs"]["content"]) == 8 or c["finish_reason"] == "stop"
               for c in r.json["choices"]), "with log probabilities")
    r = beams(s, story, 64, 3)
    tap.eq((r.status, len({tuple(c["token_ids"]) for c in r.json["choices"]})), (200, 64),
           "64 different beams")

    tap.section("refused by name")
    for field, value, param in (
            ("stream", True, "stream"), ("stop", ["x"], "stop"), ("n", 65, "n"),
            ("logit_bias", {"5": 1.0}, "logit_bias"), ("presence_penalty", 1.0, "presence_penalty"),
            ("min_tokens", 3, "min_tokens"), ("length_penalty", "long", "length_penalty"),
            ("guided_regex", "a+", "use_beam_search")):
        body = dict(prompt=story, n=2, max_tokens=4, use_beam_search=True)
        body[field] = value
        r = s.post(TEXT, body)
        tap.eq((r.status, r.error["param"]), (400, param), "%s" % field)
    r = s.post("/v1/completions/render", dict(prompt=story, use_beam_search=True))
    tap.eq((r.status, r.error["param"]), (400, "use_beam_search"), "render")
    tap.eq(s.post(TEXT, dict(prompt=story, max_tokens=3, length_penalty=2.0)).status, 200,
           "a penalty without a search is passed over")

    tap.section("engines that die")
    quiet = found(beams(s, story, 4, 60, ignore_eos=True))
    got = []

    def ask():
        for _ in range(3):
            got.append(beams(s, story, 4, 60, ignore_eos=True))

    t = threading.Thread(target=ask)
    t.start()
    kills = [0, 0, 0, 0]  # by answers so far: a request that ran in three dead engines is given up
    while t.is_alive() and sum(kills) < 4:
        time.sleep(0.4)
        if kills[len(got)] < 2:
            s.engine.kill()
            kills[len(got)] += 1
    t.join()
    kills = sum(kills)
    tap.eq([r.status for r in got], [200] * 3, "%d kills: three answers" % kills)
    if DEVICE == "cpu":
        tap.ok(all(found(r) == quiet for r in got), "the same beams as undisturbed")
    tap.ok(s.idle(), "nothing is left behind")

tap.done()
