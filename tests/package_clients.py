#!/usr/bin/env python3
"""Clients of tests/package: they stream without a pause while a command runs, such as an upgrade, and
compare every text with the one that the same prompt gave before.

    tests/package_clients.py PORT KEY COMMAND...

PORT speaks HTTPS on 127.0.0.1. It prints the command's output, then one line, `streams N, across M,
wrong W, longest pause P s`: M streams were running when the command began. Exit status: 0 if no
stream was lost, repeated or changed, and the command's was 0."""

import http.client
import json
import ssl
import subprocess
import sys
import threading
import time

N_STREAMS, N_CALLERS, AFTER_S = 8, 2, 2
port, key, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
tls = ssl.create_default_context()
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
streams, wrong, lock, stop = [], [], threading.Lock(), threading.Event()


def ask(i, stream):
    body = {"model": "demo", "temperature": 0, "ignore_eos": True, "max_tokens": 150 + 10 * i, "stream": stream,
            "messages": [{"role": "user", "content": "Story %d: tell me of a clever fox." % i}]}
    c = http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=tls)
    c.request("POST", "/v1/chat/completions", json.dumps(body),
              {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    return c, c.getresponse()


def read_stream(i):
    """(text, longest time without a word); a stream that is not whole raises."""
    began = last = time.monotonic()
    text, pause, end, done = "", 0, None, False
    c, r = ask(i, True)
    if r.status != 200:
        raise ValueError("status %d: %s" % (r.status, r.read()[:200]))
    for line in r:
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        pause, last = max(pause, now - last), now
        if line == b"data: [DONE]\n":
            done = True
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ValueError(line)
        choice = event["choices"][0]
        text += choice["delta"].get("content") or ""
        end = choice["finish_reason"] or end
    c.close()
    if not done or end != "length":
        raise ValueError("it ended early, after %d characters: %s" % (len(text), end))
    return text, began, last, pause


def read_whole(i):
    c, r = ask(i, False)
    answer = json.loads(r.read())
    c.close()
    return answer["choices"][0]["message"]["content"]


def client(i):
    while not stop.is_set():
        try:
            if i < N_STREAMS:
                text, *times = read_stream(i)
                with lock:
                    streams.append(times)
            else:
                text = read_whole(i)
                time.sleep(0.05)
            if text != want[i]:
                raise ValueError("another text: %r instead of %r" % (text, want[i]))
        except Exception as e:
            with lock:
                wrong.append("client %d: %r" % (i, e))
            if len(wrong) > 20:
                return


want = [read_stream(i)[0] if i < N_STREAMS else read_whole(i) for i in range(N_STREAMS + N_CALLERS)]
threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(len(want))]
for t in threads:
    t.start()
time.sleep(1)
begun = time.monotonic()
ran = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=300)
time.sleep(AFTER_S)
stop.set()
for t in threads:
    t.join(130)
for w in wrong[:5]:
    print(w)
across = sum(b < begun < e for b, e, _ in streams)
print("streams %d, across %d, wrong %d, longest pause %.1f s" % (
    len(streams), across, len(wrong) + sum(t.is_alive() for t in threads),
    max((p for _, _, p in streams), default=0)))
sys.exit(ran.returncode or bool(wrong) or across == 0 or any(t.is_alive() for t in threads))
