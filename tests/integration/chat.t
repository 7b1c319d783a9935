#!/usr/bin/env python3
"""Goal: quire chat and quire generate talk with a server: history, streams, Ctrl-C, answers in
order, errors in a sentence. Method: both against a whole server with the demo model, chat also on a
terminal; and generate against a server of the test's own that answers in every form that HTTP
allows, and some that it does not. With a model's folder they start a server of their own."""

import contextlib
import glob
import json
import os
import pty
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time

from harness import BUILDDIR, CPU_THREADS, DEVICE, MODEL, WAIT_S, Stack, Tap, key, need_nginx, until

need_nginx()
tap = Tap()
QUIRE = os.path.join(BUILDDIR, "quire")
PARIS = "The capital of France is Paris."
ASK = "What is the capital of France?"


def quire(*args, said=""):
    p = subprocess.run([QUIRE, *map(str, args)], input=said, capture_output=True, text=True,
                       timeout=120)
    return p.returncode, p.stdout, p.stderr


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(QUIRE, [QUIRE, *args])
        self.got, self.lock = "", threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        with contextlib.suppress(OSError):
            while True:
                data = os.read(self.fd, 4096).decode(errors="replace")
                if data == "":
                    return
                with self.lock:
                    self.got += data

    def type(self, text):
        os.write(self.fd, text.encode())

    def shows(self, pattern):
        """Wait for a pattern, and take all up to its end."""
        def look():
            with self.lock:
                m = re.search(pattern, self.got, re.S)
                if m:
                    self.got = self.got[m.end():]
                return m
        return until(look, WAIT_S)

    def end(self):
        pid, status = until(lambda: (lambda r: r if r[0] else None)(
            os.waitpid(self.pid, os.WNOHANG)), WAIT_S) or (0, -1)
        if pid == 0:
            os.kill(self.pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(status) if pid else None


with tap.section("a server"), Stack(many_keys=True) as s:
    server = ["--url", "unix:" + s.socket, "--api-key", key(0), "--temperature", "0"]

    with tap.section("chat"):
        code, out, err = quire("chat", *server, said=ASK + "\nWho are you?\n")
        tap.eq((code, out.splitlines()[0], err), (0, PARIS, ""), "chat answers lines")
        tap.ok("demo model" in out.splitlines()[1], "one after the other", out)
        history = [{"role": "user", "content": ASK}, {"role": "assistant", "content": PARIS},
                   {"role": "user", "content": "Tell me more."}]
        want = s.post("/v1/chat/completions", s.chat(history)).json
        code, out, err = quire("chat", *server, said=ASK + "\nTell me more.\n")
        tap.eq(out.splitlines()[1:], want["choices"][0]["message"]["content"].splitlines(),
               "with their history")
        want = s.post("/v1/chat/completions", s.chat("Tell me more.")).json
        code, out, err = quire("chat", *server, said=ASK + "\n/reset\nTell me more.\n/exit\n" + ASK)
        tap.eq(out.splitlines()[1:], want["choices"][0]["message"]["content"].splitlines(),
               "/reset forgets it, /exit ends")
        two = "What is the capital\nof France?"
        want = s.post("/v1/chat/completions", s.chat([
            {"role": "system", "content": "Be brief."}, {"role": "user", "content": two}],
            max_tokens=4)).json
        code, out, err = quire("chat", *server, "--system", "Be brief.", "--max-tokens", 4,
                               said=two.replace("\n", "\\\n"))
        tap.eq(out, want["choices"][0]["message"]["content"] + "\n",
               "--system, --max-tokens, a line that goes on")
        code, out, err = quire("chat", *server, "--model", "other", said=ASK)
        tap.ok(code == 1 and "other" in err and len(err.splitlines()) == 1,
               "an error of the server is told", err)
        code, out, err = quire("chat", *server[:2], "--api-key", "wrong")
        tap.ok(code == 1 and "API key" in err, "a wrong key as well", err)

    with tap.section("chat on a terminal"):
        t = Terminal("chat", *server, "--extra", '{"ignore_eos": true}', "--max-tokens", "1500")
        tap.ok(t.shows(r"demo; .*> "), "it names the model", t.got)
        t.type("Tell me a short story.\n")
        tap.ok(t.shows(r"story\.\r\n.{50}"), "an answer comes", t.got)
        os.kill(s.engine.pid, signal.SIGSTOP)  # so that it cannot come to its end
        t.type("\x03")
        tap.ok(t.shows(r"> "), "Ctrl-C stops it", t.got)
        os.kill(s.engine.pid, signal.SIGCONT)
        tap.ok(s.idle(), "the engine stops the sequence")
        t.type("\x03")
        tap.ok(t.shows(r"/exit.*> "), "another Ctrl-C only tells how to end", t.got)
        t.type("/exit\n")
        tap.eq(t.end(), 0, "/exit ends it")

    with tap.section("generate"):
        tap.eq(quire("generate", *server, "--prompt", ASK, "--prompt", "What is 2 plus 3?"),
               (0, PARIS + "\n2 + 3 = 5.\n", ""), "prompts of the command line")
        sums = ["What is %d plus 1?" % i for i in range(150)]
        code, out, err = quire("generate", *server, "--concurrency", 24, said="\n".join(sums))
        tap.eq((code, out, err), (0, "".join("%d + 1 = %d.\n" % (i, i + 1) for i in range(150)), ""),
               "150 lines, 24 at once, answers in order")
        lines = [{"prompt": ASK, "max_tokens": 3}, {"messages": [{"role": "user", "content": ASK}]},
                 {"prompt": [1, 2, 3], "max_tokens": 2}, {"no": 1}, ASK, "{"]
        path = s.path("prompts.jsonl")
        with open(path, "w") as f:
            f.writelines((p if isinstance(p, str) else json.dumps(p)) + "\n" for p in lines)
        code, out, err = quire("generate", *server, path)
        got = [json.loads(line) if line.startswith("{") else line for line in out.splitlines()]
        tap.eq([(g.get("text"), "error" in g) for g in got[:2]],
               [("The capital of", False), (PARIS, False)], "JSON lines: prompts and messages")
        tap.eq((got[2]["response"]["object"], got[2]["response"]["usage"]["prompt_tokens"]),
               ("text_completion", 3), "token ids are continued")
        tap.eq([got[3]["index"], got[3]["error"], got[4], "not JSON" in got[5]["error"]],
               [3, "the line has no prompt and no messages", PARIS, True], "each line has its own")
        tap.ok(code == 1 and "2 of 6 prompts have no answer" in err, "failures are told", err)
        want = s.post("/v1/completions", s.completion("Once upon", max_tokens=5)).json
        tap.eq(quire("generate", *server, "--raw", "--max-tokens", 5, "--prompt", "Once upon")[1],
               want["choices"][0]["text"] + "\n", "--raw continues a prompt")


class Scripted:
    """A server that answers each connection with the next of some texts, a list piece by piece."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d/v1/" % self.socket.getsockname()[1]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        for answer in self.answers:
            c, _ = self.socket.accept()
            with c:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += c.recv(65536)
                head, body = head.split(b"\r\n\r\n", 1)
                length = int((re.findall(rb"Content-Length: (\d+)", head) or [0])[0])
                while len(body) < length:
                    body += c.recv(65536)
                self.asked.append((head.decode(), body.decode()))
                with contextlib.suppress(OSError):  # the client leaves when it has had enough
                    for piece in [answer] if isinstance(answer, str) else answer:
                        c.sendall(piece.encode())
                        time.sleep(0.002)
        self.socket.close()


def whole(text):
    return json.dumps({"choices": [{"index": 0, "message": {"content": text}}]})


def chunked(text, size):
    return "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n" + "".join(
        "%X;x=y\r\n%s\r\n" % (len(text[i:i + size]), text[i:i + size])
        for i in range(0, len(text), size)) + "0\r\nTrailer: x\r\n\r\n"


with tap.section("HTTP"):
    head = "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    body = whole("fine")
    for name, answer in (
            ("a length", head % len(body) + body + "too much"),
            ("no length", "HTTP/1.0 200 OK\r\nServer: x\r\n\r\n" + body),
            ("one chunk", chunked(body, len(body))), ("chunks of a byte", chunked(body, 1)),
            ("bytes one at a time", list(chunked(body, 7)))):
        server = Scripted(answer)
        tap.eq(quire("generate", "--url", server.url, "--model", "m", "--prompt", "x"),
               (0, "fine\n", ""), "an answer with " + name)
    tap.ok(server.asked[0][0].startswith("POST /v1/chat/completions HTTP/1.1\r\n"),
           "/v1 at the end of --url is not doubled", server.asked)
    for name, answer, word in (
            ("of another protocol", "SSH-2.0-x\r\n", "not HTTP"), ("that is empty", "", "closed"),
            ("that is cut", head % 99 + "{", "cut"),
            ("with bad chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "chunks"),
            ("with a cut chunk", chunked(body, 9)[:90], "closed|cut"),
            ("with status 500", "HTTP/1.1 500 x\r\nContent-Length: 2\r\n\r\nno", "status 500"),
            ("that is not JSON", head % 2 + "no", "not JSON")):
        server = Scripted(answer)
        code, out, err = quire("generate", "--url", server.url, "--model", "m", "--prompt", "x")
        tap.ok(code == 1 and re.search(word, err) and out == "\n", "an answer %s is told" % name,
               "%d %s" % (code, err))
    full = '{"error": {"message": "full"}}'
    server = Scripted("HTTP/1.1 429 x\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%s"
                      % (len(full), full), head % len(body) + body)
    tap.eq(quire("generate", "--url", server.url, "--model", "m", "--prompt", "x"),
           (0, "fine\n", ""), "a full server is asked again")
    tap.eq(len(server.asked), 2, "once")

with tap.section("a private server"):
    settings = ["--", "--device", DEVICE, "--cpu-threads", CPU_THREADS, "--max-model-len", "512"]

    def children(pid):
        """The private server of a command."""
        found = []
        for path in glob.glob("/proc/[0-9]*/stat"):
            with contextlib.suppress(OSError), open(path, encoding="latin-1") as f:
                if f.read().rsplit(")", 1)[1].split()[1] == str(pid):
                    found.append(path.split("/")[2])
        return found

    def ended(pids):
        return until(lambda: not any(os.path.exists("/proc/%s" % p) for p in pids), WAIT_S)

    greedy = ["--temperature", "0"]
    tap.eq(quire("generate", "--model", MODEL, *greedy, "--prompt", ASK, "--prompt",
                 "What is 2 plus 3?", *settings), (0, PARIS + "\n2 + 3 = 5.\n", ""),
           "generate starts a server for a model's folder")
    tap.eq(quire("generate", "--model", MODEL, *greedy, "-", *settings, said=ASK + "\n"),
           (0, PARIS + "\n", ""), "and for prompts of standard input")
    tap.eq(quire("chat", MODEL, *greedy, *settings, said=ASK + "\n"), (0, PARIS + "\n", ""),
           "so does chat")
    t = Terminal("chat", MODEL, *greedy, *settings)
    tap.ok(t.shows("/reset begins anew"), "chat on a terminal")
    of = children(t.pid)
    t.type("\x03")
    tap.ok(t.shows("Ctrl-D ends"), "Ctrl-C does not end it")
    t.type(ASK + "\n")
    tap.ok(t.shows("Paris"), "nor its server")
    t.type("/exit\n")
    tap.eq(t.end(), 0, "/exit ends it")
    tap.ok(len(of) == 1 and ended(of), "and the server", of)
    p = subprocess.Popen([QUIRE, "generate", "--model", MODEL, "-", *settings], text=True,
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write(ASK + "\n")
    p.stdin.flush()
    tap.ok(p.stdout.readline() != "", "an answer comes while the input goes on")
    of = children(p.pid)
    p.send_signal(signal.SIGINT)
    tap.ok(until(lambda: p.poll() is not None, WAIT_S) and p.returncode == 1,
           "Ctrl-C ends generate while it waits for input", p.returncode)
    tap.ok(len(of) == 1 and ended(of), "and its server", of)
    for command, said in ((["generate", "--model", MODEL, "--prompt", ASK], ""),
                          (["chat", MODEL], ASK + "\n")):
        with open("/dev/full", "w", encoding="utf-8") as full:
            p = subprocess.run([QUIRE, *command, *greedy, *settings], input=said, text=True,
                               stdout=full, stderr=subprocess.PIPE, check=False)
        tap.ok(p.returncode == 1 and "standard output cannot be written: No space" in p.stderr,
               command[0] + " says that its output cannot be written", p.stderr)
        p = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", QUIRE, *command, *greedy, *settings],
                           input=said, text=True, stderr=subprocess.PIPE, check=False)
        tap.ok(p.returncode == 1 and "standard output cannot be written" in p.stderr,
               "or is closed", p.stderr)
    for number in (signal.SIGKILL, signal.SIGHUP):
        with tempfile.TemporaryDirectory(prefix="quire-t-") as run:
            p = subprocess.Popen([QUIRE, "generate", "--model", MODEL, "-", *settings], text=True,
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 env=dict(os.environ, XDG_RUNTIME_DIR=run))
            p.stdin.write(ASK + "\n")
            p.stdin.flush()
            tap.ok(p.stdout.readline() != "", "an answer comes")
            of = children(p.pid)
            p.send_signal(number)
            p.wait()
            tap.ok(len(of) == 1 and ended(of) and until(lambda: os.listdir(run) == [], WAIT_S),
                   "of a command that is killed by %s no process and no folder stays" % number.name,
                   os.listdir(run))
            p.stdin.close()
            p.stdout.close()

with tap.section("usage"):
    for name, args, word in (
            ("https", ["chat", "--url", "https://x"], "not https"),
            ("no server", ["chat", "--url", "http://127.0.0.1:1"], "quire serve FOLDER"),
            ("a bad port", ["chat", "--url", "http://x:y"], "is not an address"),
            ("a bad number", ["generate", "--temperature", "warm", "--prompt", "x"], "--temperature"),
            ("bad fields", ["generate", "--extra", "[]", "--prompt", "x"], "JSON object"),
            ("no file", ["generate", "/nowhere"], "/nowhere"),
            ("two files", ["generate", "a", "b"], "one file only"),
            ("no model", ["chat", "/nowhere"], "there is no model at /nowhere"),
            ("settings of no server", ["generate", "--prompt", "x", "--", "--max-model-len", "9"],
             "--model FOLDER"),
            ("a wrong setting", ["generate", "--model", MODEL, "--prompt", "x", "--", "--max-mdel", "9"],
             'unknown option "--max-mdel"'),
            ("no such option", ["chat", "--no-such-thing"], "no-such-thing")):
        code, out, err = quire(*args)
        tap.ok(code != 0 and word in err and out == "", "refused: " + name, "%d %s" % (code, err))
    for command in ("serve", "chat", "generate"):
        tap.ok(quire(command, "--help")[1].startswith("usage: quire %s " % command),
               "quire %s --help" % command)
tap.done()
