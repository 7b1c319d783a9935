#!/usr/bin/env python3
"""PyTorch's files of weights for tests: families/opt-torch, which is families/opt as two files with
an index and with names as facebook/opt-125m has them, and the corpus of fuzz_torch_zip.

    python3 tests/golden/make_torch.py      in the top folder; needs torch and safetensors
"""
import collections
import io
import json
import os
import pickle
import shutil
import zipfile

import torch
from safetensors.torch import load_file

FAMILIES, CORPUS = "tests/golden/families", "tests/fuzz/corpus/torch_zip"


def golden():
    """Half of the tensors in each file. Names begin with "decoder.", and the head is stored too."""
    source, folder = os.path.join(FAMILIES, "opt"), os.path.join(FAMILIES, "opt-torch")
    os.makedirs(folder, exist_ok=True)
    for name in ("config.json", "golden.bin"):
        shutil.copy(os.path.join(source, name), folder)
    tensors = load_file(os.path.join(source, "model.safetensors"))
    names = sorted(tensors)
    index = {}
    for i in range(2):
        file = "pytorch_model-%05d-of-00002.bin" % (i + 1)
        part = collections.OrderedDict((n.removeprefix("model."), tensors[n].clone())
                                       for n in names[i::2])
        index.update({n: file for n in part})
        torch.save(part, os.path.join(folder, file))
    with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {}, "weight_map": index}, f, indent=1)


class Evil:
    """Runs a command in a reader that executes what it is told."""
    def __reduce__(self):
        return os.system, ("touch /tmp/executed",)


def replace_member(path, name, data):
    """The same archive with another member."""
    with zipfile.ZipFile(path) as old:
        members = [(m, old.read(m)) for m in old.namelist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for member, content in members:
            new.writestr(member, data if member.endswith(name) else content)


def corpus():
    os.makedirs(CORPUS, exist_ok=True)

    def save(name, value, **options):
        torch.save(value, os.path.join(CORPUS, name), **options)

    w = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = torch.nn.Linear(4, 3).state_dict()  # an OrderedDict with attributes
    state["weight"], state["bias"] = w, torch.ones(3)
    save("linear", state)
    save("types", {t: torch.ones(2, 3).to(getattr(torch, t)) for t in
                   ("float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8",
                    "bool")})
    save("tied", {"a": w, "b": w, "part": w[1:], "scalar": torch.tensor(7.0)})
    save("parameter", {"w": torch.nn.Parameter(w)})
    save("protocol-4", {"w": w}, pickle_protocol=4)
    save("turned", {"w": w.T})
    save("training", {"epoch": 3, "model": {"w": w}})
    save("list", [w])
    save("old", {"w": w}, _use_new_zipfile_serialization=False)
    save("evil", {"w": w})
    replace_member(os.path.join(CORPUS, "evil"), "data.pkl", pickle.dumps({"w": Evil()}, 2))
    save("short", {"w": w})
    replace_member(os.path.join(CORPUS, "short"), "data/0", b"\0" * 40)
    save("big", {"w": w})
    replace_member(os.path.join(CORPUS, "big"), "byteorder", b"big")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("archive/data.pkl", pickle.dumps({}, 2) * 20)
    with open(os.path.join(CORPUS, "packed"), "wb") as f:
        f.write(packed.getvalue())
    with open(os.path.join(CORPUS, "linear"), "rb") as f:
        whole = f.read()
    with open(os.path.join(CORPUS, "cut"), "wb") as f:
        f.write(whole[:len(whole) // 2])


golden()
corpus()
