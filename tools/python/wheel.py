#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the wheel of this folder: `tools/python/wheel.py [FOLDER]`, or `pip install tools/python`.

A wheel is a zip file with three descriptions, so that the standard library is enough."""

import base64
import hashlib
import os
import re
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "quire"
WHEEL = "Wheel-Version: 1.0\nGenerator: quire\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def version():
    with open(os.path.join(HERE, NAME, "__init__.py"), encoding="utf-8") as f:
        return re.search(r'^__version__ = "([^"]+)"', f.read(), re.M).group(1)


def metadata():
    return ("Metadata-Version: 2.1\nName: %s\nVersion: %s\nLicense: Apache-2.0\n"
            "Summary: Offline generation with quire, under vLLM's names\n"
            "Requires-Python: >=3.9\n" % (NAME, version()))


def entry(path, content):
    """A line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
    return "%s,sha256=%s,%d\n" % (path, digest.decode(), len(content))


def build_wheel(folder, config_settings=None, metadata_directory=None):
    """The hook of PEP 517: write the wheel into the folder; its name."""
    described = "%s-%s.dist-info" % (NAME, version())
    files = {}
    for name in sorted(os.listdir(os.path.join(HERE, NAME))):
        if name.endswith(".py"):
            with open(os.path.join(HERE, NAME, name), "rb") as f:
                files[NAME + "/" + name] = f.read()
    files[described + "/METADATA"] = metadata().encode()
    files[described + "/WHEEL"] = WHEEL.encode()
    record = described + "/RECORD"
    lines = "".join(entry(path, content) for path, content in files.items())
    files[record] = (lines + record + ",,\n").encode()
    wheel = "%s-%s-py3-none-any.whl" % (NAME, version())
    with zipfile.ZipFile(os.path.join(folder, wheel), "w", zipfile.ZIP_DEFLATED) as z:
        for path, content in files.items():
            at = zipfile.ZipInfo(path, (2026, 1, 1, 0, 0, 0))  # the same files, the same bytes
            at.external_attr = 0o644 << 16
            at.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(at, content)
    return wheel


def build_sdist(folder, config_settings=None):
    raise NotImplementedError("the source is quire's own; build a wheel")


if __name__ == "__main__":
    out = sys.argv[1] if len(sys.argv) > 1 else "."
    print(os.path.join(out, build_wheel(out)))
