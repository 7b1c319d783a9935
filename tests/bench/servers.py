"""What measurements of whole servers share: the way to integration/harness.py, the device, models
with random weights, prompts of token ids and the time to their first token."""

import argparse
import os
import random
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SRCDIR = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(SRCDIR, "tests", "integration"))
os.environ.setdefault("srcdir", SRCDIR)

import harness  # noqa: E402: by that path


def parser():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=os.path.join(HERE, "llama-3.1-8b"), help="a folder")
    p.add_argument("--device", default="cuda", help="or cpu")
    return p


def parse(p):
    """The arguments; servers that are started from now on use their device."""
    a = p.parse_args()
    harness.DEVICE = a.device
    return a


def dummy(model, max_len):
    """Arguments of an engine: random weights, in a context of so many tokens."""
    return ["--model", model, "--load-format", "dummy", "--max-model-len", str(max_len),
            "--gemm-table", os.path.join(SRCDIR, "kernels", "gemm-h200.txt")]


def prompt(i, n):
    """The i-th of n tokens."""
    r = random.Random(i)
    return [r.randrange(100, 2000) for _ in range(n)]


def first_token(s, tokens):
    """Milliseconds to one token, and how many prompt tokens were cached."""
    began = time.monotonic()
    r = s.post("/v1/completions", s.completion(tokens, max_tokens=1, ignore_eos=True))
    ms = (time.monotonic() - began) * 1e3
    if r.status != 200:
        raise RuntimeError(r.text)
    return ms, r.json["usage"]["prompt_tokens_details"]["cached_tokens"]


def line(what, times):
    """Print what was measured; the median."""
    ms = statistics.median(t for t, _ in times)
    print("%-44s %8.1f ms (median of %d; %s tokens cached)"
          % (what, ms, len(times), "/".join(str(c) for _, c in times[:4])))
    sys.stdout.flush()
    return ms
