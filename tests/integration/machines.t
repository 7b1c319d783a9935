#!/usr/bin/env python3
"""nginx/quire-machines.conf: two whole servers behind one nginx, which sends equal keys to the same
one, passes over one that is gone or full, and lets streams through as they come. The servers are on
this machine and are reached over their unix sockets, without TLS; all else is the file's."""

import os
import re
import subprocess
import threading

from harness import SRCDIR, STORY, Stack, Supervised, Tap, find_nginx, need_nginx, until

need_nginx()
tap = Tap()
PATH = "/v1/completions"


class Machines(Stack):
    """Its requests go to an nginx before two other stacks."""

    def __init__(self, of):
        super().__init__(nginx=False, start_engine=False, n_fronts=0)
        self.of = of
        with open(os.path.join(SRCDIR, "nginx", "quire-machines.conf")) as f:
            text = f.read()
        for i, s in enumerate(of):
            text = text.replace("server llm%d.example.org:443" % (i + 1), "server unix:" + s.socket)
        text = text.replace("proxy_pass https:", "proxy_pass http:")
        text = re.sub(r"\n *(ssl_|proxy_ssl_|listen \[)[^\n]*", "", text)
        text = text.replace("listen 443 ssl http2;", "listen unix:%s;" % self.socket)
        self.conf = self.path("machines.conf")
        with open(self.conf, "w") as f:
            f.write(("user root;\n" if os.getuid() == 0 else "") +
                    "daemon off; pid %s/pid; error_log %s/nginx-error.log; worker_processes 1;\n"
                    "events {}\nhttp { access_log off; client_body_temp_path %s/b; "
                    "proxy_temp_path %s/p; fastcgi_temp_path %s/f; uwsgi_temp_path %s/u; "
                    "scgi_temp_path %s/s;\n%s}\n" % ((self.dir,) * 7 + (text,)))
        self.nginx = Supervised([find_nginx(), "-p", self.dir, "-e", self.path("nginx-error.log"),
                                 "-c", self.conf], self.path("nginx.log"), restart=False)
        if not until(lambda: os.path.exists(self.socket) and self._nginx_listens(), 10):
            raise RuntimeError("nginx does not start:\n" + self.logs())

    def ask(self, prompt, prefix_key=None, **fields):
        headers = {"X-Prefix-Key": prefix_key} if prefix_key else {}
        return self.post(PATH, self.completion(prompt, max_tokens=1, **fields), headers=headers)


def asked(s):
    return s.metric("vllm:prompt_tokens_total")


def counts(machines, work):
    """Prompt tokens that each machine got by work()."""
    before = [asked(s) for s in machines.of]
    work()
    return [int(asked(s) - b) for s, b in zip(machines.of, before)]


with Stack(n_fronts=1) as one, Stack(n_fronts=1, engine=["--max-num-seqs", 1,
                                                         "--max-num-queued-reqs", 1]) as two, \
        Machines([one, two]) as m:
    check = subprocess.run([find_nginx(), "-t", "-p", m.dir, "-c", m.conf], capture_output=True,
                           text=True)
    tap.ok("warn" not in check.stderr and check.returncode == 0, "nginx takes the file",
           check.stderr)

    home = {}
    for i in range(16):
        got = counts(m, lambda: [m.ask("%d. %s" % (i, STORY), "chat-%d" % i) for _ in range(3)])
        tap.ok(0 in got and sum(got) > 0, "key %d: all requests go to one machine: %s" % (i, got))
        home[i] = got.index(0) ^ 1
        r = m.ask("%d. %s And then?" % (i, STORY), "chat-%d" % i)
        tap.ok(r.json["usage"]["prompt_tokens_details"]["cached_tokens"] > 100,
               "which has the prefix: %s" % r.json["usage"])
    tap.ok(set(home.values()) == {0, 1}, "keys are shared out: %s" % home)
    got = counts(m, lambda: [m.ask("No key %d" % i) for i in range(6)])
    tap.ok(0 in got, "without the header a client's requests stay together: %s" % got)

    told = m.stream(PATH, m.completion("Count", max_tokens=50, ignore_eos=True))
    # On a busy machine an event has several tokens.
    tap.ok(told.done and len(told.events) > 2, "a stream comes event by event: %d" %
           len(told.events))
    tap.eq([m.request(*a).status for a in (("GET", "/metrics"), ("GET", "/admin/cache"),
                                           ("POST", "/sleep"), ("POST", "/reset_prefix_cache"))],
           [404] * 4, "what concerns one machine is not asked of any")
    tap.eq(m.get("/v1/models").status, 200, "the rest passes")
    r = m.request("GET", "/v1/models", headers={"Authorization": "Bearer wrong"})
    tap.eq(r.status, 401, "keys are checked by the machines")

    # Machine two runs one request and lets one wait: what it refuses the other takes.
    mine = next(i for i in home if home[i] == 1)
    other = next(i for i in home if home[i] == 0)
    long = two.completion("Count", max_tokens=1900, ignore_eos=True)
    slow = two.open_stream(PATH, long)
    slow.response.readline()
    waits = threading.Thread(target=two.post, args=(PATH, long), daemon=True)
    waits.start()
    if until(lambda: two.metric("vllm:num_requests_waiting") == 1, 5):
        got = counts(m, lambda: tap.eq(m.ask("Full", "chat-%d" % mine).status, 200,
                                       "a full machine's request is taken by the other"))
        tap.ok(got[0] > 0, "it was that one: %s" % got)
    else:
        tap.skip("a full machine's request is taken by the other", "it was not full")
    slow.close()
    waits.join(60)
    two.idle()

    # A machine that is gone.
    two.nginx.stop()
    for i in (other, mine):
        tap.eq(m.ask("Gone", "chat-%d" % i).status, 200,
               "with one machine gone key %d is served" % i)
    two._start_nginx()
    tap.ok(until(lambda: counts(m, lambda: m.ask("Back", "chat-%d" % mine))[1] > 0, 30, 0.3),
           "when it is back its keys return to it")
    got = counts(m, lambda: [m.ask("%d." % i, "chat-%d" % i) for i in home if home[i] == 0])
    tap.eq(got[1], 0, "and no others")
tap.eq(one.leftovers + two.leftovers, [], "every process followed SIGTERM")
tap.done()
