#!/usr/bin/env python3
"""Makes mtp/ and mtp-moe/: a small Qwen3.5, without and with experts, of random weights and with an MTP
layer, and the logits that transformers' own decoder layer, norms and rotation compute of it, joined in the order of Qwen3-Next's MTP (torch 2,
transformers 5; transformers itself does not read `mtp.*`).

There is no cache: each draft is computed of all positions anew, in float32. golden.bin is that of
make_eagle.py.

    python3 tests/golden/make_mtp.py
"""
import json
import os
import struct

import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as moe
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

HERE = os.path.dirname(os.path.abspath(__file__))
N_DRAFTS, N_PROMPT = 4, 37
CONFIG = dict(vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, intermediate_size=56, max_position_embeddings=512, linear_num_key_heads=2,
              linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
              layer_types=["linear_attention", "linear_attention", "full_attention"],
              rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
              tie_word_embeddings=False, bos_token_id=None, eos_token_id=None, pad_token_id=None,
              attn_implementation="eager", dtype="float32")
EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
               shared_expert_intermediate_size=32)


class Mtp(torch.nn.Module):
    """The modules that `mtp.*` names."""

    def __init__(self, c, layer, norm):
        super().__init__()
        self.fc = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.pre_fc_norm_embedding = norm(c.hidden_size, eps=c.rms_norm_eps)
        self.pre_fc_norm_hidden = norm(c.hidden_size, eps=c.rms_norm_eps)
        self.layers = torch.nn.ModuleList([layer(c, c.layer_types.index("full_attention"))])
        self.norm = norm(c.hidden_size, eps=c.rms_norm_eps)

    def forward(self, embedded, h, turns):
        """[1][t][dim] of embedded tokens, and of the rows behind the target's last norm or this one's."""
        n = h.shape[1]
        x = self.fc(torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(h)), -1))
        mask = torch.full((n, n), -torch.inf).triu(1)[None, None]
        x = self.layers[0](x, position_embeddings=turns, attention_mask=mask)
        return self.norm(x[0] if isinstance(x, tuple) else x)


def randomise(module):
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_((0.3 if p.dim() == 1 else p.shape[-1] ** -0.5 * 1.5) * torch.randn(p.shape))
            p.copy_(p.to(torch.bfloat16).float())


def make(folder, config, model, mtp):
    out = os.path.join(HERE, folder)
    torch.manual_seed(11)
    randomise(model)
    randomise(mtp)
    model.save_pretrained(out)
    path = os.path.join(out, "model.safetensors")
    tensors = load_file(path)
    tensors.update(("mtp." + n, p.detach().clone()) for n, p in mtp.named_parameters())
    save_file({n: t.to(torch.bfloat16) for n, t in tensors.items()}, path, {"format": "pt"})
    os.remove(os.path.join(out, "generation_config.json"))
    os.chmod(path, 0o644)
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        fields = dict(json.load(f), dtype="bfloat16", mtp_num_hidden_layers=1)
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(fields, f, indent=2)
        f.write("\n")
    prompt = torch.randint(0, config.vocab_size, (N_PROMPT,))
    text = torch.cat((prompt, torch.randint(0, config.vocab_size, (1,))))
    drafts, rows = [], []
    with torch.no_grad():
        h = model.model(prompt[None]).last_hidden_state
        for _ in range(N_DRAFTS):
            positions = torch.arange(h.shape[1])[None]
            turns = model.model.rotary_emb(h, positions)
            x = mtp(model.model.embed_tokens(text[1:])[None], h, turns)
            rows.append(model.lm_head(x[0, -1]))
            drafts.append(int(rows[-1].argmax()))
            text = torch.cat((text, torch.tensor(drafts[-1:])))
            h = torch.cat((h, x[:, -1:]), 1)
    with open(os.path.join(out, "golden.bin"), "wb") as f:
        f.write(struct.pack("<3i", N_PROMPT, N_DRAFTS, config.vocab_size))
        f.write(struct.pack("<%di" % N_PROMPT, *prompt.tolist()))
        f.write(struct.pack("<i", int(text[N_PROMPT])))
        f.write(struct.pack("<%di" % N_DRAFTS, *drafts))
        for row in rows:
            f.write(struct.pack("<%df" % config.vocab_size, *row.tolist()))


def main():
    config = Qwen3_5TextConfig(**CONFIG)
    make("mtp", config, dense.Qwen3_5ForCausalLM(config).eval(),
         Mtp(config, dense.Qwen3_5DecoderLayer, dense.Qwen3_5RMSNorm).eval())
    config = Qwen3_5MoeTextConfig(**CONFIG, **EXPERTS)
    make("mtp-moe", config, moe.Qwen3_5MoeForCausalLM(config).eval(),
         Mtp(config, moe.Qwen3_5MoeDecoderLayer, moe.Qwen3_5MoeRMSNorm).eval())


main()
