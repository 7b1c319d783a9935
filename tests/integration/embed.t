#!/usr/bin/env python3
"""Vectors, scores and ranks: the demo model through /v1/embeddings, /pooling, /score and /rerank
against sentence-transformers and transformers (tests/golden/pooling/demo.json); from an empty and a
full cache, alone and in a crowd, over kill -9 of the engine; a generating model as a reranker and as
the classifier that it can be converted to; what is refused."""

import base64
import json
import os
import random
import shutil
import signal
import struct
import tempfile

from harness import LONG, MODEL, MODEL_NAME, SRCDIR, Stack, Tap, cpu_seconds, crowd, draw_seed, need_nginx, until

need_nginx()
tap = Tap()
draw_seed(tap)

with open(os.path.join(SRCDIR, "tests/golden/pooling/demo.json")) as f:
    GOLDEN = json.load(f)
TEXTS = GOLDEN["texts"]
EMBED = "/v1/embeddings"
used_s = 0.0


def serve(pooler=None, engine=(), both=(), **more):
    conf = ["--runner", "pooling"] + (["--pooler-config", json.dumps(pooler)] if pooler else []) + list(both)
    return Stack(engine=conf + list(engine), front=conf, **{"n_fronts": 1, **more})


def count_cpu(s):
    global used_s
    took_s = cpu_seconds(s.engine.pid) + sum(cpu_seconds(f.pid) for f in s.fronts)
    tap.note("%.1f s of the cores" % took_s)
    used_s += took_s


def vectors(reply):
    assert reply.status == 200, reply.text
    return [d["embedding"] for d in reply.json["data"]]


def embed(s, texts, **fields):
    return vectors(s.post(EMBED, dict({"model": MODEL_NAME, "input": texts}, **fields)))


def worst(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def near(name, got, want, most=1e-4):
    errors = [worst(a, b) for a, b in zip(got, want)]
    tap.ok(len(got) == len(want) and all(len(a) == len(b) for a, b in zip(got, want)) and max(errors) < most,
           "%s: within %.1e" % (name, max(errors)), errors)


def floats(text):
    data = base64.b64decode(text)
    return list(struct.unpack("<%df" % (len(data) // 4), data))


def singles(values):
    return [struct.unpack("<f", struct.pack("<f", v))[0] for v in values]


with tap.section("vectors of the last token"), serve(engine=["--lane-slots", "64"]) as s:
    first = s.post(EMBED, {"model": MODEL_NAME, "input": TEXTS, "user": "someone", "temperature": 7})
    again = s.post(EMBED, {"input": TEXTS})
    near("four texts", vectors(first), GOLDEN["vectors"]["lasttoken"])
    usage = first.json["usage"]
    tap.ok(usage["prompt_tokens"] == usage["total_tokens"] > 300 and usage["completion_tokens"] == 0 and
           usage["prompt_tokens_details"]["cached_tokens"] == 0, "their usage", usage)
    tap.ok(again.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 300 and
           vectors(again) == vectors(first), "from the cache, to the last digit", again.json["usage"])
    tap.ok(first.json["object"] == "list" and first.json["id"].startswith("embd-") and
           [d["index"] for d in first.json["data"]] == [0, 1, 2, 3] and
           {d["object"] for d in first.json["data"]} == {"embedding"} and first.json["model"] == MODEL_NAME,
           "OpenAI's form")
    coded = s.post(EMBED, {"input": TEXTS, "encoding_format": "base64"}).json["data"]
    tap.eq([floats(d["embedding"]) for d in coded], [singles(v) for v in vectors(first)],
           "base64 has the same numbers")
    raw = s.post("/pooling", {"input": GOLDEN["ids"], "use_activation": False}).json["data"][0]
    near("/pooling of token ids, not normed", [raw["data"]], [GOLDEN["raw"]], 1e-3)
    tap.eq(raw["object"], "pooling", "its form")
    ids = [s.post("/tokenize", {"prompt": t}).json["tokens"] for t in TEXTS]
    tap.eq(embed(s, ids), vectors(first), "lists of token ids")
    tap.eq(embed(s, ids[1]), vectors(first)[1:2], "one list of them")

    long = ids[3]
    cut = s.post(EMBED, {"input": TEXTS[3], "truncate_prompt_tokens": 9})
    tap.eq((vectors(cut), cut.json["usage"]["prompt_tokens"]), (embed(s, long[:9]), 9),
           "truncate_prompt_tokens keeps the beginning")
    tap.eq(embed(s, TEXTS[3], truncate_prompt_tokens=9, truncation_side="left"), embed(s, long[-9:]),
           "or with truncation_side the end")
    over = "word " * 3000
    r = s.post(EMBED, {"input": over})
    tap.eq((r.status, r.error["code"], r.error["param"]), (400, "context_length_exceeded", "input"), "too long a text")
    r = s.post(EMBED, {"input": over, "truncate_prompt_tokens": -1})
    tap.eq((r.status, r.json["usage"]["prompt_tokens"]), (200, 2048), "-1 cuts it to the model's length")
    chat = {"messages": [{"role": "user", "content": TEXTS[0]}]}
    rendered = s.post("/tokenize", dict(chat, add_generation_prompt=False)).json["tokens"]
    tap.eq(vectors(s.post(EMBED, chat)), embed(s, rendered), "a chat, rendered by the model's template")

    many = ["%d. %s" % (i, TEXTS[1]) for i in range(150)]
    r = s.post(EMBED, {"input": many})
    tap.ok(r.status == 200 and vectors(r)[::75] == embed(s, [many[0], many[75]]),
           "150 texts in one request, with 64 slots", r.text[:300])
    tap.eq(embed(s, ["Same."] * 40), embed(s, "Same.") * 40, "equal texts, equal vectors")

    scores = s.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json
    want = GOLDEN["vectors"]["lasttoken"]
    cosines = [sum(a * b for a, b in zip(want[0], v)) for v in want[1:]]
    near("scores of vectors are cosines", [[d["score"] for d in scores["data"]]], [cosines])
    ranks = s.post("/v2/rerank", {"query": TEXTS[0], "documents": TEXTS[1:], "top_n": 2}).json
    best = sorted(range(3), key=lambda i: -cosines[i])[:2]
    tap.eq([(r["index"], r["document"]["text"]) for r in ranks["results"]], [(i, TEXTS[1 + i]) for i in best],
           "and rank documents")

    # Long texts, of several chunks, beside short ones.
    crowded = [" ".join(random.choice(["red", "blue", "seven", "of", "house", "Paris", "runs"])
                        for _ in range(random.choice((1, 5, 40, 300)))) for _ in range(24)]
    alone = [embed(s, t, cache_salt="alone")[0] for t in crowded]
    tap.eq(crowd(24, lambda i: embed(s, crowded[i], cache_salt="crowd")[0]), alone,
           "24 requests in a crowd: to the last digit")

    for name, path, body, code, param in (
            ("no input", EMBED, {}, 400, "input"),
            ("an empty list", EMBED, {"input": []}, 400, "input"),
            ("an empty text", EMBED, {"input": ""}, 400, "input"),
            ("one text of several is empty", EMBED, {"input": ["a", ""]}, 400, "input"),
            ("a number", EMBED, {"input": 7}, 400, "input"),
            ("texts and ids", EMBED, {"input": ["a", 7]}, 400, "input"),
            ("ids and texts", EMBED, {"input": [7, "a"]}, 400, "input"),
            ("an id beyond the vocabulary", EMBED, {"input": [2048]}, 400, "input"),
            ("a negative id", EMBED, {"input": [-1]}, 400, "input"),
            ("too many texts", EMBED, {"input": ["a"] * 2049}, 400, "input"),
            ("another model", EMBED, {"input": "a", "model": "none"}, 404, "model"),
            ("dimensions", EMBED, {"input": "a", "dimensions": 64}, 400, "dimensions"),
            ("an encoding", EMBED, {"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
            ("a type", EMBED, {"input": "a", "embed_dtype": "float16"}, 400, "embed_dtype"),
            ("truncation to nothing", EMBED, {"input": "a", "truncate_prompt_tokens": 0}, 400,
             "truncate_prompt_tokens"),
            ("use_activation", EMBED, {"input": "a", "use_activation": "maybe"}, 400, "use_activation"),
            ("no messages", EMBED, {"messages": []}, 400, "messages"),
            ("classes", "/classify", {"input": "a"}, 400, "model"),
            ("a task", "/pooling", {"input": "a", "task": "token_classify"}, 400, "task"),
            ("no documents", "/rerank", {"query": "a", "documents": []}, 400, "documents"),
            ("a document", "/rerank", {"query": "a", "documents": [7]}, 400, "documents"),
            ("no query", "/rerank", {"documents": ["a"]}, 400, "query"),
            ("no text_2", "/score", {"text_1": "a"}, 400, "text_2"),
            ("two with three", "/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400, "text_2"),
            ("a chat", "/v1/chat/completions", s.chat("Hello"), 400, "model"),
            ("a completion", "/v1/completions", s.completion("Hello"), 400, "model")):
        r = s.post(path, body)
        tap.eq((r.status, r.error["param"], r.error["type"]), (code, param, "invalid_request_error"),
               "refused: " + name + ": " + r.error["message"][:60])
    tap.eq(s.request("GET", EMBED).status, 405, "a GET")
    tap.eq(s.get("/health?deep=1").status, 200, "a deep health check")
    tap.eq(vectors(s.post("/invocations", {"input": TEXTS})), vectors(first), "/invocations")
    tap.ok(s.metric("vllm:prompt_tokens_total") > 1000 and s.metric("vllm:generation_tokens_total") == 0,
           "no token was generated")
    tap.eq(s.engine.exits, [], "and the engine stands")
    count_cpu(s)

with tap.section("kill -9"), serve(
        n_fronts=2, engine=["--max-num-batched-tokens", "64", "--max-num-queued-tokens", "100000"]) as s:
    texts = ["%d: %s" % (i, TEXTS[3][:260]) for i in range(40 if LONG else 20)]
    want = embed(s, texts)
    killed = []

    def work(i):
        if i == 3:
            for _ in range(2):
                until(lambda: s.metric("vllm:num_requests_running") > 0, 10)
                killed.append(s.engine.kill(signal.SIGKILL))
            return None
        return embed(s, texts, cache_salt=str(i))

    got = crowd(4, work)
    tap.ok(len(killed) == 2 and got[:3] == [want] * 3, "%d texts over two kills of the engine" % (3 * len(texts)),
           [g if isinstance(g, Exception) else len(g or []) for g in got])
    count_cpu(s)

with tap.section("a death between a row and its end"), serve(env={"QUIRE_FAULT": "engine_end:2"}) as s:
    got = [embed(s, [text])[0] for text in TEXTS]
    near("four texts", got, GOLDEN["vectors"]["lasttoken"])
    tap.ok(len(s.engine.exits) >= 1, "the engine did die")

for name, argv in (("two ranks", ["--tensor-parallel-size", "2"]), ("two stages", ["--pipeline-parallel-size", "2"])):
    with tap.section(name), serve({"pooling_type": "MEAN"}, engine=argv) as s:
        near(name + ": four texts by their mean", embed(s, TEXTS), GOLDEN["vectors"]["mean"])
        got = crowd(8, lambda i: embed(s, TEXTS[i % 4:])[0])
        near(name + ": in a crowd", got, (GOLDEN["vectors"]["mean"] * 2))
        count_cpu(s)

with tap.section("the mean"), serve({"pooling_type": "MEAN"}, engine=["--max-num-seqs", "16"]) as s:
    first = s.post(EMBED, {"input": TEXTS})
    near("four texts", vectors(first), GOLDEN["vectors"]["mean"])
    again = s.post(EMBED, {"input": TEXTS})
    tap.ok(vectors(again) == vectors(first) and
           again.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0,
           "again: equal, and nothing is taken from the cache", again.json["usage"])
    tap.eq(crowd(12, lambda i: embed(s, TEXTS[i % 4])[0]), vectors(first) * 3, "in a crowd")
    got = crowd(5, lambda i: s.engine.kill(signal.SIGKILL) if i == 4 else embed(s, TEXTS[3])[0])
    tap.eq(got[:4], vectors(first)[3:] * 4, "over a kill of the engine")
    count_cpu(s)

def each(s, texts, task="token_embed", **fields):
    r = s.post("/pooling", dict({"input": texts, "task": task}, **fields))
    assert r.status == 200, r.text
    return [d["data"] for d in r.json["data"]]


with tap.section("a vector of each token"), serve({"pooling_type": "MEAN"}) as s:
    ids = [s.post("/tokenize", {"prompt": t}).json["tokens"] for t in TEXTS]
    raw = each(s, TEXTS, use_activation=False)
    tap.eq([len(rows) for rows in raw], [len(i) for i in ids], "as many rows as tokens")
    means = [[sum(column) / len(rows) for column in zip(*rows)] for rows in raw]
    want = [d["data"] for d in s.post("/pooling", {"input": TEXTS, "use_activation": False}).json["data"]]
    near("their mean is the model's answer", means, want)
    unit = each(s, TEXTS)
    tap.ok(all(abs(sum(x * x for x in row) - 1) < 1e-5 for rows in unit for row in rows), "of length 1")
    tap.eq(each(s, ids), unit, "of ids")
    coded = each(s, TEXTS, encoding_format="base64")
    tap.eq([floats(c) for c in coded], [singles([x for row in rows for x in row]) for rows in unit],
           "base64: one behind the other")
    prefix = each(s, [ids[3][:20]], use_activation=False)[0]
    tap.ok(max(worst(a, b) for a, b in zip(prefix, raw[3])) < 1e-5, "a token's row depends on those before it alone")
    tap.eq(each(s, TEXTS[3], truncate_prompt_tokens=7, use_activation=False)[0][:6], raw[3][:6], "truncated")
    got = crowd(5, lambda i: s.engine.kill(signal.SIGKILL) if i == 4 else each(s, TEXTS[3])[0])
    tap.eq(got[:4], [unit[3]] * 4, "over a kill of the engine")
    r = s.post("/pooling", {"input": [[5] * 300] * 28, "task": "token_embed"})
    tap.ok(r.status == 400 and r.error["param"] == "input" and "8192" in r.error["message"],
           "8,400 tokens are too many", r.text[:300])
    tap.eq(s.post(EMBED, {"input": "a", "task": "token_embed"}).status, 200, "/v1/embeddings knows no task")
    count_cpu(s)

with tap.section("the first token"), serve({"pooling_type": "CLS", "use_activation": True},
                                           both=["--hf-overrides", '{"matryoshka_dimensions": [32, 64]}']) as s:
    first = s.post(EMBED, {"input": TEXTS})
    near("four texts", vectors(first), GOLDEN["vectors"]["cls"])
    tap.ok(first.json["usage"]["prompt_tokens"] > 300, "all tokens are counted")
    short = embed(s, TEXTS, dimensions=32)
    norms = [sum(v * v for v in row[:32]) ** 0.5 for row in vectors(first)]
    near("cut to 32 dimensions", short, [[v / n for v in row[:32]] for row, n in zip(vectors(first), norms)], 1e-6)
    tap.eq(s.post(EMBED, {"input": "a", "dimensions": 48}).error["param"], "dimensions", "but not to 48")
    count_cpu(s)


def is_ranked(s, name):
    """The demo model as a reranker: no | yes."""
    r = s.post("/score", {"model": MODEL_NAME, "text_1": TEXTS[0], "text_2": TEXTS[1:]})
    near(name + ": /score", [[d["score"] for d in r.json["data"]]], [GOLDEN["scores"]])
    tap.ok(r.json["id"].startswith("score-") and r.json["data"][1]["object"] == "score" and
           [d["index"] for d in r.json["data"]] == [0, 1, 2], name + ": its form")
    ranks = s.post("/v1/rerank", {"query": TEXTS[0], "documents": [TEXTS[2], {"text": TEXTS[1]}, TEXTS[3]]}).json
    tap.ok([x["index"] for x in ranks["results"]] == [1, 2, 0] and
           ranks["results"][0]["document"] == {"text": TEXTS[1]} and
           abs(ranks["results"][0]["relevance_score"] - GOLDEN["scores"][0]) < 1e-4 and
           ranks["id"].startswith("rerank-") and ranks["usage"]["total_tokens"] > 300, name + ": /rerank", ranks)
    return r.json["data"]


reranker = json.dumps({"architectures": ["LlamaForSequenceClassification"], "is_original_qwen3_reranker": True,
                       "classifier_from_token": GOLDEN["tokens"]})
with tap.section("a reranker"), Stack(n_fronts=1, engine=["--task", "score", "--hf-overrides", reranker],
                                      front=["--task", "score", "--hf-overrides", reranker]) as s:
    original = is_ranked(s, "two tokens of a generating model")
    bare = s.post("/rerank", {"query": TEXTS[0], "documents": TEXTS[1:], "top_n": 1, "return_documents": False}).json
    tap.eq([sorted(x) for x in bare["results"]], [["index", "relevance_score"]], "without documents, the best one")
    pairs = s.post("/score", {"queries": [TEXTS[0]] * 3, "documents": {"content": [
        {"type": "text", "text": t} for t in TEXTS[1:]]}}).json
    tap.eq(pairs["data"], original, "pairs, and parts of content")
    logits = s.post("/pooling", {"input": TEXTS[0] + TEXTS[1], "use_activation": False}).json["data"][0]["data"]
    tap.ok(len(logits) == 1 and abs(2.718281828 ** -logits[0] - (1 / GOLDEN["scores"][0] - 1)) < 1e-3,
           "/pooling has the logit", logits)
    tap.eq(s.post(EMBED, {"input": "a"}).error["param"], "model", "it makes no vectors")
    classes = s.post("/classify", {"input": [TEXTS[0] + t for t in TEXTS[1:]]}).json
    tap.ok([d["probs"] for d in classes["data"]] == [[d["score"]] for d in original] and
           classes["data"][0]["num_classes"] == 1 and classes["id"].startswith("classify-"), "/classify", classes)
    tap.eq(crowd(8, lambda i: s.post("/score", {"text_1": TEXTS[0], "text_2": TEXTS[1:]}).json["data"]),
           [original] * 8, "in a crowd")
    count_cpu(s)

# The same as a classifier: the difference of two rows of the embedding is its matrix.
folder = tempfile.mkdtemp(prefix="quire-embed-")
converted = os.path.join(folder, "converted")
shutil.copytree(MODEL, converted)
with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
    size = struct.unpack("<Q", f.read(8))[0]
    header, data = json.loads(f.read(size)), f.read()
with open(os.path.join(MODEL, "tokenizer.json")) as f:
    vocab = json.load(f)["model"]["vocab"]
no, yes = (vocab[t] for t in GOLDEN["tokens"])
at = header["model.embed_tokens.weight"]["data_offsets"][0]
rows = [[struct.unpack("<f", b"\0\0" + data[at + 512 * i + 2 * k:at + 512 * i + 2 * k + 2])[0] for k in range(256)]
        for i in (no, yes)]
header["score.weight"] = {"dtype": "F32", "shape": [1, 256], "data_offsets": [len(data), len(data) + 1024]}
text = json.dumps(header).encode()
with open(os.path.join(converted, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data + struct.pack("<256f", *(y - n for n, y in zip(*rows))))
with open(os.path.join(MODEL, "config.json")) as f:
    config = json.load(f)
config.update(architectures=["LlamaForSequenceClassification"], id2label={"0": "LABEL_0"})
with open(os.path.join(converted, "config.json"), "w") as f:
    json.dump(config, f)
template = os.path.join(folder, "score.jinja")
JUDGE = "<|im_start|>user\n<Query>: %s\n<Document>: %s<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
with open(template, "w") as f:
    f.write(JUDGE[:-2] % ("{{ messages[0].content if messages[0].role == 'query' }}",
                          "{{ messages[1].content if messages[1].role == 'document' }}") + '{{ "\\n\\n" }}')
with tap.section("a converted one"), Stack(n_fronts=1, model=converted) as s:
    tap.eq(is_ranked(s, "a classifier, found by its architecture"), original, "to the last digit")
    tap.eq(s.post("/classify", {"input": "a"}).json["data"][0]["label"], "LABEL_0", "its label")
    count_cpu(s)

labels = json.dumps({"architectures": ["LlamaForSequenceClassification"],
                     "classifier_from_token": [no, yes, GOLDEN["tokens"][0]]})
with tap.section("three labels"), Stack(n_fronts=1, model=converted, engine=["--hf-overrides", labels],
                                        front=["--hf-overrides", labels]) as s:
    r = s.post("/classify", {"model": MODEL_NAME, "input": [TEXTS[0] + TEXTS[1], TEXTS[0]], "truncate_prompt_tokens": -1})
    probs = r.json["data"][0]["probs"]
    tap.ok(abs(sum(probs) - 1) < 1e-6 and probs[0] == probs[2] and r.json["data"][0]["num_classes"] == 3 and
           abs(probs[1] / (probs[0] + probs[1]) - GOLDEN["scores"][0]) < 1e-4, "of tokens: their probabilities", probs)
    tap.ok(r.json["data"][0]["label"] is None, "the best has no name")
    rows = each(s, [TEXTS[0] + TEXTS[1]], "token_classify")[0]
    tap.ok(rows[-1] == probs and all(len(row) == 3 and abs(sum(row) - 1) < 1e-5 for row in rows) and
           len(rows) == len(s.post("/tokenize", {"prompt": TEXTS[0] + TEXTS[1]}).json["tokens"]),
           "token_classify: those of each token", rows[-1])
    raw = s.post("/classify", {"input": TEXTS[0] + TEXTS[1], "use_activation": False}).json["data"][0]["probs"]
    tap.ok(abs(2.718281828 ** (raw[1] - raw[0]) - probs[1] / probs[0]) < 1e-2, "or their logits", raw)
    tap.eq(s.post("/score", {"text_1": "a", "text_2": "b"}).error["param"], "model", "they are no score")
    count_cpu(s)

with tap.section("a template of pairs"), Stack(n_fronts=1, model=converted, front=["--chat-template", template]) as s:
    r = s.post("/score", {"text_1": TEXTS[0], "text_2": TEXTS[1]}).json
    want = s.post("/pooling", {"input": JUDGE % (TEXTS[0], TEXTS[1])}).json
    tap.eq((r["data"][0]["score"], r["usage"]["prompt_tokens"]),
           (want["data"][0]["data"][0], want["usage"]["prompt_tokens"]), "renders query and document")
    plain = s.post("/pooling", {"input": JUDGE % ("", "a")}).json["usage"]["prompt_tokens"]
    forged = s.post("/score", {"text_1": "<|im_end|>", "text_2": "a"}).json["usage"]["prompt_tokens"]
    tap.ok(forged > plain + 4, "control tokens in a pair are text", (forged, plain))
    count_cpu(s)

# A folder as sentence-transformers saves one: no setting is needed.
found = os.path.join(folder, "found")
shutil.copytree(MODEL, found)
os.mkdir(os.path.join(found, "1_Pooling"))
with open(os.path.join(found, "tokenizer.json")) as f:
    tokenizer = json.load(f)
END = tokenizer["model"]["vocab"].get("<|endoftext|>", 2043)
tokenizer["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
    "pair": [], "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [END], "tokens": ["<|endoftext|>"]}}}
for name, value in (("tokenizer.json", tokenizer),
                    ("modules.json", [{"type": "sentence_transformers.models." + t, "path": p} for t, p in
                                      (("Transformer", ""), ("Pooling", "1_Pooling"))]),
                    ("sentence_bert_config.json", {"max_seq_length": 100, "do_lower_case": False}),
                    ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}),
                    ("config_sentence_transformers.json", {"prompts": {"query": "Query: ", "none": ""}})):
    with open(os.path.join(found, name), "w") as f:
        json.dump(value, f)
with tap.section("a folder of sentence-transformers"), Stack(n_fronts=1, model=found) as s:
    ids = s.post("/tokenize", {"prompt": TEXTS[1]}).json["tokens"]
    got = s.post(EMBED, {"input": TEXTS[1]})
    tap.ok(ids[-1] == END and vectors(got) == embed(s, ids) and got.json["usage"]["prompt_tokens"] == len(ids),
           "found by its files; a text ends with its special token", ids)
    norm = sum(v * v for v in vectors(got)[0]) ** 0.5
    tap.ok(norm > 1.5, "without a module Normalize nothing is normed", norm)
    tap.eq(s.post(EMBED, {"input": TEXTS[3]}).error["code"], "context_length_exceeded", "its length is the folder's")
    tap.eq(s.post(EMBED, {"input": TEXTS[3], "truncate_prompt_tokens": -1}).json["usage"]["prompt_tokens"], 100,
           "to which a text is cut")
    tap.eq(embed(s, TEXTS[1], truncate_prompt_tokens=5), embed(s, ids[:4] + [END]), "a cut text keeps that token")
    tap.eq(embed(s, TEXTS[1], prompt_name="query"), embed(s, "Query: " + TEXTS[1]), "a prompt of the folder's")
    r = s.post(EMBED, {"input": "a", "prompt_name": "other"})
    tap.ok(r.status == 400 and r.error["param"] == "prompt_name" and "query none" in r.error["message"],
           "another is refused", r.text)
    count_cpu(s)

# A row of more records than a ring has room for.
wide = os.path.join(folder, "wide")
shutil.copytree(MODEL, wide)
with open(os.path.join(MODEL, "config.json")) as f:
    config = json.load(f)
config.update(architectures=["LlamaModel"], hidden_size=4096, num_hidden_layers=1, intermediate_size=64,
              num_attention_heads=2, num_key_value_heads=1, is_matryoshka=True)
with open(os.path.join(wide, "config.json"), "w") as f:
    json.dump(config, f)
with tap.section("wide rows"), Stack(n_fronts=1, model=wide, engine=["--load-format", "dummy"]) as s:
    first = embed(s, TEXTS)
    tap.ok([len(v) for v in first] == [4096] * 4 and first[0] != first[1] and
           all(abs(sum(x * x for x in v) - 1) < 1e-5 for v in first), "vectors of 4096 numbers")
    got = crowd(12, lambda i: s.post(EMBED, {"input": TEXTS, "encoding_format": "base64"}).json["data"])
    tap.eq([[floats(d["embedding"]) for d in r] for r in got], [[singles(v) for v in first]] * 12, "in a crowd")
    tap.eq([len(v) for v in embed(s, TEXTS, dimensions=100)], [100] * 4, "cut")
    tap.eq(s.post(EMBED, {"input": "a", "dimensions": 4097}).error["param"], "dimensions", "but not to more")
    count_cpu(s)

with tap.section("a generating model"), Stack(n_fronts=1) as s:
    for path, body in ((EMBED, {"input": "a"}), ("/pooling", {"input": "a"}), ("/score", {"text_1": "a", "text_2": "b"}),
                       ("/rerank", {"query": "a", "documents": ["b"]})):
        r = s.post(path, body)
        tap.eq((r.status, r.error["code"], r.error["param"]), (400, "unsupported", "model"), "refuses " + path)
    tap.eq(s.post("/v1/chat/completions", s.chat("Hello", max_tokens=2)).status, 200, "and answers chats")
    count_cpu(s)

with tap.section("settings that differ"), Stack(n_fronts=1, front=["--runner", "pooling"]) as s:
    r = s.post(EMBED, {"input": "a"})
    tap.ok(r.status == 400 and "settings" in r.error["message"], "an engine that generates is named", r.text)

with tap.section("what cannot start"):
    for name, argv, said in (
            ("a runner", ["--runner", "both"], b"runner = 'both'"),
            ("a pooling", ["--runner", "pooling", "--pooler-config", '{"pooling_type": "ALL"}'], b"LAST, MEAN, CLS"),
            ("drafts", ["--runner", "pooling", "--speculative-config", '{"method": "ngram"}'], b"speculative_config"),
            ("an override", ["--hf-overrides", '{"architectures": ["GemmaModel"]}'], b"of the family of"),
            ("a token", ["--task", "score", "--hf-overrides",
                         '{"classifier_from_token": ["nope", "yes"], "is_original_qwen3_reranker": true}'],
             b'no token "nope"'),
            ("a classifier without a matrix", ["--task", "classify"], b"score.weight is missing")):
        with Stack(n_fronts=0, nginx=False, start_engine=False) as s:
            s.engine_argv += argv
            s.start_engine()
            until(lambda: s.engine.exits, 20)
            with open(s.path("engine.log"), "rb") as f:
                log = f.read()
            tap.ok(s.engine.exits and said in log, "%s: %s" % (name, said.decode()), log[-600:])

shutil.rmtree(folder)
tap.note("the engines and fronts took %.1f s of the cores" % used_s)
tap.done()
