"""Makes the golden files of the folders under adapters/; README.md here says what they hold.

Versions: torch 2.15.0, transformers 5.24.0, PEFT 0.21.2, Python 3.11.

    python3 make_adapters.py --out adapters [--adapters LIST]

Each is an adapter with random matrices for one of the models of this folder, saved by PEFT, and the
logits and greedy texts that PEFT's model computes with it.  All arithmetic is float32 on the CPU,
of matrices that were rounded to the type that the file has.  Seeds are tried until the best two
logits of every greedy step differ by GAP_MIN, as in make_goldens.py.
"""

import argparse
import json
import os
import random
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import make_goldens as goldens  # noqa: E402

SEEDS = 300
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]

# Folder: model, type of the file, deviation of A and B, fields of LoraConfig.
ADAPTERS = {
    "llama-gqa-all": ("llama-gqa", "float32", 0.12, dict(
        r=8, lora_alpha=16, target_modules=ATTENTION + MLP + ["lm_head"])),
    # Another one for the same model, for batches of both.
    "llama-gqa-few": ("llama-gqa", "bfloat16", 0.3, dict(
        r=3, lora_alpha=4, target_modules=["q_proj", "v_proj"])),
    "qwen2-window-r8": ("qwen2-window", "bfloat16", 0.15, dict(
        r=8, lora_alpha=8, target_modules=ATTENTION + MLP)),
    # A tied output matrix has an adapter, the embedding does not.
    "qwen3-rslora": ("qwen3", "float16", 0.2, dict(
        r=3, lora_alpha=5, use_rslora=True, target_modules=ATTENTION + ["down_proj", "lm_head"])),
    "phi3-pattern": ("families/phi3", "bfloat16", 0.15, dict(
        r=8, lora_alpha=8, rank_pattern={"down_proj": 3, "layers.1.self_attn.qkv_proj": 5},
        alpha_pattern={"down_proj": 6, r".*\.0\.mlp\.gate_up_proj": 12},
        target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"])),
    "gpt2-conv1d": ("families/gpt2", "bfloat16", 0.15, dict(
        r=4, lora_alpha=4, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"])),
    "qwen2-moe-shared": ("families/qwen2-moe", "bfloat16", 0.15, dict(
        r=4, lora_alpha=4,
        target_modules=r".*(self_attn\.[qkvo]_proj|shared_expert\.(gate|up|down)_proj)")),
}


def make_one(name, folder):
    import peft
    import torch
    from safetensors.torch import load_file, save_file

    base, dtype, deviation, fields = ADAPTERS[name]
    dtype = getattr(torch, dtype)
    for seed in range(1, SEEDS):
        model = goldens.load(os.path.join(HERE, base))
        n_vocab = model.config.vocab_size
        model = peft.get_peft_model(model, peft.LoraConfig(bias="none", **fields)).eval()
        g = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for key, p in model.named_parameters():
                if "lora_" in key:
                    p.copy_((torch.randn(p.shape, generator=g) * deviation).to(dtype).float())
        rng, cases = random.Random(seed), []
        for n in goldens.PROMPT_LENGTHS:
            prompt = [rng.randrange(n_vocab) for _ in range(n)]
            cases.append(goldens.golden_case(torch, model, prompt))
            if min(cases[-1]["gaps"]) < goldens.GAP_MIN or len(set(cases[-1]["greedy"])) < 12:
                break
        else:
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear goldens")
    model.save_pretrained(folder, save_embedding_layers=False)
    file = os.path.join(folder, "adapter_model.safetensors")
    save_file({k: v.to(dtype).contiguous() for k, v in load_file(file).items()}, file,
              metadata={"format": "pt"})
    os.remove(os.path.join(folder, "README.md"))
    config = os.path.join(folder, "adapter_config.json")
    with open(config, encoding="utf-8") as f:
        fields = dict(json.load(f), base_model_name_or_path=base)
    goldens.write_json(config, dict(fields, target_modules=sorted(fields["target_modules"])
                                    if isinstance(fields["target_modules"], list)
                                    else fields["target_modules"]))
    goldens.write_cases(os.path.join(folder, "golden.bin"), n_vocab, cases)
    print(name, "seed", seed, "least gap", min(min(c["gaps"]) for c in cases), "distinct",
          [len(set(c["greedy"])) for c in cases], flush=True)


def make_torch(out):
    """llama-gqa-few with PyTorch's file in place of safetensors."""
    import torch
    from safetensors.torch import load_file

    few, folder = os.path.join(out, "llama-gqa-few"), os.path.join(out, "llama-gqa-torch")
    os.makedirs(folder, exist_ok=True)
    torch.save(load_file(os.path.join(few, "adapter_model.safetensors")),
               os.path.join(folder, "adapter_model.bin"))
    for file in ("adapter_config.json", "golden.bin"):
        shutil.copy(os.path.join(few, file), os.path.join(folder, file))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", default=os.path.join(HERE, "adapters"))
    p.add_argument("--adapters", default="")
    args = p.parse_args()
    for name in ADAPTERS:
        if not args.adapters or name in args.adapters.split(","):
            make_one(name, os.path.join(args.out, name))
    if not args.adapters or "llama-gqa-torch" in args.adapters.split(","):
        make_torch(args.out)


if __name__ == "__main__":
    main()
