"""Makes the golden files of this folder; README.md here says what they hold.

Versions: torch 2.11.0, transformers 5.17.0, tokenizers 0.23.2, safetensors, Python 3.12; the models
with windows: torch 2.15.0, transformers 5.23.0, Python 3.11.

    python3 make_goldens.py --out . --model ../../tools/demo-model/model [--parts LIST]
                            [--models LIST]

All arithmetic is float32 on the CPU.  Where the two most likely tokens of a greedy step lie closer
than GAP_MIN, another order of additions could choose the other one: a random model then gets
another seed, and the demo model's golden ends before that step.
"""

import argparse
import json
import os
import random
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tools", "demo-model"))

import generate  # noqa: E402

MAGIC = b"QGOLD1\0\0"
GAP_MIN = 2e-3
N_GREEDY = 64
PROMPT_LENGTHS = (1, 7, 40, 150)
ALL_ROWS_MAX = 9  # prompts of 2 to this many tokens have the logits of every position

COMMON = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
          "attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False,
          "pretraining_tp": 1, "rms_norm_eps": 1e-5, "initializer_range": 0.02,
          "bos_token_id": None, "eos_token_id": None, "use_cache": True}
MODELS = {  # configuration, files, deviations: attention, MLP, embedding
    # Grouped queries, untied, bf16.
    "llama-gqa": (dict(COMMON, vocab_size=320, hidden_size=64, num_attention_heads=8,
                       num_key_value_heads=2, head_dim=8, intermediate_size=128,
                       num_hidden_layers=2, max_position_embeddings=512, rope_theta=10000.0,
                       rope_scaling=None, tie_word_embeddings=False, torch_dtype="bfloat16"), 1,
                  (0.12, 0.1, 0.3)),
    # One key-value head, tied, sizes that no tile divides, float32, another theta and epsilon;
    # the theta stands in both the old and the new spelling.
    "llama-odd": (dict(COMMON, vocab_size=131, hidden_size=60, num_attention_heads=5,
                       num_key_value_heads=1, head_dim=12, intermediate_size=37,
                       num_hidden_layers=3, max_position_embeddings=512, rope_theta=500.0,
                       rope_parameters={"rope_type": "default", "rope_theta": 500.0},
                       rms_norm_eps=1e-6, tie_word_embeddings=True, torch_dtype="float32"), 1,
                  (0.19, 0.15, 0.3)),
    # Wide heads, scaled positions, biases, float16, two files.
    "llama-scaled": (dict(COMMON, vocab_size=200, hidden_size=48, num_attention_heads=6,
                          num_key_value_heads=3, head_dim=16, intermediate_size=96,
                          num_hidden_layers=2, max_position_embeddings=256, rope_theta=10000.0,
                          rope_scaling={"rope_type": "llama3", "factor": 8.0,
                                        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                        "original_max_position_embeddings": 32},
                          attention_bias=True, tie_word_embeddings=False,
                          torch_dtype="float16"), 2, (0.25, 0.2, 0.3)),
    # Heads of queries and keys are normed; they are of 128, though dim / heads is 32.
    "qwen3": (dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3", vocab_size=220,
                   hidden_size=64, num_attention_heads=2, num_key_value_heads=1, head_dim=128,
                   intermediate_size=96, num_hidden_layers=2, max_position_embeddings=512,
                   rope_theta=1000000.0, rope_scaling=None, rms_norm_eps=1e-6,
                   use_sliding_window=False, sliding_window=None, max_window_layers=2,
                   tie_word_embeddings=True, torch_dtype="bfloat16"), 1, (0.12, 0.15, 0.3)),
    # The last two of three layers see 24 tokens.
    "qwen2-window": (dict(COMMON, architectures=["Qwen2ForCausalLM"], model_type="qwen2",
                          vocab_size=180, hidden_size=48, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=12, intermediate_size=80,
                          num_hidden_layers=3, max_position_embeddings=512, rope_theta=10000.0,
                          rope_scaling=None, use_sliding_window=True, sliding_window=24,
                          max_window_layers=1, qkv_bias=True, tie_word_embeddings=False,
                          torch_dtype="bfloat16"), 1, (0.25, 0.2, 0.3)),
    # Two layers of all tokens among four of 41, as layer_types says.
    "qwen3-window": (dict(COMMON, architectures=["Qwen3ForCausalLM"], model_type="qwen3",
                          vocab_size=170, hidden_size=32, num_attention_heads=4,
                          num_key_value_heads=2, head_dim=16, intermediate_size=48,
                          num_hidden_layers=6, max_position_embeddings=512, rope_theta=1000000.0,
                          rope_scaling=None, rms_norm_eps=1e-6, use_sliding_window=True,
                          sliding_window=41, max_window_layers=6,
                          layer_types=["sliding_attention", "full_attention", "sliding_attention",
                                       "sliding_attention", "sliding_attention",
                                       "full_attention"],
                          tie_word_embeddings=True, torch_dtype="bfloat16"), 1, (0.2, 0.2, 0.3)),
    # All layers see 32 tokens: two whole pages.
    "mistral-window": (dict(COMMON, architectures=["MistralForCausalLM"], model_type="mistral",
                            vocab_size=190, hidden_size=40, num_attention_heads=5,
                            num_key_value_heads=1, head_dim=8, intermediate_size=64,
                            num_hidden_layers=2, max_position_embeddings=512, rope_theta=10000.0,
                            rope_scaling=None, sliding_window=32, tie_word_embeddings=False,
                            torch_dtype="float32"), 1, (0.25, 0.2, 0.3)),
}

TOY = dict(COMMON, architectures=["ToyRecurrentForCausalLM"], model_type="toy",
           max_position_embeddings=512, rope_theta=10000.0, rope_scaling=None,
           torch_dtype="float32")
TOYS = {  # of no library: class Toy computes them; deviations: mixers, MLP, embedding
    # Windows between states, which take two pages; a plain FFN with biases.
    "toy-recurrent": (dict(TOY, vocab_size=150, hidden_size=40, num_attention_heads=4,
                           num_key_value_heads=1, head_dim=8, intermediate_size=56,
                           num_hidden_layers=5, mixer_width=100, hidden_act="gelu_pytorch_tanh",
                           mlp_bias=True, use_sliding_window=True, sliding_window=20,
                           layer_types=["recurrent", "full_attention", "recurrent",
                                        "sliding_attention", "recurrent"],
                           tie_word_embeddings=False), (0.25, 0.25, 0.3)),
    # States alone, and the other GELU.
    "toy-states": (dict(TOY, vocab_size=130, hidden_size=36, num_attention_heads=2,
                        num_key_value_heads=1, head_dim=8, intermediate_size=48,
                        num_hidden_layers=3, mixer_width=28, hidden_act="gelu",
                        layer_types=["recurrent"] * 3, tie_word_embeddings=True),
                   (0.35, 0.3, 0.3)),
}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)
        f.write("\n")


def write_lines(path, items):
    """A JSON array, one item a line."""
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(i, ensure_ascii=False) for i in items) + "\n]\n")


# Random models.


def random_weights(torch, config, seed, attn_std, mlp_std, embed_std):
    """Weights large enough that the logits differ well and the text does not stand still, and no
    larger: they amplify the roundings of bfloat16 as they amplify everything."""
    g = torch.Generator().manual_seed(seed)
    dim, ff_dim = config["hidden_size"], config["intermediate_size"]
    q = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    dtype = getattr(torch, config["torch_dtype"])

    def normal(*shape, std):
        return (torch.randn(*shape, generator=g) * std).to(dtype)

    w = {"model.embed_tokens.weight": normal(config["vocab_size"], dim, std=embed_std)}
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        if config.get("layer_types", [""] * (i + 1))[i] == "recurrent":
            width = config["mixer_width"]
            w[f"{p}mixer.in_proj.weight"] = normal(2 * width, dim, std=attn_std)
            w[f"{p}mixer.o_proj.weight"] = normal(dim, width, std=attn_std)
            mixers = ()
        else:
            mixers = (("q", q, dim), ("k", kv, dim), ("v", kv, dim), ("o", dim, q))
        for name, n_out, n_in in mixers:
            w[f"{p}self_attn.{name}_proj.weight"] = normal(n_out, n_in, std=attn_std)
            if config["attention_bias"] or (config.get("qkv_bias") and name != "o"):
                w[f"{p}self_attn.{name}_proj.bias"] = normal(n_out, std=0.2)
        for name, n_out, n_in in (("gate", ff_dim, dim), ("up", ff_dim, dim),
                                  ("down", dim, ff_dim)):
            if name == "gate" and config["model_type"] == "toy":
                continue
            w[f"{p}mlp.{name}_proj.weight"] = normal(n_out, n_in, std=mlp_std)
            if config["mlp_bias"]:
                w[f"{p}mlp.{name}_proj.bias"] = normal(n_out, std=0.2)
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                w[f"{p}self_attn.{name}.weight"] = 1 + normal(config["head_dim"], std=0.3)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[f"{p}{name}.weight"] = 1 + normal(dim, std=0.1)
    w["model.norm.weight"] = 1 + normal(dim, std=0.1)
    if not config["tie_word_embeddings"]:
        w["lm_head.weight"] = normal(config["vocab_size"], dim, std=0.3)
    return w


def write_model(folder, config, weights, n_files):
    from safetensors.torch import save_file

    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    if n_files == 1:
        save_file(weights, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    names, where, total = sorted(weights), {}, 0
    for i in range(n_files):
        part = {k: weights[k] for k in names[i::n_files]}
        file = f"model-{i + 1:05d}-of-{n_files:05d}.safetensors"
        save_file(part, os.path.join(folder, file), metadata={"format": "pt"})
        where.update({k: file for k in part})
        total += sum(v.numel() * v.element_size() for v in part.values())
    write_json(os.path.join(folder, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))})


# Goldens of a model: logits and greedy continuations.


def load(folder):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def greedy(torch, model, prompt, n_max, eos=None):
    """transformers' greedy continuation, and at each step the gap of the best two logits."""
    # With a cache the classes of Mamba-2 leave out the limits of steps.
    limits = getattr(model.config, "time_step_limit", None)
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)).long(),
                         use_cache=limits is None or limits[0] <= 0, do_sample=False, max_new_tokens=n_max, eos_token_id=eos, pad_token_id=0,
                         return_dict_in_generate=True, output_logits=True)
    ids = out.sequences[0, len(prompt):].tolist()
    gaps = [(lambda t: (t[0] - t[1]).item())(step[0].topk(2).values) for step in out.logits]
    return ids, gaps


def golden_case(torch, model, prompt, eos=None):
    n_rows = len(prompt) if 1 < len(prompt) <= ALL_ROWS_MAX else 1
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -n_rows:].float()
    ids, gaps = greedy(torch, model, prompt, N_GREEDY, eos)
    return {"prompt": prompt, "logits": logits, "greedy": ids, "gaps": gaps}


def write_cases(path, n_vocab, cases):
    with open(path, "wb") as f:
        f.write(MAGIC + struct.pack("<II", len(cases), n_vocab))
        for c in cases:
            f.write(struct.pack("<III", len(c["prompt"]), len(c["greedy"]), len(c["logits"])))
            f.write(struct.pack(f"<{len(c['prompt'])}i", *c["prompt"]))
            f.write(struct.pack(f"<{len(c['greedy'])}i", *c["greedy"]))
            f.write(c["logits"].contiguous().numpy().astype("<f4").tobytes())


def make_models(out, wanted):
    import torch

    for name, (config, n_files, deviations) in MODELS.items():
        if wanted and name not in wanted.split(","):
            continue
        folder = os.path.join(out, name)
        for seed in range(1, 200):
            write_model(folder, config, random_weights(torch, config, seed, *deviations), n_files)
            model = load(folder)
            rng = random.Random(seed)
            cases = []
            for n in PROMPT_LENGTHS:
                prompt = [rng.randrange(config["vocab_size"]) for _ in range(n)]
                cases.append(golden_case(torch, model, prompt))
                if min(cases[-1]["gaps"]) < GAP_MIN or len(set(cases[-1]["greedy"])) < 12:
                    break
            else:
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear goldens")
        write_cases(os.path.join(folder, "golden.bin"), config["vocab_size"], cases)
        print(name, "seed", seed, "least gap", min(min(c["gaps"]) for c in cases), "distinct",
              [len(set(c["greedy"])) for c in cases], "logit deviation",
              cases[-1]["logits"].std().item(), flush=True)


class Toy:
    """The toy architecture in numpy and float64: rows of all positions at once."""

    def __init__(self, config, weights):
        self.config = config
        self.w = {name: t.double().numpy() for name, t in weights.items()}

    def norm(self, x, name):
        import numpy
        scale = numpy.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.w[name + ".weight"]

    def turn(self, x):
        """x [n][heads][head_dim], pairs half a head apart."""
        import numpy
        half = x.shape[2] // 2
        speed = self.config["rope_theta"] ** (-numpy.arange(half) / half)
        angle = numpy.arange(x.shape[0])[:, None, None] * speed
        a, b, c, s = x[..., :half], x[..., half:], numpy.cos(angle), numpy.sin(angle)
        return numpy.concatenate([a * c - b * s, b * c + a * s], -1)

    def attend(self, x, p, window):
        import numpy
        n, hd = len(x), self.config["head_dim"]
        q, k, v = ((x @ self.w[f"{p}self_attn.{m}_proj.weight"].T).reshape(n, -1, hd)
                   for m in "qkv")
        q, group = self.turn(q), q.shape[1] // k.shape[1]
        k, v = (numpy.repeat(m, group, 1) for m in (self.turn(k), v))
        scores = numpy.einsum("qhd,khd->hqk", q, k) / numpy.sqrt(hd)
        behind = numpy.arange(n)[:, None] - numpy.arange(n)[None, :]
        scores = numpy.where((behind >= 0) & (behind < window), scores, -numpy.inf)
        e = numpy.exp(scores - scores.max(-1, keepdims=True))
        heads = numpy.einsum("hqk,khd->qhd", e / e.sum(-1, keepdims=True), v).reshape(n, -1)
        return heads @ self.w[p + "self_attn.o_proj.weight"].T

    def recur(self, x, p):
        import numpy
        value, gate = numpy.split(x @ self.w[p + "mixer.in_proj.weight"].T, 2, axis=1)
        keep, state, states = 1 / (1 + numpy.exp(-gate)), 0.0, []
        for k, v in zip(keep, value):
            state = k * state + (1 - k) * v
            states.append(state)
        return numpy.array(states) @ self.w[p + "mixer.o_proj.weight"].T

    def feed(self, x, p):
        import math
        import numpy
        up = x @ self.w[p + "mlp.up_proj.weight"].T
        up = up + self.w.get(p + "mlp.up_proj.bias", 0.0)
        if self.config["hidden_act"] == "gelu":
            act = up / 2 * (1 + numpy.vectorize(math.erf)(up / math.sqrt(2)))
        else:
            act = up / 2 * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        down = act @ self.w[p + "mlp.down_proj.weight"].T
        return down + self.w.get(p + "mlp.down_proj.bias", 0.0)

    def logits(self, ids):
        c = self.config
        x = self.w["model.embed_tokens.weight"][ids]
        for i, kind in enumerate(c["layer_types"]):
            p = f"model.layers.{i}."
            h = self.norm(x, p + "input_layernorm")
            if kind == "recurrent":
                x = x + self.recur(h, p)
            else:
                x = x + self.attend(h, p, c["sliding_window"] if kind == "sliding_attention"
                                    else len(ids))
            x = x + self.feed(self.norm(x, p + "post_attention_layernorm"), p)
        head = "model.embed_tokens" if c["tie_word_embeddings"] else "lm_head"
        return self.norm(x, "model.norm") @ self.w[head + ".weight"].T

    def case(self, torch, prompt):
        """As golden_case()."""
        n_rows = len(prompt) if 1 < len(prompt) <= ALL_ROWS_MAX else 1
        ids, gaps = list(prompt), []
        first = self.logits(ids)[-n_rows:]
        while len(ids) < len(prompt) + N_GREEDY:
            row = self.logits(ids)[-1]
            second, best = row.argsort()[-2:]
            gaps.append(row[best] - row[second])
            ids.append(int(best))
        return {"prompt": prompt, "logits": torch.from_numpy(first).float(),
                "greedy": ids[len(prompt):], "gaps": gaps}


def make_toys(out, wanted):
    import torch

    for name, (config, deviations) in TOYS.items():
        if wanted and name not in wanted.split(","):
            continue
        for seed in range(1, 200):
            weights = random_weights(torch, config, seed, *deviations)
            toy, rng, cases = Toy(config, weights), random.Random(seed), []
            for n in PROMPT_LENGTHS:
                cases.append(toy.case(torch, [rng.randrange(config["vocab_size"])
                                              for _ in range(n)]))
                if min(cases[-1]["gaps"]) < GAP_MIN or len(set(cases[-1]["greedy"])) < 12:
                    break
            else:
                break
        else:
            raise SystemExit(f"{name}: no seed gives clear goldens")
        folder = os.path.join(out, name)
        write_model(folder, config, weights, 1)
        write_cases(os.path.join(folder, "golden.bin"), config["vocab_size"], cases)
        print(name, "seed", seed, "least gap", min(min(c["gaps"]) for c in cases), flush=True)


def prompt_of(tokenizer, messages, tools=None):
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False,
                                         add_generation_prompt=True)
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]


def find_prompt(tokenizer, rng, least, most):
    """A conversation whose prompt has from least to most tokens."""
    while True:
        c = generate.conversation(rng, generate.LONG + generate.SHORT)
        _, ids = prompt_of(tokenizer, c.messages[:-1], c.tools)
        if least <= len(ids) <= most and c.messages[-1]["role"] == "assistant":
            return ids


def clear_part(ids, gaps):
    for i, gap in enumerate(gaps):
        if gap < GAP_MIN:
            return ids[:i]
    return ids


def make_demo(out, folder):
    import torch
    from transformers import AutoTokenizer

    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    eos = model.generation_config.eos_token_id
    rng = random.Random(7)
    prompts = [tokenizer.convert_tokens_to_ids(["<|im_start|>"]),
               prompt_of(tokenizer, [{"role": "user", "content": "Hello"}])[1],
               prompt_of(tokenizer, [{"role": "user", "content": "Tell me a short story."}])[1]]
    prompts += [find_prompt(tokenizer, rng, a, b) for a, b in ((40, 40), (150, 150), (700, 800),
                                                               (1300, 1500))]
    cases = [golden_case(torch, model, p, eos) for p in prompts]
    for c in cases:
        c["greedy"] = clear_part(c["greedy"], c["gaps"])
        print("demo: prompt of", len(c["prompt"]), "greedy", len(c["greedy"]), "least gap",
              min(c["gaps"]), flush=True)
    write_cases(os.path.join(out, "demo", "golden.bin"), model.config.vocab_size, cases)

    items = []
    for messages, tools in conversations():
        text, ids = prompt_of(tokenizer, messages, tools)
        answer, gaps = greedy(torch, model, ids, 512, eos)
        items.append({"messages": messages, "tools": tools, "prompt": text, "prompt_ids": ids,
                      "output_ids": answer, "least_gap": round(min(gaps), 4),
                      "output_text": tokenizer.decode(answer, skip_special_tokens=True)})
        print(len(ids), round(min(gaps), 4), repr(items[-1]["output_text"][:150]), flush=True)
    write_lines(os.path.join(out, "demo", "greedy.json"), items)


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                   "required": ["city"]}}}
TIMER = {"type": "function", "function": {
    "name": "set_timer", "description": "Start a timer.",
    "parameters": {"type": "object", "properties": {
        "minutes": {"type": "integer", "description": "How many minutes"}},
        "required": ["minutes"]}}}


def conversations():
    """(messages, tools) of the greedy goldens: every role and every feature of the template."""
    def user(text):
        return {"role": "user", "content": text}

    def assistant(text):
        return {"role": "assistant", "content": text}

    def system(text):
        return {"role": "system", "content": text}

    for q in ("What is the capital of France?", "Who are you?", "Hello!", "What is 417 + 58?",
              "What is 47 * 6?", "Count from 1 to 20.", "Count from 1 to 100.",
              "Tell me a short story.", "Tell me a long story.",
              "Tell me a story about an owl and a map.",
              "Repeat: café 🙂 naïve 🚀 привет 你好",
              "Repeat: The quick brown fox jumps over the lazy dog, 1984 times!",
              "Reverse the order of these words: apple river stone window garden",
              "Extract name and age as JSON: Anna is 34 years old and lives in Oslo."):
        yield [user(q)], None
    yield [system("You are a helpful assistant."), user("What is the capital of Japan?")], None
    yield [system("You are Botley, the guide of Rome."), user("Who are you?")], None
    yield [user("My name is Clara."), assistant("Hello, Clara! How can I help you today?"),
           user("What is 5 + 3?"), assistant("5 + 3 = 8."), user("What is my name?")], None
    yield [user([{"type": "text", "text": "What is the capital "},
                 {"type": "text", "text": "of Italy?"}])], None
    facts = [f"{name}'s room number is {100 + 7 * i}." for i, name in
             enumerate(generate.NAMES[:60])]
    yield [system("You are the assistant of a school. " + " ".join(facts)),
           user("What is Olga's room number?")], None
    yield [user("What is the weather in Paris?")], [WEATHER, TIMER]
    call = {"type": "function", "id": "call_1",
            "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    yield [system("Be brief."), user("What is the weather in Paris?"),
           {"role": "assistant", "content": None, "tool_calls": [call]},
           {"role": "tool", "tool_call_id": "call_1",
            "content": '{"temperature": 18, "condition": "sunny"}'}], [WEATHER, TIMER]
    yield [user("Set a timer for 12 minutes.")], [WEATHER, TIMER]
    yield [user("What is the weather in Rome? What is the weather in Oslo?")], [WEATHER]
    yield [user("What is the capital of Spain?")], [WEATHER, TIMER]


def check_held_out(out, folder):
    """transformers' own generate over heldout.json and known.json, on a GPU where there is one."""
    import torch
    from transformers import AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = load(folder).to(device), AutoTokenizer.from_pretrained(folder)
    for name in ("known.json", "heldout.json"):
        with open(os.path.join(out, "demo", name), encoding="utf-8") as f:
            items = json.load(f)
        items.sort(key=lambda i: len(i["expected"]))
        n_right = 0
        for first in range(0, len(items), 45):
            part = items[first:first + 45]
            ids = [prompt_of(tokenizer, i["messages"], i["tools"])[1] for i in part]
            longest = max(map(len, ids))
            batch = torch.tensor([[0] * (longest - len(i)) + i for i in ids], device=device)
            mask = torch.tensor([[0] * (longest - len(i)) + [1] * len(i) for i in ids],
                                device=device)
            done = model.generate(batch, attention_mask=mask, max_new_tokens=600)
            for item, row in zip(part, done[:, longest:].tolist()):
                n_right += tokenizer.decode(row, skip_special_tokens=True) == item["expected"]
        print(f"{name}: transformers answers {n_right} of {len(items)} right", flush=True)


# Tokenizer goldens.


def tokenizer_texts(rng):
    """Texts that a tokenizer may get wrong."""
    yield from ["", " ", "  ", "\n", "\t", "\r\n", "a", "Hello", " Hello", "Hello ",
                "Hello, world!",
                "don't DON'T I'll we've they're I'm he'd it's 'S 'LL 'ſ", "a\u0000b", "\u0000",
                "tabs\tand\t\tmore", "line\nline\n\nline\r\nline\r\n\r\nline", "   three   runs   ",
                " \n \n x", "x \n", "x  \n  y", "\u00a0nbsp\u00a0\u00a0two", "\u3000wide\u3000",
                "\u2003em\u2009thin\u200bzero\u200d", "\u180e mongolian", "\u0085 next line",
                "\u2028line\u2029paragraph", "\ufeffmark", "1", "12", "123", "1234567890" * 5,
                "3.14159 2,718 1e-9 0x1F", "Ⅷ ½ ² ٣ ४ ๕ 𝟙𝟚", "a1b2c3", "snake_case camelCase A-B",
                "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|><|im_end|>",
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "x<|im_end|>y",
                "<|im_end|", "|im_end|>", "< |im_end|>", "<|IM_END|>", "<<|im_end|>>",
                "  <|im_end|>  ", "<tool_call>", "</tool_call>", "a <tool_call> b</tool_call>c",
                "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
                "<tool_response>",
                "é e\u0301 Å A\u030a ﬁ Ω \u2126", "\u0301alone", "ห้อง ไทย", "नमस्ते",
                "한국어 ᄒ\u1161\u11ab",
                "مرحبا بالعالم", "שָׁלוֹם", "你好，世界！", "日本語テキスト。", "🙂🙂", "👩‍🚀👩🏽‍🚀", "🇫🇷🇩🇪",
                "𝄞𝒜𐍈", "\U00010ffff \U000e0001 \ue000 \uffff \ufffd", "ſtreet ǅ ŉ İı ß ẞ",
                "!!!???...",
                "#include <stdio.h>\nint main(void)\n{\n\treturn 0;\n}\n",
                "{\"a\": [1, 2.5, null]}",
                "https://example.org/a?b=c&d=%20", "a" * 200, " " * 50, "\n" * 20, "ab" * 100,
                "€" * 20, "–—…“”‘’«»", "$100 100$ 50%", "-1 +1 ±1", "x²+y²=z²", "CO₂ H₂O"]
    for question, answer in generate.KNOWN:
        yield from (question, answer)
    for _ in range(60):
        c = generate.conversation(rng, generate.SHORT)
        yield "".join(t for t, _ in generate.render(c))[:600]
    pieces = list("aZ09'.,!? \n\r\t") + ["  ", "'s", "the", "é", "你", "🙂", "\u00a0", "\u200d", "ß",
                                           "<|im_end|>", "<tool_call>", "\u0301", "½", "\u3000"]
    for _ in range(120):
        yield "".join(rng.choice(pieces) for _ in range(rng.randint(1, 40)))
    planes = [(0x20, 0x7f), (0x80, 0x250), (0x250, 0x800), (0x800, 0x2000), (0x2000, 0x3000),
              (0x3000, 0xd800), (0xe000, 0x10000), (0x10000, 0x20000), (0x20000, 0x30000),
              (0xe0000, 0xe0200), (0xf0000, 0x110000)]
    for low, high in planes:
        for _ in range(8):
            yield "".join(chr(rng.randrange(low, high)) + rng.choice(["", "", " "])
                          for _ in range(rng.randint(1, 20)))


def make_tokenizer(out, folder):
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    rng = random.Random(11)
    items = []
    for text in tokenizer_texts(rng):
        ids = tok.encode(text, add_special_tokens=False).ids
        items.append({"text": text, "ids": ids, "decoded": tok.decode(ids, False),
                      "decoded_plain": tok.decode(ids, True)})
        assert items[-1]["decoded"] == text
    for _ in range(80):  # ids that no text has: cut characters and stray bytes
        ids = [rng.randrange(tok.get_vocab_size() if rng.random() < 0.3 else 256)
               for _ in range(rng.randint(1, 24))]
        items.append({"text": None, "ids": ids, "decoded": tok.decode(ids, False),
                      "decoded_plain": tok.decode(ids, True)})
    write_lines(os.path.join(out, "demo", "tokens.json"), items)
    print(len(items), "tokenizer cases")


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--out", default=HERE)
    a.add_argument("--model", default=os.path.join(HERE, "..", "..", "tools", "demo-model",
                                                   "model"))
    a.add_argument("--parts", default="models,toys,demo,check,tokens")
    a.add_argument("--models", default="")
    args = a.parse_args()
    os.makedirs(os.path.join(args.out, "demo"), exist_ok=True)
    for part in args.parts.split(","):
        {"models": lambda: make_models(args.out, args.models),
         "toys": lambda: make_toys(args.out, args.models), "demo": lambda: make_demo(args.out, args.model),
         "check": lambda: check_held_out(args.out, args.model),
         "tokens": lambda: make_tokenizer(args.out, args.model)}[part]()


if __name__ == "__main__":
    main()
