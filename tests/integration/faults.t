#!/usr/bin/env python3
"""Whatever breaks beneath, a client gets the right text or a clean error: the engine dies at
every step in turn and at random moments, the page store fails and is damaged on disk, requests
are lost in a front."""

import ctypes
import glob
import os
import random
import subprocess
import tempfile
import time

from harness import BUILDDIR, LONG, Stack, Tap, crowd, need_nginx, until

need_nginx()
tap = Tap()
chat = "/v1/chat/completions"
HELLO = "Hello! How can I help you today?"
usage = {"stream_options": {"include_usage": True}}
long_prompt = "Remember this. " + " ".join("Item %d is a lantern." % i for i in range(60))


def whole_or_error(want, t):
    """A stream that ended as it should, or said what was wrong."""
    if t.error is not None:
        return t.error["type"] == "server_error" and not t.done
    return t.done and t.text == want.text and t.finish == want.finish and \
        t.usage["completion_tokens"] == want.usage["completion_tokens"]


with Stack() as s:
    bodies = [s.chat("Hello", max_tokens=40, **usage),
              s.chat("Count from 1 to 20.", max_tokens=30, **usage),
              s.chat("Tell me a short story.", max_tokens=25, seed=9, temperature=1, **usage)]
    wants = [s.stream(chat, b) for b in bodies]
    tap.ok(all(w.done for w in wants), "undisturbed")

with tap.section("engine dies at step N"):
    ended = 0
    for step in (2, 5, 9, 10, 11, 14, 20, 31):
        with Stack(n_fronts=1, env={"QUIRE_FAULT": "engine_step:%d" % step}) as s:
            told = [s.stream(chat, b) for b in bodies]
            good = [whole_or_error(w, t) for w, t in zip(wants, told)]
            ended += sum(t.done for t in told)
            tap.ok(all(good) and s.engine.exits, "every life ends at step %d" % step,
                   [(t.text, t.error, t.broken, t.finish) for t in told])
    tap.ok(ended >= 10, "%d of 24 streams got through" % ended)

with tap.section("engine dies between a text's last token and its end"):
    for n in (1, 2):
        with Stack(n_fronts=1, env={"QUIRE_FAULT": "engine_end:%d" % n}) as s:
            for b, w in zip(bodies, wants):
                t = s.stream(chat, b)
                tap.ok(t.done and t.text == w.text and t.finish == w.finish and
                       t.usage["completion_tokens"] == w.usage["completion_tokens"],
                       "the text ends as it should", (t.text, t.error, t.finish, t.usage))
            tap.ok(len(s.engine.exits) >= 1, "the engine did die")

with tap.section("kills at random moments"), Stack(store=True) as s:
    seed = int(os.environ.get("SEED", "1"))
    tap.note("SEED=%d" % seed)
    dice = random.Random(seed)
    began = time.monotonic()
    n_good, n_error, bad = [0], [0], []

    def over():
        """After 5 s (10 in a long run), when both have happened: on a busy machine streams take
        longer."""
        age = time.monotonic() - began
        return age > 90 or (age > (10 if LONG else 5) and n_good[0] > 10 and len(s.engine.exits) > 5)

    def work(i):
        if i == 0:
            while not over():
                time.sleep(dice.uniform(0.05, 0.6) * (1 + (time.monotonic() - began) / 10))
                until(s.engine.alive, 5)
                try:
                    s.engine.kill()
                except ProcessLookupError:
                    pass  # it had not come back
            return
        k = i
        while not over():
            k = (k + 1) % len(bodies)
            t = s.stream(chat, bodies[k])
            if not whole_or_error(wants[k], t):
                bad.append((t.status, t.text, t.error, t.broken, t.finish, t.done))
            n_good[0] += t.done
            n_error[0] += not t.done
    crowd(7, work, 150)
    tap.eq(bad[:3], [], "every answer is whole or a clean error")
    tap.note("%d kills; %d streams whole, %d with an error" % (len(s.engine.exits), n_good[0],
                                                             n_error[0]))
    tap.ok(n_good[0] > 10 and len(s.engine.exits) > 5, "both happened")
    tap.ok(until(lambda: s.get("/health").status == 200) and s.idle(), "it settles")
    tap.eq(s.metric("vllm:kv_cache_usage_perc"), 0, "no page leaks")
    tap.ok(all(f.exits == [] for f in s.fronts), "no front died")
    r = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump"), "--verify", "--summary", s.store_dir],
                       capture_output=True, text=True, timeout=30)
    tap.eq(r.returncode, 0, "lmdb-dump --verify beside the running engine finds no damage")

for fault in ("store_write:1+", "store_read:1+", "store_commit:1+", "store_write:3", "store_read:2",
              "lane_create:1", "front_accept:3"):
    with tap.section(fault), Stack(store=True, env={"QUIRE_FAULT": fault}) as s:
        first = None
        for life in range(2):
            for _ in range(3):
                r = s.post(chat, s.chat(long_prompt, max_tokens=8))
                if fault == "front_accept:3" and r.status != 200:
                    time.sleep(1.1)  # nginx's own answer: the front closed on it and is left
                    continue         # out for a second, perhaps both are
                first = first or r.json["choices"]
                if r.json["choices"] != first:
                    tap.ok(False, fault + ": the same answer", r.text)
            if life == 0:
                s.engine.kill(15)
                until(lambda: len(s.engine.exits) > 0)
        tap.ok(first is not None, fault + ": served in both lives")
        tap.eq(s.engine.exits, [0], fault + ": the engine ended once, properly")

with tap.section("a damaged store"), Stack(store=True) as s:
    first = s.post(chat, s.chat(long_prompt, max_tokens=8)).json["choices"]
    for how in ("bytes of the pages", "the pages cut", "bytes of the index", "the index cut",
                "an empty index", "no index"):
        s.engine.hold()
        s.engine.kill(15)
        before = len(s.engine.exits)
        until(lambda: not s.engine.alive())
        index = glob.glob(os.path.join(s.store_dir, "**", "data.mdb"), recursive=True)
        pages = [p for p in glob.glob(os.path.join(s.store_dir, "**"), recursive=True)
                 if os.path.isfile(p) and not p.endswith(".mdb")]
        for path in (index if "index" in how else pages):
            size = os.path.getsize(path)
            if how.startswith("bytes"):
                with open(path, "r+b") as f:
                    for at in range(100, size, max(512, size // 4000)):
                        f.seek(at)
                        f.write(b"\xa5\x5a\xff")
            elif how.endswith("cut"):
                os.truncate(path, size // 3)
            elif how.startswith("an empty"):
                os.truncate(path, 0)
            else:
                os.remove(path)
        exits = len(s.engine.exits)
        s.engine.release()
        r = s.post(chat, s.chat(long_prompt, max_tokens=8))
        tap.ok(r.status == 200 and r.json["choices"] == first, how + ": the right answer",
               r.text[:300] + "\n" + s.logs(8))
        tap.eq(s.post(chat, s.chat("Hello", max_tokens=20)).status, 200, how + ": it serves")
        tap.note("%s: %d cached, %d faults, %d deaths" % (
            how, r.json.get("usage", {}).get("prompt_tokens_details", {}).get("cached_tokens", -1),
            s.metric("quire:store_page_faults_total"), len(s.engine.exits) - exits))
    tap.eq([e for e in s.engine.exits if e != 0], [], "no engine died of it")


def small_disk(folder, size):
    """Mount a tmpfs that this thread and what it starts see, and no others; False: not permitted."""
    if ctypes.CDLL(None).unshare(0x20000) != 0:  # CLONE_NEWNS
        return False
    return all(subprocess.run(argv, capture_output=True).returncode == 0 for argv in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "-o", "size=%d" % size, "none", folder]))


def fill_disk(folder, left):
    """Leave so many bytes free, or, None, all that is not the store's."""
    filler = os.path.join(folder, "filler")
    if os.path.exists(filler):
        os.unlink(filler)
    if left is not None:
        with open(filler, "wb") as f:
            v = os.statvfs(folder)
            os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_frsize - left)


def end_engine(s):
    n = len(s.engine.exits)
    s.engine.hold()
    s.engine.kill(15)
    until(lambda: len(s.engine.exits) > n)


with tempfile.TemporaryDirectory(prefix="quire-t-disk-") as disk:
    store = os.path.join(disk, "store")
    if not small_disk(disk, 64 << 20):
        tap.skip("a full disk", "this process may not mount a tmpfs")
    else:
        with tap.section("a full disk"), Stack(engine=[
                "--kv-store-dir", store, "--kv-store-bytes", "32M",
                "--kv-store-reserve-bytes", "0"]) as s:
            want = s.post(chat, s.chat(long_prompt, max_tokens=8)).json["choices"]
            end_engine(s)
            for left in (0, 4096, 8192, 49152, 65536, 131072, None):
                name = "%s bytes free" % left
                fill_disk(disk, left)
                for life in range(2):
                    s.engine.release()
                    r = s.post(chat, s.chat(long_prompt, max_tokens=8))
                    tap.ok(r.status == 200 and r.json["choices"] == want, name + ": the right answer",
                           r.text[:300] + "\n" + s.logs(8))
                    cached = r.json["usage"]["prompt_tokens_details"]["cached_tokens"]
                    tap.ok(cached >= 64, name + ": from the store (%d tokens)" % cached)
                    tap.eq(s.post(chat, s.chat("%s %d" % (name, life), max_tokens=20)).status, 200,
                           name + ": it serves what it does not know")
                    end_engine(s)
                fill_disk(disk, None)
                tap.eq(glob.glob(store + "/*.bad"), [], name + ": nothing is set aside")
                r = subprocess.run([os.path.join(BUILDDIR, "lmdb-dump"), "--verify", "--summary",
                                    store], capture_output=True, text=True, timeout=30)
                tap.eq(r.returncode, 0, name + ": lmdb-dump --verify finds no damage")
            s.engine.release()
            until(lambda: s.get("/health").status == 200)
            tap.eq([e for e in s.engine.exits if e != 0], [], "no engine died of it")
        subprocess.run(["umount", "-l", disk])
tap.eq(s.leftovers, [], "every process followed SIGTERM")
tap.done()
