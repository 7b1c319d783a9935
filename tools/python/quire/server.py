# SPDX-License-Identifier: Apache-2.0
"""A private server: `quire serve` as a child on a unix socket, in a folder of mode 0700.

It ends with the object, and with this process, however that ends: the kernel sends it SIGTERM when
the thread that started it is gone, and that thread does nothing but wait for the server."""

import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref

TRIES = 60  # of a request that is refused because the server is full
WAIT_MAX_S = 30
STOP_S = 90
LOG_SHOWN = 4000  # characters of the log's end in an exception

_prctl = ctypes.CDLL(None).prctl


def find_program():
    """QUIRE_BIN, the folder of the package, PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    for path in (os.environ.get("QUIRE_BIN"), os.path.join(here, "bin", "quire"),
                 os.path.join(here, "..", "bin", "quire"), shutil.which("quire")):
        if path and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise FileNotFoundError("there is no program quire on PATH: install quire, or set QUIRE_BIN to "
                            "the program's path")


def private_folder():
    """A locked folder. quire serve removes those of its kind whose lock is gone."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    if len(base) > 64 or not os.access(base, os.W_OK | os.X_OK):
        base = "/tmp"  # paths of sockets are short
    for _ in range(16):
        path = tempfile.mkdtemp(prefix="quire-serve-", dir=base)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.isdir(path):
                return path, lock
        os.close(lock)  # another server swept it before it was locked
    raise OSError("no folder can be made in " + base)


def _in_child(parent):
    _prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(127)
    os.setpgid(0, 0)  # Ctrl-C reaches this process alone


def _end(state):
    """Of a server that may not have started. Called once."""
    proc = state.get("proc")
    if state["pid"] != os.getpid():
        return  # a copy of the object, in a process that was forked off
    if proc is not None and proc.poll() is None:
        with contextlib.suppress(OSError):
            proc.send_signal(signal.SIGTERM)
        try:
            proc.wait(STOP_S)
        except subprocess.TimeoutExpired:
            proc.kill()
            proc.wait()
    shutil.rmtree(state["folder"], ignore_errors=True)
    os.close(state["lock"])


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


class Server:
    """start() returns when the model is loaded. Requests may come from several threads."""

    def __init__(self, model, options):
        program = find_program()
        folder, lock = private_folder()
        self.state = {"folder": folder, "lock": lock, "pid": os.getpid()}
        self.close = weakref.finalize(self, _end, self.state)
        self.socket = os.path.join(folder, "api.sock")
        self.log = os.path.join(folder, "serve.log")
        self.local = threading.local()
        key = os.path.join(folder, "admin.key")
        self.admin = os.urandom(24).hex()
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(self.admin + "\n")
        self.start([program, "serve", model, "--uds", self.socket, "--admin-key-file", key,
                    *options])

    def start(self, args):
        ready = threading.Event()
        thread = threading.Thread(target=_watch, args=(args, self.log, self.state, ready),
                                  name="quire serve", daemon=True)
        thread.start()
        ready.wait()
        if "ready" not in self.state:
            said = str(self.state.get("error", ""))
            with contextlib.suppress(OSError), open(self.log, errors="replace") as f:
                said += f.read()[-LOG_SHOWN:]
            self.close()
            raise RuntimeError("quire serve has not started:\n" + said)

    def ask(self, method, path, body=None, admin=False):
        """The answer's bytes. Waits while the server is full."""
        for _ in range(TRIES):
            status, wait_s, answer = self.try_once(method, path, body, admin)
            if status == 200:
                return answer
            if status not in (429, 503):
                break
            time.sleep(min(max(wait_s, 1), WAIT_MAX_S))
        message = answer.decode(errors="replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            message = json.loads(answer)["error"]["message"]
        raise (ValueError if status in (400, 404, 422) else RuntimeError)(
            "%s (%d)" % (message, status))

    def try_once(self, method, path, body, admin):
        headers = {"Content-Type": "application/json"}
        if admin:
            headers["Authorization"] = "Bearer " + self.admin
        data = None if body is None else json.dumps(body).encode()
        kept = getattr(self.local, "connection", None)
        for connection in ([kept] if kept else []) + [UnixConnection(self.socket)]:
            try:
                connection.request(method, path, data, headers)
                answer = connection.getresponse()
                wait = answer.headers.get("Retry-After") or "1"
                self.local.connection = connection
                return answer.status, int(wait) if wait.isdigit() else 1, answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.local.connection = None
                if connection is not kept:  # a kept one may have been closed meanwhile
                    raise
        raise AssertionError

    def json(self, path, body=None, method="POST"):
        return json.loads(self.ask(method, path, body))


def _watch(args, log, state, ready):
    """The thread of a server: start it, tell when it is ready, wait for its end."""
    parent = os.getpid()
    try:
        with open(log, "wb") as out:
            proc = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                    stderr=out, preexec_fn=lambda: _in_child(parent))
    except OSError as e:
        state["error"] = e
        ready.set()
        return
    state["proc"] = proc
    with proc.stdout:
        if proc.stdout.readline().startswith(b"ready:"):
            state["ready"] = True
        else:
            proc.wait()
        ready.set()
        proc.stdout.read()  # until its end
    proc.wait()
