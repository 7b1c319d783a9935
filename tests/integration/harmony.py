"""A model of gpt-oss's shapes without weights, made at run time, in memory: all logits are equal.
Its text is chosen by a completion's fields: says() makes a structural tag that allows one text
alone. (A chat's tags apply inside a message.)

The vocabulary is that of tests/golden/text/o200k (gpt-oss's pattern), its control tokens are named
as gpt-oss names them, the template is the model's own, of QUIRE_TEST_DATA.
"""

import json
import math
import os
import shutil
import struct

from harness import SRCDIR, memory_folder, skip_all

TOKENIZER = os.path.join(SRCDIR, "tests", "golden", "text", "o200k")
ENDS = ("<|return|>", "<|call|>", "<|endoftext|>")
CONTROL = ("<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>",
           "<|constrain|>") + ENDS
N_LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, N_EXPERTS, FF_DIM = 2, 64, 4, 2, 32, 4, 32
ONE = struct.pack("<H", 0x3f80)  # 1 in bfloat16


def find_template():
    data = os.environ.get("QUIRE_TEST_DATA") or os.path.join(SRCDIR, "..", "shared", "data")
    path = os.path.join(data, "templates", "gpt-oss", "chat_template.jinja")
    if not os.path.exists(path):
        skip_all("there is no template of gpt-oss at %s (QUIRE_TEST_DATA)" % path)
    return path


def read_tokenizer():
    """tokenizer.json as Python, and the ids of the control tokens."""
    with open(os.path.join(TOKENIZER, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    n = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] = [{
        "id": n + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True
    } for i, name in enumerate(CONTROL)]
    return tokenizer, {name: n + i for i, name in enumerate(CONTROL)}


def tensor_shapes(n_vocab):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"lm_head.weight": [n_vocab, DIM], "model.embed_tokens.weight": [n_vocab, DIM],
              "model.norm.weight": [DIM]}
    layer = {
        "input_layernorm.weight": [DIM], "post_attention_layernorm.weight": [DIM],
        "mlp.experts.down_proj": [N_EXPERTS, FF_DIM, DIM],
        "mlp.experts.down_proj_bias": [N_EXPERTS, DIM],
        "mlp.experts.gate_up_proj": [N_EXPERTS, DIM, 2 * FF_DIM],
        "mlp.experts.gate_up_proj_bias": [N_EXPERTS, 2 * FF_DIM],
        "mlp.router.bias": [N_EXPERTS], "mlp.router.weight": [N_EXPERTS, DIM],
        "self_attn.q_proj.bias": [q], "self_attn.q_proj.weight": [q, DIM],
        "self_attn.k_proj.bias": [kv], "self_attn.k_proj.weight": [kv, DIM],
        "self_attn.v_proj.bias": [kv], "self_attn.v_proj.weight": [kv, DIM],
        "self_attn.o_proj.bias": [DIM], "self_attn.o_proj.weight": [DIM, q],
        "self_attn.sinks": [HEADS]
    }
    for i in range(N_LAYERS):
        shapes.update({"model.layers.%d.%s" % (i, k): v for k, v in layer.items()})
    return shapes


def write_weights(path, n_vocab):
    head, parts, at = {}, [], 0
    for name, shape in tensor_shapes(n_vocab).items():
        n = math.prod(shape)
        head[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
        parts.append(ONE * n if name.endswith("norm.weight") else bytes(2 * n))
        at += 2 * n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


def config(n_vocab):
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
        "head_dim": HEAD_DIM, "hidden_act": "silu", "hidden_size": DIM,
        "intermediate_size": FF_DIM, "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 8192, "num_attention_heads": HEADS,
        "num_experts_per_tok": 2, "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": KV_HEADS, "num_local_experts": N_EXPERTS, "rms_norm_eps": 1e-5,
        "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "tie_word_embeddings": False, "vocab_size": n_vocab, "dtype": "bfloat16"
    }


def folder():
    """Make the model's folder."""
    template = find_template()
    path = os.path.join(memory_folder(), "harmony")
    tokenizer, ids = read_tokenizer()
    n_vocab = len(tokenizer["model"]["vocab"]) + len(ids)
    os.mkdir(path)
    write_weights(os.path.join(path, "model.safetensors"), n_vocab)
    for name, content in (("config.json", config(n_vocab)), ("tokenizer.json", tokenizer),
                          ("generation_config.json", {"eos_token_id": [ids[e] for e in ENDS]}),
                          ("tokenizer_config.json", {
                              "bos_token": "<|startoftext|>", "eos_token": "<|return|>",
                              "pad_token": "<|endoftext|>",
                              "tokenizer_class": "PreTrainedTokenizerFast"
                          })):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(content, f)
    shutil.copy(template, path)
    return path


def says(text):
    """Fields of a completion whose text is this one, up to and with the token that ends it."""
    end = next(e for e in ENDS if text.endswith(e))
    form = {"type": "const_string", "value": text[:-len(end)]}
    return {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": form}},
            "logit_bias": {str(read_tokenizer()[1][end]): 50}, "max_tokens": 300}
