"""Trains the demo model from nothing, measures it and writes it as a Hugging Face folder.

    python3 train.py --out model

The model is a plain Llama (grouped-query attention, tied embeddings).  Batch i is made from the
seed and i alone, so every run sees the same text in the same order; the arithmetic of a GPU still
makes two runs differ in the last bits.  Training ends at --steps or after --minutes, whichever
comes first, and the learning rate follows whichever is nearer, so that a run always ends well.
What is measured is the model as it is saved, with its weights rounded to bf16.
"""

import argparse
import json
import math
import multiprocessing
import os
import random
import sys
import time

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import tokenizer as tokenizer_module  # noqa: E402
from generate import (EVALUATED, KNOWN, LONG, SHORT, Conversation, conversation,  # noqa: E402
                      render)
from tokenizers import Tokenizer  # noqa: E402

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 512,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "num_attention_heads": 8,
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": tokenizer_module.N_VOCAB,
}
BATCH_TOKENS = 65536
ROW_TOKENS = (512, 2048)  # rows of short and of long conversations
LONG_EVERY = 3            # every third batch has the long rows
IGNORED = -100            # a target that is not learnt


# Batches, made in processes of their own.


def encode(tok, parts):
    """The ids of rendered parts, and for each whether it belongs to an answer."""
    ids, learnt = [], []
    for (_, is_answer), e in zip(parts, tok.encode_batch([t for t, _ in parts],
                                                         add_special_tokens=False)):
        ids += e.ids
        learnt += [is_answer] * len(e.ids)
    return ids, learnt


def make_batch(tok, seed, index):
    """Batch number index: int16 inputs and targets [n_rows][row_tokens].

    A row begins where a conversation begins; more follow, an end-of-text token between them, and
    the last is cut at the row's end.
    """
    rng = random.Random(f"{seed}/{index}")
    is_long = index % LONG_EVERY == LONG_EVERY - 1
    kinds, length = (LONG, ROW_TOKENS[1]) if is_long else (SHORT, ROW_TOKENS[0])
    end = tok.token_to_id(tokenizer_module.END_OF_TEXT)
    n_rows = BATCH_TOKENS // length
    inputs = np.full((n_rows, length), end, np.int16)
    targets = np.full((n_rows, length), IGNORED, np.int16)
    for row in range(n_rows):
        ids, learnt = [], []
        while len(ids) <= length:
            more, more_learnt = encode(tok, render(conversation(rng, kinds)))
            ids += more + [end]
            learnt += more_learnt + [False]
        ids, learnt = np.array(ids[:length + 1]), np.array(learnt[:length + 1])
        inputs[row] = ids[:-1]
        targets[row] = np.where(learnt[1:], ids[1:], IGNORED)
    return inputs, targets


def worker(path, seed, first, stride, queue):
    tok = Tokenizer.from_file(path)
    index = first
    while True:  # ended by the parent, which started it as a daemon
        queue.put(make_batch(tok, seed, index))
        index += stride


def batches(path, seed, n_workers):
    """Yields batch 0, 1, 2 ... without end."""
    queues = [multiprocessing.Queue(maxsize=6) for _ in range(n_workers)]
    for i, q in enumerate(queues):
        multiprocessing.Process(target=worker, args=(path, seed, i, n_workers, q),
                                daemon=True).start()
    while True:  # the training loop stops asking
        for q in queues:
            yield q.get()


# Held-out questions.


def held_out(seed, n_each):
    """n_each held-out conversations of every task, the answer being the last message."""
    rng = random.Random(f"held out {seed}")
    out = []
    for maker in EVALUATED:
        for _ in range(n_each):
            out.append(conversation(rng, [(maker, 1)], held_out=True))
    return out


def known():
    """The fixed questions, as conversations."""
    out = []
    for question, answer in KNOWN:
        c = Conversation("known")
        c.turn(question, answer, None)
        out.append(c)
    return out


def as_json(c):
    return {"task": c.task, "messages": c.messages[:-1], "tools": c.tools,
            "expected": c.messages[-1]["content"]}


def write_json(path, items):
    """One item a line."""
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n")
        f.write(",\n".join(json.dumps(item, ensure_ascii=False) for item in items))
        f.write("\n]\n")


def build(torch):
    """The model's classes; a function so that the batch workers need not import torch."""
    nn, F = torch.nn, torch.nn.functional
    dim, ff_dim = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    n_heads, n_kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
    head_dim, n_layers = CONFIG["head_dim"], CONFIG["num_hidden_layers"]
    n_positions = CONFIG["max_position_embeddings"]

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(dim))

        def forward(self, x):
            x = x.float()
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)
                                                  + CONFIG["rms_norm_eps"]))

    def rotate(x, cos, sin):
        """Turns the pairs (i, i + head_dim / 2) of x [batch][head][position][head_dim]."""
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj = nn.Linear(dim, n_heads * head_dim, bias=False)
            self.k_proj = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
            self.v_proj = nn.Linear(dim, n_kv_heads * head_dim, bias=False)
            self.o_proj = nn.Linear(n_heads * head_dim, dim, bias=False)

        def forward(self, x, cos, sin):
            n, t, _ = x.shape
            q = self.q_proj(x).view(n, t, n_heads, head_dim).transpose(1, 2)
            k = self.k_proj(x).view(n, t, n_kv_heads, head_dim).transpose(1, 2)
            v = self.v_proj(x).view(n, t, n_kv_heads, head_dim).transpose(1, 2)
            k = rotate(k, cos, sin).repeat_interleave(n_heads // n_kv_heads, 1)
            v = v.repeat_interleave(n_heads // n_kv_heads, 1)
            y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=True)
            return self.o_proj(y.transpose(1, 2).reshape(n, t, -1))

    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = nn.Linear(dim, ff_dim, bias=False)
            self.up_proj = nn.Linear(dim, ff_dim, bias=False)
            self.down_proj = nn.Linear(ff_dim, dim, bias=False)

        def forward(self, x):
            return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
            self.self_attn, self.mlp = Attention(), Mlp()

        def forward(self, x, cos, sin):
            x = x + self.self_attn(self.input_layernorm(x), cos, sin)
            return x + self.mlp(self.post_attention_layernorm(x))

    class Llama(nn.Module):
        """Named as Hugging Face names it, so that state_dict() can be saved as it is."""

        def __init__(self):
            super().__init__()
            self.model = nn.Module()
            self.model.embed_tokens = nn.Embedding(CONFIG["vocab_size"], dim)
            self.model.layers = nn.ModuleList(Layer() for _ in range(n_layers))
            self.model.norm = Norm()
            frequency = CONFIG["rope_theta"] ** (-torch.arange(0, head_dim, 2) / head_dim)
            angle = torch.outer(torch.arange(n_positions), frequency)
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    narrow = name.endswith(("o_proj.weight", "down_proj.weight"))
                    nn.init.normal_(p, std=0.02 / (math.sqrt(2 * n_layers) if narrow else 1))

        def forward(self, ids):
            x = self.model.embed_tokens(ids)
            t = ids.shape[1]
            for layer in self.model.layers:
                x = layer(x, self.cos[:t], self.sin[:t])
            return F.linear(self.model.norm(x), self.model.embed_tokens.weight)

    return Llama()


def answered(torch, model, tok, conversations, n_rows=32):
    """For each conversation whether greedy decoding gives its last answer, token by token.

    That is so exactly if, with the answer fed in, each of its tokens and the end mark are the
    most likely ones; so one pass over the text decides it.
    """
    right = [False] * len(conversations)
    items = []
    for i, c in enumerate(conversations):
        parts = render(c)[:-1]
        ids, _ = encode(tok, parts)
        n_answer = len(encode(tok, parts[-1:])[0])
        items.append((len(ids), i, ids, n_answer))
    items.sort()
    for first in range(0, len(items), n_rows):
        rows = items[first:first + n_rows]
        batch = torch.zeros(len(rows), rows[-1][0], dtype=torch.long)
        for row, (n, _, ids, _) in enumerate(rows):
            batch[row, :n] = torch.tensor(ids)
        with torch.no_grad():
            best = model(batch.cuda()).argmax(-1).cpu()
        for row, (n, i, ids, n_answer) in enumerate(rows):
            want = torch.tensor(ids[n - n_answer:])
            right[i] = bool((best[row, n - n_answer - 1:n - 1] == want).all())
    return right


def by_task(conversations, right):
    table = {}
    for c, ok in zip(conversations, right):
        n, k = table.get(c.task, (0, 0))
        table[c.task] = (n + 1, k + ok)
    return table


class Log:
    def __init__(self, path):
        self.file = open(path, "w", encoding="utf-8")

    def __call__(self, text):
        print(text, flush=True)
        self.file.write(text + "\n")
        self.file.flush()


def train(torch, args, tok, log):
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = build(torch).cuda()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.rate, betas=(0.9, 0.95), fused=True)
    log(f"parameters: {sum(p.numel() for p in model.parameters())}")

    def loss_of(ids, targets):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(),
                                                 ignore_index=IGNORED)

    step_loss = torch.compile(loss_of, dynamic=False) if args.compile else loss_of
    check = held_out(args.seed + 1, 12)
    source = batches(os.path.join(args.out, "tokenizer.json"), args.seed, args.workers)
    began, step, losses, next_check = None, 0, [], 0.1
    while True:
        elapsed = (time.time() - began) / 60 if began else 0.0
        progress = max(step / args.steps, elapsed / args.minutes)
        if progress >= 1:
            break
        warm = min(1.0, (step + 1) / 200)
        for group in optimizer.param_groups:
            group["lr"] = args.rate * warm * (0.5 + 0.5 * math.cos(math.pi * progress))
        inputs, targets = (torch.from_numpy(x).cuda(non_blocking=True).long()
                           for x in next(source))
        loss = step_loss(inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.detach())
        step += 1
        if step == 2 * LONG_EVERY:  # both shapes are compiled by now
            torch.cuda.synchronize()
            began = time.time()
        if progress >= next_check:
            with torch.autocast("cuda", torch.bfloat16):
                right = answered(torch, model, tok, check)
            mean = torch.stack(losses).mean().item()
            log(f"step {step}, {step * BATCH_TOKENS / 1e6:.0f} M tokens, {elapsed:.2f} min, "
                f"loss {mean:.4f}, held-out {sum(right)}/{len(right)} right")
            losses, next_check = [], next_check + 0.1
    torch.cuda.synchronize()
    log(f"end: {step} steps, {step * BATCH_TOKENS / 1e6:.0f} M tokens, "
        f"{(time.time() - began) / 60:.2f} min on {torch.cuda.get_device_name()}, "
        f"loss {torch.stack(losses).mean().item() if losses else 0:.4f}")
    return model


def export(torch, model, tok, folder):
    """Writes weights, config.json and generation_config.json; rounds the model in place."""
    from safetensors.torch import save_file

    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.bfloat16())
    weights = {k: v.detach().bfloat16().contiguous().cpu() for k, v in model.state_dict().items()}
    save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    eos = tok.token_to_id(tokenizer_module.IM_END)
    end = tok.token_to_id(tokenizer_module.END_OF_TEXT)
    config = dict(CONFIG, eos_token_id=eos, pad_token_id=end)
    generation = {"do_sample": False, "eos_token_id": [eos, end], "pad_token_id": end}
    for name, value in (("config.json", config), ("generation_config.json", generation)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f, indent=2)
            f.write("\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--out", default="model", help="the Hugging Face folder to write")
    a.add_argument("--golden", default=None, help="where heldout.json and known.json go")
    a.add_argument("--log", default="log.txt", help="the summary to write")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--steps", type=int, default=14000)
    a.add_argument("--minutes", type=float, default=5.0)
    a.add_argument("--rate", type=float, default=2e-3)
    a.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    a.add_argument("--no-compile", dest="compile", action="store_false")
    args = a.parse_args()

    os.makedirs(args.out, exist_ok=True)
    log = Log(args.log)
    tokenizer_module.template_agrees()
    tokenizer_module.write(tokenizer_module.train(seed=args.seed), args.out)
    tok = Tokenizer.from_file(os.path.join(args.out, "tokenizer.json"))
    small = held_out(args.seed, 18)
    if args.golden:
        write_json(os.path.join(args.golden, "heldout.json"), [as_json(c) for c in small])
        write_json(os.path.join(args.golden, "known.json"), [as_json(c) for c in known()])

    import torch
    log(f"torch {torch.__version__}, seed {args.seed}, rate {args.rate}, "
        f"batch {BATCH_TOKENS} tokens, python {sys.version.split()[0]}")
    model = train(torch, args, tok, log)
    export(torch, model, tok, args.out)

    torch.backends.cuda.matmul.allow_tf32 = False
    large = held_out(args.seed + 2, 100)
    for name, conversations in (("known", known()), ("heldout.json", small), ("held-out", large)):
        right = answered(torch, model, tok, conversations)
        log(f"{name}: {sum(right)}/{len(right)} = {100 * sum(right) / len(right):.2f} % right")
    for task, (n, k) in sorted(by_task(large, right).items()):
        log(f"  {task:12} {k}/{n}")
    wrong = [c for c, ok in zip(large, right) if not ok]
    print("some that went wrong:", *[as_json(c)["messages"][-1]["content"][-200:] + " -> "
                                     + as_json(c)["expected"][-200:] for c in wrong[:25]], sep="\n")


if __name__ == "__main__":
    main()
