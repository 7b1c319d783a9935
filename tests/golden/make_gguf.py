"""Makes the files under gguf/; README.md here says what they hold.

Versions: gguf 0.19.0, numpy 2.4.6, safetensors 0.8.0, torch 2.15.0 (for bfloat16), Python 3.11.

    python3 make_gguf.py [--out gguf]      (gguf_experts.py has the families with experts)

blocks.bin: random blocks of each type with the values that the package gguf gives them.  The models
are those of the folders beside this file, with the names of gguf's own table of tensors and the
changes that llama.cpp's converter makes: rows of queries and keys in pairs of neighbours (llama,
granite), 1 added to norms that are stored without it, q, k and v of GPT-NeoX one below the
other, GPT-2's matrices transposed back.  So the goldens of the folders hold for them.  The
vocabularies are those of text/, as gguf's fields.  SmolLM3 is missing, because its file cannot say
which layers have no positions, and the golden's are others than every fourth.
"""

import argparse
import json
import os
import struct

import gguf
import numpy
import safetensors.torch
import torch

import gguf_experts as experts

HERE = os.path.dirname(os.path.abspath(__file__))
Q = gguf.GGMLQuantizationType
TYPES = [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.IQ4_NL, Q.MXFP4, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K,
         Q.Q6_K, Q.IQ4_XS]
BLOCKS = 6  # of each type

# Folder: general.architecture.
MODELS = {
    "llama-gqa": "llama", "llama-odd": "llama", "llama-scaled": "llama",
    "families/cohere": "command-r", "families/cohere2": "cohere2", "families/exaone4": "exaone4",
    "families/gemma": "gemma", "families/gemma3": "gemma3", "families/glm4": "glm4",
    "families/gpt-neox": "gptneox", "families/gpt-neox-serial": "gptneox", "families/gpt2": "gpt2",
    "families/granite": "granite", "families/nemotron": "nemotron", "families/olmo2": "olmo2",
    "families/olmo3": "olmo2", "families/phi": "phi2", "families/phi3": "phi3",
    "families/qwen2-yarn": "qwen2", "families/qwen3-vl": "qwen3vl", "families/seed-oss": "seed_oss",
    "families/stablelm": "stablelm", "families/starcoder2": "starcoder2",
    "families/deepseek-v2": "deepseek2", "families/deepseek-v2-lite": "deepseek2",
    "families/deepseek-v3": "deepseek2", "families/kimi-k25": "deepseek2",
}
# Of deepseek2: the rows that make keys and values of latents in one tensor, as older files have them.
OLD_ROWS = ("deepseek-v2",)
PERMUTED = ("llama", "granite", "internlm2") + experts.PERMUTED
PLUS_ONE = ("gemma", "gemma3", "nemotron") + experts.PLUS_ONE
SET_BYTES = 240000  # of a file; larger models are sets of files

# Folder of text/: tokenizer.ggml.model, .pre.
VOCABULARIES = {"gpt2": ("gpt2", "gpt-2"), "qwen2": ("gpt2", "qwen2"), "smollm": ("gpt2", "smollm"),
                "o200k": ("gpt2", "gpt-4o"), "tekken": ("gpt2", "tekken"),
                "llama3": ("gpt2", "llama-bpe"), "llama2": ("llama", "default"),
                "deepseek": ("gpt2", "deepseek-v3"), "coder": ("gpt2", "deepseek-coder"),
                "kimi": ("gpt2", "kimi-k2"), "gemma": ("gemma4", None), "qwen35": ("gpt2", "qwen35")}


# --- blocks ----------------------------------------------------------------------------------------

def half_places(kind):
    """Bytes of a block that are float16: random ones could be NaN."""
    return {Q.Q4_0: [0], Q.Q4_1: [0, 2], Q.Q5_0: [0], Q.Q5_1: [0, 2], Q.Q8_0: [0], Q.IQ4_NL: [0],
            Q.MXFP4: [], Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2],
            Q.Q6_K: [208], Q.IQ4_XS: [0]}[kind]


def make_blocks(path):
    """For each type: text[8], u32 elements of a block, u32 bytes, u32 blocks; blocks; float32."""
    rng = numpy.random.default_rng(7)
    with open(path, "wb") as f:
        for kind in TYPES:
            elems, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (BLOCKS, size), numpy.uint8)
            for at in half_places(kind):
                halves = rng.normal(0, 0.1, BLOCKS).astype(numpy.float16)
                halves[0] = 6e-6  # a subnormal
                blocks[:, at:at + 2] = halves.view(numpy.uint8).reshape(BLOCKS, 2)
            if kind == Q.MXFP4:  # the smallest exponents are subnormal; the largest overflow
                blocks[:, 0] = [0, 1, 2, 120, 127, 135]
            values = gguf.dequantize(blocks, kind).astype(numpy.float32)
            f.write(struct.pack("<8sIII", kind.name.encode(), elems, size, BLOCKS))
            f.write(blocks.tobytes() + values.tobytes())


# --- models ----------------------------------------------------------------------------------------

def permute(w, n_heads):
    """Rows of a head from two halves to pairs of neighbours."""
    return (w.reshape(n_heads, 2, w.shape[0] // n_heads // 2, *w.shape[1:]).swapaxes(1, 2)
            .reshape(w.shape))


def convert(arch, config, name, w):
    heads = config.get("num_attention_heads", config.get("n_head"))
    kv_heads = config.get("num_key_value_heads", heads)
    if arch in PERMUTED and ".q_proj." in name:
        return permute(w, heads)
    if arch in PERMUTED and ".k_proj." in name:
        return permute(w, kv_heads)
    if arch in PLUS_ONE and name.endswith("norm.weight"):
        w = w.float() + 1
    if arch == "gemma3" and name.endswith("q_norm.weight"):
        # The file has no scale of scores: the family's is that of the heads.
        return w * (config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5
    if arch == "gpt2" and any(c in name for c in ("c_attn.w", "c_fc.w", "c_proj.w")):
        return w.t().contiguous()
    if arch == "gptneox" and ".query_key_value." in name:
        return (w.reshape(heads, 3, w.shape[0] // heads // 3, *w.shape[1:]).swapaxes(0, 1)
                .reshape(w.shape))
    return w


def rope_of(config, kind):
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope.get(kind, rope) if isinstance(rope.get(kind), dict) else rope


def add_rope(w, arch, config, dims):
    full = rope_of(config, "full_attention")
    theta = full.get("rope_theta", config.get("rope_theta"))
    if full.get("alpha"):  # Hunyuan: theta is raised once
        theta *= full["alpha"] ** (dims / (dims - 2))
    if theta is not None:
        w.add_rope_freq_base(theta)
    local = rope_of(config, "sliding_attention").get("rope_theta")
    if local is not None and arch in ("gemma3", "olmo2", "mellum"):
        w.add_rope_freq_base_swa(local)
    part = full.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if part is None:
        part = config.get("rotary_pct", {"glm4": 0.5, "phi2": 0.5, "nemotron": 0.5, "stablelm": 0.25,
                                         "gptneox": 0.25, "chatglm": 0.5}.get(arch, 1.0))
    if arch in experts.LATENT:
        part = 1.0
    w.add_rope_dimension_count(int(dims * part))
    kind = full.get("rope_type", "default")
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(full["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(full["factor"])
        w.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        if full.get("mscale_all_dim"):
            w.add_rope_scaling_yarn_log_mul((1 if arch == "mistral3" else 0.1)
                                            * full["mscale_all_dim"])
        if "attention_factor" in full:
            w.add_rope_scaling_yarn_attn_factor(full["attention_factor"])
    elif kind == "longrope":
        w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        original = config["original_max_position_embeddings"]
        scale = config["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(
            full.get("attention_factor", full.get(
                "long_mscale", (1 + numpy.log(scale) / numpy.log(original)) ** 0.5)))
        for name in ("long", "short"):
            w.add_tensor(f"rope_factors_{name}.weight",
                         numpy.array(full[name + "_factor"], numpy.float32))
    elif kind == "llama3":
        w.add_tensor("rope_freqs.weight", llama3_factors(full, dims, theta))


def llama3_factors(rope, dims, theta):
    """By what each frequency is divided."""
    frequency = 1.0 / theta ** (numpy.arange(0, dims, 2) / dims)
    wave = 2 * numpy.pi / frequency
    low, high, length = (rope["low_freq_factor"], rope["high_freq_factor"],
                         rope["original_max_position_embeddings"])
    smooth = (length / wave - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = numpy.where(wave < length / high, 1.0,
                          numpy.where(wave > length / low, rope["factor"], between))
    return factors.astype(numpy.float32)


def add_latent(w, config, name):
    """Lengths of heads and settings of experts; returns the elements that rotate."""
    get, rope = config.get, config["qk_rope_head_dim"]
    key, value = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    if name in OLD_ROWS:
        w.add_key_length(key)
        w.add_value_length(value)
    else:
        w.add_key_length(config["kv_lora_rank"] + rope)
        w.add_value_length(config["kv_lora_rank"])
        w.add_key_length_mla(key)
        w.add_value_length_mla(value)
    w.add_kv_lora_rank(config["kv_lora_rank"])
    if get("q_lora_rank"):
        w.add_q_lora_rank(config["q_lora_rank"])
    w.add_leading_dense_block_count(config["first_k_dense_replace"])
    w.add_expert_count(config["n_routed_experts"])
    w.add_expert_used_count(config["num_experts_per_tok"])
    w.add_expert_shared_count(config["n_shared_experts"])
    w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    w.add_expert_weights_scale(config["routed_scaling_factor"])
    w.add_expert_weights_norm(config["norm_topk_prob"])
    if config["model_type"] == "deepseek_v3":
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if get("n_group"):
        w.add_expert_group_count(config["n_group"])
        w.add_expert_group_used_count(config["topk_group"])
    return rope


def add_settings(w, arch, config, name):
    get = config.get
    heads, dim = get("num_attention_heads", get("n_head")), get("hidden_size", get("n_embd"))
    layers = get("num_hidden_layers", get("n_layer"))
    length = get("max_position_embeddings", get("n_positions"))
    w.add_context_length(length)
    w.add_embedding_length(dim)
    w.add_block_count(layers)
    w.add_feed_forward_length(get("intermediate_size", get("n_inner")))
    w.add_head_count(heads)
    if get("num_key_value_heads"):
        w.add_head_count_kv(1 if arch == "deepseek2" and name not in OLD_ROWS
                            else get("num_key_value_heads"))
    dims = get("head_dim") or dim // heads
    if arch == "deepseek2":
        dims = add_latent(w, config, name)
    else:
        w.add_key_length(dims)
        w.add_value_length(dims)
    mean = arch in ("command-r", "cohere2", "gptneox", "gpt2", "nemotron", "phi2", "stablelm",
                    "starcoder2")
    eps = next(config[k] for k in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon",
                                   "norm_epsilon", "norm_eps") if k in config)
    (w.add_layer_norm_eps if mean else w.add_layer_norm_rms_eps)(eps)
    if arch != "gpt2":
        add_rope(w, arch, config, dims)
    if arch == "granite":
        w.add_embedding_scale(config["embedding_multiplier"])
        w.add_residual_scale(config["residual_multiplier"])
        w.add_attention_scale(config["attention_multiplier"])
        w.add_logit_scale(config["logits_scaling"])
    if arch in ("command-r", "cohere2"):
        w.add_logit_scale(config["logit_scale"])
    if arch == "gemma3":
        w.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == "gptneox":
        w.add_parallel_residual(config["use_parallel_residual"])
    if get("sliding_window") and arch in ("cohere2", "exaone4", "gemma3", "olmo2", "starcoder2"):
        w.add_sliding_window(config["sliding_window"])
        if "layer_types" in config:
            w.add_sliding_window_pattern([t == "sliding_attention" for t in config["layer_types"]])


def names_of(arch, layers):
    """The package's names of tensors."""
    arch = experts.NAMES_OF.get(arch, arch)
    model = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch)
    have = gguf.MODEL_TENSORS[model]
    have.extend(t for t in experts.EXTRA if t not in have)
    return gguf.get_tensor_name_map(model, layers)


def add_tensor(w, to, data):
    """Matrices keep their type; vectors are float32, as llama.cpp's converter writes them."""
    if data.dtype == torch.uint8:
        w.add_tensor(to, data.numpy(), raw_dtype=Q.MXFP4)
    elif data.dim() == 1 or data.dtype == torch.float32:
        w.add_tensor(to, data.float().numpy())
    elif data.dtype == torch.float16:
        w.add_tensor(to, data.numpy())
    else:
        bits = data.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
        w.add_tensor(to, bits, raw_dtype=Q.BF16)


def add_tensors(w, arch, config, folder, is_old):
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    is_own = "families/" + folder.split("/")[-1] in experts.MODELS
    names = names_of(arch, layers)
    tensors = {}
    for part in sorted(p for p in os.listdir(folder) if p.endswith(".safetensors")):
        tensors.update(safetensors.torch.load_file(os.path.join(folder, part)))
    tensors = {n.replace("model.language_model.", "model.").replace("language_model.", ""): t
               for n, t in tensors.items() if not any(w in n for w in ("visual", "vision", "projector"))}
    if is_own:
        tensors = experts.change_tensors(arch, config, tensors)
    elif arch == "deepseek2":
        tensors = {experts.change_names(arch, n): t
                   for n, t in experts.merge_experts(config, tensors).items()}
        if folder.split("/")[-1] not in OLD_ROWS:
            tensors = experts.split_rows(config, tensors)
    for name, data in sorted(tensors.items()):
        to = experts.name_of(arch, name) or names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name in ("lm_head.weight", "lm_head.bias"):  # tied in all real Gemmas, not in the test's
            to = name.replace("lm_head", "output")
        if to is None:
            raise ValueError(f"{arch}: {name} has no name in a GGUF file")
        data = convert(arch, config, name, data)
        if is_own:
            data = experts.convert(arch, config, to, data)
        for one, part in experts.split_experts(to, data).items() if is_old else ((to, data),):
            add_tensor(w, one, part)
    for name, data in experts.new_tensors(arch, config).items() if is_own else ():
        add_tensor(w, name, data)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_model(out, folder, arch, ending=""):
    with open(os.path.join(HERE, folder, "config.json"), encoding="utf-8") as f:
        config = json.load(f)
    config = config.get("text_config", config)
    name = folder.split("/")[-1]
    w = gguf.GGUFWriter(os.path.join(out, name + ending + ".gguf"), arch, split_max_size=SET_BYTES)
    if folder in experts.MODELS:
        dims = experts.add_settings(w, arch, config)
        if dims is not None:
            add_rope(w, arch, config, dims)
    else:
        add_settings(w, arch, config, name)
    add_tensors(w, arch, config, os.path.join(HERE, folder), ending == "-old")
    finish(w)


# --- vocabularies ----------------------------------------------------------------------------------

def score_of(merges):
    """SentencePiece's scores: a token of an earlier merge has a higher one."""
    scores = {}
    for rank, pair in enumerate(merges):
        left, right = pair.split(" ") if isinstance(pair, str) else pair
        scores.setdefault(left + right, -float(rank))
    return scores


def make_vocabulary(out, name, model, pre):
    folder = os.path.join(HERE, "text", name)
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    ids = dict(tokenizer["model"]["vocab"])
    added = {t["content"]: t for t in tokenizer["added_tokens"]}
    ids.update({t: a["id"] for t, a in added.items()})
    texts = {i: t for t, i in ids.items()}
    n = max(texts) + 1
    kinds = []
    for i in range(n):
        text = texts.get(i)
        kind = gguf.TokenType.NORMAL if text is not None else gguf.TokenType.UNUSED
        if text in added:
            kind = (gguf.TokenType.CONTROL if added[text]["special"]
                    else gguf.TokenType.USER_DEFINED)
        elif model != "gpt2" and text is not None and len(text) == 6 and text.startswith("<0x"):
            kind = gguf.TokenType.BYTE
        kinds.append(kind)
    w = gguf.GGUFWriter(os.path.join(out, "vocab-" + name + ".gguf"), "llama")
    w.add_tokenizer_model(model)
    if pre is not None:
        w.add_tokenizer_pre(pre)
    if model == "gemma4":
        w.add_add_space_prefix(False)
    w.add_token_list([texts.get(i, f"[PAD{i}]") for i in range(n)])
    w.add_token_types(kinds)
    merges = tokenizer["model"]["merges"]
    if model == "llama":
        scores = score_of(merges)
        w.add_token_scores([scores.get(texts.get(i), -1e9) for i in range(n)])
    else:
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    for field, add in (("bos_token", w.add_bos_token_id), ("eos_token", w.add_eos_token_id),
                       ("unk_token", w.add_unk_token_id)):
        text = config.get(field)
        text = text["content"] if isinstance(text, dict) else text
        if text in ids:
            add(ids[text])
    processor = tokenizer.get("post_processor") or {}
    single = next((p["single"] for p in processor.get("processors", [processor])
                   if "single" in p), [])
    w.add_add_bos_token(bool(single) and "SpecialToken" in single[0])
    w.add_add_eos_token(bool(single) and "SpecialToken" in single[-1])
    w.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}"
                        "{% endfor %}")
    finish(w)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(HERE, "gguf"))
    out = parser.parse_args().out
    os.makedirs(out, exist_ok=True)
    make_blocks(os.path.join(out, "blocks.bin"))
    for folder, arch in {**MODELS, **experts.MODELS}.items():
        try:
            make_model(out, folder, arch)
            if folder in experts.OLD_EXPERTS:
                make_model(out, folder, arch, "-old")
        except Exception as e:  # pylint: disable=broad-except
            print(folder, "FAILED:", repr(e)[:300])
    for name, (model, pre) in VOCABULARIES.items():
        make_vocabulary(out, name, model, pre)


if __name__ == "__main__":
    main()
