#!/usr/bin/env python3
"""What grammars accept, against suites that say what is valid.

    suites.py JUDGE suite FOLDER      JSON-Schema-Test-Suite (its tests/draft2020-12)
    suites.py JUDGE maskbench FOLDER  MaskBench's files, a schema and instances each

JUDGE is tests/grammar/judge of a build. Prints one table: schemas compiled and refused (by reason),
valid instances accepted and refused, invalid ones rejected and accepted. The numbers to hold: no
valid one refused, invalid ones accepted below 3%.

A grammar fixes what JSON leaves open: members come in the order of the schema, whole numbers have
no '.'. So an instance counts as accepted when it is with its members in some order (the judge
searches for it) and its numbers as they are or as plain decimals.
"""
import collections
import decimal
import glob
import json
import os
import subprocess
import sys

class Judge:
    def __init__(self, path):
        self.process = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, request):
        self.process.stdin.write(write(request).encode("utf-8", "surrogatepass") + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the judge died of: " + json.dumps(request)[:2000])
        return json.loads(line)


def declared(schema, found):
    """All lists of names that a schema declares, in document order."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            found.append(list(schema["properties"]))
        for value in schema.values():
            declared(value, found)
    elif isinstance(schema, list):
        for value in schema:
            declared(value, found)
    return found


def reorder(value, lists):
    """Members as the list that knows most of them has them: where the search for an order begins."""
    if isinstance(value, dict):
        best = max(lists, key=lambda l: len(set(l) & set(value)), default=[])
        place = {n: i for i, n in enumerate(best)}
        return {n: reorder(value[n], lists) for n in sorted(value, key=lambda n: place.get(n, len(place)))}
    if isinstance(value, list):
        return [reorder(v, lists) for v in value]
    return value


def plain(value):
    """Numbers as plain decimals, whole ones without a point."""
    if isinstance(value, dict):
        return {n: plain(v) for n, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, float):
        d = decimal.Decimal(repr(value))
        if d == d.to_integral_value() and abs(d) < decimal.Decimal(10) ** 350:
            return int(d)
        return Plain(format(d, "f"))
    return value


class Plain(float):
    """A float that json writes as this text."""
    def __new__(cls, text):
        self = float.__new__(cls, text)
        self.text = text
        return self

    def __repr__(self):
        return self.text


def write(value):
    if isinstance(value, dict):
        return "{" + ", ".join(json.dumps(n, ensure_ascii=False) + ": " + write(v) for n, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(write(v) for v in value) + "]"
    if isinstance(value, Plain):
        return value.text
    return json.dumps(value, ensure_ascii=False)


class Tally:
    def __init__(self):
        self.n = collections.Counter()
        self.refused = collections.Counter()
        self.wrong_refusals = []
        self.wrong_acceptances = collections.defaultdict(list)
        self.us = []

    def judge(self, judge, name, schema, tests, group):
        lists = declared(schema, [])
        data = [reorder(test["data"], lists) for test in tests]
        values = [spelling for value in data for spelling in (value, plain(value))]
        answer = judge.ask({"schema": schema, "values": values})
        self.us.append((answer["us"], name))
        self.n["schemas"] += 1
        if "error" in answer:
            self.n["schemas refused"] += 1
            self.n["tests of refused schemas"] += len(tests)
            self.refused[answer["text"][:90]] += 1
            if os.environ.get("VERBOSE"):
                print("refused", name, answer["text"], answer["where"])
            return
        for i, test in enumerate(tests):
            accepted = answer["answers"][2 * i] or answer["answers"][2 * i + 1]
            label = name + ": " + test.get("description", "")
            if test["valid"]:
                self.n["valid accepted" if accepted else "valid refused"] += 1
                if not accepted:
                    self.wrong_refusals.append(label)
            else:
                self.n["invalid accepted" if accepted else "invalid rejected"] += 1
                if accepted:
                    self.wrong_acceptances[group].append(label)

    def show(self, title):
        n = self.n
        invalid = n["invalid accepted"] + n["invalid rejected"]
        print("## " + title)
        print("schemas %d, compiled %d, refused %d" % (n["schemas"], n["schemas"] - n["schemas refused"], n["schemas refused"]))
        print("valid instances: accepted %d, refused %d" % (n["valid accepted"], n["valid refused"]))
        print("invalid instances: rejected %d, accepted %d (%.2f%%)" % (
            n["invalid rejected"], n["invalid accepted"], 100.0 * n["invalid accepted"] / max(invalid, 1)))
        us = sorted(u for u, _ in self.us)
        if us:
            print("compile: mean %.2f ms, median %.2f, p99 %.2f, most %.2f (%s)" % (
                sum(us) / len(us) / 1e3, us[len(us) // 2] / 1e3, us[len(us) * 99 // 100] / 1e3, us[-1] / 1e3, max(self.us)[1]))
        for text, count in self.refused.most_common():
            print("  refused %4d  %s" % (count, text))
        for label in self.wrong_refusals:
            print("  VALID REFUSED  " + label)
        for group, labels in sorted(self.wrong_acceptances.items()):
            for label in labels:
                print("  INVALID ACCEPTED  %s  %s" % (group, label))


def suite(judge, folder):
    tally = Tally()
    annotations = 0
    files = sorted(glob.glob(os.path.join(folder, "*.json")))
    files += sorted(glob.glob(os.path.join(folder, "optional", "format", "*.json")))
    files += [os.path.join(folder, "optional", f) for f in ("ecmascript-regex.json", "bignum.json", "dependencies-compatibility.json", "float-overflow.json")]
    for path in files:
        name = os.path.relpath(path, folder)[:-5]
        with open(path) as f:
            groups = json.load(f)
        for g in groups:
            tests = g["tests"]
            if name == "format":  # formats are asserted here, as the format-assertion vocabulary asks
                annotations += len([t for t in tests if "annotation" in t["description"]])
                tests = [t for t in tests if "annotation" not in t["description"]]
            tally.judge(judge, name + ": " + g["description"], g["schema"], tests, name)
    tally.show("JSON-Schema-Test-Suite, " + os.path.basename(folder.rstrip("/")))
    print("not asked: %d tests that formats are annotations only" % annotations)
    return tally


def maskbench(judge, folder):
    tally = Tally()
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as f:
            case = json.load(f)
        tally.judge(judge, os.path.basename(path), case["schema"], case["tests"], "")
    tally.show("MaskBench")
    return tally


def main():
    if len(sys.argv) != 4 or sys.argv[2] not in ("suite", "maskbench"):
        raise SystemExit(__doc__)
    judge = Judge(sys.argv[1])
    tally = (suite if sys.argv[2] == "suite" else maskbench)(judge, sys.argv[3])
    n = tally.n
    share = n["invalid accepted"] / max(n["invalid accepted"] + n["invalid rejected"], 1)
    sys.exit(1 if n["valid refused"] > 0 or share >= 0.03 else 0)


if __name__ == "__main__":
    main()
