"""A model of gpt-oss's shapes that says known texts (spoken.py). Its control tokens are named as
gpt-oss names them, the template is the model's own, of QUIRE_TEST_DATA.
"""

import os
import sys

import spoken
from harness import SRCDIR, skip_all

ENDS = ("<|return|>", "<|call|>", "<|endoftext|>")
CONTROL = ("<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>",
           "<|constrain|>") + ENDS
SPECIAL = ("<|startoftext|>", "<|return|>", "<|endoftext|>")
N_LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, N_EXPERTS, FF_DIM = 2, 64, 4, 2, 32, 4, 32


def find_template():
    data = os.environ.get("QUIRE_TEST_DATA") or os.path.join(SRCDIR, "..", "shared", "data")
    path = os.path.join(data, "templates", "gpt-oss", "chat_template.jinja")
    if not os.path.exists(path):
        skip_all("there is no template of gpt-oss at %s (QUIRE_TEST_DATA)" % path)
    return path


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


def token_id(name):
    return spoken.read_tokenizer(CONTROL)[1][name]


def folder():
    """Make the model's folder."""
    with open(find_template(), encoding="utf-8") as f:
        return spoken.make_folder("harmony", sys.modules[__name__], f.read())
