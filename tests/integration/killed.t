#!/usr/bin/env python3
"""What a test that is killed leaves in /dev/shm is removed by the next one, and nothing of those
that still run."""

import glob
import os
import shutil
import subprocess
import sys

from harness import BUILDDIR, HERE, SRCDIR, Stack, Tap, sweep, until

tap = Tap()
OTHER = """
import sys
from harness import Stack
with Stack(host="16M", n_fronts=0, nginx=False) as s:
    print(s.dir, s.host_file, flush=True)
    sys.stdin.read()
"""


def other():
    """A test that runs: it, its folder and the file of its host tier."""
    p = subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, text=True,
                         stdout=subprocess.PIPE, env=dict(os.environ, PYTHONPATH=HERE))
    folder, file = p.stdout.readline().split()
    until(lambda: os.path.exists(file))
    return p, folder, file


def kill(p):
    p.kill()
    p.wait()


with tap.section("servers"):
    killed, folder, left = other()
    runs, _, used = other()
    kill(killed)
    shutil.rmtree(folder)
    tap.ok(os.path.exists(left), "a test that is killed leaves its host tier's file")
    with Stack(host="16M", n_fronts=0, nginx=False) as s:
        tap.ok(until(lambda: os.path.exists(s.host_file)), "the next has one of its own", s.logs())
        tap.ok(not os.path.exists(left), "and has removed that")
        tap.ok(os.path.exists(used), "one that still runs has its file")
    tap.ok(not os.path.exists(s.host_file), "a test that ends leaves none")
    runs.stdin.close()
    runs.wait()
    tap.ok(not os.path.exists(used), "nor does the other")
    tap.eq([d for d in map(os.path.dirname, (left, used)) if os.path.exists(d)], [],
           "nor are their folders left")

with tap.section("programs"):
    test = os.path.join(BUILDDIR, "tests", "unit", "kv", "test_fault")  # of make check
    p = subprocess.Popen([test], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env=dict(os.environ, srcdir=SRCDIR))
    try:
        def mine():
            """The folder of p: the same test may run beside this one."""
            held = [os.path.realpath(fd) for fd in glob.glob("/proc/%d/fd/*" % p.pid)]
            return [d for d in glob.glob("/dev/shm/quire-fault-*")
                    if any(f == d or f.startswith(d + "/") for f in held) and os.listdir(d)]
        found = until(mine)  # asked once: it empties the folder and fills it again as it goes on
        tap.ok(found, "a test that makes a folder")
        folder = found[0]
        sweep()
        tap.ok(os.path.exists(folder), "has it while it runs")
    finally:
        kill(p)
    # another test that begins may hold the lock for a moment, to remove the folder itself
    tap.ok(until(lambda: sweep() or not os.path.exists(folder)), "and no longer")
tap.done()
