"""Makes the files of models with states under gguf/; README.md there says what they hold.

Versions as in make_gguf.py.

    python3 make_gguf_states.py [--out gguf] [--all]

The changes are those of llama.cpp's converter: -exp(A_log) in place of A_log, convolutions without
the dimension of 1, 1 added to norms that are stored without it, the value heads of Qwen3.5's delta
layers in turns, q, k, v apart from z in Qwen3-Next's, Falcon-H1's multipliers in its matrices, one
tensor for the experts of a layer.  Matrices that were multiplied are float32, because bfloat16 would
round them.  Large files are sets of two.  kimi-linear has the number of its groups of experts, which
the converter leaves out.  --all makes those too whose files would add little to the tests.

Files cannot say what two folders have: granite-h-dense the limits of a step, and bamba that a part
of a head rotates (the converter reorders whole heads).
"""

import argparse
import json
import os

import gguf
import safetensors.torch
import torch

from make_gguf import HERE, Q, finish, permute

# Folder: general.architecture.
MODELS = {
    "qwen3-next": "qwen3next", "qwen3.5": "qwen35", "qwen3.5-moe": "qwen35moe",
    "nemotron-h": "nemotron_h", "nemotron-h-moe": "nemotron_h_moe",
    "nemotron-h-latent": "nemotron_h_moe", "granite-h": "granitehybrid", "falcon-h1": "falcon-h1",
    "lfm2": "lfm2", "lfm2-moe": "lfm2moe", "kimi-linear": "kimi-linear", "mtp": "qwen35",
}
OTHERS = {"qwen3.5-moe-wide": "qwen35moe", "granite-h-dense": "granitehybrid",
          "falcon-h1-after": "falcon-h1", "kimi-linear-wide": "kimi-linear"}
SETS = ("mtp", "qwen3.5", "falcon-h1", "falcon-h1-after", "qwen3.5-moe-wide")
SET_BYTES = 240000  # of a file's tensors
NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head.norm")
RECURRENT = "attention.recurrent_layers"  # newer than the package
QWEN = ("qwen3next", "qwen35", "qwen35moe")
# Endings of names as gguf's table of tensors has them.
RENAMED = {
    "dt_bias": "dt_proj.bias", "e_score_correction_bias": "e_score_correction.bias",
    "expert_bias": "expert_bias.bias",
}


def is_state(kind):
    return kind not in ("full_attention", "attention", "mlp", "moe")


def kinds_of(config):
    return config.get("layers_block_type") or config.get("layer_types") or []


def n_layers(config):
    """With those that draft."""
    return (config.get("num_hidden_layers", len(kinds_of(config))) +
            config.get("mtp_num_hidden_layers", 0))


# --- settings --------------------------------------------------------------------------------------

def add_experts(w, arch, config):
    get = config.get
    n = get("num_local_experts", get("num_experts", get("n_routed_experts")))
    if not n or arch == "nemotron_h":
        return
    w.add_expert_count(n)
    w.add_expert_used_count(get("num_experts_per_tok", get("num_experts_per_token")))
    if get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(get("moe_intermediate_size"))
    for field in ("shared_expert_intermediate_size", "shared_intermediate_size",
                  "moe_shared_expert_intermediate_size"):
        if get(field):
            w.add_expert_shared_feed_forward_length(get(field))
    n_shared = get("n_shared_experts", get("num_shared_experts"))
    if n_shared:
        w.add_expert_shared_count(n_shared)
    if get("routed_scaling_factor") and arch != "lfm2moe":
        w.add_expert_weights_scale(get("routed_scaling_factor"))
    n_groups = get("n_group", get("num_expert_group"))
    if n_groups:
        w.add_expert_group_count(n_groups)
    if get("topk_group"):
        w.add_expert_group_used_count(get("topk_group"))
    if arch == "nemotron_h_moe":
        w.add_expert_weights_norm(get("norm_topk_prob"))
    if get("moe_latent_size"):
        w.add_moe_latent_size(get("moe_latent_size"))
    if arch == "lfm2moe":
        w.add_leading_dense_block_count(get("num_dense_layers"))
    if arch == "kimi-linear":
        w.add_leading_dense_block_count(get("mlp_layer_types").count("dense"))
    if arch in ("lfm2moe", "kimi-linear"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def add_delta(w, config):
    w.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    w.add_ssm_state_size(config["linear_key_head_dim"])
    w.add_ssm_group_count(config["linear_num_key_heads"])
    w.add_ssm_time_step_rank(config["linear_num_value_heads"])
    w.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    n_mtp = config.get("mtp_num_hidden_layers", 0)
    w.add_array(f"{w.arch}.{RECURRENT}", [is_state(t) for t in kinds_of(config)] + [False] * n_mtp)
    if n_mtp > 0:
        w.add_nextn_predict_layers(n_mtp)
    w.add_full_attention_interval(config.get("full_attention_interval", 4))
    sections = config["rope_parameters"].get("mrope_section", [11, 11, 10])
    w.add_rope_dimension_sections((sections + [0])[:4])


def add_mamba(w, config):
    get = config.get
    n_heads = get("mamba_n_heads", get("mamba_num_heads"))
    w.add_ssm_conv_kernel(get("mamba_d_conv", get("conv_kernel")))
    w.add_ssm_state_size(get("mamba_d_state", get("ssm_state_size")))
    w.add_ssm_group_count(get("mamba_n_groups", get("n_groups")))
    w.add_ssm_inner_size(n_heads * inner_head(config))
    w.add_ssm_time_step_rank(n_heads)


def inner_head(config):
    get = config.get
    head = get("mamba_d_head", get("mamba_head_dim"))
    if isinstance(head, int):
        return head
    return (get("mamba_d_ssm") or get("mamba_expand", 2) * get("hidden_size")) // get("mamba_n_heads")


def add_kimi(w, config):
    w.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    w.add_kda_head_dim(config["linear_head_dim"])
    if config.get("q_lora_rank"):
        w.add_q_lora_rank(config["q_lora_rank"])
    w.add_kv_lora_rank(config["kv_lora_rank"])
    w.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    w.add_value_length(config["head_dim"])
    w.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    w.add_value_length_mla(config["v_head_dim"])


def add_lengths(w, arch, config):
    """Widths and heads of layers: lists where layers differ."""
    get, kinds = config.get, kinds_of(config)
    n_kv = 1 if arch == "kimi-linear" else get("num_key_value_heads")
    if arch in QWEN or arch == "falcon-h1":
        w.add_head_count_kv(n_kv)
    else:
        w.add_head_count_kv([n_kv if t in ("full_attention", "attention") else 0 for t in kinds])
    if arch.startswith("nemotron"):
        width = get("moe_intermediate_size" if arch == "nemotron_h_moe" else "intermediate_size")
        w.add_feed_forward_length([width if t in ("mlp", "moe") else 0 for t in kinds])
    elif arch == "lfm2":
        width = get("block_ff_dim") or get("intermediate_size")
        if get("block_auto_adjust_ff_dim"):
            multiple = get("block_multiple_of")
            width = int(get("block_ffn_dim_multiplier") * int(2 * width / 3))
            width = multiple * ((width + multiple - 1) // multiple)
        w.add_feed_forward_length(width)
    elif get("intermediate_size"):
        w.add_feed_forward_length(get("intermediate_size"))


def rotating(arch, config):
    """Elements of a head; None where the converter does not say."""
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if arch in QWEN:
        return int(head * config["rope_parameters"]["partial_rotary_factor"])
    if arch == "kimi-linear":
        return config["qk_rope_head_dim"]
    if arch in ("granitehybrid", "nemotron_h", "nemotron_h_moe"):
        return config["hidden_size"] // config["num_attention_heads"]
    return None


def add_settings(w, arch, config):
    get = config.get
    hides_length = arch.startswith("nemotron") or (
        arch == "granitehybrid" and get("position_embedding_type") != "rope")
    w.add_context_length(2**20 if hides_length else
                         get("max_position_embeddings", get("model_max_length")))
    w.add_embedding_length(get("hidden_size"))
    w.add_block_count(n_layers(config))
    w.add_head_count(get("num_attention_heads"))
    add_lengths(w, arch, config)
    eps = next(config[k] for k in ("rms_norm_eps", "norm_eps", "layer_norm_epsilon") if k in config)
    (w.add_layer_norm_eps if arch.startswith("nemotron") else w.add_layer_norm_rms_eps)(eps)
    theta = (get("rope_parameters") or {}).get("rope_theta", get("rope_theta"))
    if theta is not None:
        w.add_rope_freq_base(theta)
    if rotating(arch, config) is not None:
        w.add_rope_dimension_count(rotating(arch, config))
    if get("head_dim") and arch not in ("granitehybrid", "kimi-linear"):
        w.add_key_length(get("head_dim"))
        w.add_value_length(get("head_dim"))
    if arch not in QWEN:
        w.add_vocab_size(get("vocab_size"))
    add_experts(w, arch, config)
    if arch in QWEN:
        add_delta(w, config)
    elif arch == "kimi-linear":
        add_kimi(w, config)
    elif arch.startswith("lfm2"):
        w.add_shortconv_l_cache(get("conv_L_cache"))
    else:
        add_mamba(w, config)
    if arch == "granitehybrid" or arch.startswith("nemotron"):
        w.add_rope_scaling_finetuned(get("position_embedding_type") == "rope")
    if arch == "granitehybrid":
        w.add_embedding_scale(config["embedding_multiplier"])
        w.add_residual_scale(config["residual_multiplier"])
        w.add_attention_scale(config["attention_multiplier"])
        w.add_logit_scale(config["logits_scaling"])


# --- tensors ---------------------------------------------------------------------------------------

def turn_heads(x, config, width, axis=0):
    """Value heads of `width` elements: from those of each key head to turns."""
    n_k, n_v = config["linear_num_key_heads"], config["linear_num_value_heads"]
    x = x.movedim(axis, 0)
    turned = x.reshape(n_k, n_v // n_k, width, *x.shape[1:]).transpose(0, 1).reshape(x.shape)
    return turned.movedim(0, axis).contiguous()


def turn(config, name, x):
    """A tensor of a delta layer of Qwen3.5."""
    width = config["linear_value_head_dim"]
    values = width * config["linear_num_value_heads"]
    if "in_proj_qkv." in name or "conv1d" in name:
        return torch.cat([x[:-values], turn_heads(x[-values:], config, width)])
    if "in_proj_z." in name:
        return turn_heads(x, config, width)
    if any(s in name for s in ("in_proj_a.", "in_proj_b.", "A_log", "dt_bias")):
        return turn_heads(x, config, 1)
    return turn_heads(x, config, width, 1) if "out_proj." in name else x


def split_qkvz(config, x):
    """Rows of a key head's q, k, v and z in turn: all q, k, v, and all z."""
    n, k = config["linear_num_key_heads"], config["linear_key_head_dim"]
    v = config["linear_num_value_heads"] // n * config["linear_value_head_dim"]
    parts = x.view(n, 2 * k + 2 * v, -1).split([k, k, v, v], 1)
    parts = [p.reshape(-1, x.shape[-1]) for p in parts]
    return torch.cat(parts[:3]), parts[3]


def falcon_factor(config, name):
    """What a matrix of Falcon-H1 is multiplied by: a number, or one for each row."""
    get = config.get
    into = get("attention_in_multiplier")
    factors = {"down_proj": get("mlp_multipliers")[1], "gate_proj": get("mlp_multipliers")[0],
               "k_proj": into, "q_proj": into, "v_proj": into,
               "o_proj": get("attention_out_multiplier"), "out_proj": get("ssm_out_multiplier"),
               "lm_head": get("lm_head_multiplier"), "embed_tokens": get("embedding_multiplier")}
    if ".in_proj" in name:
        states = get("mamba_n_groups") * get("mamba_d_state")
        inner = get("mamba_n_heads") * inner_head(config)
        rows = [inner, inner, states, states, get("mamba_n_heads")]
        return torch.cat([torch.full((n, 1), m) for n, m in zip(rows, get("ssm_multipliers"))])
    for part, factor in factors.items():
        if f".{part}." in name or name.startswith(part):
            return factor
    return None


def convert(arch, config, name, x):
    """The tensor as the file has it."""
    heads = config["num_attention_heads"]
    if arch in ("qwen35", "qwen35moe") and "linear_attn." in name:
        x = turn(config, name, x)
    if name.endswith("A_log"):
        x = -torch.exp(x.float())
    if arch in QWEN and name.endswith("norm.weight") and "linear_attn." not in name:
        x = x.float() + 1
    if arch == "kimi-linear" and "_conv1d." in name:
        return x.reshape(1, x.shape[0], 1, x.shape[-1]).float()
    if "conv1d.weight" in name or "conv.conv.weight" in name:
        return x.squeeze(1).float()
    if arch not in QWEN and arch != "kimi-linear":
        if name.endswith((".A_log", ".D")):
            x = x.reshape(-1, 1)
        if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            x = x.reshape(config.get("mamba_n_groups", config.get("n_groups")), -1)
    if (arch == "granitehybrid" or arch.startswith("nemotron")) and \
            (".q_proj." in name or ".k_proj." in name):
        return permute(x, heads if ".q_proj." in name else config["num_key_value_heads"])
    if arch == "falcon-h1" and x.dim() == 2:
        factor = falcon_factor(config, name)
        if ".k_proj." in name:
            x = x.float() * config["key_multiplier"]
        if ".in_proj." in name:
            x = x.float() * config["ssm_in_multiplier"]
        return x if factor is None else x.float() * factor
    return x


def merge_experts(tensors):
    """One tensor for all experts of a layer."""
    out, merged = {}, {}
    for name, x in tensors.items():
        at = name.split(".")
        if "experts" in at and at[at.index("experts") + 1].isdigit():
            where = at.index("experts") + 1
            merged.setdefault(".".join(at[:where] + at[where + 1:]), {})[int(at[where])] = x
        else:
            out[name] = x
    for name, parts in merged.items():
        out[name] = torch.stack([parts[i] for i in range(len(parts))])
    return out


def halves(x, axis):
    half = x.shape[axis] // 2
    return x.narrow(axis, 0, half).contiguous(), x.narrow(axis, half, half).contiguous()


def split(arch, config, name, x):
    """Tensors of the file by the endings of their names, where one becomes several or gguf's table
    has no name for it; None: neither."""
    has_experts = bool(config.get("num_local_experts"))
    if "in_proj_qkvz." in name:
        qkv, z = split_qkvz(config, x)
        return {"attn_qkv.weight": qkv, "attn_gate.weight": z}
    if name.endswith("experts.gate_up_proj"):
        gate, up = halves(x, 1)
        return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}
    if name.endswith("experts.down_proj"):
        return {"ffn_down_exps.weight": x}
    if arch == "granitehybrid" and "input_linear" in name:
        gate, up = halves(x, x.dim() - 2)
        end = "_exps" if "block_sparse" in name else "_shexp" if has_experts else ""
        return {f"ffn_gate{end}.weight": gate, f"ffn_up{end}.weight": up}
    if arch == "granitehybrid" and "output_linear" in name:
        end = "_exps" if "block_sparse" in name else "_shexp" if has_experts else ""
        return {f"ffn_down{end}.weight": x}
    if ".kv_b_proj." in name:
        nope = config["qk_nope_head_dim"]
        rows = x.view(config["num_attention_heads"], nope + config["v_head_dim"], -1)
        return {"attn_k_b.weight": rows[:, :nope].transpose(1, 2).contiguous(),
                "attn_v_b.weight": rows[:, nope:].contiguous()}
    return None


def name_mtp(config, name):
    """Tensors of the layer that drafts are those of a layer behind the last."""
    layer = f"model.layers.{config.get('num_hidden_layers')}."
    parts = {"mtp.fc.": "eh_proj.", "mtp.pre_fc_norm_embedding.": "enorm.",
             "mtp.pre_fc_norm_hidden.": "hnorm.", "mtp.norm.": "shared_head.norm.",
             "mtp.layers.0.": ""}
    for old, new in parts.items():
        if name.startswith(old):
            return layer + new + name[len(old):]
    return name


def name_of(arch, names, name):
    for old, new in RENAMED.items():
        if name.endswith(old):
            name = name[:-len(old)] + new
    if arch == "falcon-h1" and name.endswith("pre_ff_layernorm.weight"):
        return f"blk.{name.split('.')[2]}.ffn_norm"  # without an ending, as in released files
    if arch.startswith("nemotron"):
        name = name.replace("model.layers.", "backbone.layers.").replace("dt_proj.bias", "dt.bias")
        if ".experts." in name:
            name = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
    if arch == "lfm2moe" and ".experts." in name:
        name = name.replace("model.layers.", "layers.")
    if arch == "kimi-linear" and ".experts." in name:
        ending = {"w1": "gate", "w2": "down", "w3": "up"}[name.split(".")[-2]]
        return f"blk.{name.split('.')[2]}.ffn_{ending}_exps.weight"
    for part in NEXTN:  # of Qwen's models newer than the package
        if name.endswith(part + ".weight"):
            return f"blk.{name.split('.')[2]}.nextn.{part.replace('.', '_')}.weight"
    to = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if to is None and name == "lm_head.weight":  # no table has it for families that are tied
        to = "output.weight"
    if to is None:
        raise ValueError(f"{arch}: {name} has no name in a GGUF file")
    return to


def tensors_of(arch, config, folder):
    """All tensors of the file: name, array of torch."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[
        next(a.name for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch)], n_layers(config))
    tensors = {}
    for part in sorted(p for p in os.listdir(folder) if p.endswith(".safetensors")):
        tensors.update(safetensors.torch.load_file(os.path.join(folder, part)))
    tensors = {name_mtp(config, n.replace("model.language_model.", "model.")): t
               for n, t in tensors.items() if "visual" not in n}
    for name, x in sorted(merge_experts(tensors).items()):
        x = convert(arch, config, name, x)
        parts = split(arch, config, name, x)
        if parts is None:
            yield name_of(arch, names, name), x
            continue
        for ending, part in parts.items():
            yield f"blk.{name.split('.')[2]}.{ending}", part


def is_float(name, x):
    """Vectors and small tensors are float32, as llama.cpp's converter writes them."""
    return x.dim() == 1 or x.dtype == torch.float32 or "ssm_conv1d" in name or \
        "shortconv.conv" in name or "ffn_gate_inp" in name or \
        name.endswith(("ssm_a", "ssm_d", "ssm_norm.weight"))


def make_model(out, folder, arch):
    path = os.path.join(HERE, "families" if folder != "mtp" else "", folder)
    with open(os.path.join(path, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config = config.get("text_config", config)
    w = gguf.GGUFWriter(os.path.join(out, folder + ".gguf"), arch,
                        split_max_size=SET_BYTES if folder in SETS else 0)
    add_settings(w, arch, config)
    for name, x in tensors_of(arch, config, path):
        if "ffn_gate_inp_shexp" in name:
            x = x.reshape(1, -1)
        if is_float(name, x):
            w.add_tensor(name, x.float().numpy())
        else:
            bits = x.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            w.add_tensor(name, bits, raw_dtype=Q.BF16)
    finish(w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "gguf"))
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    for folder, arch in {**MODELS, **(OTHERS if args.all else {})}.items():
        make_model(args.out, folder, arch)


if __name__ == "__main__":
    main()
