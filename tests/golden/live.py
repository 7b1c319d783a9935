"""Logits of models in real shapes, two layers each, beside transformers' in the same run.

    python3 live.py DUMP_LOGITS [DEVICE]

DUMP_LOGITS is the program of that name (make bench builds it). Weights are random bfloat16. The
reference is transformers in float32 on these weights, for fp8 on the weights rounded to e4m3 with a
scale a row; printed is the relative error (2-norm) of the last token's logits: of quire with the
whole prompt in one step, with that token as a decode behind the rest, with every token as a
decode, and of transformers in bfloat16. TAP: within 2e-2, and no worse than transformers' own
bfloat16. With fp8 only decodes, whose inputs are float16, have that limit; a prompt's inputs are
rounded to e4m3 (3 bits), a part in 28 on average for each of 8 products one behind the other:
within 1.5e-1 in the prompt, and within 1e-1 in a decode that reads such a prompt's keys and values.
"""

import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PLAIN = {"rope_type": "default", "rope_theta": 1000000.0}
SHAPES = {
    "Llama-3.1-8B": (transformers.LlamaConfig, dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, rope_parameters=LLAMA3, tie_word_embeddings=False)),
    "Llama-3.2-1B": (transformers.LlamaConfig, dict(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "Qwen2.5-7B": (transformers.Qwen2Config, dict(
        vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_attention_heads=28,
        num_key_value_heads=4, rope_parameters=PLAIN, tie_word_embeddings=False)),
    "Qwen3-8B": (transformers.Qwen3Config, dict(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, rope_parameters=PLAIN, tie_word_embeddings=False)),
    "Mistral-7B": (transformers.MistralConfig, dict(
        vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, rope_parameters=PLAIN, sliding_window=None,
        tie_word_embeddings=False)),
    "Mistral-7B with a window": (transformers.MistralConfig, dict(
        vocab_size=32768, hidden_size=4096, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, rope_parameters=PLAIN, sliding_window=100,
        tie_word_embeddings=False)),
    "Qwen3-8B with a window": (transformers.Qwen3Config, dict(
        vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, rope_parameters=PLAIN, use_sliding_window=True,
        sliding_window=70, max_window_layers=1, tie_word_embeddings=False)),
}


def error(got, want):
    return float(numpy.linalg.norm(got - want) / numpy.linalg.norm(want))


def round_weights(model):
    """Matrices of layers as --quantization fp8 makes them."""
    for name, p in model.named_parameters():
        if ".layers." in name and p.dim() == 2:
            scale = p.abs().amax(dim=1, keepdim=True) / 448.0
            p.data = (p / scale).to(torch.float8_e4m3fn).float() * scale


def main():
    dump, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cuda"
    n = 0
    for name, (kind, fields) in SHAPES.items():
        torch.manual_seed(7)
        config = kind(**fields, num_hidden_layers=2, max_position_embeddings=8192)
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            model = transformers.AutoModelForCausalLM.from_config(config).eval()
            for part in model.model.layers:
                a = part.self_attn
                for p in (a.q_proj, a.k_proj, a.v_proj):
                    if p.bias is not None:
                        torch.nn.init.normal_(p.bias, std=0.2)
                if name.startswith("Qwen3"):
                    for p in (a.q_norm, a.k_norm):
                        torch.nn.init.normal_(p.weight, mean=1.0, std=0.3)
        torch.set_default_dtype(torch.float32)
        ids = torch.randint(0, config.vocab_size, (1, 300), device=device)
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            own = model(ids).logits[0, -1].float().cpu().numpy()
            model.float()
            ids_file, out_file = os.path.join(folder, "ids"), os.path.join(folder, "out")
            ids.cpu().numpy().astype(numpy.int32).tofile(ids_file)
            for quantization in ("", "fp8"):
                subprocess.run([dump, folder, device, quantization, ids_file, out_file],
                               check=True, stderr=subprocess.DEVNULL)
                if quantization:
                    round_weights(model)
                want = model(ids).logits[0, -1].cpu().numpy()
                got = numpy.fromfile(out_file, numpy.float32).reshape(3, -1)
                whole, decode, decodes = (error(g, want) for g in got)
                if not quantization:
                    limit = min(2e-2, error(own, want))
                n += 1
                good = (whole <= (1.5e-1 if quantization else limit) and decodes <= limit
                        and decode <= (1e-1 if quantization else limit))
                print(f"{'ok' if good else 'not ok'} {n} - {name} {quantization or 'bf16'}: prompt "
                      f"{whole:.2e}, decode {decode:.2e}, decodes {decodes:.2e}"
                      + ("" if quantization else f", transformers' bf16 {error(own, want):.2e}"),
                      flush=True)
        del model
        if device == "cuda":
            torch.cuda.empty_cache()
    print(f"1..{n}")


main()
