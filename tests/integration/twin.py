"""Twins of the demo model, made at run time, in memory: they go with the test.

folder(): a vocabulary of the size that models have: 128,256 tokens.

The tokens behind the demo model's own are generated pieces (tests/grammar/pieces.h, by judge of the
build). No merge makes them, so texts are encoded as before; but a mask can allow them, and a draw
can take them. Their embeddings are those of bytes that stand in no text (0xf5 to 0xff), which
training has made improbable: what the model says by itself is what the demo model says. 70 MB.

eagle_head(): an EAGLE-3 head of random weights. first_layers(): the demo model's first layers alone.

windows(): layers that see the last tokens alone beside layers that see all, or none of these. What
they say is worse than what the demo model says, and as much a function of the prompt.
"""

import functools
import json
import math
import os
import random
import shutil
import struct
import subprocess

from harness import BUILDDIR, MODEL, memory_folder

N_VOCAB = 128256
ROWS = 2048  # of the demo model


def byte_chars():
    """The characters by which a byte-level tokenizer's file spells bytes."""
    plain = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [b for b in range(256) if b not in plain]
    return dict([(b, chr(b)) for b in plain] + [(b, chr(256 + i)) for i, b in enumerate(others)])


def write_tokenizer(folder):
    chars = byte_chars()
    with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    vocab = tokenizer["model"]["vocab"]
    asked = subprocess.run([os.path.join(BUILDDIR, "tests", "grammar", "judge")],
                           input=json.dumps({"pieces": N_VOCAB}) + "\n", check=True,
                           capture_output=True, encoding="utf-8")
    n = ROWS
    for piece in json.loads(asked.stdout)["pieces"]:
        text = "".join(chars[b] for b in piece.encode())
        if text not in vocab and n < N_VOCAB:
            vocab[text] = n
            n += 1
    while n < N_VOCAB:  # as models pad theirs
        vocab["<|unused_%d|>" % n] = n
        n += 1
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer, f)
    return [vocab[chars[b]] for b in range(0xf5, 0x100)]


def write_weights(folder, rare):
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(size))
        data = f.read()
    name = "model.embed_tokens.weight"
    at, end = head[name]["data_offsets"]
    row = (end - at) // ROWS
    more = b"".join(data[at + row * i:at + row * (i + 1)] for i in rare)
    n_more = N_VOCAB - ROWS
    pad = (more * (n_more // len(rare) + 1))[:n_more * row]
    for other in head.values():
        if "data_offsets" in other and other["data_offsets"][0] >= end:
            other["data_offsets"] = [x + len(pad) for x in other["data_offsets"]]
    head[name]["shape"][0] = N_VOCAB
    head[name]["data_offsets"][1] += len(pad)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        for part in (struct.pack("<Q", len(text)), text, data[:end], pad, data[end:]):
            f.write(part)


@functools.lru_cache(maxsize=None)
def folder():
    """The twin's folder, made when it is first asked for."""
    path = os.path.join(memory_folder(), "twin")
    os.mkdir(path)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        with open(os.path.join(MODEL, name), encoding="utf-8") as f:
            config = json.load(f)
        if "vocab_size" in config:
            config["vocab_size"] = N_VOCAB
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(config, f)
    write_weights(path, write_tokenizer(path))
    return path


def read_weights():
    """[(name, head entry, bytes)] of the demo model."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        size, = struct.unpack("<Q", f.read(8))
        head = json.loads(f.read(size))
        data = f.read()
    return [(n, h, data[h["data_offsets"][0]:h["data_offsets"][1]])
            for n, h in head.items() if n != "__metadata__"]


def write_folder(name, config, tensors):
    """The demo model's folder with another config.json and other tensors: [(name, shape, bytes)],
    of bfloat16."""
    path = os.path.join(memory_folder(), name)
    os.mkdir(path)
    for file in ("generation_config.json", "tokenizer_config.json", "tokenizer.json"):
        shutil.copy(os.path.join(MODEL, file), path)
    with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    head, at = {}, 0
    for tensor, shape, data in tensors:
        head[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors))
    return path


def read_config():
    with open(os.path.join(MODEL, "config.json"), encoding="utf-8") as f:
        return json.load(f)


@functools.lru_cache(maxsize=None)
def first_layers(n):
    """The demo model without the layers behind its first n: a draft model that is often wrong."""
    config = dict(read_config(), num_hidden_layers=n)
    tensors = [(name, h["shape"], d) for name, h, d in read_weights()
               if ".layers." not in name or int(name.split(".")[2]) < n]
    return write_folder("first-%d" % n, config, tensors)


@functools.lru_cache(maxsize=None)
def eagle_head():
    """An EAGLE-3 head for the demo model, of random weights: a drafter that is nearly always wrong."""
    r, dim, n_vocab = random.Random(1), 256, 512
    noise = b"".join(struct.pack("<f", r.gauss(0, 0.05))[2:] for _ in range(4099))
    shapes = {"fc": [dim, 3 * dim], "norm": [dim], "lm_head": [n_vocab, dim],
              "midlayer.input_layernorm": [dim], "midlayer.hidden_norm": [dim],
              "midlayer.post_attention_layernorm": [dim],
              "midlayer.self_attn.q_proj": [128, 2 * dim], "midlayer.self_attn.k_proj": [64, 2 * dim],
              "midlayer.self_attn.v_proj": [64, 2 * dim], "midlayer.self_attn.o_proj": [dim, 128],
              "midlayer.mlp.gate_proj": [64, dim], "midlayer.mlp.up_proj": [64, dim],
              "midlayer.mlp.down_proj": [dim, 64]}
    tensors = []
    for name, shape in shapes.items():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors.append((name + ".weight", shape, (noise * (n // len(noise) + 1))[:n]))
    config = dict(read_config(), architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=n_vocab,
                  num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
                  intermediate_size=64, tie_word_embeddings=False,
                  eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 5]})
    return write_folder("eagle-head", config, tensors)


@functools.lru_cache(maxsize=None)
def windows(window=48, full=(2, 5)):
    """Of the six layers those in `full` see all tokens, the others `window`."""
    config = dict(read_config(), sliding_window=window)
    tensors = [(n, h["shape"], d) for n, h, d in read_weights()]
    if not full:
        config.update(architectures=["MistralForCausalLM"], model_type="mistral")
        return write_folder("windows-all-%d" % window, config, tensors)
    config.update(architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=True,
                  layer_types=["full_attention" if i in full else "sliding_attention"
                               for i in range(config["num_hidden_layers"])])
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"],
             "v": config["num_key_value_heads"]}
    for i in range(config["num_hidden_layers"]):
        for part, heads in sizes.items():
            n = heads * config["head_dim"]
            tensors.append(("model.layers.%d.self_attn.%s_proj.bias" % (i, part), [n],
                            bytes(2 * n)))
    return write_folder("windows-%d-%s" % (window, "".join(map(str, full))), config, tensors)


@functools.lru_cache(maxsize=None)
def states(kinds="rfrwrf", window=48):
    """A letter for each layer: r for a state, f for all tokens, w for a window. Projections of the
    attention that such a layer has no more stand in for its own."""
    names = {"r": "recurrent", "f": "full_attention", "w": "sliding_attention"}
    config = dict(read_config(), architectures=["ToyRecurrentForCausalLM"], mixer_width=256, hidden_act="gelu",
                  layer_types=[names[k] for k in kinds])
    if "w" in kinds:
        config.update(use_sliding_window=True, sliding_window=window)
    layers = "model.layers.%d."
    stands_in = {"self_attn.q_proj.weight": "mixer.in_proj.weight",
                 "self_attn.k_proj.weight": "mixer.o_proj.weight"}
    tensors = []
    for name, head, data in read_weights():
        for i, kind in enumerate(kinds):
            own = name[len(layers % i):] if name.startswith(layers % i) else ""
            if kind == "r" and own.startswith("self_attn."):
                name = layers % i + stands_in[own] if own in stands_in else ""
        if name and ".gate_proj." not in name:
            tensors.append((name, head["shape"], data))
    return write_folder("states-%s" % kinds, config, tensors)


def noise(draw, shape, deviation, mean=0.0):
    """bfloat16 noise: of at most a thousand values, because drawing each anew takes seconds."""
    n = math.prod(shape)
    values = [struct.pack("<f", draw.gauss(mean, deviation))[2:] for _ in range(min(n, 1000))]
    return b"".join(draw.choices(values, k=n) if n > len(values) else values)


def add_experts(add, dim, shared, has_bias):
    """The FFN of a layer: eight experts of noise, and one that all tokens use."""
    add("mlp.gate.weight", [8, dim], 0.1)
    if has_bias:
        add("mlp.gate.e_score_correction_bias", [8], 0.1)
    for stem in ["mlp.experts.%d" % e for e in range(8)] + ["mlp." + shared]:
        for part in ("gate_proj", "up_proj"):
            add("%s.%s.weight" % (stem, part), [24, dim], 0.06)
        add("%s.down_proj.weight" % stem, [dim, 24], 0.06)


def beside_mtp(draw, dim, norms, fc, bits):
    """What an MTP layer has beside its layer: norms, whose numbers have these bits, and a matrix that
    hands the row of the token before on, with noise: it drafts that the text repeats itself."""
    rows = [noise(draw, [dim], 0.01) + bytes(2 * i) + struct.pack("<f", 1)[2:] + bytes(2 * (dim - 1 - i))
            for i in range(dim)]
    return [(name + ".weight", [dim], bits * dim) for name in norms] + [(fc, [dim, 2 * dim], b"".join(rows))]


def beside_grouped(draw, dim, layer):
    return beside_mtp(draw, dim, [layer + n for n in ("enorm", "hnorm", "shared_head.norm")],
                      layer + "eh_proj.weight", struct.pack("<f", 1)[2:])


@functools.lru_cache(maxsize=None)
def delta(kinds="ddfddf", has_mtp=False, has_experts=False):
    """A letter for each layer: d for Gated DeltaNet, whose states take several pages, f for
    attention. Mixers and experts are noise; the rest is the demo model's, with norms less 1."""
    names = {"d": "linear_attention", "f": "full_attention"}
    name = "Qwen3_5MoeForCausalLM" if has_experts else "Qwen3_5ForCausalLM"
    config = dict(read_config(), architectures=[name],
                  model_type="qwen3_5_moe_text" if has_experts else "qwen3_5_text", num_experts=8,
                  num_experts_per_tok=2, moe_intermediate_size=24, shared_expert_intermediate_size=24,
                  layer_types=[names[k] for k in kinds], linear_num_key_heads=4,
                  linear_num_value_heads=8, linear_key_head_dim=32, linear_value_head_dim=32)
    dim, head, draw = config["hidden_size"], config["head_dim"], random.Random(1)
    tensors = []
    for name, h, data in read_weights():
        if "norm" in name:
            data = b"".join(struct.pack("<f", struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] - 1)[2:]
                            for i in range(0, len(data), 2))
        if ".self_attn." not in name and not (has_experts and ".mlp." in name):
            tensors.append((name, h["shape"], data))
    layers = [("model.layers.%d." % i, kind) for i, kind in enumerate(kinds)]
    for stem, kind in layers + [("mtp.layers.0.", "f")] * has_mtp:
        def add(name, shape, deviation, mean=0.0, stem=stem):
            tensors.append((stem + name, shape, noise(draw, shape, deviation, mean)))

        if has_experts:
            add_experts(add, dim, "shared_expert", False)
            add("mlp.shared_expert_gate.weight", [1, dim], 0.06)
        if kind == "f":
            n, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
            for part, rows in (("q", 2 * n), ("k", kv), ("v", kv)):
                add("self_attn.%s_proj.weight" % part, [rows, dim], 0.06)
            add("self_attn.o_proj.weight", [dim, n], 0.06)
            for part in "qk":
                add("self_attn.%s_norm.weight" % part, [head], 0.1)
            continue
        for part, rows in (("qkv", 512), ("z", 256), ("b", 8), ("a", 8)):
            add("linear_attn.in_proj_%s.weight" % part, [rows, dim], 0.06)
        add("linear_attn.conv1d.weight", [512, 1, 4], 0.6)
        add("linear_attn.A_log", [8], 1.0, -3.0)  # some forget within tokens, some hardly ever
        add("linear_attn.dt_bias", [8], 0.5)
        add("linear_attn.norm.weight", [32], 0.1, 1.0)
        add("linear_attn.out_proj.weight", [dim, 256], 0.06)
    if has_mtp:
        last = "model.layers.%d." % (len(kinds) - 1)
        tensors += [("mtp.layers.0." + name[len(last):], shape, data) for name, shape, data in tensors
                    if name.startswith(last) and "norm" in name.split(".")[3]
                    or name.startswith(last + "mlp.") and not has_experts]
        tensors += beside_mtp(draw, dim, ("mtp.norm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden"),
                              "mtp.fc.weight", bytes(2))
    return write_folder("delta-%s%s%s" % (kinds, "-mtp" * has_mtp, "-experts" * has_experts), config,
                        tensors)


@functools.lru_cache(maxsize=None)
def kimi(kinds="ddfddf"):
    """A letter for each layer: d for Kimi Delta Attention, whose states take several pages, f for
    latent attention without positions. Experts behind the first layer. They are noise; the rest is
    the demo model's."""
    layers = [[i + 1 for i, k in enumerate(kinds) if k == kind] for kind in "df"]
    config = dict(read_config(), architectures=["KimiLinearForCausalLM"], model_type="kimi_linear",
                  linear_attn_config=dict(num_heads=8, head_dim=32, short_conv_kernel_size=4,
                                          kda_layers=layers[0], full_attn_layers=layers[1]),
                  kv_lora_rank=52, qk_nope_head_dim=20, qk_rope_head_dim=12, v_head_dim=18,
                  num_experts=8, num_experts_per_token=2, moe_intermediate_size=24)
    dim, heads, draw = config["hidden_size"], config["num_attention_heads"], random.Random(1)
    tensors = [(n, h["shape"], d) for n, h, d in read_weights()
               if ".self_attn." not in n and (".mlp." not in n or ".0.mlp." in n)]
    for i, kind in enumerate(kinds):
        def add(name, shape, deviation, mean=0.0, layer=i):
            tensors.append(("model.layers.%d.%s" % (layer, name), shape,
                            noise(draw, shape, deviation, mean)))

        if kind == "f":
            add("self_attn.q_proj.weight", [heads * 32, dim], 0.06)
            add("self_attn.kv_a_proj_with_mqa.weight", [64, dim], 0.06)
            add("self_attn.kv_a_layernorm.weight", [52], 0.1, 1.0)
            add("self_attn.kv_b_proj.weight", [heads * 38, 52], 0.15)
            add("self_attn.o_proj.weight", [dim, heads * 18], 0.06)
        else:
            for part in "qkv":
                add("self_attn.%s_proj.weight" % part, [256, dim], 0.06)
                add("self_attn.%s_conv1d.weight" % part, [256, 1, 4], 0.6)
            for part in "fg":
                add("self_attn.%s_a_proj.weight" % part, [32, dim], 0.06)
                add("self_attn.%s_b_proj.weight" % part, [256, 32], 0.2)
            add("self_attn.b_proj.weight", [8, dim], 0.06)
            add("self_attn.A_log", [8], 1.0, -3.0)  # some forget within tokens, some hardly ever
            add("self_attn.dt_bias", [256], 0.5)
            add("self_attn.o_norm.weight", [32], 0.1, 1.0)
            add("self_attn.o_proj.weight", [dim, 256], 0.06)
        if i == 0:
            continue
        add("block_sparse_moe.gate.weight", [8, dim], 0.1)
        add("block_sparse_moe.gate.e_score_correction_bias", [8], 0.1)
        for e in range(8):
            for part, shape in (("w1", [24, dim]), ("w3", [24, dim]), ("w2", [dim, 24])):
                add("block_sparse_moe.experts.%d.%s.weight" % (e, part), shape, 0.06)
        for part, shape in (("gate", [24, dim]), ("up", [24, dim]), ("down", [dim, 24])):
            add("block_sparse_moe.shared_experts.%s_proj.weight" % part, shape, 0.06)
    return write_folder("kimi", config, tensors)


def mamba(kinds="mmfmmf"):
    """A letter for each layer: m for Mamba-2, whose states take several pages, f for attention, or b
    for both beside each other in all layers. Mixers are noise; the rest is the demo model's."""
    both = "b" in kinds
    config = dict(read_config(), architectures=["FalconH1ForCausalLM" if both else "BambaForCausalLM"],
                  model_type="falcon_h1" if both else "bamba", mamba_n_heads=8, mamba_d_head=32,
                  mamba_d_ssm=256, mamba_n_groups=2, mamba_d_state=32, mamba_d_conv=4,
                  mamba_rms_norm=True,
                  attn_layer_indices=[i for i, k in enumerate(kinds) if k == "f"])
    dim, head, draw = config["hidden_size"], config["head_dim"], random.Random(1)
    config["mamba_expand"] = 256 // dim
    renamed = (("mlp.", "feed_forward."), ("post_attention_layernorm", "pre_ff_layernorm"),
               ("model.norm.", "model.final_layernorm."))
    tensors = []
    for name, h, data in read_weights():
        if ".self_attn." in name:
            continue
        for old, new in renamed:
            name = name.replace(old, new)
        tensors.append((name, h["shape"], data))
    for i, kind in enumerate(kinds):
        def add(name, shape, deviation, mean=0.0, layer=i):
            tensors.append(("model.layers.%d.%s" % (layer, name), shape,
                            noise(draw, shape, deviation, mean)))

        if kind in "fb":
            n, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
            for part, rows in (("q", n), ("k", kv), ("v", kv)):
                add("self_attn.%s_proj.weight" % part, [rows, dim], 0.06)
            add("self_attn.o_proj.weight", [dim, n], 0.06)
        if kind == "f":
            continue
        add("mamba.in_proj.weight", [2 * 256 + 2 * 64 + 8, dim], 0.06)
        add("mamba.conv1d.weight", [384, 1, 4], 0.6)
        add("mamba.conv1d.bias", [384], 0.1)
        add("mamba.A_log", [8], 1.0, -3.0)  # some forget within tokens, some hardly ever
        add("mamba.dt_bias", [8], 0.5)
        add("mamba.D", [8], 0.1, 1.0)
        add("mamba.norm.weight", [256], 0.1, 1.0)
        add("mamba.out_proj.weight", [dim, 256], 0.06)
    return write_folder("mamba-%s" % kinds, config, tensors)


def grouped(attention, **more):
    """config.json and tensors of a twin with experts behind the first layer, and an MTP layer behind the
    last; attention(add, i) adds a layer's. Where it is None, the demo model's stays. They are noise; the
    rest is the demo model's."""
    config = dict(read_config(), n_routed_experts=8, num_experts_per_tok=2, n_group=4, topk_group=2,
                  moe_intermediate_size=24, n_shared_experts=1, first_k_dense_replace=1, **more)
    dim, draw, n = config["hidden_size"], random.Random(1), config["num_hidden_layers"]
    tensors = [(name, h["shape"], d) for name, h, d in read_weights()
               if (attention is None or ".self_attn." not in name)
               and (".mlp." not in name or ".0.mlp." in name)]
    last = "model.layers.%d." % (n - 1)
    tensors += [("model.layers.%d." % n + name[len(last):], shape, d) for name, shape, d in tensors
                if name.startswith(last)]
    for i in range(n + 1):
        def add(name, shape, deviation, mean=0.0, layer=i):
            tensors.append(("model.layers.%d.%s" % (layer, name), shape,
                            noise(draw, shape, deviation, mean)))

        if attention is not None:
            attention(add)
        if i > 0:
            add_experts(add, dim, "shared_experts", True)
    return config, tensors + beside_grouped(draw, dim, "model.layers.%d." % n)


@functools.lru_cache(maxsize=None)
def latent(n_keys=0):
    """Latent attention of DeepSeek V3 in all layers, experts, and an MTP layer. n_keys: that of V3.2,
    which sees as many tokens, chosen by an index."""
    dim, heads = read_config()["hidden_size"], read_config()["num_attention_heads"]

    def attention(add):
        add("self_attn.q_a_proj.weight", [40, dim], 0.06)
        add("self_attn.q_a_layernorm.weight", [40], 0.1, 1.0)
        add("self_attn.q_b_proj.weight", [heads * 32, 40], 0.15)
        add("self_attn.kv_a_proj_with_mqa.weight", [64, dim], 0.06)
        add("self_attn.kv_a_layernorm.weight", [52], 0.1, 1.0)
        add("self_attn.kv_b_proj.weight", [heads * 38, 52], 0.15)
        add("self_attn.o_proj.weight", [dim, heads * 18], 0.06)
        if n_keys:
            add("self_attn.indexer.wq_b.weight", [120, 40], 0.15)
            add("self_attn.indexer.wk.weight", [20, dim], 0.06)
            add("self_attn.indexer.k_norm.weight", [20], 0.1, 1.0)
            add("self_attn.indexer.k_norm.bias", [20], 0.1)
            add("self_attn.indexer.weights_proj.weight", [6, dim], 0.06)

    config, tensors = grouped(attention, model_type="deepseek_v32" if n_keys else "deepseek_v3",
                              architectures=["DeepseekV32ForCausalLM" if n_keys
                                             else "DeepseekV3ForCausalLM"],
                              index_n_heads=6, index_head_dim=20, index_topk=n_keys or 1,
                              q_lora_rank=40, kv_lora_rank=52, qk_nope_head_dim=20,
                              qk_rope_head_dim=12, v_head_dim=18)
    return write_folder("latent-index" if n_keys else "latent", config, tensors)


@functools.lru_cache(maxsize=None)
def glm():
    """The demo model's attention, experts of GLM 4.5, and an MTP layer."""
    config, tensors = grouped(None, model_type="glm4_moe", architectures=["Glm4MoeForCausalLM"],
                              partial_rotary_factor=1.0)
    return write_folder("glm", config, tensors)


@functools.lru_cache(maxsize=None)
def small(kinds=""):
    """A small model of noise, with the demo model's tokens: a letter for each layer, d for Gated
    DeltaNet, f for attention, as in Qwen3.5; without letters four layers of Qwen3. In both a page of
    16 tokens has 1 KiB, for a single layer in the first; a state of that takes 196 pages."""
    draw = random.Random(1)
    own = read_config()
    dim, ff, head, vocab = 32, 32, 16, own["vocab_size"]
    hybrid = bool(kinds)
    config = {"architectures": ["Qwen3_5ForCausalLM" if hybrid else "Qwen3ForCausalLM"],
              "model_type": "qwen3_5_text" if hybrid else "qwen3", "hidden_size": dim,
              "intermediate_size": ff, "num_attention_heads": 2, "num_key_value_heads": 1,
              "head_dim": head, "num_hidden_layers": len(kinds) or 1, "vocab_size": vocab,
              "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 32768,
              "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
              "eos_token_id": own.get("eos_token_id"), "bos_token_id": own.get("bos_token_id")}
    tensors = []

    def add(name, shape, deviation, mean=0.0):
        tensors.append((name + ".weight" if name[-4:] not in ("_log", "bias") else name, shape,
                        noise(draw, shape, deviation, mean)))

    norm = 0.0 if hybrid else 1.0
    add("model.embed_tokens", [vocab, dim], 0.5)
    add("model.norm", [dim], 0.1, norm)
    if hybrid:
        config.update(layer_types=[{"d": "linear_attention", "f": "full_attention"}[k] for k in kinds],
                      linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64,
                      linear_value_head_dim=64, linear_conv_kernel_dim=4)
    for i, kind in enumerate(kinds or "f"):
        stem = "model.layers.%d." % i
        for part in ("input_layernorm", "post_attention_layernorm"):
            add(stem + part, [dim], 0.1, norm)
        for part, shape in (("gate", [ff, dim]), ("up", [ff, dim]), ("down", [dim, ff])):
            add("%smlp.%s_proj" % (stem, part), shape, 0.1)
        if kind == "f":
            for part, shape in (("q", [(2 if hybrid else 1) * 2 * head, dim]), ("k", [head, dim]),
                                ("v", [head, dim]), ("o", [dim, 2 * head])):
                add("%sself_attn.%s_proj" % (stem, part), shape, 0.1)
            for part in "qk":
                add("%sself_attn.%s_norm" % (stem, part), [head], 0.1, norm)
            continue
        for part, rows in (("qkv", 512), ("z", 256), ("b", 4), ("a", 4)):
            add("%slinear_attn.in_proj_%s" % (stem, part), [rows, dim], 0.1)
        add(stem + "linear_attn.conv1d", [512, 1, 4], 0.6)
        add(stem + "linear_attn.A_log", [4], 1.0, -3.0)
        add(stem + "linear_attn.dt_bias", [4], 0.5)
        add(stem + "linear_attn.norm", [64], 0.1, 1.0)
        add(stem + "linear_attn.out_proj", [dim, 256], 0.1)
    return write_folder("small-%s" % (kinds or "f"), config, tensors)
