#!/usr/bin/env python3
# Makes tests/golden/text/prefills.json: where transformers ends the prompt when a last message is
# continued (continue_final_message), for the templates of the folder given (templates/ of
# QUIRE_TEST_DATA). No text of a template is in it: of every prompt there are the bytes and the first
# 16 digits of its SHA-256, or null where transformers raises.
#
#   pip install transformers==5.23.0 jinja2==3.1.6
#   python3 tests/golden/text/make_prefills.py TEMPLATES tests/golden/text/prefills.json
import copy
import datetime
import hashlib
import json
import sys

import transformers
from transformers.utils import chat_template_utils as utils

import templates

assert transformers.__version__ == "5.23.0"
NOW = 1700000000
PREFILLS = ["<", "|", ">", "end", "i", "The answer is", "The answer is ", "a\n", "\n", " ", "", "\t x\t", "user", "assistant", "model",
            "</", "_", "{\"a\": ", "```json\n", "\u00dcber\u00a0", "1 < 2 | 3", [{"type": "text", "text": "one "}],
            [{"type": "text", "text": "one"}, {"type": "text", "text": "two\n"}]]
EARLIER = [{"role": "user", "content": "end of i < 3 | x > 2?\n"}, {"role": "assistant", "content": "end"},
           {"role": "user", "content": "Name one, user. _ model </ assistant i"}]


class Then(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


def prompt(source, tokens, messages):
    try:
        texts, _ = utils.render_jinja_template([messages], chat_template=source, tools=[templates.WEATHER],
                                               continue_final_message=True, add_generation_prompt=False, **tokens)
        return texts[0]
    except Exception:  # whatever is raised, there is no such prompt
        return None


def main():
    utils.datetime = Then
    cases = []
    for name, source, tokens, folder in templates.templates(sys.argv[1]):
        if folder is None:
            tokens = {"bos_token": "<|start|>", "eos_token": "<|end|>"}
        parts = templates.reads_parts(templates.ENV.from_string(source), tokens)
        for p in PREFILLS:
            said = p if isinstance(p, str) or parts else "\n".join(x["text"] for x in p)
            got = prompt(source, tokens, copy.deepcopy(EARLIER) + [{"role": "assistant", "content": said}])
            raw = None if got is None else got.encode()
            cases.append([name, p, None if raw is None else [len(raw), hashlib.sha256(raw).hexdigest()[:16]]])
    with open(sys.argv[2], "w") as f:
        f.write(json.dumps({"earlier": EARLIER, "tools": [templates.WEATHER], "now": NOW})[:-1] + ', "cases": [\n')
        f.write(",\n".join(json.dumps(c) for c in cases) + "\n]}\n")


if __name__ == "__main__":
    main()
