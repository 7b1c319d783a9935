"""Makes the folders under packed/; README.md there says what they hold.

Versions: compressed-tensors 0.20.0, transformers 5.23.0, torch 2.15.0, numpy 2.4.6, Python 3.11.

    python3 make_packed.py [--out packed]

Matrices: a quantised matrix "x" in each format, and "x.expected", its weights as float32.  Those of
compressed-tensors are packed and unpacked by that package, with float32 scales or, for its 4-bit
floats, rounded to the package's bfloat16 to compare.  AWQ, GPTQ and bitsandbytes are packed here with
numpy, because their packages need a GPU; their layouts are those of AutoAWQ's WQLinear_GEMM and
WQLinear_GEMV, GPTQModel's pack() and bitsandbytes' QuantState.

Models: a Llama of one layer whose matrices are such, with transformers' answers for the same weights
as float32.
"""

import argparse
import json
import os
import random
import sys

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_goldens as goldens  # noqa: E402

N, K = 24, 128
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def words(fields, bits):
    """Fields [rows][n] of `bits` bits as 32-bit words [rows][n * bits / 32], lowest bit first."""
    rows, n = fields.shape
    stream = (fields[:, :, None] >> np.arange(bits) & 1).astype(np.uint8).reshape(rows, n * bits)
    stream = np.pad(stream, ((0, 0), (0, -n * bits % 32)))
    return np.packbits(stream, axis=1, bitorder="little").view("<u4").astype(np.uint32)


def as_i32(a):
    return torch.from_numpy(np.ascontiguousarray(a).view(np.int32).copy())


def noise(rng, n, k, scale):
    return (rng.standard_normal((n, k)) * scale).astype(np.float32)


def quantise(rng, w, bits, group, sym, order=None):
    """q and z [n][k], and s [n][groups], z [n][groups], of w; order: the group of each column."""
    n, k = w.shape
    groups = k // group
    order = np.arange(k) // group if order is None else order
    s = np.zeros((n, groups), np.float16)
    z = np.zeros((n, groups), np.int64)
    top = (1 << bits) - 1
    for g in range(groups):
        part = w[:, order == g]
        if sym:
            s[:, g] = np.abs(part).max(1) / (top / 2)
            z[:, g] = (top + 1) // 2
        else:
            s[:, g] = (part.max(1) - part.min(1)) / top
            z[:, g] = np.clip(np.round(-part.min(1) / s[:, g].astype(np.float32)), 0, top)
    wide = s.astype(np.float32)[:, order]
    q = np.clip(np.round(w / wide) + z[:, order], 0, top).astype(np.int64)
    return q, z, s, ((q - z[:, order]).astype(np.float32) * wide)


def awq(rng, w, bits=4, group=32):
    q, z, s, expected = quantise(rng, w, 4, group, False)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    pack = lambda a: words(a.reshape(a.shape[0], -1, 8)[:, :, order].reshape(a.shape), 4)  # noqa: E731
    return {"qweight": as_i32(pack(q.T)), "qzeros": as_i32(pack(z.T)),
            "scales": torch.from_numpy(s.T.copy())}, expected


def awq_gemv(rng, w, group=64):
    n, k = w.shape
    q, z, s, expected = quantise(rng, w, 4, group, False)
    wide = -(-(-(-(k // group) // 8)) // 2) * 2  # words, a multiple of 2 for groups of 64
    scales = np.zeros((n, wide * 8), np.float16)
    scales[:, :k // group] = s
    zeros = np.zeros((n, wide * 8), np.int64)
    zeros[:, :k // group] = z
    return {"qweight": as_i32(words(q, 4)), "qzeros": as_i32(words(zeros, 4)),
            "scales": torch.from_numpy(scales)}, expected


def gptq(rng, w, bits=4, group=32, sym=True, act=False, v2=False):
    n, k = w.shape
    order = np.arange(k) // group
    if act:
        order = rng.permutation(order)
    q, z, s, expected = quantise(rng, w, bits, group, sym, order)
    stored = z if v2 else (z - 1) & ((1 << bits) - 1)
    return {"qweight": as_i32(words(q, bits).T), "qzeros": as_i32(words(stored.T, bits)),
            "scales": torch.from_numpy(s.T.copy()),
            "g_idx": torch.from_numpy(order.astype(np.int32))}, expected


def scheme(**weights):
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    return QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))


def ct_int(rng, w, bits=4, group=32, sym=True, act=False):
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    n, k = w.shape
    order = rng.permutation(np.arange(k) // group) if act else None
    q, z, s, expected = quantise(rng, w, bits, group, sym, order)
    half = 1 << (bits - 1)
    s32 = torch.from_numpy(s.astype(np.float32))
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    out = {"weight_packed": pack_to_int32(torch.from_numpy((q - half).astype(np.int8)), bits),
           "weight_scale": s32, "weight_shape": torch.tensor([n, k])}
    if not sym:
        out["weight_zero_point"] = pack_to_int32(torch.from_numpy((z - half).astype(np.int8)), bits,
                                                 packed_dim=0).contiguous()
    if act:
        out["weight_g_idx"] = torch.from_numpy(order.astype(np.int32))
    else:
        kind = "channel" if group == k else "group"
        args = dict(num_bits=bits, type="int", symmetric=sym, strategy=kind)
        if kind == "group":
            args["group_size"] = group
        got = PackedQuantizationCompressor.decompress(dict(out), scheme(**args))["weight"]
        assert torch.equal(got, torch.from_numpy(expected)), "compressed-tensors differs"
    return out, expected


def int8(rng, w, sym=True):
    n, k = w.shape
    q, z, s, expected = quantise(rng, w, 8, k, sym)
    out = {"weight": torch.from_numpy((q - 128).astype(np.int8)),
           "weight_scale": torch.from_numpy(s.astype(np.float32))}
    if not sym:
        out["weight_zero_point"] = torch.from_numpy((z - 128).astype(np.int8))
    return out, expected


def fp4(rng, w, group):
    """Codes [n][k] and scales [n][groups] for the largest of a group to be 6."""
    n, k = w.shape
    most = np.abs(w).reshape(n, k // group, group).max(2) / 6
    return most


def codes(w, wide):
    q = np.abs((w / wide)[:, :, None] - E2M1).argmin(2).astype(np.uint8)
    return q, torch.from_numpy(q[:, ::2] | q[:, 1::2] << 4)


def nvfp4(rng, w, modelopt=False):
    most = fp4(rng, w, 16)
    gs = np.float32(448 * 6 / np.abs(w).max())  # compressed-tensors'; ModelOpt's is the inverse
    scale = torch.from_numpy(most * gs).to(torch.float8_e4m3fn)
    s32 = scale.float().numpy()
    if modelopt:
        s2 = np.float32(1) / gs
        wide = np.repeat(s32 * s2, 16, 1)
        q, packed = codes(w, wide)
        return {"weight": packed, "weight_scale": scale, "weight_scale_2": torch.tensor(s2)}, \
            E2M1[q] * wide
    wide = np.repeat(s32 / gs, 16, 1)
    q, packed = codes(w, wide)
    out = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": torch.tensor([gs])}
    expected = E2M1[q] * wide
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    got = NVFP4PackedCompressor.decompress(dict(out), scheme(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True))["weight"]
    assert torch.equal(got, torch.from_numpy(expected).to(got.dtype)), "compressed-tensors differs"
    return out, expected


def mxfp4(rng, w):
    e = np.floor(np.log2(fp4(rng, w, 32) * 6 / 4)).astype(np.int64) + 127
    wide = np.repeat(np.exp2(e - 127.0), 32, 1).astype(np.float32)
    q, packed = codes(w, wide)
    out = {"weight_packed": packed, "weight_scale": torch.from_numpy(e.astype(np.uint8))}
    expected = E2M1[q] * wide
    from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
    got = MXFP4PackedCompressor.decompress(dict(out), scheme(
        num_bits=4, type="float", strategy="group", group_size=32, symmetric=True))["weight"]
    assert torch.equal(got.float(), torch.from_numpy(expected)), "compressed-tensors differs"
    return out, expected


def bnb4(rng, w, nested=True):
    n, k = w.shape
    flat = w.reshape(-1, 64)
    absmax = np.abs(flat).max(1).astype(np.float32)
    table = np.array(NF4, np.float32)
    q = np.abs((flat / absmax[:, None])[:, :, None] - table).argmin(2).astype(np.uint8).reshape(-1)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}
    out = {"weight": torch.from_numpy(q[::2] << 4 | q[1::2])[:, None],
           "weight.quant_map": torch.from_numpy(table)}
    if nested:
        # The dynamic map of 8 bits is a sorted table of 256; any will do.
        nested_map = np.sort(rng.standard_normal(256)).astype(np.float32)
        nested_map /= np.abs(nested_map).max()
        offset = np.float32(absmax.mean())
        rest = absmax - offset
        blocks = np.pad(rest, (0, -len(rest) % 256)).reshape(-1, 256)
        nested_absmax = np.abs(blocks).max(1).astype(np.float32)
        places = np.abs((blocks / nested_absmax[:, None])[:, :, None] - nested_map).argmin(2)
        places = places.reshape(-1)[:len(absmax)].astype(np.uint8)
        absmax = nested_map[places] * nested_absmax[np.arange(len(absmax)) // 256] + offset
        state.update(nested_blocksize=256, nested_dtype="float32", nested_offset=float(offset))
        out.update({"weight.absmax": torch.from_numpy(places),
                    "weight.nested_absmax": torch.from_numpy(nested_absmax),
                    "weight.nested_quant_map": torch.from_numpy(nested_map)})
    else:
        out["weight.absmax"] = torch.from_numpy(absmax)
    out["weight.quant_state.bitsandbytes__nf4"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8)
    return out, (table[q].reshape(-1, 64) * absmax[:, None]).reshape(n, k).astype(np.float32)


def bnb8(rng, w):
    scb = np.abs(w).max(1).astype(np.float32)
    q = np.round(w * 127 / scb[:, None]).astype(np.int8)
    return {"weight": torch.from_numpy(q), "SCB": torch.from_numpy(scb)}, \
        q.astype(np.float32) * scb[:, None] * np.float32(7.874015718698502e-3)


def fp8(rng, w):
    """A format that is multiplied with: its row of ModelOpt's names."""
    s = np.float32(np.abs(w).max() / 448)
    q = torch.from_numpy(w / s).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale": torch.tensor(s), "input_scale": torch.tensor(0.02)}, \
        q.float().numpy() * s


def e4m3(rng, w, group, powers=False, act=False):
    """Scales of groups within a row; with powers of two as exponents it is MXFP8. act: the groups'
    columns are anywhere."""
    n, k = w.shape
    order = np.arange(k) // group
    if act:
        rng.shuffle(order)
    most = np.stack([np.abs(w[:, order == g]).max(1) for g in range(k // group)], 1) / 448
    if powers:
        e = np.ceil(np.log2(most)).astype(np.int64) + 127
        s, stored = np.exp2(e - 127.0).astype(np.float32), torch.from_numpy(e.astype(np.uint8))
    else:
        stored = torch.from_numpy(most).bfloat16()
        s = stored.float().numpy()
    wide = s[:, order]
    q = torch.from_numpy(w / wide).to(torch.float8_e4m3fn)
    tensors = {"weight": q, "weight_scale": stored}
    if act:
        tensors["weight_g_idx"] = torch.from_numpy(order.astype(np.int32))
    return tensors, q.float().numpy() * wide


def ct(name, **more):
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": dict(more), "input_activations": None}}}


GPTQ1 = {"quant_method": "gptq", "bits": 4, "group_size": 32}
MATRICES = {
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, {}),
    "awq-gemv": ({"quant_method": "awq", "bits": 4, "version": "GEMV"}, awq_gemv, {}),
    "gptq-2": (dict(GPTQ1, bits=2), gptq, {"bits": 2, "sym": False}),
    "gptq-3": (dict(GPTQ1, bits=3), gptq, {"bits": 3, "sym": False}),
    "gptq-4": (GPTQ1, gptq, {}),
    "gptq-4-order": (dict(GPTQ1, desc_act=True), gptq, {"act": True, "sym": False}),
    "gptq-8": (dict(GPTQ1, bits=8), gptq, {"bits": 8, "group": 128}),
    "gptq-v2": (dict(GPTQ1, checkpoint_format="gptq_v2"), gptq, {"sym": False, "v2": True}),
    "ct-int4": (ct("pack-quantized", num_bits=4), ct_int, {}),
    "ct-int4-zeros": (ct("pack-quantized", num_bits=4), ct_int, {"sym": False}),
    "ct-int4-order": (ct("pack-quantized", num_bits=4), ct_int, {"act": True}),
    "ct-int4-channel": (ct("pack-quantized", num_bits=4), ct_int, {"group": 128}),
    "ct-int3": (ct("pack-quantized", num_bits=3), ct_int, {"bits": 3, "sym": False}),
    "ct-int8": (ct("pack-quantized", num_bits=8), ct_int, {"bits": 8}),
    "ct-w8a8": (ct("int-quantized", num_bits=8), int8, {}),
    "ct-w8a8-zeros": (ct("int-quantized", num_bits=8), int8, {"sym": False}),
    "ct-nvfp4": (ct("nvfp4-pack-quantized", num_bits=4), nvfp4, {}),
    "ct-mxfp4": (ct("mxfp4-pack-quantized", num_bits=4), mxfp4, {}),
    "ct-fp8-alone": (ct("float-quantized", num_bits=8, type="float", strategy="channel"), e4m3,
                     {"group": 128}),
    "ct-fp8-groups": (ct("float-quantized", num_bits=8, type="float", strategy="group",
                         group_size=32), e4m3, {"group": 32}),
    "ct-fp8-order": (ct("float-quantized", num_bits=8, type="float", strategy="group",
                        group_size=32, actorder="group"), e4m3, {"group": 32, "act": True}),
    "ct-mxfp8": (ct("mxfp8-quantized", num_bits=8, type="float", strategy="group", group_size=32),
                 e4m3, {"group": 32, "powers": True}),
    "modelopt-nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, nvfp4,
                       {"modelopt": True}),
    "modelopt-fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, fp8, {}),
    "bnb-nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, bnb4, {}),
    "bnb-nf4-plain": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, bnb4,
                      {"nested": False}),
    "bnb-int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, bnb8, {}),
}
MODELS = ("awq", "gptq-4-order", "ct-int4-zeros", "ct-nvfp4", "bnb-nf4")
LLAMA = dict(vocab_size=64, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=128, max_position_embeddings=512,
             bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=True)


def write(folder, tensors, config):
    os.makedirs(folder, exist_ok=True)
    safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()},
                                os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
        f.write("\n")


def make_matrix(out, name):
    config, pack, options = MATRICES[name]
    rng = np.random.default_rng(11)
    tensors, expected = pack(rng, noise(rng, N, K, 0.1), **options)
    tensors = {"x." + k: v for k, v in tensors.items()}
    tensors["x.expected"] = torch.from_numpy(np.ascontiguousarray(expected, np.float32))
    write(os.path.join(out, name), tensors, {"quantization_config": config, "rows": N, "cols": K})


def make_model(out, name):
    import transformers
    quant, pack, options = MATRICES[name]
    folder = os.path.join(out, "model-" + name)
    for seed in range(1, 60):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**LLAMA)).float().eval()
        tensors = {}
        for key, p in model.named_parameters():
            if "_proj" in key:
                packed, w = pack(rng, noise(rng, *p.shape, 0.25), **options)
                tensors.update({key[:-len("weight")] + k: v for k, v in packed.items()})
                p.data = torch.from_numpy(np.ascontiguousarray(w, np.float32))
            else:
                p.data = (p.data.mean().round() + 0.3 * torch.randn(p.shape)).bfloat16().float()
                tensors[key] = p.data.bfloat16()
        picks, cases = random.Random(seed), []
        for n in (1, 7, 40):
            cases.append(goldens.golden_case(torch, model, [picks.randrange(64) for _ in range(n)]))
        if min(min(c["gaps"]) for c in cases) >= goldens.GAP_MIN:
            break
    config = model.config.to_dict()
    config.update(architectures=["LlamaForCausalLM"], quantization_config=quant)
    write(folder, tensors, config)
    goldens.write_cases(os.path.join(folder, "golden.bin"), 64, cases)
    print(name, "seed", seed, "least gap", min(min(c["gaps"]) for c in cases))


DELTA = dict(vocab_size=64, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, head_dim=64, intermediate_size=128, max_position_embeddings=512,
             linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=64,
             linear_value_head_dim=64, layer_types=["linear_attention", "full_attention"],
             rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25),
             bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=True)


def e4m3_block(w):
    """Blocks of 128 x 128."""
    n, k = w.shape
    scales = np.zeros(((n + 127) // 128, (k + 127) // 128), np.float32)
    wide = np.zeros_like(w)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = np.s_[128 * i:128 * i + 128, 128 * j:128 * j + 128]
            scales[i, j] = np.abs(w[at]).max() / 448
            wide[at] = scales[i, j]
    q = torch.from_numpy(w / wide).to(torch.float8_e4m3fn)
    return {"weight": q, "weight_scale_inv": torch.from_numpy(scales)}, q.float().numpy() * wide


def round_inputs(module, args):
    """What a product with codes reads."""
    groups = args[0].reshape(*args[0].shape[:-1], -1, 128)
    scales = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return ((groups / scales).to(torch.float8_e4m3fn).float() * scales).reshape(args[0].shape),


def error_of_rounded_inputs(model, cases):
    off = 0.0
    for key, module in model.named_modules():
        if "_proj" in key and not key.endswith(("in_proj_a", "in_proj_b")):
            module.register_forward_pre_hook(round_inputs)
    for case in cases:
        with torch.no_grad():
            low = model(torch.tensor([case["prompt"]])).logits[0, -len(case["logits"]):]
        off = max(off, ((low - case["logits"]).norm() / case["logits"].norm()).item())
    return off


def make_delta(out):
    """Gated DeltaNet with matrices in FP8 beside two that are not, in one layer, for one input."""
    import transformers
    folder = os.path.join(out, "model-delta-fp8")
    for seed in range(1, 200):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model("qwen3_5_text", **DELTA)).float().eval()
        tensors = {}
        for key, p in model.named_parameters():
            if "_proj" in key and not key.endswith(("in_proj_a.weight", "in_proj_b.weight")):
                packed, w = e4m3_block(noise(rng, *p.shape, 0.12))
                tensors.update({key[:-len("weight")] + k: v for k, v in packed.items()})
                p.data = torch.from_numpy(np.ascontiguousarray(w, np.float32))
                continue
            mean = -2 if "A_log" in key else p.data.mean().round() if p.dim() == 1 else 0
            p.data = (mean + (0.3 if p.dim() < 3 else 0.6) * torch.randn(p.shape)).bfloat16().float()
            tensors[key] = p.data.bfloat16()
        picks, cases = random.Random(seed), []
        for n in (1, 7, 40):
            cases.append(goldens.golden_case(torch, model, [picks.randrange(64) for _ in range(n)]))
        least = min(min(c["gaps"]) for c in cases)
        off = error_of_rounded_inputs(model, cases) if least >= goldens.GAP_MIN else 1.0
        if off < 0.08:
            break
    config = model.config.to_dict()
    config.update(architectures=["Qwen3_5ForCausalLM"], quantization_config={
        "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]})
    write(folder, tensors, config)
    goldens.write_cases(os.path.join(folder, "golden.bin"), 64, cases)
    print("delta-fp8 seed", seed, "least gap", least, "rounded inputs", off)


LATENT = dict(vocab_size=64, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=4, intermediate_size=256, max_position_embeddings=512,
              q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=48, qk_rope_head_dim=16,
              v_head_dim=32, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=128,
              n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
              num_nextn_predict_layers=0, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def make_latent(out):
    """Latent attention and experts of DeepSeek V3 as released: all matrices in FP8 blocks, the last
    of kv_a's and kv_b's incomplete."""
    import transformers
    folder = os.path.join(out, "model-latent-fp8")
    for seed in range(1, 200):
        rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model("deepseek_v3", **LATENT),
            experts_implementation="eager").float().eval()
        tensors = {}

        def add(key, shape):
            packed, w = e4m3_block(noise(rng, *shape, 0.12))
            tensors.update({key + "." + k: v for k, v in packed.items()})
            return torch.from_numpy(np.ascontiguousarray(w, np.float32))

        for key, p in model.named_parameters():
            if p.dim() == 3:  # of each expert, gates and ups one below the other
                stem, part = key.rsplit(".", 1)
                parts = ["gate_proj", "up_proj"] if part == "gate_up_proj" else [part]
                for e in range(p.shape[0]):
                    rows = p.shape[1] // len(parts)
                    p.data[e] = torch.cat([add("%s.%d.%s" % (stem, e, n), (rows, p.shape[2]))
                                           for n in parts])
                continue
            if "_proj" in key:
                p.data = add(key[:-len(".weight")], tuple(p.shape))
                continue
            mean = p.data.mean().round() if p.dim() == 1 else 0
            p.data = (mean + (0.15 if p.dim() == 1 else 0.3) * torch.randn(p.shape)).bfloat16().float()
            tensors[key] = p.data.bfloat16()
        for key, p in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                p.data = (0.1 * torch.randn(p.shape)).bfloat16().float()
                tensors[key] = p.data.float()
        picks, cases = random.Random(seed), []
        for n in (1, 7, 40):
            cases.append(goldens.golden_case(torch, model, [picks.randrange(64) for _ in range(n)]))
        least = min(min(c["gaps"]) for c in cases)
        off = error_of_rounded_inputs(model, cases) if least >= goldens.GAP_MIN else 1.0
        if off < 0.1:
            break
    config = model.config.to_dict()
    config.update(architectures=["DeepseekV3ForCausalLM"], quantization_config={
        "quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
        "weight_block_size": [128, 128]})
    write(folder, tensors, config)
    goldens.write_cases(os.path.join(folder, "golden.bin"), 64, cases)
    print("latent-fp8 seed", seed, "least gap", least, "rounded inputs", off)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                                      "packed"))
    out = parser.parse_args().out
    for name in MATRICES:
        make_matrix(out, name)
    for name in MODELS:
        make_model(out, name)
    make_delta(out)
    make_latent(out)


if __name__ == "__main__":
    main()
