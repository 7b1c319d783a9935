#!/usr/bin/env python3
"""Makes pooling/: small models with random weights that turn texts into vectors and scores, and what
transformers 5 and sentence-transformers 5 compute with them, in float32.

golden.bin of each, all little-endian: int32 n_texts, n_numbers, then for each text int32 n_tokens, int32
ids [n_tokens], float32 numbers [n_numbers]. Numbers are those before any activation: the pooled row of
the last norm's results, or the logits of the labels.

demo.json has the vectors and scores of tools/demo-model for tests/integration/embed.t, by texts.

    python3 tests/golden/make_pooling.py
"""
import json
import os
import shutil
import struct
import tempfile

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize, Pooling, Transformer
from transformers import (AutoModel, AutoModelForCausalLM, AutoTokenizer, GraniteConfig, GraniteModel, LlamaConfig,
                          LlamaModel, MistralConfig, MistralModel, Qwen2Config, Qwen2Model, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3ForSequenceClassification, Qwen3Model)

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "pooling")
DEMO = os.path.join(HERE, "../../tools/demo-model/model")
LENGTHS = (1, 2, 7, 16, 33, 150)
SIZES = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 256,
         "rms_norm_eps": 1e-6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def texts(seed):
    torch.manual_seed(seed)
    return [torch.randint(0, SIZES["vocab_size"], (n,)) for n in LENGTHS]


def scatter(model):
    """Weights far from those of the start, so that mistakes show."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((1 + 0.3 * torch.randn_like(p)) if p.dim() == 1
                    else torch.randn_like(p) * 1.5 / p.shape[-1] ** 0.5)
    return model.to(torch.bfloat16)


def reopen(model, name):
    """The saved weights in float32. Converting the model itself would round its rotary tables, too."""
    path = os.path.join(OUT, name)
    model.save_pretrained(path)
    return type(model).from_pretrained(path, dtype=torch.float32).eval()


def write(name, ids, rows):
    with open(os.path.join(OUT, name, "golden.bin"), "wb") as f:
        f.write(struct.pack("<2i", len(ids), len(rows[0])))
        for text, row in zip(ids, rows):
            f.write(struct.pack("<i%di%df" % (len(text), len(row)), len(text), *text.tolist(), *row.tolist()))


def note(name, path, value):
    full = os.path.join(OUT, name, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def modules(name, mode, normalize):
    """The files of sentence-transformers, as its save() writes them."""
    dim = SIZES["hidden_size"]
    pooling = Pooling(dim, pooling_mode=mode)
    note(name, "1_Pooling/config.json", pooling.get_config_dict())
    note(name, "modules.json",
         [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
          {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
         + ([{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
            if normalize else []))
    note(name, "config_sentence_transformers.json", {"prompts": {"query": "Instruct: find\nQuery: "},
                                                     "default_prompt_name": None})
    return pooling


def embed(name, model, mode, seed, normalize=True):
    model = reopen(scatter(model), name)
    pooling = modules(name, mode, normalize)
    rows = []
    with torch.no_grad():
        for ids in texts(seed):
            states = model(ids[None]).last_hidden_state
            got = pooling({"token_embeddings": states, "attention_mask": torch.ones(1, len(ids))})
            rows.append(got["sentence_embedding"][0])
    write(name, texts(seed), rows)


def rerank():
    """A generating model of which two tokens are one label, and a classifier of three."""
    tokens = (21, 300)
    config = Qwen3Config(**SIZES, tie_word_embeddings=True)
    model = reopen(scatter(Qwen3ForCausalLM(config)), "qwen3-original")
    with torch.no_grad():
        rows = [model(ids[None]).logits[0, -1, list(tokens)] for ids in texts(3)]
        write("qwen3-original", texts(3), [(r[1] - r[0])[None] for r in rows])
        labels = scatter(Qwen3ForSequenceClassification(Qwen3Config(**SIZES, num_labels=3)))
        labels = reopen(labels, "qwen3-labels")
        write("qwen3-labels", texts(4), [labels(ids[None]).logits[0] for ids in texts(4)])


TEXTS = ["What is the capital of France?", "The capital of France is Paris.", "yes",
         "Gravity is a force that attracts two bodies towards each other. " * 12]


def demo():
    """tools/demo-model, through sentence-transformers itself and through transformers."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    # sentence-transformers would render texts with the model's chat template.
    plain = tempfile.mkdtemp()
    shutil.copytree(DEMO, plain, dirs_exist_ok=True)
    with open(os.path.join(plain, "tokenizer_config.json"), encoding="utf-8") as f:
        config = {k: v for k, v in json.load(f).items() if k != "chat_template"}
    with open(os.path.join(plain, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    out = {"texts": TEXTS, "vectors": {}}
    for mode in ("lasttoken", "mean", "cls"):
        words = Transformer(plain, model_kwargs={"dtype": torch.float32})
        words.tokenizer.padding_side = "right"
        st = SentenceTransformer(modules=[words, Pooling(256, pooling_mode=mode), Normalize()], device="cpu")
        out["vectors"][mode] = [[round(float(v), 7) for v in row] for row in st.encode(TEXTS)]
    model = AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()
    no, yes = 305, 316
    out["tokens"] = [tokenizer.convert_ids_to_tokens(no), tokenizer.convert_ids_to_tokens(yes)]
    out["scores"] = []
    with torch.no_grad():
        for text in TEXTS[1:]:
            ids = tokenizer(TEXTS[0] + text, return_tensors="pt").input_ids
            logits = model(ids).logits[0, -1, [no, yes]]
            out["scores"].append(float(logits.softmax(0)[1]))
        raw = AutoModel.from_pretrained(DEMO, dtype=torch.float32).eval()
        ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
        out["raw"] = [round(float(v), 6) for v in raw(ids).last_hidden_state[0, -1]]
        out["ids"] = ids[0].tolist()
    shutil.rmtree(plain)
    with open(os.path.join(OUT, "demo.json"), "w", encoding="utf-8") as f:
        json.dump(out, f)
        f.write("\n")


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    torch.manual_seed(11)
    embed("qwen3-last", Qwen3Model(Qwen3Config(**SIZES)), "lasttoken", 1)
    embed("mistral-mean", MistralModel(MistralConfig(**SIZES, sliding_window=None)), "mean", 2)
    embed("llama-cls", LlamaModel(LlamaConfig(**SIZES)), "cls", 5, normalize=False)
    embed("qwen2-last", Qwen2Model(Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"})),
          "lasttoken", 6)
    # Logits have a scale, rows have none.
    embed("granite-last", GraniteModel(GraniteConfig(**{k: v for k, v in SIZES.items() if k != "head_dim"},
                                                     logits_scaling=3.0, residual_multiplier=0.5,
                                                     embedding_multiplier=2.0, attention_multiplier=0.3)),
          "lasttoken", 8)
    rerank()
    demo()
    for name in os.listdir(OUT):
        generation = os.path.join(OUT, name, "generation_config.json")
        if os.path.exists(generation):
            os.remove(generation)


main()
