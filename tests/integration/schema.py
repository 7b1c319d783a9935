"""OpenAI's own description of its API, as a judge of answers."""

import glob
import json
import os
import sys

from harness import BUILDDIR, SRCDIR


def schema_checker():
    """check(name, value): OpenAI's own schema; None without it or without jsonschema."""
    path = os.environ.get("OPENAI_SPEC") or os.path.join(SRCDIR, "..", "shared", "data", "openapi",
                                                         "openapi.json")
    # tools/check puts the module into the build folder's own environment.
    sys.path += glob.glob(os.path.join(BUILDDIR, "venv", "lib", "python%d.%d" % sys.version_info[:2],
                                       "site-packages"))
    try:
        import jsonschema
    except ImportError:
        return None, "there is no jsonschema module"
    if not os.path.exists(path):
        return None, "there is no OpenAPI description at OPENAI_SPEC"
    with open(path) as f:
        spec = json.load(f)

    def nullable(v):  # OpenAPI 3.0's word for it, where it still occurs
        if isinstance(v, dict):
            out = {k: nullable(x) for k, x in v.items() if k != "nullable"}
            return {"anyOf": [out, {"type": "null"}]} if v.get("nullable") is True else out
        return [nullable(x) for x in v] if isinstance(v, list) else v
    schemas = nullable(spec["components"]["schemas"])

    def check(name, value):
        root = {"$ref": "#/components/schemas/" + name, "components": {"schemas": schemas}}
        errors = jsonschema.Draft202012Validator(root).iter_errors(value)
        return ["%s: %s" % ("/".join(map(str, e.absolute_path)), e.message[:200])
                for e in errors][:5]
    return check, ""
