"""A whole server in a private folder: nginx, fronts, an engine on the cpu device, the demo model.

Stack starts and supervises them as systemd would: the fronts' sockets are made here and passed
on, so that they stay open while a front is started again; a process that ends is started again
until the stack stops. Everything listens on unix sockets but for one TLS port on 127.0.0.1. A
process dies with the test that started it, however that ends.

Only the standard library. Tests print TAP through Tap.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
SRCDIR = os.path.abspath(os.environ.get("srcdir") or os.path.dirname(os.path.dirname(HERE)))
DEVICE = os.environ.get("QUIRE_TEST_DEVICE", "cpu")  # cuda: the same tests on a GPU
KERNELS = os.environ.get("QUIRE_TEST_KERNELS", "auto")  # portable: with the portable kernels
BUILDDIR = os.path.abspath(os.environ.get("builddir") or os.path.join(SRCDIR, "build"))
MODEL = os.path.join(SRCDIR, "tools", "demo-model", "model")
GOLDEN = os.path.join(SRCDIR, "tests", "golden", "demo")
MODEL_NAME = "demo"
STORY = " ".join("The %s fox carried lantern number %d over the old bridge." % (a, i)
                 for i, a in enumerate(["clever", "quiet", "small", "brave"] * 3))
# Lengths and counts of a thorough run, `tools/check --long`, or of one of minutes.
LONG = os.environ.get("QUIRE_TEST_LONG") == "1"
# Tests run beside each other: two threads of an engine would wait for each other more than work.
CPU_THREADS = os.environ.get("QUIRE_TEST_THREADS", "2" if LONG else "1")
WAIT_S = 30  # for anything that should come at once; a loaded machine may take long

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    os.setpgid(0, 0)  # stands for the unit's cgroup


# --- TAP --------------------------------------------------------------------------------------


class Tap:
    """Numbered results. `with tap.section(...)` turns an exception into one failed result. All that
    stacks are told meanwhile is held against OpenAI's schema when it is done."""

    def __init__(self):
        import schema  # which needs this module
        self.n = 0
        self.failed = 0
        self.lock = threading.Lock()
        self.started = time.monotonic()
        self.judge = schema.Judge(self)

    def ok(self, good, name, detail=""):
        """Any thread's."""
        with self.lock:
            self.n += 1
            self.failed += not good
            lines = ["%s %d - %s" % ("ok" if good else "not ok", self.n, name)]
            if detail != "" and not good:
                lines += ["#   " + line[:400] for line in str(detail).splitlines()[:20]]
            print("\n".join(lines))
            sys.stdout.flush()
        return good

    def eq(self, got, want, name):
        return self.ok(got == want, name, "got  %r\nwant %r" % (got, want))

    def skip(self, name, why):
        self.n += 1
        print("ok %d - %s # SKIP %s" % (self.n, name, why))

    def note(self, text):
        for line in str(text).splitlines():
            print("# " + line)
        sys.stdout.flush()

    @contextlib.contextmanager
    def section(self, name):
        try:
            yield
        except Exception:  # a test that breaks off is a failed one; the next still runs
            self.ok(False, name, traceback.format_exc())

    def done(self):
        self.judge.tell()
        print("1..%d" % self.n)
        self.note("%.1f s" % (time.monotonic() - self.started))
        sys.exit(1 if self.failed else 0)


def draw_seed(tap):
    """Seed what is drawn, by SEED or anew, and say with what."""
    seed = int(os.environ.get("SEED") or random.randrange(1 << 30))
    tap.note("SEED=%d" % seed)
    random.seed(seed)
    return seed


def skip_all(why):
    print("1..0 # SKIP " + why)
    sys.exit(0)


def find_nginx():
    return shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def need_nginx():
    if find_nginx() is None:
        skip_all("there is no nginx")


def golden(name):
    with open(os.path.join(GOLDEN, name)) as f:
        return json.load(f)


def until(condition, timeout_s=WAIT_S, step_s=0.02):
    """Wait until condition() is true; its value, or False when the time is over."""
    end = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            return False
        time.sleep(step_s)


# --- files in memory --------------------------------------------------------------------------

SHM = "/dev/shm"
SWEPT = ("quire-t-", "quire-fault-")  # the second: tests/unit/kv/test_fault


def sweep():
    """Remove the folders of tests that were killed: their locks are free."""
    for name in os.listdir(SHM):
        path = os.path.join(SHM, name)
        if not name.startswith(SWEPT):
            continue
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it has gone, or is no folder, or another user's
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            pass  # of a test that runs
        finally:
            os.close(fd)


@functools.lru_cache(maxsize=None)
def n_gpus():
    try:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True)
    except OSError:
        return 0
    return len(listed.stdout.splitlines())


def memory_folder():
    """A folder on tmpfs for what is meant to be there: /tmp may be a disk. It is this process's,
    and goes with it; when that is killed its lock goes, and the next test removes the folder."""
    sweep()
    while True:  # again where another swept it before it was locked
        path = tempfile.mkdtemp(prefix=SWEPT[0], dir=SHM)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)  # stays open
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.path.exists(path):
            break
        os.close(fd)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


# --- HTTP -------------------------------------------------------------------------------------


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=60, receive_bytes=0):
        super().__init__("localhost", timeout=timeout)
        self.path = path
        self.receive_bytes = receive_bytes

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if self.receive_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_bytes)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Reply:
    def __init__(self, status, headers, body):
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self):
        return self.body.decode("utf-8")

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Stream:
    """An SSE answer. Iterating gives the JSON of each event; done says that [DONE] came."""

    def __init__(self, connection, response, path=""):
        self.path = path
        self.connection = connection
        self.response = response
        self.status = response.status
        self.headers = response.headers
        self.done = False
        self.comments = 0
        self.broken = None  # the exception that ended it early
        self.ended = set()  # choices whose finish_reason came

    def __iter__(self):
        try:
            # http.client takes the chunked coding off, wherever its borders fall in an event.
            for line in self.response:
                line = line.rstrip(b"\r\n")
                if line.startswith(b":"):
                    self.comments += 1
                elif line == b"data: [DONE]":
                    self.done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if Stack.heard:
                        Stack.heard(self.path, 200, event, True)
                    self.check_ends(event)
                    yield event
                elif line != b"":
                    raise ValueError("not SSE: %r" % line)
        except (OSError, http.client.HTTPException) as e:
            self.broken = e
        finally:
            self.close()

    def check_ends(self, event):
        """A choice ends once, with its last event: clients stop listening to it there."""
        for c in event.get("choices", []):
            if c["index"] in self.ended:
                raise ValueError("an event of a choice that had ended: %r" % event)
            if c["finish_reason"] is not None:
                self.ended.add(c["index"])

    def close(self):
        self.response.close()
        self.connection.close()


class Told:
    """What the events of one stream add up to."""

    def __init__(self):
        self.text = {}
        self.finish = {}
        self.stop = {}
        self.usage = None
        self.error = None
        self.events = []
        self.done = False
        self.status = 0
        self.broken = None

    def add(self, event):
        self.events.append(event)
        if "error" in event:
            self.error = event["error"]
            return
        if event.get("usage"):
            self.usage = event["usage"]
        for c in event["choices"]:
            i = c["index"]
            piece = c["text"] if "text" in c else c["delta"].get("content") or ""
            self.text[i] = self.text.get(i, "") + piece
            if c["finish_reason"] is not None:
                self.finish[i] = c["finish_reason"]
                self.stop[i] = c.get("stop_reason")


# --- processes --------------------------------------------------------------------------------


class Watchdog:
    """systemd's watchdog of one process: SIGKILL when no WATCHDOG=1 comes for `seconds`."""

    def __init__(self, path, seconds):
        self.env = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": str(int(seconds * 1e6))}
        self.seconds = seconds
        self.kills = 0
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(0.1)

    def watch(self, proc):
        """Until proc ends. The time counts from READY=1, as systemd's does."""
        fed = None
        while proc.poll() is None:
            try:
                said = self.socket.recv(4096)
                if b"WATCHDOG=1" in said or b"READY=1" in said:
                    fed = time.monotonic()
            except socket.timeout:
                pass
            if fed is not None and time.monotonic() - fed > self.seconds:
                self.kills += 1
                proc.kill()
                return


def blocks(pid, sig):
    """Does the process block the signal, or has it ended?"""
    try:
        with open("/proc/%d/status" % pid) as f:
            for line in f:
                if line.startswith("State:") and "Z" in line:
                    return True
                if line.startswith("SigBlk:"):
                    return int(line.split()[1], 16) >> (sig - 1) & 1
    except OSError:
        pass
    return True


def read_unit(name):
    """The settings of a unit in systemd/: {name: last value}."""
    with open(os.path.join(SRCDIR, "systemd", name)) as f:
        return dict(re.findall(r"^(\w+)=(.*)$", f.read(), re.M))


class Remains:
    """What systemd does with what a unit's process leaves, by the unit's file: its user's files in
    /dev/shm, its RuntimeDirectory. (The rest of its cgroup is Supervised's.)"""

    def __init__(self, unit, runtime, shm):
        self.runtime, self.shm = runtime, shm  # folders that stand for those of the unit
        self.mode = int(unit.get("RuntimeDirectoryMode", "0755"), 8)
        self.preserve = unit.get("RuntimeDirectoryPreserve", "no")
        self.removes_ipc = "yes" in (unit.get("RemoveIPC"), unit.get("DynamicUser"))

    def begin(self):
        os.makedirs(self.runtime, exist_ok=True)
        os.chmod(self.runtime, self.mode)

    def end(self, restarts):
        if self.preserve == "no" or (self.preserve == "restart" and not restarts):
            shutil.rmtree(self.runtime, ignore_errors=True)
        if self.removes_ipc and self.shm:  # all of it: folders as well
            shutil.rmtree(self.shm, ignore_errors=True)


class Supervised:
    """One program, started again when it ends, until stop(). What it says is kept in a file. When
    its first process ends, the others of its group do, as those of a unit's cgroup."""

    def __init__(self, argv, log, env=None, fd=None, restart=True, pause_s=0.1, remains=None,
                 watchdog_s=0):
        self.argv, self.log, self.fd, self.remains = argv, log, fd, remains
        self.watchdog = Watchdog(log + ".notify", watchdog_s) if watchdog_s else None
        self.env = dict(os.environ, **(env or {}), **(self.watchdog.env if watchdog_s else {}))
        self.restart, self.pause_s = restart, pause_s
        self.proc = None
        self.exits = []  # return codes
        self.stopping = False
        self.held = threading.Event()  # set: may be started
        self.held.set()
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.started.wait(WAIT_S)

    def _spawn(self):
        argv = self.argv
        keep = ()
        if self.fd is not None:
            # As systemd passes a socket: number 3, and the process's own id in LISTEN_PID.
            script = 'LISTEN_PID=$$; LISTEN_FDS=1; export LISTEN_PID LISTEN_FDS; exec "$@" 3<&%d'
            argv = ["/bin/bash", "-c", script % self.fd, "bash"] + argv  # dash knows one digit
            keep = (self.fd,)
        with open(self.log, "ab") as log:
            return subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                    env=self.env, pass_fds=keep, preexec_fn=_die_with_parent)

    def _run(self):
        # The thread that forks must live on: the children die with it.
        while not self.stopping:
            if self.remains:
                self.remains.begin()
            self.proc = self._spawn()
            self.started.set()
            if self.watchdog:
                self.watchdog.watch(self.proc)
            status = self.proc.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.proc.pid, signal.SIGKILL)
            if self.remains:
                self.remains.end(self.restart)
            self.exits.append(status)
            if not self.restart:
                return
            time.sleep(self.pause_s)
            self.held.wait()

    @property
    def pid(self):
        return self.proc.pid

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def kill(self, sig=signal.SIGKILL):
        """Send a signal; the supervisor starts the program again when it has ended. One that has
        ended already is awaited first: on a busy machine the next start takes its time. Before
        its main() no program has blocked SIGTERM: that comes when quire's have."""
        while True:
            assert until(self.alive), "%s is not running" % self.argv[0]
            pid = self.pid
            if sig == signal.SIGTERM and os.path.basename(self.argv[0]).startswith("quire-"):
                until(lambda: blocks(pid, sig), 10, 0.001)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sig)
                return pid

    def hold(self):
        """Do not start again until release()."""
        self.held.clear()

    def release(self):
        self.held.set()

    def stop(self, timeout_s=20):
        """SIGTERM, then SIGKILL. The seconds it took, or None when it had to be killed."""
        self.stopping = True
        self.restart = False
        self.held.set()
        began = time.monotonic()
        polite = True
        if self.alive():
            self.proc.terminate()
            try:
                self.proc.wait(timeout_s)
            except subprocess.TimeoutExpired:
                polite = False
                self.proc.kill()
        self.thread.join(timeout_s)
        return time.monotonic() - began if polite else None

    def said(self):
        with open(self.log, errors="replace") as f:
            return f.read()


NGINX_FILES = ("quire-http.conf", "quire-locations.conf", "quire-fastcgi.conf",
               "quire-headers.conf", "quire-preflight.conf", "quire-page.conf", "quire-page-file.conf")
N_KEYS = 32  # tenants, taken in turn: tests ask more often than one of them may


def key(i):
    return "sk-test-%d" % (i % N_KEYS)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Stack:
    """nginx + fronts + engine. Use with `with`. With n_engines each front has all of them:
    engines[i], of which `engine` is the first, are instances of quire-engine@.service."""

    heard = None  # (path, status, JSON or its bytes, whether of a stream): schema.Judge listens

    def __init__(self, engine=(), front=(), n_fronts=2, store=False, env=None, nginx=True,
                 start_engine=True, host=None, host_file=None, programs=BUILDDIR,
                 front_watchdog_s=0, origins=(), keys="", model=MODEL,
                 many_keys=False, n_engines=1, own_gpus=False):
        self.many_keys = many_keys
        self.dir = tempfile.mkdtemp(prefix="quire-t-")
        os.chmod(self.dir, 0o755)
        self.socket = os.path.join(self.dir, "nginx.sock")
        self.n_engines = n_engines
        socket_setting = os.path.join(self.dir, "run", "engine.sock")
        self.engine_sockets = [socket_setting] if n_engines == 1 \
            else [os.path.join(self.dir, "run", str(i), "engine.sock") for i in range(n_engines)]
        self.engine_socket = self.engine_sockets[0]
        for path in self.engine_sockets:
            os.makedirs(os.path.dirname(path))  # a front may come before the first engine
        self.port = free_port()
        self.n_fronts = n_fronts
        self.front_watchdog_s = front_watchdog_s
        self.origins = origins  # whose pages browsers let ask
        self.keys = keys        # further lines of keys.map
        self.listeners = []
        self.fronts = []
        self.engines = [None] * n_engines
        self.nginx = None
        self.env = dict(env or {})
        self.leftovers = []
        self.n_requests = 0
        common = ["--model", model, "--served-model-name", MODEL_NAME, "--engine-socket",
                  socket_setting]
        # By its number each has a GPU of its own: in tests on cuda they share one, by their sockets.
        self.by_number = n_engines > 1 and (DEVICE == "cpu" or own_gpus)
        if self.by_number:
            common += ["--data-parallel-size", str(n_engines)]
        # A number of pages, not a share of the GPU: several tests may run on it.
        self.engine_argv = [os.path.join(programs, "quire-engine")] + common + \
            ["--device", DEVICE, "--kernels", KERNELS, "--cpu-threads", CPU_THREADS] + \
            (["--num-pages", "8192"] if DEVICE == "cuda" and not own_gpus else []) + [str(a) for a in engine]
        self.host_is_ours = bool(host) and host_file is None
        self.host_file = host_file or (os.path.join(
            memory_folder(), os.path.basename(self.dir), "pages") if host else "")
        self.engine_argv += ["--kv-host-file", self.host_file]
        if host:
            self.engine_argv += ["--kv-host-bytes", host]
        if store:
            self.store_dir = os.path.join(self.dir, "store")
            os.mkdir(self.store_dir)
            self.engine_argv += ["--kv-store-dir", self.store_dir, "--kv-store-bytes", "256M"]
        self.front_argv = [os.path.join(programs, "quire-front")] + common + \
            [str(a) for a in front]
        if n_engines > 1 and not self.by_number:
            self.front_argv += ["--engine-socket", ",".join(self.engine_sockets)]
        try:
            for i in range(n_engines if start_engine else 0):
                self.start_engine(i)
            for i in range(n_fronts):
                self._start_front(i)
            if nginx:
                self._start_nginx()
                if start_engine and (not until(lambda: self.get("/health").status == 200 or
                                               len(self.engine.exits) > 1) or self.engine.exits):
                    raise RuntimeError("the server does not get ready:\n" + self.logs())
                if start_engine and not self.until_attached():
                    raise RuntimeError("not all fronts attach:\n" + self.logs())
        except BaseException:
            self.stop()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def engine(self):
        return self.engines[0]

    @engine.setter
    def engine(self, supervised):
        self.engines[0] = supervised

    def _engine_argv(self, i):
        argv = list(self.engine_argv)
        if self.n_engines == 1:
            return argv
        if "--kv-store-dir" in argv:
            os.makedirs("%s-%d" % (self.store_dir, i), exist_ok=True)
        if self.by_number:
            return argv + ["--data-parallel-rank", str(i)]
        argv += ["--engine-socket", self.engine_sockets[i]]
        for name in ("--kv-host-file", "--kv-store-dir"):
            if name in argv and argv[argv.index(name) + 1]:
                argv[argv.index(name) + 1] += "-%d" % i
        return argv

    def start_engine(self, i=0):
        remains = Remains(read_unit("quire-engine.service.in"),
                          os.path.dirname(self.engine_sockets[i]),
                          os.path.dirname(self.host_file) if self.host_is_ours else None)
        log = "engine.log" if self.n_engines == 1 else "engine%d.log" % i
        self.engines[i] = Supervised(self._engine_argv(i), self.path(log), env=self.env,
                                     remains=remains)

    def until_attached(self, engines=None):
        """Wait until every front is attached to these engines (or all). An engine counts a front a
        moment before that front knows, and nginx asks the fronts in turn."""
        want = [line % (i, n)
                for line, n in ((b"fronts_attached{model_name=\"demo\",engine=\"%d\"} %d\n",
                                 self.n_fronts),
                                (b"quire:engine_up{model_name=\"demo\",engine=\"%d\"} %d\n", 1))
                for i in (range(self.n_engines) if engines is None else engines)]

        def attached():
            m = self.get("/metrics").body
            return all(w in m for w in want)
        return until(lambda: all(attached() for _ in range(2 * self.n_fronts)))

    def front_path(self, i):
        return self.path("front%d.sock" % i)

    def _start_front(self, i):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.bind(self.front_path(i))
        os.chmod(self.front_path(i), 0o666)
        s.listen(4096)
        self.listeners.append(s)
        self.fronts.append(Supervised(self.front_argv, self.path("front%d.log" % i), env=self.env,
                                      fd=s.fileno(), watchdog_s=self.front_watchdog_s))

    def _start_nginx(self):
        # The project's own files, with the folders and the fronts of this test put in.
        fronts = "\n".join("    server unix:%s max_fails=0;" % self.front_path(i)
                           for i in range(self.n_fronts))
        with open(self.path("keys.map"), "w") as f:
            f.writelines('"Bearer %s" tenant%d;\n' % (key(i), i) for i in range(N_KEYS))
            f.write('"Bearer sk-test-twin" tenant1;\n')  # two keys of one tenant
            f.write(self.keys)
        with open(self.path("origins.map"), "w") as f:
            f.writelines('"%s" $http_origin;\n' % o for o in self.origins)
        for name in NGINX_FILES + ("local.conf.in",):
            with open(os.path.join(SRCDIR, "nginx", name)) as f:
                text = f.read()
            text = text.replace("@RUN@", self.dir).replace("@LISTEN@",
                                                                      "127.0.0.1:%d ssl http2" % self.port)
            text = text.replace("/etc/quire/keys.map", self.path("keys.map"))
            text = text.replace("/etc/quire/models.ma[p]", self.path("models.ma[p]"))
            text = text.replace("/etc/quire/origins.map", self.path("origins.map"))
            text = text.replace("/usr/share/quire", os.path.join(SRCDIR, "nginx"))
            text = text.replace("rate=100r/s", "rate=10000r/s")  # site.sh looks at that
            text = re.sub(r"( *server unix:/run/quire-front/\d+\.sock [^\n]*\n)+", fronts + "\n",
                          text)
            if name == "local.conf.in":
                name = "nginx.conf"
                text = ("user root;\n" if os.getuid() == 0 else "") + text
            with open(self.path(name), "w") as f:
                f.write(text)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                        "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj",
                        "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        # rustls takes no authority's certificate for a server's
                        "-addext", "basicConstraints=critical,CA:FALSE",
                        "-keyout", self.path("cert.key"), "-out", self.path("cert.pem")],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.nginx = Supervised([find_nginx(), "-p", self.dir, "-e", self.path("nginx-error.log"),
                                 "-c", self.path("nginx.conf")], self.path("nginx.log"),
                                restart=False)
        if not until(lambda: self._nginx_listens() or not self.nginx.alive(), 10) or \
                not self.nginx.alive():
            raise RuntimeError("nginx does not start:\n" + self.logs())

    def _nginx_listens(self):
        """Its socket's name is there a moment before it listens."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as k:
            return k.connect_ex(self.socket) == 0

    def path(self, name):
        return os.path.join(self.dir, name)

    def logs(self, n=30):
        out = []
        for name in sorted(os.listdir(self.dir)):
            if name.endswith(".log"):
                with open(self.path(name), errors="replace") as f:
                    out += ["--- " + name] + f.read().splitlines()[-n:]
        return "\n".join(out)

    def stop(self):
        """End everything; a process that did not follow SIGTERM is named in leftovers."""
        for name, p in ([("nginx", self.nginx)] +
                        [("front %d" % i, p) for i, p in enumerate(self.fronts)] +
                        [("engine %d" % i, p) for i, p in enumerate(self.engines)]):
            if p is not None and p.stop() is None:
                self.leftovers.append(name)
        for s in self.listeners:
            s.close()
        if os.environ.get("KEEP"):
            print("# kept " + self.dir)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
        if self.host_is_ours:
            shutil.rmtree(os.path.dirname(self.host_file), ignore_errors=True)

    # --- requests ---

    def bearer(self):
        """One tenant's, whose cache all requests share; with many_keys the next one's."""
        self.n_requests += 1
        return "Bearer " + key(self.n_requests if self.many_keys else 0)

    def connect(self, **kw):
        return UnixConnection(self.socket, **kw)

    def request(self, method, path, body=None, headers=None, timeout=60):
        """body: bytes as they are, anything else as JSON."""
        c = self.connect(timeout=timeout)
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            c.request(method, path, body, dict({"Content-Type": "application/json",
                                                "Authorization": self.bearer()},
                                               **(headers or {})))
            r = c.getresponse()
            reply = Reply(r.status, r.headers, r.read())
            kind = r.headers.get("Content-Type", "")
            if Stack.heard and reply.body and kind.startswith("application/json"):
                Stack.heard(path, r.status, reply.body, False)
            return reply
        finally:
            c.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def settle(self, path, body):
        """On cuda the last bits of a sum depend on how much of a prompt is cached, and draws hang
        on them: requests that come now find the same prefix."""
        if DEVICE == "cuda":
            self.post(path, dict(body, max_tokens=1))

    def open_stream(self, path, body, timeout=120, headers=None, **kw):
        c = self.connect(timeout=timeout, **kw)
        c.request("POST", path, json.dumps(dict(body, stream=True)).encode(),
                  dict({"Content-Type": "application/json", "Authorization": self.bearer()},
                       **(headers or {})))
        return Stream(c, c.getresponse(), path)

    def stream(self, path, body, on_event=None, timeout=120, headers=None):
        """A whole stream. An error before its first byte is in .error as well."""
        told = Told()
        try:
            s = self.open_stream(path, body, timeout=timeout, headers=headers)
        except (OSError, http.client.HTTPException) as e:
            told.broken = e
            return told
        told.status = s.status
        if s.status != 200:
            whole = json.loads(s.response.read())
            if Stack.heard:
                Stack.heard(path, s.status, whole, False)
            told.error = whole["error"]
            s.close()
            return told
        for event in s:
            told.add(event)
            if on_event:
                on_event(told)
        told.done = s.done
        told.broken = s.broken
        return told

    def events(self, path, body, headers=None):
        """(status, [data]) of a stream whose events have names, each that of its data's type; or
        [error] where none began."""
        c = self.connect(timeout=60)
        c.request("POST", path, json.dumps(dict(body, stream=True)).encode(),
                  dict({"Content-Type": "application/json", "Authorization": self.bearer()},
                       **(headers or {})))
        r = c.getresponse()
        text = r.read().decode()
        c.close()
        out = [json.loads(text)] if r.status != 200 else []
        for block in text.split("\n\n")[:-1] if r.status == 200 else []:
            name, data = block.split("\n")
            out.append(json.loads(data[len("data: "):]))
            if name != "event: " + out[-1]["type"]:
                raise ValueError("not an event: %r" % block)
        for value in out:
            if Stack.heard:
                Stack.heard(path, r.status, value, r.status == 200)
        return r.status, out

    def chat(self, content, **fields):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return dict({"model": MODEL_NAME, "messages": messages, "temperature": 0}, **fields)

    def completion(self, prompt, **fields):
        return dict({"model": MODEL_NAME, "prompt": prompt, "temperature": 0}, **fields)

    def metrics(self):
        return parse_metrics(self.get("/metrics").text)[0]

    def metric(self, name):
        """The sum over all label sets."""
        return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

    def is_sleeping(self):
        """False also from a front that is not attached: after a restart of the engine the fronts
        attach one after another, and nginx asks any of them."""
        r = self.get("/is_sleeping")
        return r.status == 200 and r.json["is_sleeping"]

    def idle(self, timeout_s=WAIT_S):
        """Wait until the engine runs nothing; true when it came to that."""
        def quiet():
            m = self.metrics()
            return not any(v for k, v in m.items()
                           if k.split("{")[0] in ("vllm:num_requests_running",
                                                  "vllm:num_requests_waiting"))
        return until(quiet, timeout_s, 0.05)


SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\["\\n])*"'
                    r'(?:,|(?=\})))*\})? (-?[0-9.]+(?:[eE][+-]?[0-9]+)?|NaN|[+-]Inf)$')


def parse_metrics(text):
    """Prometheus text -> ({name{labels}: value}, {name: type}). ValueError when it is not."""
    values, types = {}, {}
    if not text.endswith("\n"):
        raise ValueError("no newline at the end")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in types:
                raise ValueError("two TYPE lines for " + name)
            types[name] = kind
        elif line.startswith("# HELP ") or line == "":
            continue
        else:
            m = SAMPLE.match(line)
            if m is None:
                raise ValueError("not a sample: " + line)
            key = m.group(1) + (m.group(2) or "")
            if key in values:
                raise ValueError("twice: " + key)
            base = re.sub(r"_(bucket|sum|count)$", "", m.group(1))
            if m.group(1) not in types and base not in types:
                raise ValueError("no TYPE before " + line)
            values[key] = float(m.group(3))
    return values, types


def crowd(n, work, timeout_s=120):
    """Run work(i) for 0 .. n-1 at the same time; the list of what they return. An exception is
    a result like any other."""
    results = [TimeoutError("unfinished")] * n

    def one(i):
        try:
            results[i] = work(i)
        except Exception as e:
            results[i] = e
    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(n)]
    for t in threads:
        t.start()
    end = time.monotonic() + timeout_s
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    return results


def cpu_seconds(pid):
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
