"""A browser without a window, driven over Chromium's DevTools protocol: JSON over a WebSocket, by
hand (RFC 6455), with the standard library alone.

Browser is a process with a profile of its own in a private folder; Page a tab of it. What a person
does goes through Input events at places of the screen and keys of the keyboard, so that what is
hidden, covered or without focus cannot be used.
"""

import base64
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
WAIT_S = 30
# No sandbox: tests run as root in containers, and load one server's page. The rest is for less work.
FLAGS = """--no-sandbox --no-zygote --in-process-gpu --disable-gpu --disable-gpu-compositing
    --renderer-process-limit=1 --enable-features=NetworkServiceInProcess2
    --disable-features=Translate,OptimizationHints,MediaRouter,site-per-process,Vulkan,AudioServiceOutOfProcess
    --no-first-run --no-default-browser-check --disable-breakpad --disable-crash-reporter
    --disable-client-side-phishing-detection --disable-default-apps --disable-extensions
    --disable-background-networking --disable-component-update --disable-sync --disable-dev-shm-usage
    --disable-domain-reliability --password-store=basic --force-prefers-reduced-motion --hide-scrollbars
    --mute-audio""".split()
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, ""), "Backspace": (8, ""), "End": (35, "")}


def find():
    asked = os.environ.get("QUIRE_TEST_BROWSER")
    return asked or next((p for p in map(shutil.which, NAMES) if p), None)


class Socket:
    """A WebSocket of a server on this machine. Text frames; no fragments are sent."""

    def __init__(self, port, path):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        nonce = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(("GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUpgrade: websocket\r\n"
                           "Connection: Upgrade\r\nSec-WebSocket-Key: %s\r\n"
                           "Sec-WebSocket-Version: 13\r\n\r\n" % (path, port, nonce)).encode())
        self.file = self.sock.makefile("rb")
        status = self.file.readline()
        if b" 101 " not in status:
            raise ConnectionError("no WebSocket: %r" % status)
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def _frame(self, opcode, data):
        n = len(data)
        size = struct.pack(">B", 0x80 | n) if n < 126 else \
            struct.pack(">BH", 0x80 | 126, n) if n < 65536 else struct.pack(">BQ", 0x80 | 127, n)
        mask = os.urandom(4)
        whole = (data + bytes(-n % 4))
        word = int.from_bytes(mask * (len(whole) // 4), "little")
        masked = (int.from_bytes(whole, "little") ^ word).to_bytes(len(whole), "little")[:n]
        self.sock.sendall(bytes([0x80 | opcode]) + size + mask + masked)

    def send(self, text):
        self._frame(1, text.encode())

    def _read(self, n):
        data = self.file.read(n)
        if len(data) != n:
            raise ConnectionError("the browser has gone")
        return data

    def receive(self, timeout_s):
        """The next message, or TimeoutError. A timeout inside a frame loses the connection."""
        parts = []
        self.sock.settimeout(timeout_s)
        while True:
            first, second = self._read(2)
            self.sock.settimeout(WAIT_S)
            n = second & 127
            if n > 125:
                n = int.from_bytes(self._read(2 if n == 126 else 8), "big")
            data = self._read(n)
            if first & 15 == 9:
                self._frame(10, data)
            elif first & 15 == 8:
                raise ConnectionError("the browser closed the connection")
            elif first & 15 in (0, 1):
                parts.append(data)
                if first & 0x80:
                    return b"".join(parts).decode()

    def close(self):
        self.file.close()
        self.sock.close()


class Browser:
    """Use with `with`. width and height are those of the pages' window."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="quire-t-browser-")
        self.log = os.path.join(self.folder, "browser.log")
        with open(self.log, "wb") as log:
            self.proc = subprocess.Popen(
                [find(), "--headless=new", "--remote-debugging-port=0", "--user-data-dir=" + self.folder,
                 *FLAGS, *flags, "about:blank"], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True)
        end = time.monotonic() + WAIT_S
        self.port = None
        while self.port is None:
            with open(self.log, errors="replace") as f:
                said = f.read()
            found = re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)(/\S+)", said)
            if found:
                self.port, path = int(found.group(1)), found.group(2)
            elif self.proc.poll() is not None or time.monotonic() > end:
                self.close()
                raise RuntimeError("the browser does not start:\n" + said[-2000:])
            else:
                time.sleep(0.05)
        self.socket = Socket(self.port, path)
        self.next_id = 0
        self.pages = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def cpu_seconds(self):
        """Of all its processes so far."""
        total = 0.0
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % pid) as f:
                    fields = f.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.proc.pid:  # its session
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def close(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.proc.wait()
        for _ in range(20):  # its children may still write
            shutil.rmtree(self.folder, ignore_errors=True)
            if not os.path.exists(self.folder):
                return
            time.sleep(0.05)

    def call(self, method, session=None, **params):
        """The result of a command; events that come meanwhile are given to their pages."""
        self.next_id += 1
        mine = self.next_id
        message = {"id": mine, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self.socket.send(json.dumps(message))
        while True:
            got = json.loads(self.socket.receive(WAIT_S))
            if got.get("id") == mine:
                if "error" in got:
                    raise RuntimeError("%s: %s" % (method, got["error"]))
                return got["result"]
            if got.get("sessionId") in self.pages:
                self.pages[got["sessionId"]].hear(got)

    def page(self, url, width=1280, height=800, **kw):
        return Page(self, url, width, height, **kw)


class Page:
    """One tab in a context of its own: no storage is shared unless `context` names another's."""

    def __init__(self, browser, url, width, height, dark=False, context=None, mobile=False):
        self.browser = browser
        self.errors = []    # of scripts and of the console
        self.requests = []  # URLs
        self.bodies = []    # of POST requests, as JSON
        self.context = context or browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank",
                              browserContextId=self.context)["targetId"]
        self.target = target
        self.session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=2 if mobile else 1, mobile=mobile)
        self.colours(dark)
        self.go(url)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def hear(self, event):
        p = event["params"]
        if event["method"] == "Runtime.exceptionThrown":
            d = p["exceptionDetails"]
            self.errors.append(d.get("exception", {}).get("description", d["text"]))
        elif event["method"] == "Log.entryAdded" and p["entry"]["level"] == "error":
            self.errors.append("%(text)s" % p["entry"] + " " + p["entry"].get("url", ""))
        elif event["method"] == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
            if "postData" in p["request"]:
                self.bodies.append(json.loads(p["request"]["postData"]))

    def colours(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def go(self, url):
        self.call("Page.navigate", url=url)

    def reload(self):
        self.js("document.documentElement.dataset.old = 1")
        self.call("Page.reload")
        self.until("document.documentElement && !document.documentElement.dataset.old && document.readyState === 'complete'")

    def close(self):
        self.browser.pages.pop(self.session, None)
        self.browser.call("Target.closeTarget", targetId=self.target)

    def js(self, code):
        """The value of an expression; a promise is waited for. An element is {}."""
        got = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in got:
            d = got["exceptionDetails"]
            raise RuntimeError("%s\nin %s" % (d.get("exception", {}).get("description", d["text"]), code))
        return got["result"].get("value")

    def until(self, code, timeout_s=WAIT_S):
        """Wait until an expression is true; its value, or None when the time is over."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                value = self.js(code)
                if value:
                    return value
            except RuntimeError as e:  # a page that is being left has no context
                if "ontext" not in str(e) and "avigat" not in str(e):
                    raise
            if time.monotonic() > end:
                return None
            time.sleep(0.04)

    def text(self, selector):
        return self.js("[...document.querySelectorAll(%s)].map(e => e.innerText).join('\\n')" %
                       json.dumps(selector))

    def shows(self, selector):
        """Is it there, and seen?"""
        return self.js("[...document.querySelectorAll(%s)].some(e => e.checkVisibility() && "
                       "e.getClientRects().length > 0)" % json.dumps(selector))

    # --- hands ---

    def click(self, selector, text=None):
        """Press the mouse where the last such element (with this text) is, as far as it is seen."""
        at = self.until("""(() => {
            const all = [...document.querySelectorAll(%s)].filter(e => e.checkVisibility() &&
                (%s === null || e.innerText.trim() === %s));
            const e = all[all.length - 1];
            if (!e) return null;
            e.scrollIntoView({block: "nearest"});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const top = document.elementFromPoint(x, y);
            return top && (e === top || e.contains(top) || top.contains(e) && top.tagName === "LABEL") ? [x, y] : null;
        })()""" % (json.dumps(selector), json.dumps(text), json.dumps(text)), 10)
        if at is None:
            raise RuntimeError("nothing to click: %s %s" % (selector, text))
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def press(self, key, modifiers=0):
        """A key; modifiers: 1 Alt, 2 Ctrl, 4 Meta, 8 Shift."""
        code, text = KEYS.get(key, (ord(key[0].upper()), key))
        if modifiers & 7:
            text = ""
        extra = {"text": text} if text else {}
        name = key if len(key) > 1 else "Key" + key.upper()
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=name,
                  windowsVirtualKeyCode=code, modifiers=modifiers, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=name, windowsVirtualKeyCode=code,
                  modifiers=modifiers)

    def type(self, text):
        """Into what has the focus."""
        self.call("Input.insertText", text=text)

    def fill(self, selector, text):
        """Click a field, empty it, write."""
        self.click(selector)
        self.js("document.activeElement.select()")
        self.press("Backspace")
        self.type(text)

    def choose(self, selector, value):
        """Of a list: the pop-up belongs to no page, so the value is set as the list itself would."""
        self.js("(e => { e.value = %s; e.dispatchEvent(new Event('change', {bubbles: true})); })"
                "(document.querySelector(%s))" % (json.dumps(value), json.dumps(selector)))

    def screenshot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
