#!/usr/bin/env python3
"""Goal: what watches a server gets an answer: every metric and label of the dashboard and of the alerts is
one of /metrics; a Prometheus that scrapes the server answers every query; alerts fire when they should;
the request log is JSON without prompts and keys. Method: a server that works and refuses; the queries
taken apart here; Debian's prometheus and promtool, where they are."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

from harness import SRCDIR, Stack, Supervised, Tap, UnixConnection, free_port, key, need_nginx, until

need_nginx()
tap = Tap()
DASHBOARD = os.path.join(SRCDIR, "tools", "grafana", "quire.json")
RULES = os.path.join(SRCDIR, "tools", "prometheus", "quire.rules.yml")
TEXT = "/v1/completions"
WORDS = {"sum", "avg", "count", "max", "min", "by", "without", "rate", "increase", "changes", "and", "or",
         "unless", "on", "ignoring", "histogram_quantile", "label_values", "avg_over_time", "bool"}
OF_PROMETHEUS = {"up": {"job", "instance"}}  # made by the collector


def take_apart(query):
    """[(metric, {label: (operator, value)})], and the labels that are grouped by."""
    grouped = {x.strip() for g in re.findall(r"\b(?:by|without|on)\s*\(([^)]*)\)", query) for x in g.split(",")}
    bare = re.sub(r"\b(?:by|without|on)\s*\([^)]*\)|\[[^\]]*\]", "", query)
    bare = re.sub(r"label_values\(([^,]*(?:\{[^}]*\})?), *\w+\)", r"\1", bare)
    found = []
    for m in re.finditer(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", re.sub(r'"[^"]*"(?![^{}]*\})', "", bare)):
        if m.group(1) in WORDS:
            continue
        pairs = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', m.group(2) or "")
        found.append((m.group(1), {k: (o, v) for k, o, v in pairs}))
    return found, grouped


def dashboard_queries():
    with open(DASHBOARD) as f:
        board = json.load(f)
    names = [p["title"] for p in board["panels"]]
    tap.ok(len(set(names)) >= 25 and len({p["id"] for p in board["panels"]}) == len(board["panels"]),
           "the dashboard has panels, with ids of their own", names)
    over = [(a["title"], b["title"]) for a in board["panels"] for b in board["panels"]
            if a["id"] < b["id"] and all(
                a["gridPos"][x] < b["gridPos"][x] + b["gridPos"][s] and
                b["gridPos"][x] < a["gridPos"][x] + a["gridPos"][s] for x, s in (("x", "w"), ("y", "h")))]
    tap.eq(over, [], "none lies over another")
    out = [(p["title"], t["expr"], t["legendFormat"]) for p in board["panels"] for t in p.get("targets", [])]
    return out + [(v["label"], v["definition"], "") for v in board["templating"]["list"] if v["type"] == "query"]


def rule_queries():
    """A reader of as much YAML as the file has: no package is needed for it."""
    with open(RULES) as f:
        text = f.read()
    out = []
    for part in re.split(r"\n      - alert: ", text)[1:]:
        name = part.split("\n")[0]
        expr = re.search(r"        expr: (?:>-\n((?:          .*\n)+)|(.*)\n)", part)
        out.append((name, " ".join((expr.group(1) or expr.group(2)).split()),
                    " ".join(re.findall(r"\$labels\.\w+", part)).replace("$labels.", "{{") .replace(" ", "}} ") + "}}"
                    if "$labels" in part else ""))
    return out


def wrong_in(query, shown, series):
    """What a query, and the text that names its labels, use and the server does not have."""
    wrong = []
    found, grouped = take_apart(query)
    labels = set()
    if not found:
        wrong.append("no metric in it")
    for metric, pairs in found:
        if metric in OF_PROMETHEUS:
            labels |= OF_PROMETHEUS[metric]
            continue
        mine = series.get(metric)
        if mine is None:
            wrong.append("no metric " + metric)
            continue
        has = {k for s in mine for k in s} | {"instance", "job"}
        labels |= has
        wrong += ["%s has no label %s" % (metric, k) for k in pairs if k not in has]
        for k, (op, v) in pairs.items():
            if op == "=" and k in has and k not in ("instance", "job") and v not in {s.get(k) for s in mine}:
                wrong.append("%s is never %s=%s" % (metric, k, v))
    wrong += ["no label " + g for g in grouped - labels]
    named = set(re.findall(r"\{\{(\w+)\}\}", shown))
    return wrong + ["the text names %s" % x for x in named - (grouped or labels)]


def series_of(s):
    out = {}
    for k in s.metrics():
        m = re.match(r"([\w:]+)(?:\{(.*)\})?$", k)
        out.setdefault(m.group(1), []).append(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(2) or "")))
    return out


def work(s):
    text = "Once upon a time there was a small lantern on a bridge. " * 6
    for _ in range(2):
        s.post(TEXT, s.completion(text, max_tokens=4))
    s.post(TEXT, s.completion("Hello", max_tokens=6, ignore_eos=True))


def by_prometheus(s, queries):
    """A real one, which scrapes this server's plain address."""
    if shutil.which("prometheus") is None:
        tap.skip("prometheus answers every query", "there is no prometheus: apt-get install prometheus")
        return
    with tempfile.TemporaryDirectory(prefix="quire-t-") as d:
        port = free_port()
        with open(d + "/p.yml", "w") as f:
            f.write("global: {scrape_interval: 1s}\nrule_files: [%s]\nscrape_configs:\n  - job_name: quire\n"
                    "    scheme: https\n    tls_config: {insecure_skip_verify: true}\n    static_configs: "
                    "[{targets: ['127.0.0.1:%d']}]\n" % (RULES, s.port))
        p = Supervised(["prometheus", "--config.file=" + d + "/p.yml", "--storage.tsdb.path=" + d + "/data",
                        "--web.listen-address=127.0.0.1:%d" % port], d + "/log", restart=False)

        def ask(path):
            import http.client
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            try:
                c.request("GET", path)
                return json.loads(c.getresponse().read())
            except (OSError, ValueError):
                return {}
            finally:
                c.close()

        def query(expr):
            return ask("/api/v1/query?query=" + urllib.parse.quote(expr))
        tap.ok(until(lambda: query('count_over_time(quire:engine_up[1m])').get("data", {}).get("result")),
               "prometheus scrapes the server", p.said())
        for _ in range(3):
            time.sleep(1)
            work(s)
        time.sleep(1.2)
        empty = []
        for name, expr, _ in queries:
            expr = expr.replace("$__rate_interval", "30s").replace("$model", ".*").replace("$engine", ".*")
            expr = re.sub(r"label_values\((.*), *(\w+)\)$", r"count by (\2) (\1)", expr)
            r = query(expr)
            if r.get("status") != "success" or not r["data"]["result"]:
                empty.append((name, expr, r))
        tap.eq(empty, [], "prometheus answers all %d queries of the dashboard" % len(queries))
        rules = ask("/api/v1/rules")["data"]["groups"][0]["rules"]
        tap.eq([r["name"] for r in rules if r["health"] == "err" or r["state"] == "firing"], [],
               "it has the alerts, and none of %d fires" % len(rules))
        p.stop()


def alerts():
    if shutil.which("promtool") is None:
        tap.skip("promtool tests the alerts", "there is no promtool: apt-get install prometheus")
        return
    with tempfile.TemporaryDirectory(prefix="quire-t-") as d:
        shutil.copy(os.path.join(SRCDIR, "tests", "integration", "quire.rules.test.yml"), d)
        with open(RULES) as f:
            text = f.read()

        def tested(rules):
            with open(d + "/quire.rules.yml", "w") as f:
                f.write(rules)
            return subprocess.run(["promtool", "test", "rules", "quire.rules.test.yml"], cwd=d,
                                  capture_output=True, text=True)
        r = tested(text)
        tap.ok(r.returncode == 0, "promtool: alerts fire when they should, and only then", r.stdout + r.stderr)
        blunt = [m for m in re.findall(r"- alert: (\w+)", text)
                 if tested(re.sub(r"(- alert: %s\n        expr: )(>-\n(?:          .*\n)+|.*\n)" % m,
                                  r"\1vector(1) == 0\n", text)).returncode == 0]
        tap.eq(blunt, [], "and notices each that does not")


def log(s):
    """The site's own log, then its option, as quire-log.conf says."""
    n = len(open(s.path("access.log")).readlines())
    s.request("POST", TEXT + "?secret=query", {"prompt": "marmalade"}, headers={"Authorization": "Bearer sk-wrong"})
    s.request("DELETE", "/v1/messages", headers={"Authorization": "Bearer sk-wrong"})
    s.get("/no%20where")
    until(lambda: len(open(s.path("access.log")).readlines()) >= n + 3)
    rows = [json.loads(x) for x in open(s.path("access.log")).readlines()[n:]]
    tap.eq([(r["m"], r["u"], r["st"]) for r in rows],
           [("POST", TEXT, 401), ("DELETE", "/v1/messages", 401), ("GET", "/no%20where", 404)],
           "nginx's own errors are in the log with the client's path")
    with open(os.path.join(SRCDIR, "nginx", "quire-log.conf")) as f, \
            open(s.path("quire-log.conf"), "w") as out:
        out.write(f.read())
    with open(s.path("nginx.conf")) as f:
        text = f.read()
    own = s.path("quire.json")
    with open(s.path("nginx.conf"), "w") as f:
        f.write(re.sub(r"    access_log .*\n", "    include %s;\n    access_log %s quire_json if=$quire_logged;\n" % (
            s.path("quire-log.conf"), own), text, count=1))
    s.nginx.proc.send_signal(signal.SIGHUP)
    until(lambda: os.path.exists(own))
    time.sleep(0.3)  # until the old worker takes no connections
    s.post(TEXT + "?secret=query", s.completion("a prompt with the word marmalade", max_tokens=2),
           headers={"X-Request-Id": "watched-1", "User-Agent": 'a "quoted" agent'})
    s.stream("/v1/chat/completions", s.chat("marmalade", max_tokens=4))
    s.request("POST", TEXT, {"prompt": "marmalade"}, headers={"Authorization": "Bearer sk-wrong"})
    for path in ("/health", "/metrics", "/ui/"):
        s.get(path)

    def lines():
        with open(own) as f:
            return f.read().splitlines()
    until(lambda: len(lines()) >= 3)
    rows = [json.loads(x) for x in lines()]
    tap.eq([(r["path"], r["status"], r["tenant"], r["method"]) for r in rows],
           [(TEXT, 200, "tenant0", "POST"), ("/v1/chat/completions", 200, "tenant0", "POST"),
            (TEXT, 401, "", "POST")], "the log: one JSON object a request, but for what asks all the time")
    tap.ok(rows[0]["request_id"] == "watched-1" and rows[0]["user_agent"] == 'a "quoted" agent' and
           # nginx counts both in milliseconds, from clocks that it reads at different times
           rows[0]["seconds"] + 0.005 >= float(rows[0]["first_byte_seconds"]) >= 0 and
           rows[0]["complete"] == "OK",
           "with its id, agent and times", rows[0])
    whole = "\n".join(lines())
    tap.eq([w for w in ("marmalade", "secret", key(0), "sk-wrong", "Bearer") if w in whole], [],
           "no prompt, no query, no key is in it")


with tap.section("watch"), Stack(n_fronts=1, host="8M", store=True, engine=[
        "--max-num-seqs", "2", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']) as s:
    work(s)
    series = series_of(s)
    board, rules = dashboard_queries(), rule_queries()
    wrong = [(name, expr, w) for name, expr, shown in board + rules for w in wrong_in(expr, shown, series)]
    tap.eq(wrong, [], "the server has every metric and label of %d panels' queries and %d alerts" %
           (len(board), len(rules)))
    for bad, why in (("sum(vllm:none)", "no metric"), ('quire:kv_pages{tier="x"}', "no label"),
                     ('sum by (tier) (quire:kv_pages)', "no label"),
                     ('quire:kv_pages_retained{tier="tape"}', "is never")):
        tap.ok(any(why in w for w in wrong_in(bad, "", series)), "it would say: %s" % why, bad)
    used = {m for _, expr, _ in board for m, _ in take_apart(expr)[0]}
    tap.ok(len(used) >= 40, "the dashboard shows %d metrics" % len(used), sorted(used))
    by_prometheus(s, board)
    log(s)
with tap.section("alerts"):
    alerts()
tap.done()
