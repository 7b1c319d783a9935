#!/usr/bin/env python3
"""Makes eagle3/: a small EAGLE-3 head with random weights for the golden model llama-gqa, and what a
plain PyTorch implementation of it computes (torch 2, transformers 5).

The implementation is the definition of the head in a few lines: no cache, float32. golden.bin, all
little-endian: int32 n_prompt, n_drafts, n_vocab of the head, int32 prompt [n_prompt], int32 next, the
token that follows it, int32 drafts [n_drafts], float32 logits [n_drafts][n_vocab]: of the first draft
after the prompt and `next`, and of those that follow, each fed with the draft before.

    python3 tests/golden/make_eagle.py
"""
import json
import os
import struct

import torch
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET, OUT = os.path.join(HERE, "llama-gqa"), os.path.join(HERE, "eagle3")
TAPS, N_VOCAB, N_DRAFTS = (0, 1, 1), 48, 4
HEADS, KV, D, FF = 4, 2, 16, 48


def rms(x, w, eps):
    return w * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def turn(x, theta):
    """x [t][heads][D] at positions 0, 1, ..."""
    angle = torch.outer(torch.arange(x.shape[0]), theta ** (-torch.arange(0, D, 2) / D))
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def head(w, embedded, h, eps, theta):
    """Rows [t][dim] of embedded tokens and of hidden states; the residual before the last norm."""
    t = len(h)
    x = torch.cat((rms(embedded, w["midlayer.input_layernorm.weight"], eps),
                   rms(h, w["midlayer.hidden_norm.weight"], eps)), -1)
    q, k, v = ((x @ w["midlayer.self_attn.%s_proj.weight" % n].T).view(t, -1, D) for n in "qkv")
    q, k = turn(q, theta), turn(k, theta)
    k, v = (y.repeat_interleave(HEADS // KV, 1) for y in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / D ** 0.5
    scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf)
    y = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(t, -1)
    x = h + y @ w["midlayer.self_attn.o_proj.weight"].T
    z = rms(x, w["midlayer.post_attention_layernorm.weight"], eps)
    gate, up = (z @ w["midlayer.mlp.%s_proj.weight" % n].T for n in ("gate", "up"))
    return x + (torch.nn.functional.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T


def main():
    torch.manual_seed(7)
    model = LlamaForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
    c = model.config
    dim, eps, theta = c.hidden_size, 1e-5, 10000.0
    shapes = {"fc.weight": (dim, len(TAPS) * dim), "norm.weight": (dim,), "lm_head.weight": (N_VOCAB, dim),
              "midlayer.input_layernorm.weight": (dim,), "midlayer.hidden_norm.weight": (dim,),
              "midlayer.post_attention_layernorm.weight": (dim,),
              "midlayer.self_attn.q_proj.weight": (HEADS * D, 2 * dim),
              "midlayer.self_attn.k_proj.weight": (KV * D, 2 * dim),
              "midlayer.self_attn.v_proj.weight": (KV * D, 2 * dim),
              "midlayer.self_attn.o_proj.weight": (dim, HEADS * D),
              "midlayer.mlp.gate_proj.weight": (FF, dim), "midlayer.mlp.up_proj.weight": (FF, dim),
              "midlayer.mlp.down_proj.weight": (dim, FF)}
    w = {n: (1 + 0.3 * torch.randn(s) if len(s) == 1 else torch.randn(s) / s[1] ** 0.5 * 1.5)
         .to(torch.bfloat16) for n, s in shapes.items()}
    ids = torch.randperm(c.vocab_size)[:N_VOCAB].sort().values
    os.makedirs(OUT, exist_ok=True)
    save_file(dict(w, d2t=ids - torch.arange(N_VOCAB)), os.path.join(OUT, "model.safetensors"))
    with open(os.path.join(OUT, "config.json"), "w", encoding="utf-8") as f:
        json.dump({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama",
                   "draft_vocab_size": N_VOCAB, "vocab_size": c.vocab_size, "hidden_size": dim,
                   "target_hidden_size": dim, "head_dim": D, "num_attention_heads": HEADS,
                   "num_key_value_heads": KV, "intermediate_size": FF, "num_hidden_layers": 1,
                   "hidden_act": "silu", "rms_norm_eps": eps, "rope_theta": theta,
                   "max_position_embeddings": c.max_position_embeddings,
                   "tie_word_embeddings": False, "torch_dtype": "bfloat16",
                   "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS),
                                    "use_aux_hidden_state": True}}, f, indent=2)
        f.write("\n")
    w = {n: x.float() for n, x in w.items()}
    prompt = torch.randint(0, c.vocab_size, (37,))
    with torch.no_grad():
        # hidden_states[i] enters layer i.
        states = model(prompt[None], output_hidden_states=True).hidden_states
        h = torch.cat([states[i][0] for i in TAPS], -1) @ w["fc.weight"].T
        embed = model.model.embed_tokens.weight
        text = torch.cat((prompt, torch.randint(0, c.vocab_size, (1,))))
        drafts, rows = [], []
        for _ in range(N_DRAFTS):
            x = head(w, embed[text[1:]], h, eps, theta)
            rows.append(rms(x[-1], w["norm.weight"], eps) @ w["lm_head.weight"].T)
            drafts.append(int(ids[rows[-1].argmax()]))
            text = torch.cat((text, torch.tensor(drafts[-1:])))
            h = torch.cat((h, x[-1:]))
    with open(os.path.join(OUT, "golden.bin"), "wb") as f:
        f.write(struct.pack("<3i", len(prompt), N_DRAFTS, N_VOCAB))
        f.write(struct.pack("<%di" % len(prompt), *prompt.tolist()))
        f.write(struct.pack("<i", int(text[len(prompt)])))
        f.write(struct.pack("<%di" % N_DRAFTS, *drafts))
        for row in rows:
            f.write(struct.pack("<%df" % N_VOCAB, *row.tolist()))


main()
