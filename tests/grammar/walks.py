#!/usr/bin/env python3
"""Random texts under masks, judged by an outside validator.

    walks.py JUDGE FOLDER [WALKS [SEED]]    FOLDER: files with a "schema", as MaskBench's

From each schema JUDGE (tests/grammar/judge of a build) draws texts: at each step a random token of
those that the mask allows, until the end. Each text must be JSON, and valid for python-jsonschema
(formats too, where it knows them). A text that grows beyond 4000 tokens is given up. Names that
occur twice are left out: a grammar cannot see them, and Python keeps the last. So are leap seconds
in a wrong hour, where the offset is not one of whole quarters: there hours are not held.
"""
import collections
import decimal
import glob
import json
import os
import re
import sys
import warnings

import suites

warnings.simplefilter("ignore")
decimal.setcontext(decimal.Context(prec=1000, traps=[]))  # 1e+99999999999999999999 is Infinity
import jsonschema  # noqa: E402


class Twice(Exception):
    pass


def members(pairs):
    names = [n for n, _ in pairs]
    if len(set(names)) != len(names):
        raise Twice()
    return dict(pairs)


LEAP = re.compile(r"(?:.*[tT])?(\d\d):(\d\d):60(?:\.\d+)?([+-])(\d\d):(\d\d)")


def in_free_hour(error):
    """A leap second of a rare offset, of which only the minutes fit?"""
    m = LEAP.fullmatch(str(error.instance)) if getattr(error, "validator", None) == "format" else None
    if m is None:
        return False
    offset = int(m[3] + "1") * (int(m[4]) * 60 + int(m[5]))
    return offset % 15 != 0 and (int(m[2]) - offset) % 60 == 59


def main():
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    judge = suites.Judge(sys.argv[1])
    paths = sorted(glob.glob(os.path.join(sys.argv[2], "*.json")))
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
    seed = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    n = collections.Counter()
    long = collections.Counter()
    each = -(-wanted // len(paths))
    print("# SEED=%d, %d texts of each of %d schemas" % (seed, each, len(paths)))
    for path in paths:
        with open(path) as f:
            schema = json.load(f)["schema"]
        answer = judge.ask({"schema": schema, "walks": each, "seed": seed})
        if "error" in answer:
            n["schemas refused"] += 1
            continue
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        exact = json.loads(json.dumps(schema), parse_float=decimal.Decimal)
        validator = kind(exact, format_checker=kind.FORMAT_CHECKER)
        n["schemas"] += 1
        for text in answer["answers"]:
            if text is None:
                n["too long"] += 1
                long[os.path.basename(path)] += 1
                continue
            n["texts"] += 1
            try:
                value = json.loads(text, object_pairs_hook=members, parse_float=decimal.Decimal)
                error = next(iter(validator.iter_errors(value)), None)
            except Twice:
                n["with a name twice"] += 1
                continue
            except Exception as e:
                error = e
            if error is not None and "'0000-" in str(error):
                n["of the year 0, which Python lacks"] += 1
                continue
            if error is None:
                n["valid"] += 1
                continue
            if in_free_hour(error):
                n["leap seconds in a free hour"] += 1
                continue
            n["INVALID"] += 1
            if n["INVALID"] <= 20:
                print("%s: %s\n  %s" % (os.path.basename(path), str(error)[:300], text[:300]))
    print(", ".join("%s %d" % item for item in n.items()))
    if os.environ.get("VERBOSE"):
        print("too long:", long.most_common(20))
    sys.exit(1 if n["INVALID"] > 0 or n["texts"] == 0 else 0)


if __name__ == "__main__":
    main()
