"""Trains drafters for the demo model (speculative decoding): a draft model and an EAGLE-3 head.

    python3 drafters.py --out FOLDER [--minutes 8] [--only draft|eagle3] [--threads 2]

FOLDER gets the folders draft/ and eagle3/, which speculative_config takes as its model.  The
draft model is a Llama of two layers with the demo model's embedding; it begins as the demo model's
first and last layer.  The head has the tensors and names of EAGLE-3 checkpoints (fc, midlayer,
norm, lm_head, d2t, t2d), a vocabulary of the 1,024 most frequent tokens of answers, and reads the
residual that enters layers 1, 3 and 5.  It is trained on its own outputs, too: three drafts in a
row, as it is used.  The text is that of train.py: batch i is made from the seed and i alone.
Minutes are of one CPU, for each of the two.
"""

import argparse
import json
import math
import os
import shutil
import sys
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import train  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

nn, F = torch.nn, torch.nn.functional
TAPS = (1, 3, 5)
N_STEPS = 3  # drafts in a row that the head is trained for
N_DRAFT_VOCAB = 1024
HEAD = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "attention_bias": False,
    "draft_vocab_size": N_DRAFT_VOCAB,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS),
                     "use_aux_hidden_state": True},
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "target_hidden_size": 256,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": train.CONFIG["vocab_size"],
}


def batches(tok, seed, first):
    """Batches of train.py, smaller ones of short rows, from number `first` on."""
    train.BATCH_TOKENS, train.LONG_EVERY = 4096, 1 << 40
    while True:  # the training loop stops asking
        inputs, targets = train.make_batch(tok, seed, first)
        yield torch.from_numpy(inputs).long(), torch.from_numpy(targets).long()
        first += 1


def llama(n_layers, weights):
    train.CONFIG["num_hidden_layers"] = n_layers
    model = train.build(torch)
    missing, unknown = model.load_state_dict({k: v.float() for k, v in weights.items()},
                                             strict=False)
    assert not missing and not unknown, (missing, unknown)
    return model


def optimise(parameters, rate, minutes, loss_of, source, name):
    """Steps until the minutes are over; the rate falls to 0 with them."""
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, step, losses = time.time(), 0, []
    while (progress := (time.time() - began) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 50) * (0.5 + 0.5 * math.cos(math.pi * progress))
        inputs, targets = next(source)
        loss = loss_of(inputs, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
        step += 1
        if step % 50 == 0:
            print(f"{name}: {progress:.0%}, step {step}, loss {np.mean(losses[-50:]):.4f}", flush=True)
    print(f"{name}: {step} steps of 4,096 tokens, loss {np.mean(losses[-50:]):.4f}", flush=True)


def save(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file({k: v.detach() if v.dtype in (torch.int64, torch.bool)
               else v.detach().to(torch.bfloat16).contiguous() for k, v in tensors.items()},
              os.path.join(folder, "model.safetensors"))


def train_draft(args, tok, weights):
    first_and_last = {k: v for k, v in weights.items() if ".layers." not in k}
    for to, source in enumerate((0, 5)):
        for k, v in weights.items():
            if f".layers.{source}." in k:
                first_and_last[k.replace(f".layers.{source}.", f".layers.{to}.")] = v
    model = llama(2, first_and_last)

    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(),
                               ignore_index=train.IGNORED)

    optimise(list(model.parameters()), args.rate, args.minutes, loss_of,
             batches(tok, args.seed, 1000000), "draft")
    folder = os.path.join(args.out, "draft")
    config = dict(train.CONFIG, num_hidden_layers=2, eos_token_id=2045, pad_token_id=2043)
    save(folder, config, model.state_dict())
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(os.path.join(args.model, name), folder)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + HEAD["rms_norm_eps"])


class Midlayer(nn.Module):
    def __init__(self):
        super().__init__()
        dim, d = HEAD["hidden_size"], HEAD["head_dim"]
        self.h, self.kv, self.d = HEAD["num_attention_heads"], HEAD["num_key_value_heads"], d
        self.input_layernorm, self.hidden_norm = Norm(dim), Norm(dim)
        self.post_attention_layernorm = Norm(dim)
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.q_proj = nn.Linear(2 * dim, self.h * d, bias=False)
        self.self_attn.k_proj = nn.Linear(2 * dim, self.kv * d, bias=False)
        self.self_attn.v_proj = nn.Linear(2 * dim, self.kv * d, bias=False)
        self.self_attn.o_proj = nn.Linear(self.h * d, dim, bias=False)
        ff = HEAD["intermediate_size"]
        self.mlp.gate_proj = nn.Linear(dim, ff, bias=False)
        self.mlp.up_proj = nn.Linear(dim, ff, bias=False)
        self.mlp.down_proj = nn.Linear(ff, dim, bias=False)

    def forward(self, embedded, hidden, turn, before):
        """before: the keys and values of earlier drafts in the row, first those of the taps."""
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), -1)
        n, t, _ = x.shape
        q, k, v = (p(x).view(n, t, heads, self.d).transpose(1, 2) for p, heads in
                   ((self.self_attn.q_proj, self.h), (self.self_attn.k_proj, self.kv),
                    (self.self_attn.v_proj, self.kv)))
        q, k = turn(q), turn(k)
        k, v = (y.repeat_interleave(self.h // self.kv, 1) for y in (k, v))
        before = before + [(k, v)]
        back = len(before) - 1  # positions that are drafts, of this row
        of_taps = q @ before[0][0].transpose(2, 3) / math.sqrt(self.d)
        masked = torch.ones(t, t, dtype=torch.bool).triu(1 - back)
        scores = [of_taps.masked_fill(masked, -1e9)]
        values = []
        for i in range(1, back + 1):
            shift = back - i
            ki, vi = (F.pad(y, (0, 0, shift, 0))[:, :, :t] for y in before[i])
            scores.append((q * ki).sum(-1, keepdim=True) / math.sqrt(self.d))
            values.append(vi)
        p = torch.softmax(torch.cat(scores, -1), -1)
        y = p[..., :t] @ before[0][1]
        for i, vi in enumerate(values):
            y = y + p[..., t + i:t + i + 1] * vi
        x = hidden + self.self_attn.o_proj(y.transpose(1, 2).reshape(n, t, -1))
        z = self.post_attention_layernorm(x)
        return x + self.mlp.down_proj(F.silu(self.mlp.gate_proj(z)) * self.mlp.up_proj(z)), before


def train_eagle3(args, tok, weights):
    target = llama(6, weights)
    dim = HEAD["hidden_size"]
    head = nn.Module()
    head.fc = nn.Linear(len(TAPS) * dim, dim, bias=False)
    head.midlayer, head.norm = Midlayer(), Norm(dim)
    head.lm_head = nn.Linear(dim, N_DRAFT_VOCAB, bias=False)
    for name, p in head.named_parameters():
        if p.dim() == 2:
            nn.init.normal_(p, std=0.02)
    counts = torch.zeros(train.CONFIG["vocab_size"])
    for (_, targets), _ in zip(batches(tok, args.seed, 2000000), range(40)):
        counts += torch.bincount(targets[targets >= 0], minlength=len(counts))
    ids = counts.argsort(descending=True)[:N_DRAFT_VOCAB].sort().values
    head.lm_head.weight.data.copy_(weights["model.embed_tokens.weight"][ids].float())
    to_draft = torch.full((len(counts),), train.IGNORED, dtype=torch.long)
    to_draft[ids] = torch.arange(N_DRAFT_VOCAB)

    def turn(x):
        cos, sin = target.cos[:x.shape[2]], target.sin[:x.shape[2]]
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def loss_of(inputs, targets):
        with torch.no_grad():
            x, taps = target.model.embed_tokens(inputs), []
            for i, layer in enumerate(target.model.layers):
                if i in TAPS:
                    taps.append(x)
                if i == max(TAPS):
                    break
                x = layer(x, target.cos[:x.shape[1]], target.sin[:x.shape[1]])
            taps = torch.cat(taps, -1)
            # At position t the head sees token t + 1 and drafts token t + 2.
            embedded = target.model.embed_tokens(F.pad(inputs, (0, 1))[:, 1:])
            wanted = F.pad(targets, (0, 1), value=train.IGNORED)[:, 1:]
            wanted = torch.where(wanted >= 0, to_draft[wanted.clamp(min=0)], wanted)
        hidden, before, loss = head.fc(taps), [], 0.0
        for i in range(N_STEPS):
            hidden, before = head.midlayer(embedded, hidden, turn, before)
            logits = head.lm_head(head.norm(hidden))
            loss = loss + 0.8 ** i * F.cross_entropy(logits.flatten(0, 1), wanted.flatten(),
                                                     ignore_index=train.IGNORED)
            hidden = F.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return loss

    optimise(list(head.parameters()), args.rate, args.minutes, loss_of,
             batches(tok, args.seed, 3000000), "eagle3")
    tensors = dict(head.state_dict())
    tensors["d2t"] = ids - torch.arange(N_DRAFT_VOCAB)
    tensors["t2d"] = torch.zeros(len(counts), dtype=torch.bool).index_fill(0, ids, True)
    save(os.path.join(args.out, "eagle3"), HEAD, tensors)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", required=True)
    p.add_argument("--model", default=os.path.join(HERE, "model"))
    p.add_argument("--minutes", type=float, default=8.0)
    p.add_argument("--only", choices=("draft", "eagle3"))
    p.add_argument("--rate", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    tok = Tokenizer.from_file(os.path.join(args.model, "tokenizer.json"))
    weights = load_file(os.path.join(args.model, "model.safetensors"))
    if args.only != "eagle3":
        train_draft(args, tok, weights)
    if args.only != "draft":
        train_eagle3(args, tok, weights)


main()
