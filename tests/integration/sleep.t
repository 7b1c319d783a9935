#!/usr/bin/env python3
"""An engine without requests gives the device's memory back and uses no CPU; the next request wakes
it, gets the same text, and finds its prefix in a lower tier. What cannot sleep stays awake, what
cannot wake refuses with 503 and lives on; SIGTERM and kill -9 find it asleep or waking."""

import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import (BUILDDIR, DEVICE, LONG, MODEL, STORY, Stack, Tap, cpu_seconds, crowd, draw_seed,
                     need_nginx, until)

need_nginx()
tap = Tap()
cpu = DEVICE == "cpu"
path = "/v1/completions" if cpu else "/v1/chat/completions"
draw_seed(tap)

N = 5
SLEEPY = ["--sleep-after-s", "1", "--max-model-len", "400"]


def body(s, i, **fields):
    # Drawn, where equal logits are equal bits: a text then tells of every one of them. A GPU's bits
    # depend on the step, so there it is asked what it knows well.
    if cpu:
        return dict(s.completion("%d. %s" % (i, STORY[3 * i:]), max_tokens=16, ignore_eos=True,
                                 seed=i, **fields), temperature=1)
    return s.chat("Story %d. %s What did the fox carry?" % (i, STORY[3 * i:]), max_tokens=8,
                  **fields)


def ask(s, i, **fields):
    """Text and cached tokens; status and error's code for what is no answer."""
    r = s.post(path, body(s, i, **fields))
    if r.status != 200:
        return r.status, r.error["code"]
    c = r.json["choices"][0]
    return (c["text"] if cpu else c["message"]["content"],
            r.json["usage"]["prompt_tokens_details"]["cached_tokens"])


def is_asleep(s):
    return s.is_sleeping()


def falls_asleep(s, timeout_s=20):
    return until(lambda: is_asleep(s), timeout_s)


def status_mib(s, name):
    with open("/proc/%d/status" % s.engine.pid) as f:
        for line in f:
            if line.startswith(name + ":"):
                return int(line.split()[1]) / 1024
    return 0.0


def may_have(s, mib):
    """The real thing: the kernel gives this process no more memory of its own. None: as much as it
    wants."""
    limit = resource.RLIM_INFINITY if mib is None else int(mib * 1048576)
    resource.prlimit(s.engine.pid, resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def starve(s):
    may_have(s, status_mib(s, "VmData") + 2)


with tap.section("what it says when it never sleeps"), Stack() as s:
    want = [ask(s, i)[0] for i in range(N)]
    tap.ok(not cpu or len(set(want)) == N, "texts differ", want)
    tap.eq(is_asleep(s), False, "an engine sleeps only with the setting")
    tap.eq(s.get("/health").json, {}, "/health has nothing to add")

with tap.section("asleep and awake"), Stack(engine=SLEEPY, host="64M") as s:
    pid = s.engine.pid
    for turn in range(3):
        got = [ask(s, i) for i in range(N)]
        tap.eq([t for t, _ in got], want, "the same text (%d)" % turn)
        if turn > 0:
            tap.ok(all(c > 100 for _, c in got), "its prefixes were kept", got)
        awake_mib, awake_bytes = status_mib(s, "RssAnon"), s.metric("quire:device_memory_bytes")
        tap.ok(falls_asleep(s), "it falls asleep", s.logs())
        if cpu:
            tap.ok(status_mib(s, "RssAnon") < awake_mib - 18,
                   "memory of its own: %.0f MiB, asleep %.0f" % (awake_mib, status_mib(s, "RssAnon")))
        tap.ok(s.metric("quire:device_memory_bytes") < awake_bytes / 2, "of the device: %.0f MiB, asleep %.0f"
               % (awake_bytes / 2 ** 20, s.metric("quire:device_memory_bytes") / 2 ** 20))
        tap.eq(s.metric("quire:kv_pages_cached"), 0, "no page of the device has a name")
    m = s.metrics()
    tap.eq([m['vllm:engine_sleep_state{model_name="demo",engine="0",sleep_state="%s"}' % state]
            for state in ("awake", "weights_offloaded")], [0, 1], "metrics say so")
    h = s.get("/health")
    tap.eq((h.status, h.json), (200, {"state": "asleep"}), "/health is 200 and says so")
    tap.eq(s.get("/health?deep=1").json, {"state": "asleep"}, "a deep one as well")
    top = subprocess.run([os.path.join(BUILDDIR, "quire"), "top", "--once", "--seconds", "0.2",
                          "--engine-socket", s.engine_socket], capture_output=True, text=True)
    tap.ok("asleep" in top.stdout, "quire top as well", top.stdout)
    time.sleep(0.5)
    before = cpu_seconds(pid)
    time.sleep(3)
    used = cpu_seconds(pid) - before
    tap.ok(used <= 0.03, "it uses %.0f ms of CPU in 3 s" % (used * 1e3))
    tap.eq(is_asleep(s), True, "none of this woke it")
    hits = s.metric("quire:host_prefix_cache_hits_total")
    tap.eq(ask(s, 0)[0], want[0], "the next request does")
    tap.ok(s.metric("quire:host_prefix_cache_hits_total") - hits > 100,
           "its prefix comes from host memory")
    tap.eq((is_asleep(s), s.get("/health").json), (False, {}), "awake")
    tap.eq(s.metric("quire:engine_wake_seconds_count"), 3, "three times")
    tap.note("%.3f s each" % (s.metric("quire:engine_wake_seconds_sum") / 3))
    tap.eq((s.engine.pid, s.engine.exits), (pid, []), "the same process all the time")

with tap.section("without a lower tier"), Stack(engine=SLEEPY) as s:
    tap.eq(ask(s, 0)[0], want[0], "the text")
    tap.ok(ask(s, 0)[1] > 100, "its prefix is on the device")
    tap.ok(falls_asleep(s), "it falls asleep")
    tap.eq(ask(s, 0), (want[0], 0), "the same text, computed anew")

with tap.section("the disk alone"), Stack(engine=SLEEPY, store=True) as s:
    first = [ask(s, i)[0] for i in range(N)]
    tap.ok(falls_asleep(s), "it falls asleep")
    got = [ask(s, i) for i in range(N)]
    tap.eq([t for t, _ in got], want, "the same text")
    # The rest only while the disk is quicker than computing.
    tap.ok(got[0][1] > 100, "the first prefix comes from the disk", got)

with tap.section("a probe is no request"), Stack(engine=SLEEPY) as s:
    def probed():
        s.get("/health?deep=1")
        time.sleep(0.2)
        return is_asleep(s)
    tap.ok(until(probed, 15), "it falls asleep beside deep looks at its health")

with tap.section("a crowd at its bed"), Stack(engine=SLEEPY, host="64M") as s:
    for turn in range(2):
        tap.ok(falls_asleep(s), "it sleeps")
        got = crowd(40, lambda i: ask(s, i % N)[0])
        tap.eq(got, [want[i % N] for i in range(40)], "40 at once are all served")
    tap.eq(s.metric("quire:engine_wake_seconds_count"), 2, "it woke once for all")
    tap.ok(s.idle(), "nothing is left")

with tap.section("to and fro"), tempfile.TemporaryDirectory() as large:
    # Requests at the moments when it is about to sleep, falls asleep, or has just done so. On a cpu
    # with more layers, of random weights, so that both take a while.
    os.chmod(large, 0o755)
    for name in os.listdir(MODEL):
        if name != "model.safetensors":
            shutil.copy(os.path.join(MODEL, name), large)
    with open(os.path.join(large, "config.json")) as f:
        config = dict(json.load(f), num_hidden_layers=60)
    with open(os.path.join(large, "config.json"), "w") as f:
        json.dump(config, f)
    dummy = ["--model", large, "--load-format", "dummy", "--cpu-kv-bytes", "1G"]
    with Stack(engine=SLEEPY + (dummy if cpu else []), host="1G", store=True) as s:
        texts = [ask(s, i)[0] for i in range(N)]

        bad = []
        for turn in range(10 if LONG else 5):
            time.sleep(1 + random.uniform(-0.02, 0.2))
            for k in random.sample(range(N), random.choice((1, 2))):
                text = ask(s, k)[0]
                if text != texts[k]:
                    bad.append((text, texts[k]))
        tap.eq(bad, [], "each answer is the right one")
        n_slept = s.engine.said().count("asleep:")
        tap.note("it slept %d times, and woke in %.3f s" % (n_slept, s.metric(
            "quire:engine_wake_seconds_sum") / max(1, n_slept)))
        tap.eq(s.engine.exits, [], "the engine lives")
        tap.ok(s.idle(), "nothing is left")

if cpu:
    with tap.section("others have the memory"), \
            Stack(engine=SLEEPY + ["--wake-timeout-s", "4"], front=["--health-stall-s", "2"],
                  host="256M") as s:
        pid = s.engine.pid
        ask(s, 0)
        tap.ok(falls_asleep(s), "it sleeps")
        starve(s)
        began = time.monotonic()
        took = []

        def wants(i):
            if i == 0:
                out = ask(s, 0)
            elif i == 1:
                out = ask(s, 1, timeout_s=1)
            elif i == 2:
                try:  # a client that does not wait
                    s.post(path, body(s, 2), timeout=0.5)
                except OSError:
                    pass
                out = None
            elif i == 3:
                told = s.stream(path, body(s, 3))
                out = told.status, told.error["code"]
            else:
                time.sleep(3)
                h = s.get("/health")
                out = h.status, h.error["message"]
            took.append((i, time.monotonic() - began))
            return out
        got = crowd(5, wants)
        took = dict(took)
        tap.eq(got[0], (503, "engine_asleep"), "a request that waited for wake_timeout_s gets 503")
        tap.ok(took[0] > 3.8, "after that time (%.1f s)" % took[0])
        tap.eq(got[1], (504, "timeout"), "one with a time of its own gets 504")
        tap.ok(0.8 < took[1] < took[0], "after that (%.1f s)" % took[1])
        tap.eq(got[3], (503, "engine_asleep"), "a stream gets 503 before its first byte")
        tap.ok(got[4][0] == 503 and "memory" in got[4][1], "/health was 503 and said why", got[4])
        tap.ok("cannot wake" in s.engine.said(), "so does the log")
        tap.ok(s.engine.said().count("cannot wake") <= 2, "now and then")
        tap.ok(s.idle(), "no request waits")
        tap.ok(until(lambda: s.get("/health").json == {"state": "asleep"}, 10),
               "it sleeps on, and is healthy")
        tap.eq(s.metric("quire:requests_rejected_total"), 3, "three were refused")

        def late(i):
            if i == 0:
                return ask(s, 0)
            time.sleep(1.5)
            may_have(s, None)
            return None
        got = crowd(2, late)[0]
        tap.eq(got[0], want[0], "memory that comes free in time is taken")
        tap.ok(got[1] > 100, "the prefix is still in host memory")
        tap.eq((s.engine.pid, s.engine.exits), (pid, []), "the same process all the time")

        # SIGTERM while a request waits for it to wake: the next engine has memory.
        tap.ok(falls_asleep(s), "it sleeps again")
        starve(s)

        def ended(i):
            if i == 0:
                return ask(s, 0)
            time.sleep(1)
            s.engine.kill(signal.SIGTERM)
            time.sleep(0.5)
            s.engine.kill(signal.SIGTERM)  # twice: now
            return None
        got = crowd(2, ended)[0]
        tap.eq(got[0], want[0], "SIGTERM while waking: requests that waited are served by the next engine")
        tap.ok(got[1] > 100, "from host memory")
        tap.eq(s.engine.exits, [0], "the first ended with 0")

    # Another is awake when it starts.
    with tap.section("no memory at the start"), Stack(engine=SLEEPY) as s:
        # Not enough for its pages; plenty for its libraries, which end a process that lacks it.
        mib = status_mib(s, "VmData") - 100
        s.engine.hold()
        s.engine.kill(signal.SIGTERM)
        until(lambda: not s.engine.alive(), 10)
        s.engine.argv = ["prlimit", "--data=%d:unlimited" % (mib * 1048576)] + s.engine.argv
        s.engine.release()
        waits = lambda: s.engine.said().count("others may have the memory")
        tap.ok(until(lambda: waits() >= 1, 10), "it waits for memory", s.logs())
        s.engine.kill(signal.SIGTERM)
        tap.ok(until(lambda: len(s.engine.exits) == 2, 3), "SIGTERM ends that")
        tap.eq(s.engine.exits, [0, 0], "with 0")
        tap.ok(until(lambda: waits() >= 2, 10), "the next waits too")
        may_have(s, None)
        tap.ok(until(lambda: s.get("/health").status == 200, 15), "with memory there it starts")
        tap.eq(ask(s, 0)[0], want[0], "and says the same")
        tap.eq(s.engine.exits, [0, 0], "without another start")

    # While it wakes, requests that will run at once do not count as a queue.
    with tap.section("a crowd that waits"), \
            Stack(engine=SLEEPY + ["--max-num-queued-reqs", "4"]) as s:
        tap.ok(falls_asleep(s), "it sleeps")
        starve(s)

        def one_of_many(i):
            if i < 40:
                return ask(s, i % N)[0]
            waiting = until(lambda: s.metric("vllm:num_requests_waiting") == 40, 10)
            may_have(s, None)
            return waiting
        got = crowd(41, one_of_many)
        tap.eq(got.pop(), True, "40 wait, though 4 may when it is awake")
        tap.eq(got, [want[i % N] for i in range(40)], "and all are served")

with tap.section("SIGTERM and kill -9"), Stack(engine=SLEEPY, host="64M") as s:
    for sig in (signal.SIGTERM, signal.SIGKILL):
        before = [ask(s, i)[0] for i in range(N)]
        tap.ok(falls_asleep(s), "it sleeps")
        pid = s.engine.pid
        s.engine.kill(sig)
        tap.ok(until(lambda: s.engine.pid != pid), "%s ends it" % sig.name)
        got = [ask(s, i) for i in range(N)]
        tap.eq(([t for t, _ in got], before), (want, want), "the next says the same")
        tap.ok(all(c > 100 for _, c in got), "and has all prefixes", got)
    tap.eq(s.engine.exits, [0, -signal.SIGKILL], "the first ended with 0")
    tap.eq(s.metric("quire:host_page_faults_total"), 0, "no page was damaged")

with tap.section("faults"):
    for fault, said, sleeps in (("device_sleep:1+", "cannot sleep", False),
                                ("device_sleep:1", "cannot sleep", True),
                                ("device_wake:1", "cannot wake", True),
                                ("device_wake:2", "", True)):
        with Stack(engine=SLEEPY, host="64M", env={"QUIRE_FAULT": fault}) as s:
            texts = []
            for turn in range(2):
                texts += [ask(s, i)[0] for i in range(2)]
                slept = falls_asleep(s, 15 if sleeps else 2)
                tap.eq(bool(slept), sleeps, "%s: %s" % (fault, "sleeps" if sleeps else "stays awake"))
            texts += [ask(s, i)[0] for i in range(2)]
            tap.eq(texts, 3 * want[:2], fault + ": the same text")
            tap.ok(said in s.engine.said(), fault + ": the log says so")
            tap.eq(s.engine.exits, [], fault + ": the engine lives")

with tap.section("copies that never end"), \
        Stack(engine=SLEEPY, host="64M", env={"QUIRE_FAULT": "copy_stuck:1+"}) as s:
    del s.engine.env["QUIRE_FAULT"]  # the next one's device works
    tap.eq(ask(s, 0)[0], want[0], "copies are stuck: the same text")
    tap.ok(until(lambda: s.engine.exits, 15), "it does not wait for them without end", s.logs())
    tap.ok("pages are not saved" in s.engine.said(), "and says so")
    tap.eq(ask(s, 0)[0], want[0], "the next says the same")
    tap.ok(falls_asleep(s), "and sleeps")
    tap.eq(s.engine.exits, [3], "the first ended as one whose device failed")

with tap.section("systemd's watchdog"):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        name = "\0quire-sleep-%d" % os.getpid()
        notify.bind(name)
        notify.settimeout(0.5)
        env = {"NOTIFY_SOCKET": "@" + name[1:], "WATCHDOG_USEC": "3000000"}
        with Stack(engine=SLEEPY, env=env) as s:
            heard = []
            stop = threading.Event()

            def listen():
                while not stop.is_set():
                    try:
                        heard.append((time.monotonic(), notify.recv(4096).decode()))
                    except socket.timeout:
                        pass
            listener = threading.Thread(target=listen, daemon=True)
            listener.start()
            tap.ok(falls_asleep(s), "it sleeps")
            time.sleep(5)
            stop.set()
            listener.join()
            beats = [t for t, text in heard if "WATCHDOG=1" in text]
            gaps = [b - a for a, b in zip(beats, beats[1:])]
            tap.ok(len(beats) > 2 and max(gaps) < 3, "it feeds the watchdog asleep too", gaps)
            tap.ok(any("STATUS=asleep" in text for _, text in heard), "and tells systemd", heard)

if cpu:
    with tap.section("two models on one machine"), Stack(engine=SLEEPY, host="64M") as a, \
            Stack(engine=SLEEPY, host="64M") as b:
        # What is not the device's stays; so measured from an engine that sleeps.
        tap.ok(falls_asleep(a) and falls_asleep(b), "both sleep")
        rest_mib = [status_mib(s, "RssAnon") for s in (a, b)]
        weights_mib, most = 0.0, 0.0
        for turn in range(2):
            for s, other in ((a, b), (b, a)):
                tap.ok(falls_asleep(other), "the one sleeps")
                tap.eq(ask(s, turn)[0], want[turn], "while the other speaks")
                both = status_mib(a, "RssAnon") + status_mib(b, "RssAnon") - sum(rest_mib)
                most = max(most, both)
                weights_mib = min(weights_mib or both, both)
        tap.ok(10 < weights_mib and most < 25,
               "%.0f to %.0f MiB for a model of 10 and its pages, never for two" % (weights_mib, most))
else:
    with tap.section("two models on one GPU"), \
            Stack(engine=SLEEPY + ["--gpu-memory-utilization", "0.6"], host="256M") as a:
        tap.ok(falls_asleep(a), "the one sleeps")
        with Stack(engine=SLEEPY + ["--gpu-memory-utilization", "0.6"], host="256M") as b:
            for turn in range(3):
                for s, other in ((a, b), (b, a)):
                    tap.ok(falls_asleep(other), "the one sleeps")
                    tap.eq(ask(s, turn)[0], want[turn], "while the other speaks")
            # Both at once: one waits until the other has been idle.
            tap.ok(falls_asleep(a) and falls_asleep(b), "both sleep")
            got = crowd(2, lambda i: ask((a, b)[i], i)[0])
            tap.eq(got, want[:2], "asked at the same time both answer in the end")

# An operator says when. It never sleeps by itself.
with tempfile.NamedTemporaryFile("w", suffix=".key") as key_file:
    key_file.write("an-operators-own-key-0123456789\n")
    key_file.flush()
    os.chmod(key_file.name, 0o644)

    def order(s, call, key="an-operators-own-key-0123456789"):
        r = s.request("POST", call, None, headers={"Authorization": "Bearer " + key})
        return r.status, r.json

    with tap.section("an operator says when"), \
            Stack(engine=["--sleep-after-s", "31536000", "--max-model-len", "400"], host="64M",
                  front=["--admin-key-file", key_file.name]) as s:
        tap.eq(ask(s, 0)[0], want[0], "the same text")
        tap.eq(order(s, "/sleep", "guess")[0], 401, "a wrong key is refused")
        tap.eq(order(s, "/sleep?level=1"), (200, {"is_sleeping": True}), "it is told to sleep")
        tap.ok(is_asleep(s), "and sleeps when it says so")
        tap.eq(order(s, "/sleep"), (200, {"is_sleeping": True}), "told again it sleeps on")
        tap.eq(order(s, "/wake_up"), (200, {"is_sleeping": False}), "it is woken")
        tap.ok(not is_asleep(s), "and is awake when it says so")
        tap.eq(order(s, "/wake_up"), (200, {"is_sleeping": False}), "told again it stays awake")
        tap.eq(ask(s, 0)[0], want[0], "the same text")
        got = crowd(8, lambda i: order(s, "/sleep" if i % 2 else "/wake_up")[0])
        tap.ok(set(got) <= {200, 409, 503}, "many at once are each answered", got)
        tap.eq(ask(s, 1)[0], want[1], "and a request wakes it as ever")
        busy = s.open_stream("/v1/completions",
                             s.completion("Count", max_tokens=300, ignore_eos=True,
                                          stream_options={"include_usage": True}))
        busy.response.readline()
        tap.eq([order(s, "/sleep")[0], order(s, "/sleep")[1]["error"]["code"]],
               [409, "engine_busy"], "one that is at work does not sleep")
        events = list(busy)  # tokens that waited for their reader share one
        tap.eq((events[-1]["usage"]["completion_tokens"], busy.done), (300, True),
               "and is not disturbed")
        errors = {k: v for k, v in s.metrics().items()
                  if k.startswith("vllm:request_success_total") and "error" in k}
        tap.eq(sum(errors.values()), 0, "an operator's order in vain is no failed request")
    with tap.section("an operator's word and copies that never end"), \
            Stack(engine=["--sleep-after-s", "31536000", "--max-model-len", "400"], host="64M",
                  front=["--admin-key-file", key_file.name],
                  env={"QUIRE_FAULT": "copy_stuck:1+"}) as s:
        del s.engine.env["QUIRE_FAULT"]
        tap.eq(ask(s, 0)[0], want[0], "the same text")
        tap.eq(order(s, "/sleep"), (200, {"is_sleeping": True}), "the next engine follows it")
        tap.eq(s.engine.exits, [3], "when the first could not")
    with tap.section("never"), Stack(front=["--admin-key-file", key_file.name]) as s:
        tap.eq(order(s, "/sleep")[1]["error"]["code"], "sleep_unavailable",
               "without sleep_after_s there is no sleep")
        tap.eq(order(s, "/wake_up")[0], 200, "to wake an engine that is awake is no error")
tap.done()
