"""For make_gguf.py: families with experts, and dense ones whose files need more than it does.

A mixture of experts has one tensor for all experts of a layer, gates and ups apart (together in files
of Gemma 4, Mistral 4 and GraniteMoeSWA), whatever the folder has.  Some goldens have settings that llama.cpp has in
code and no file names.  Where they can be part of the weights they are multiplied into them, in
float32: the scale of scores of Gemma 2 and the factors of MiniCPM 3.

Checked once against the files that llama.cpp's convert_hf_to_gguf.py (of the package llama-cpp-python
0.3.36) makes of the same folders: equal names, shapes, types and bytes of all tensors, but for those
that are multiplied, and equal settings, but for those that differ between goldens and real models.
"""

import gguf
import numpy
import torch

# Folder: general.architecture.
MODELS = {
    "families/qwen3-moe-wide": "qwen3moe", "families/qwen3-vl-moe": "qwen3vlmoe",
    "families/qwen2-moe": "qwen2moe", "families/gpt-oss": "gpt-oss",
    "families/gpt-oss-mxfp4": "gpt-oss", "families/gemma2": "gemma2", "families/gemma4": "gemma4",
    "families/gemma4-moe": "gemma4", "families/mixtral": "llama", "families/glm4-moe": "glm4moe",
    "families/glm4v": "glm4", "families/glm": "chatglm", "families/ernie4-5": "ernie4_5",
    "families/ernie4-5-moe": "ernie4_5-moe", "families/olmo": "olmo", "families/olmoe": "olmoe",
    "families/granite-moe-shared": "granitemoe", "families/granite-moe-swa": "granite_swa",
    "families/phimoe": "phimoe", "families/bailing-moe": "bailingmoe2",
    "families/hunyuan-dense": "hunyuan-dense", "families/hunyuan-moe": "hunyuan-moe",
    "families/minimax-m2": "minimax-m2", "families/dots1": "dots1",
    "families/exaone-moe": "exaone-moe", "families/arcee": "arcee",
    "families/internlm2": "internlm2", "families/minicpm": "minicpm",
    "families/minicpm3": "minicpm3", "families/jais2": "jais2", "families/ministral3": "mistral3",
    "families/mistral4-vl": "mistral4", "families/afmoe": "afmoe", "families/mellum": "mellum",
    "families/hy3": "hy_v3", "families/muse-glimmer": "muse-glimmer",
    "families/deepseek-v32": "deepseek32", "families/glm-moe-dsa": "glm-dsa",
    "families/glm4-moe-lite": "deepseek2", "families/youtu": "deepseek2",
}
OLD_EXPERTS = ("families/mixtral",)  # written a second time, with a tensor per expert
LATENT = ("deepseek2", "deepseek32", "glm-dsa", "mistral4", "minicpm3")
PERMUTED = ("mistral3", "arcee", "granitemoe", "granite_swa", "olmo", "minicpm", "muse-glimmer")
PLUS_ONE = ("gemma2",)
MEAN = ("olmo", "jais2")  # norms with a mean; PhiMoE has one, too, under the other setting
# The package does not know these; the tensors of another one have the same names.
NAMES_OF = {"granite_swa": "granitemoe", "mellum": "qwen3moe", "hy_v3": "afmoe",
            "deepseek32": "glm-dsa", "muse-glimmer": "afmoe"}
# Layers without experts, and others that the package's table of an architecture lacks.
T = gguf.MODEL_TENSOR
EXTRA = (T.FFN_GATE, T.FFN_UP, T.FFN_DOWN, T.ATTN_SINKS)
WINDOWS = ("gemma2", "gpt-oss", "gemma4", "exaone-moe", "afmoe", "mellum", "dots1", "granite_swa",
           "muse-glimmer")
PATTERN_IN_CODE = ("gemma2", "gpt-oss")  # every second layer
FUSED = ("gemma4", "granite_swa", "mistral4")  # gates and ups are one tensor


def first_of(config, *names):
    """The first of the fields that is there; of a list with one item per layer, the first item."""
    for name in names:
        value = config.get(name)
        if value is not None:
            return value[0] if isinstance(value, list) else value
    return None


def experts_of(config):
    return first_of(config, "n_routed_experts", "num_experts", "num_local_experts",
                    "moe_num_experts")


def rope_of(config, kind):
    rope = config.get("rope_parameters") or {}
    return rope[kind] if isinstance(rope.get(kind), dict) else rope


# --- settings --------------------------------------------------------------------------------------

def add_experts(w, arch, config):
    own = arch in ("llama", "olmoe", "granitemoe", "granite_swa", "minimax-m2", "phimoe", "gpt-oss")
    width = config["intermediate_size"] if own else first_of(config, "moe_intermediate_size",
                                                             "intermediate_size")
    w.add_expert_count(experts_of(config))
    w.add_expert_used_count(first_of(config, "num_experts_per_tok", "moe_k", "moe_topk",
                                     "top_k_experts"))
    if arch not in ("llama", "olmoe", "granitemoe", "granite_swa", "phimoe"):
        w.add_expert_feed_forward_length(width)
    if first_of(config, "n_group"):
        w.add_expert_group_count(config["n_group"])
        w.add_expert_group_used_count(config["topk_group"])
    shared = first_of(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    if shared:
        w.add_expert_shared_count(shared)
    scale = first_of(config, "routed_scaling_factor", "route_scale", "router_scaling_factor")
    if scale:
        w.add_expert_weights_scale(scale)
    if "norm_topk_prob" in config and arch not in ("qwen2moe", "qwen3moe", "qwen3vlmoe", "mellum"):
        w.add_expert_weights_norm(config["norm_topk_prob"])
    if arch in ("glm4moe", "hy_v3", "deepseek32"):
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def full_heads(config):
    """Heads of Gemma 4's layers that see all tokens, and their number of keys."""
    layer = next(iter(config["per_layer_config"].values()))
    return layer["head_dim"], layer["num_key_value_heads"]


def add_gemma4(w, config):
    windows = [t == "sliding_attention" for t in config["layer_types"]]
    n, shared, width = len(windows), config["num_kv_shared_layers"], config["intermediate_size"]
    dims, kv_heads = full_heads(config)
    w.add_head_count_kv([config["num_key_value_heads"] if s else kv_heads for s in windows])
    if config["use_double_wide_mlp"]:
        w.add_feed_forward_length([width * (1 if i < n - shared else 2) for i in range(n)])
    w.add_shared_kv_layers(shared)
    w.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    w.add_key_length(dims)
    w.add_value_length(dims)
    w.add_key_length_swa(config["head_dim"])
    w.add_value_length_swa(config["head_dim"])
    w.add_rope_dimension_count(dims)
    w.add_rope_dimension_count_swa(config["head_dim"])
    w.add_rope_freq_base(rope_of(config, "full_attention")["rope_theta"])
    w.add_rope_freq_base_swa(rope_of(config, "sliding_attention")["rope_theta"])
    rotate = int(dims * rope_of(config, "full_attention")["partial_rotary_factor"] / 2)
    w.add_tensor("rope_freqs.weight", numpy.array([1.0] * rotate + [1e30] * (dims // 2 - rotate),
                                                  numpy.float32))


def dense_layers(config):
    """How many of the first layers have no experts."""
    if not experts_of(config):
        return config["num_hidden_layers"]
    types = config.get("mlp_layer_types") or []
    return config.get("first_k_dense_replace", (types + ["sparse"]).index("sparse"))


def add_latent(w, arch, config):
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    key = config["qk_nope_head_dim"] + rope
    if arch == "minicpm3":
        w.add_key_length(key)
        w.add_value_length(config["v_head_dim"])
    else:
        w.add_key_length(rank + rope)
        w.add_value_length(rank)
        w.add_key_length_mla(key)
        w.add_value_length_mla(config["v_head_dim"])
        w.add_leading_dense_block_count(dense_layers(config))
    w.add_kv_lora_rank(rank)
    if config.get("q_lora_rank"):
        w.add_q_lora_rank(config["q_lora_rank"])
    if arch in ("deepseek32", "glm-dsa"):
        w.add_indexer_head_count(config["index_n_heads"])
        w.add_indexer_key_length(config["index_head_dim"])
        w.add_indexer_top_k(config["index_topk"])
    if config.get("indexer_types"):
        w.add_array(arch + ".attention.indexer.types",
                    [t == "full" for t in config["indexer_types"]])
    return rope


def add_factors(w, arch, config):
    """Numbers that multiply."""
    get = config.get
    if arch in ("granitemoe", "granite_swa"):
        w.add_embedding_scale(get("embedding_multiplier"))
        w.add_residual_scale(get("residual_multiplier"))
        w.add_attention_scale(get("attention_multiplier"))
        w.add_logit_scale(get("logits_scaling"))
    if arch == "minicpm":
        w.add_embedding_scale(get("scale_emb"))
        w.add_residual_scale(get("scale_depth") / get("num_hidden_layers") ** 0.5)
        w.add_logit_scale(get("hidden_size") / get("dim_model_base"))
    if arch == "muse-glimmer":
        w.add_logit_scale(get("output_multiplier"))
    if arch == "gemma2":
        w.add_attn_logit_softcapping(get("attn_logit_softcapping"))
    if get("final_logit_softcapping"):
        w.add_final_logit_softcapping(get("final_logit_softcapping"))
    rope = rope_of(config, "full_attention")
    if "llama_4_scaling_beta" in rope:
        w.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def add_settings(w, arch, config):
    """All but the positions, and the elements of a head that rotate."""
    get = config.get
    n, heads = config["num_hidden_layers"], config["num_attention_heads"]
    drafts = get("num_nextn_predict_layers", 0) if arch == "glm4moe" else 0
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(n + (drafts or 0))
    if drafts:
        w.add_nextn_predict_layers(drafts)
    if not get("use_double_wide_mlp"):
        w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(heads)
    eps = next(config[k] for k in ("rms_norm_eps", "layer_norm_eps", "norm_eps") if k in config) \
        if any(k in config for k in ("rms_norm_eps", "layer_norm_eps", "norm_eps")) else 1e-5
    (w.add_layer_norm_eps if arch in MEAN else w.add_layer_norm_rms_eps)(eps)
    add_factors(w, arch, config)
    if get("sliding_window") and arch in WINDOWS:
        w.add_sliding_window(config["sliding_window"])
        if arch not in PATTERN_IN_CODE:
            w.add_sliding_window_pattern([t == "sliding_attention" for t in config["layer_types"]])
    if arch == "granite_swa":
        w.add_array(arch + ".attention.rope_pattern", [t > 0 for t in config["layer_rope_theta"]])
    if experts_of(config):
        add_experts(w, arch, config)
    if arch == "glm4" and rope_of(config, "")["mrope_section"]:
        w.add_rope_dimension_sections(rope_of(config, "")["mrope_section"] + [0])
    if arch == "gemma4":
        add_gemma4(w, config)
        return None
    kv_heads = get("num_key_value_heads", heads)
    w.add_head_count_kv(1 if arch in LATENT and arch != "minicpm3" else kv_heads)
    if arch in LATENT:
        return add_latent(w, arch, config)
    dims = get("head_dim") or config["hidden_size"] // heads
    w.add_key_length(dims)
    w.add_value_length(dims)
    return dims


# --- tensors ---------------------------------------------------------------------------------------

def half_rows(w, n_heads, part):
    """The part of a head's rows that rotates from pairs of neighbours to two halves."""
    heads = w.reshape(n_heads, w.shape[0] // n_heads, *w.shape[1:])
    rotate = int(heads.shape[1] * part)
    order = [*range(0, rotate, 2), *range(1, rotate, 2), *range(rotate, heads.shape[1])]
    return heads[:, order].reshape(w.shape)


def four_bits(blocks, scales):
    """[..][16] bytes of two neighbours, and exponents, to blocks of 17 bytes [..][17], in which a
    byte has elements i and i + 16."""
    low, high = blocks & 15, blocks >> 4
    both = torch.stack([low, high], -1).flatten(-2)  # [..][32]
    return torch.cat([scales.unsqueeze(-1), both[..., :16] | both[..., 16:] << 4], -1)


def split_gates(arch, name, data):
    """The experts' (or the shared expert's) tensors of gates and ups in one."""
    stem = name
    for ending in ("gate_up_proj", "gate_up_proj_bias", "input_linear.weight"):
        if name.endswith(ending):
            stem = name[:-len(ending)]
    ending = "bias" if name.endswith("_bias") else "weight"
    if arch == "gpt-oss":
        rows = data if ending == "bias" else data.transpose(1, 2)
        parts = rows[:, 0::2], rows[:, 1::2]
    else:
        parts = data.split(data.shape[-2] // 2, -2)
    names = ("gate_proj", "up_proj")
    if "block_sparse_moe." in stem:
        stem, names = stem + "experts.", ("w1", "w3")
    return {f"{stem}{n}.{ending}": p.contiguous() for n, p in zip(names, parts)}


def change_one(arch, config, name, data):
    """The tensors that one of the folder's becomes, by names that the package knows."""
    own = {"layer_scalar": "layer_scalar.weight", "sinks": "sinks.weight"}
    for ending, full in own.items():
        if name.endswith("." + ending):
            return {name[:-len(ending)] + full: data}
    if name.endswith((".gate_up_proj", ".gate_up_proj_bias", ".input_linear.weight")):
        if arch not in FUSED:
            return split_gates(arch, name, data)
        return {name + ".weight": data}
    if name.endswith(".down_proj_bias"):
        return {name[:-len("_bias")] + ".bias": data}
    if name.endswith(".down_proj"):
        turned = data.transpose(1, 2).contiguous() if arch == "gpt-oss" else data
        return {name + ".weight": turned}
    if name.endswith("wqkv.weight"):
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        rows = data.view(kv_heads, heads // kv_heads + 2, -1, data.shape[-1])
        stem = name[:-len("attention.wqkv.weight")] + "self_attn."
        return {stem + "q_proj.weight": rows[:, :-2].flatten(0, 2),
                stem + "k_proj.weight": rows[:, -2].flatten(0, 1),
                stem + "v_proj.weight": rows[:, -1].flatten(0, 1)}
    return {name: data}


def merge_blocks(tensors):
    """MXFP4: gates and ups are rows in turns."""
    out = {}
    for name, data in tensors.items():
        if name.endswith("_scales"):
            continue
        if not name.endswith("_blocks"):
            out[name] = data
            continue
        blocks = four_bits(data, tensors[name[:-len("_blocks")] + "_scales"]).flatten(2)
        stem = name[:-len("_blocks")]
        if stem.endswith("gate_up_proj"):
            stem = stem[:-len("gate_up_proj")]
            out[stem + "gate_proj.weight"] = blocks[:, 0::2].contiguous()
            out[stem + "up_proj.weight"] = blocks[:, 1::2].contiguous()
        else:
            out[stem + ".weight"] = blocks
    return out


def merge_experts(config, tensors):
    """One tensor for all experts of a layer; layers behind the last are those that draft."""
    out = {}
    for name, data in tensors.items():
        at = name.split(".")
        if "layers" in at and int(at[at.index("layers") + 1]) >= config["num_hidden_layers"]:
            continue
        number = at.index("experts") + 1 if "experts" in at else 0
        if number == 0 or not at[number].isdecimal():
            out[name] = data
        elif at[number] == "0":
            of = [tensors[".".join(at[:number] + [str(e)] + at[number + 1:])]
                  for e in range(experts_of(config))]
            out[".".join(at[:number] + at[number + 1:])] = torch.stack(of)
    return out


def split_rows(config, tensors):
    """kv_b: rows of keys, transposed, and of values, by head."""
    out = {}
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    for name, data in tensors.items():
        if ".kv_b_proj." not in name:
            out[name] = data
            continue
        rows = data.view(heads, nope + config["v_head_dim"], data.shape[-1])
        out[name.replace("kv_b", "k_b")] = rows[:, :nope].transpose(1, 2).contiguous()
        out[name.replace("kv_b", "v_b")] = rows[:, nope:].contiguous()
    return out


def change_names(arch, name):
    for ending in ("e_score_correction_bias", "expert_bias"):
        if name.endswith(ending) and arch != "hy_v3":
            name = name[:-len("_bias")] + ("_bias.bias" if ending == "expert_bias" else ".bias")
    return name


def change_tensors(arch, config, tensors):
    tensors = merge_experts(config, merge_blocks(tensors))
    out = {}
    for name, data in tensors.items():
        for own, changed in change_one(arch, config, name, data).items():
            out[change_names(arch, own)] = changed
    if arch in LATENT and arch != "minicpm3":
        out = split_rows(config, out)
    return out


def split_experts(name, data):
    """The tensors of one with all experts, by their names in the first files of Mixtral."""
    if "_exps." not in name:
        return {name: data}
    return {name.replace("_exps.", f".{i}."): one for i, one in enumerate(data)}


def new_tensors(arch, config):
    """Those that the folder has not, by their final names."""
    if arch != "muse-glimmer":
        return {}
    dims, ones = config["head_dim"], torch.ones(config["head_dim"])
    out = {}
    for i in range(config["num_hidden_layers"]):
        out[f"blk.{i}.attn_q_norm.weight"] = ones * config["qk_scale_factor"]
        out[f"blk.{i}.attn_k_norm.weight"] = torch.ones(dims)
    return out


def name_of(arch, name):
    """Names that no table of the package has; None otherwise."""
    layer = name.split(".")[2] if ".layers." in name else ""
    own = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
           "mlp.expert_bias": "exp_probs_b"}
    if arch == "muse-glimmer":
        own.update({"post_attention_layernorm.weight": "post_attention_norm.weight",
                    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
                    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
                    "self_attn.gate_proj.weight": "attn_gate.weight"})
    if arch == "hy_v3":
        own.update({"post_attention_layernorm.weight": "ffn_norm.weight",
                    "mlp.shared_mlp.gate_proj.weight": "ffn_gate_shexp.weight",
                    "mlp.shared_mlp.up_proj.weight": "ffn_up_shexp.weight",
                    "mlp.shared_mlp.down_proj.weight": "ffn_down_shexp.weight"})
    if arch == "granitemoe":
        own.update({"shared_mlp.gate_proj.weight": "ffn_gate_shexp.weight",
                    "shared_mlp.up_proj.weight": "ffn_up_shexp.weight"})
    if arch == "granite_swa":
        own.update({"block_sparse_moe.experts.gate_up_proj.weight": "ffn_gate_up_exps.weight",
                    "block_sparse_moe.experts.down_proj.weight": "ffn_down_exps.weight",
                    "block_sparse_moe.router.weight": "ffn_gate_inp.weight"})
    for ending, to in own.items():
        if layer and name.endswith("." + ending):
            return f"blk.{layer}.{to}"
    return None


def convert(arch, config, name, w):
    """The weights of one tensor; name: in the file. Biases and routers are float32."""
    if name.endswith(".bias") or "ffn_gate_inp" in name or "indexer.proj" in name:
        w = w.float()
    heads = config["num_attention_heads"]
    if arch == "gemma2" and ".attn_q." in name:
        return w.float() * (config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5
    if arch == "glm4" and (".attn_q." in name or ".attn_k." in name):
        n = heads if ".attn_q." in name else config["num_key_value_heads"]
        return half_rows(w, n, rope_of(config, "").get("partial_rotary_factor", 0.5))
    if arch == "muse-glimmer" and name.endswith("norm.weight") and name != "output_norm.weight":
        return w.float() + 1
    if arch == "minicpm3":
        by = {"token_embd.weight": config["scale_emb"] / 12,
              "output.weight": config["dim_model_base"] / 256}.get(name)
        if ".attn_output." in name or ".ffn_down." in name:
            by = config["scale_depth"] / 1.4
        if by is not None:
            return w.float() * by
    return w
