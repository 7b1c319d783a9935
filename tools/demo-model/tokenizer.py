"""Trains the demo model's tokenizer and writes its two files.

Byte-level BPE: every input can be encoded, and decoding gives it back byte for byte.  Digits stand
alone, so that a small model can learn to calculate.  The special tokens come last.
"""

import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

import generate

N_VOCAB = 2048
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = [END_OF_TEXT, IM_START, IM_END]
PLAIN_ADDED = ["<tool_call>", "</tool_call>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
HERE = os.path.dirname(os.path.abspath(__file__))


def corpus(n_conversations, seed):
    """Training text without the special tokens."""
    rng = random.Random(seed)
    marks = SPECIAL + PLAIN_ADDED
    for _ in range(n_conversations):
        kinds = generate.LONG if rng.random() < 0.2 else generate.SHORT
        text = "".join(t for t, _ in generate.render(generate.conversation(rng, kinds)))
        for mark in marks:
            text = text.replace(mark, "\n")
        yield text


def train(n_conversations=20000, seed=1):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.train_from_iterator(corpus(n_conversations, seed), BpeTrainer(
        vocab_size=N_VOCAB - len(SPECIAL) - len(PLAIN_ADDED), special_tokens=[],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tok.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIAL])
    tok.add_tokens([AddedToken(s, special=False, normalized=False) for s in PLAIN_ADDED])
    assert tok.get_vocab_size() == N_VOCAB
    return tok


def template():
    with open(os.path.join(HERE, "chat_template.jinja"), encoding="utf-8") as f:
        return f.read()


def write(tok, folder):
    """Writes tokenizer.json and tokenizer_config.json."""
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"))
    added = {str(tok.token_to_id(s)): {"content": s, "lstrip": False, "normalized": False,
                                       "rstrip": False, "single_word": False,
                                       "special": s in SPECIAL}
             for s in SPECIAL + PLAIN_ADDED}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added,
              "bos_token": None, "eos_token": IM_END, "pad_token": END_OF_TEXT,
              "unk_token": None, "model_max_length": 2048,
              "clean_up_tokenization_spaces": False, "chat_template": template()}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2, ensure_ascii=False)
        f.write("\n")


def template_agrees(seed=2, n=300):
    """Whether the chat template renders as generate.render() does; raises where it does not."""
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[loopcontrols])
    env.filters["tojson"] = lambda x, **_: json.dumps(x, ensure_ascii=False)
    jinja = env.from_string(template())
    rng = random.Random(seed)
    for _ in range(n):
        c = generate.conversation(rng, generate.SHORT + generate.LONG)
        mine = "".join(t for t, _ in generate.render(c))
        theirs = jinja.render(messages=c.messages, tools=c.tools, add_generation_prompt=False)
        if mine != theirs:
            raise AssertionError(f"the template renders\n{theirs}\nand the generator\n{mine}")


if __name__ == "__main__":
    template_agrees()
    write(train(), os.path.join(HERE, "model"))
