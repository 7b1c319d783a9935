#!/usr/bin/env python3
"""Makes mtp/ and mtp-*/: small models of random weights with an MTP layer, and the logits that transformers'
own decoder layer, norms and rotation compute of it, joined in the order of published folders (torch 2,
transformers 5; transformers itself does not read MTP layers).

There is no cache: each draft is computed of all positions anew, in float32. Seeds are such that neither
noise of one percent nor bfloat16 changes a draft or a choice of experts. golden.bin is that of
make_eagle.py.

    python3 tests/golden/make_mtp.py [FOLDER ...]
"""
import copy
import importlib
import json
import os
import struct
import sys

import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N_DRAFTS, N_PROMPT = 4, 37
SEED, SEEDS, NOISE_MAX = 11, 2000, 0.05
COMMON = dict(vocab_size=160, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=56,
              max_position_embeddings=512, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
              pad_token_id=None, attn_implementation="eager", dtype="float32")
QWEN = dict(COMMON, num_key_value_heads=2, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=16, linear_value_head_dim=16,
            layer_types=["linear_attention", "linear_attention", "full_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25})
GROUPED = dict(COMMON, n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=20, n_shared_experts=1,
               n_group=3, topk_group=2, first_k_dense_replace=1, routed_scaling_factor=1.7,
               num_nextn_predict_layers=1)
LATENT = dict(GROUPED, num_key_value_heads=4, q_lora_rank=14, kv_lora_rank=20, qk_nope_head_dim=9,
              qk_rope_head_dim=8, v_head_dim=5)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
# Folder: the module, its classes' prefix, the configuration's and the fields; the layer that the MTP layer is
# like, the mean of norms' weights, and the names of what is beside the layer.
QWEN_NAMES = {"fc": "mtp.fc", "norm_embed": "mtp.pre_fc_norm_embedding", "norm_hidden": "mtp.pre_fc_norm_hidden",
              "norm": "mtp.norm", "layer": "mtp.layers.0"}
LAYER = "model.layers.3"  # behind the last one
DEEPSEEK_NAMES = {"fc": LAYER + ".eh_proj", "norm_embed": LAYER + ".enorm", "norm_hidden": LAYER + ".hnorm",
                  "norm": LAYER + ".shared_head.norm", "layer": LAYER}
MODELS = {
    "mtp": ("qwen3_5", "Qwen3_5", "Qwen3_5TextConfig", QWEN, 0.0, QWEN_NAMES),
    "mtp-moe": ("qwen3_5_moe", "Qwen3_5Moe", "Qwen3_5MoeTextConfig",
                dict(QWEN, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24,
                     shared_expert_intermediate_size=32), 0.0, QWEN_NAMES),
    "mtp-deepseek-v3": ("deepseek_v3", "DeepseekV3", "DeepseekV3Config", dict(LATENT, rope_parameters=YARN), 1.0,
                        DEEPSEEK_NAMES),
    # Of 41 tokens the index chooses 36.
    "mtp-deepseek-v32": ("deepseek_v32", "DeepseekV32", "DeepseekV32Config",
                         dict(LATENT, n_group=1, topk_group=1, index_n_heads=9, index_head_dim=14, index_topk=36,
                              rope_parameters=YARN), 1.0, DEEPSEEK_NAMES),
    "mtp-glm4-moe": ("glm4_moe", "Glm4Moe", "Glm4MoeConfig",
                     dict(GROUPED, num_key_value_heads=2, head_dim=12, attention_bias=True, use_qk_norm=True), 1.0,
                     DEEPSEEK_NAMES),
    "mtp-glm4-moe-lite": ("glm4_moe_lite", "Glm4MoeLite", "Glm4MoeLiteConfig",
                          dict(LATENT, q_lora_rank=18, kv_lora_rank=26, qk_nope_head_dim=15, qk_rope_head_dim=6,
                               v_head_dim=21, n_group=1, topk_group=1,
                               mlp_layer_types=["dense", "sparse", "sparse"]), 1.0, DEEPSEEK_NAMES),
}


class Mtp(torch.nn.Module):
    """The modules of an MTP layer."""

    def __init__(self, c, layer, norm):
        super().__init__()
        types = getattr(c, "layer_types", None) or []
        last = types.index("full_attention") if "full_attention" in types else c.num_hidden_layers - 1
        self.fc = torch.nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.norm_embed = norm(c.hidden_size, eps=c.rms_norm_eps)
        self.norm_hidden = norm(c.hidden_size, eps=c.rms_norm_eps)
        self.layer = torch.nn.ModuleList([layer(c, last)])
        self.norm = norm(c.hidden_size, eps=c.rms_norm_eps)

    def forward(self, embedded, h, turns, positions):
        """[1][t][dim] of embedded tokens, and of the rows behind the target's last norm or this one's."""
        n = h.shape[1]
        x = self.fc(torch.cat((self.norm_embed(embedded), self.norm_hidden(h)), -1))
        mask = torch.full((n, n), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
        x = self.layer[0](x, position_embeddings=turns, attention_mask=mask, position_ids=positions)
        return self.norm(x[0] if isinstance(x, tuple) else x)

    def tensors(self, names):
        """By their names in a folder, experts one by one where the model's own are."""
        for name, p in list(self.named_parameters()) + list(self.named_buffers()):
            part, rest = name.split(".", 1)
            rest = rest.removeprefix("0.")
            if names is DEEPSEEK_NAMES and rest.endswith(("experts.gate_up_proj", "experts.down_proj")):
                stem = "%s.%s" % (names[part], rest.rsplit(".", 1)[0])
                for e, w in enumerate(p):
                    if rest.endswith("down_proj"):
                        yield "%s.%d.down_proj.weight" % (stem, e), w
                        continue
                    for kind, half in zip(("gate", "up"), w.chunk(2)):
                        yield "%s.%d.%s_proj.weight" % (stem, e, kind), half
            else:
                yield "%s.%s" % (names[part], rest), p


def randomise(module, mean):
    with torch.no_grad():
        for name, p in module.named_parameters():
            about = mean if p.dim() == 1 and not name.endswith("bias") else 0.0
            deviation = 0.3 if p.dim() == 1 else 1.0 if "embed_tokens" in name else p.shape[-1] ** -0.5
            p.copy_(about + deviation * torch.randn(p.shape))
            p.copy_(p.to(torch.bfloat16).float())
        for name, p in module.named_buffers():
            if name.endswith("e_score_correction_bias"):
                p.copy_((0.1 * torch.randn(p.shape)).to(torch.bfloat16).float())


def draft(model, mtp, text, forced=None):
    """The logits of each draft, and the drafts, behind the first N_PROMPT + 1 tokens."""
    drafts, rows = [], []
    with torch.no_grad():
        h = model.model(text[None, :N_PROMPT]).last_hidden_state
        for i in range(N_DRAFTS):
            positions = torch.arange(h.shape[1])[None]
            turns = model.model.rotary_emb(h, positions)
            x = mtp(model.model.embed_tokens(text[1:])[None], h, turns, positions)
            rows.append(model.lm_head(x[0, -1]).float())
            drafts.append(int(rows[-1].argmax()))
            text = torch.cat((text, torch.tensor([drafts[-1] if forced is None else forced[i]])))
            h = torch.cat((h, x[:, -1:]), 1)
    return rows, drafts


def is_steady(model, mtp, text, rows, drafts):
    """Noise of one percent, and bfloat16, change the logits by little, and no draft."""
    embed = model.model.embed_tokens
    plain = embed.weight.data.clone()

    def is_near(of, beside):
        noisy, ids = draft(of, beside, text, drafts)
        return ids == drafts and max(((a - b).norm() / b.norm()).item() for a, b in zip(noisy, rows)) < NOISE_MAX

    for seed in range(4):
        torch.manual_seed(seed)
        embed.weight.data = plain * (1 + 0.01 * torch.randn(plain.shape))
        good = is_near(model, mtp)
        embed.weight.data = plain
        if not good:
            return False
    return is_near(copy.deepcopy(model).to(torch.bfloat16), copy.deepcopy(mtp).to(torch.bfloat16))


def find(folder):
    """A steady model, its MTP layer, a text and its drafts."""
    kind, prefix, config, fields, mean, _ = MODELS[folder]
    module = importlib.import_module("transformers.models.%s.modeling_%s" % (kind, kind))
    configs = importlib.import_module("transformers.models.%s.configuration_%s" % (kind, kind))
    config = getattr(configs, config)(**fields, experts_implementation="eager")
    model = getattr(module, prefix + "ForCausalLM")(config).eval()
    mtp = Mtp(config, getattr(module, prefix + "DecoderLayer"), getattr(module, prefix + "RMSNorm")).eval()
    for seed in range(SEED, SEED + SEEDS):
        torch.manual_seed(seed)
        randomise(model, mean)
        randomise(mtp, mean)
        prompt = torch.randint(0, config.vocab_size, (N_PROMPT,))
        text = torch.cat((prompt, torch.randint(0, config.vocab_size, (1,))))
        rows, drafts = draft(model, mtp, text)
        if is_steady(model, mtp, text, rows, drafts):
            print(folder, "seed", seed, drafts, flush=True)
            return model, mtp, text, rows, drafts
    raise ValueError("no seed gives clear drafts")


def make(folder):
    out, names = os.path.join(HERE, folder), MODELS[folder][-1]
    model, mtp, text, rows, drafts = find(folder)
    model.save_pretrained(out)
    path = os.path.join(out, "model.safetensors")
    tensors = load_file(path)
    tensors.update((n, p.detach().clone()) for n, p in mtp.tensors(names))
    if folder == "mtp-deepseek-v3":  # published folders have these twice
        tensors[LAYER + ".embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[LAYER + ".shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({n: t.to(torch.bfloat16) for n, t in tensors.items()}, path, {"format": "pt"})
    os.remove(os.path.join(out, "generation_config.json"))
    os.chmod(path, 0o644)
    field = "mtp_num_hidden_layers" if names is QWEN_NAMES else "num_nextn_predict_layers"
    with open(os.path.join(out, "config.json"), encoding="utf-8") as f:
        fields = dict(json.load(f), dtype="bfloat16", **{field: 1})
    with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
        json.dump(fields, f, indent=2)
        f.write("\n")
    with open(os.path.join(out, "golden.bin"), "wb") as f:
        f.write(struct.pack("<3i", N_PROMPT, N_DRAFTS, model.config.vocab_size))
        f.write(struct.pack("<%di" % (N_PROMPT + 1), *text.tolist()))
        f.write(struct.pack("<%di" % N_DRAFTS, *drafts))
        for row in rows:
            f.write(struct.pack("<%df" % len(row), *row.tolist()))


for name in sys.argv[1:] or MODELS:
    make(name)
