#!/usr/bin/env python3
"""Goal: a person can do with the page in the browser what it offers, on a desktop and on a phone, with
mouse or keyboard, and nothing that a model says becomes part of the page. Method: Chromium without a
window (browser.py), whose mouse and keys do it, before a whole server; what the page asks is read from
the browser's own account of its requests."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time

import browser
from harness import BUILDDIR, LONG, MODEL, SRCDIR, Stack, Tap, need_nginx, skip_all

need_nginx()
if browser.find() is None:
    skip_all("there is no chromium: apt-get install chromium, or name one in QUIRE_TEST_BROWSER")
sys.path.insert(0, os.path.join(SRCDIR, "tools", "demo-model"))
import generate  # noqa: E402: its folder has just been named

tap = Tap()
ADMIN = "admin-secret-0123456789"
READY = "document.documentElement && document.documentElement.dataset.ready" # none while a page begins
DONE = "!document.querySelector('#send').hidden && document.querySelectorAll('.message').length === %d"
NO_KEY = {"Authorization": ""}


def talked(p, n, what):
    """n messages, and no answer comes in."""
    return tap.ok(p.until(DONE % n), what, p.text("#messages"))


def ask(p, text):
    p.fill("#input", text)
    p.press("Enter")


def last(p, selector=".body"):
    return p.js("[...document.querySelectorAll('.message %s')].pop().innerText" % selector)


def files(p, *parts):
    """Paste files: (name, type, text)."""
    p.click("#input")
    p.js("""(parts => {
        const d = new DataTransfer();
        for (const [name, type, text] of parts) d.items.add(new File([text], name, {type}));
        document.activeElement.dispatchEvent(new ClipboardEvent("paste", {clipboardData: d, bubbles: true, cancelable: true}));
    })(%s)""" % json.dumps(parts))


def served(s):
    """The files, before any browser reads them."""
    r = s.request("GET", "/", headers=NO_KEY)
    tap.eq((r.status, r.headers["Location"]), (302, "ui/"), "/ leads to the page, without a key")
    tap.eq(s.request("GET", "/ui", headers=NO_KEY).headers["Location"], "ui/", "so does /ui")
    r = s.request("GET", "/ui/", headers=NO_KEY)
    policy = r.headers["Content-Security-Policy"] or ""
    tap.ok(r.status == 200 and "default-src 'none'" in policy and "unsafe" not in policy and
           "<script>" not in r.text and "style=" not in r.text and "http" not in r.text.replace(
               "http-equiv", ""), "its markup has no script, style or address of others", policy)
    kinds = {name.rsplit(".")[-1]: s.request("GET", "/ui/" + name, headers=NO_KEY)
             for name in ("main.js", "page.css", "icon.svg")}
    tap.eq({k: (r.status, r.headers["Content-Type"].split(";")[0]) for k, r in kinds.items()},
           {"js": (200, "text/javascript"), "css": (200, "text/css"), "svg": (200, "image/svg+xml")},
           "its files have their types")
    tap.eq([s.request("GET", "/ui/" + name, headers=NO_KEY).status
            for name in ("none.js", "../quire-http.conf", "%2e%2e/keys.map")], [404, 404, 404],
           "and nothing else is there")


def keys(s, b):
    """The page with a key typed into it."""
    p = b.page("https://127.0.0.1:%d/" % s.port)
    p.until(READY)
    tap.ok(p.shows("#keys") and "API key" in p.text("#keys-why"), "without a key it asks for one")
    p.fill("#key", "sk-wrong")
    p.press("Enter")
    p.until("document.querySelector('#keys').open && document.querySelector('#key').value === 'sk-wrong'")
    tap.ok(p.shows("#keys"), "a wrong key: it asks again")
    p.fill("#key", "sk-test-0")
    p.press("Enter")
    tap.ok(p.until("document.querySelector('#model').value === 'demo'"), "a right one: the models are listed")
    tap.eq(p.js("[sessionStorage['quire.key'], JSON.stringify(localStorage).includes('sk-test')]"),
           ["sk-test-0", False], "the key is this tab's alone")
    return p


def chat(p):
    ask(p, "What is the capital of France?")
    talked(p, 2, "a question is answered")
    tap.ok("Paris" in last(p) and "tokens" in last(p, ".figures"), "with its figures", last(p))
    body = p.bodies[-1]
    tap.ok(body["stream"] is True and "temperature" not in body and "max_tokens" not in body,
           "empty settings are the server's", body)
    p.click("#settings-open")
    p.fill("#s-system", "You are brief.")
    p.fill("#s-temperature", "0")
    p.fill("#s-max_tokens", "9")
    p.press("Escape")
    tap.ok(not p.shows("#settings"), "Escape closes the settings")
    ask(p, "What is the capital of Italy?")
    talked(p, 4, "a second question")
    sent = p.bodies[-1]
    tap.eq(([m["role"] for m in sent["messages"]], sent["temperature"], sent["max_tokens"]),
           (["system", "user", "assistant", "user"], 0, 9), "it takes the first, and the settings, along")
    cut = last(p, ".text")
    tap.ok("most tokens" in last(p) and p.shows(".foot button"), "an answer that was cut says so", last(p))
    p.click(".foot button", "Continue")
    talked(p, 4, "it goes on")
    tap.ok(last(p, ".text").startswith(cut.strip()) and len(last(p, ".text")) > len(cut) and
           p.bodies[-1]["continue_final_message"] is True, "behind what was there", (cut, last(p)))
    p.click(".foot button", "Retry")
    talked(p, 4, "another try takes its place")
    tap.eq(last(p, ".text"), cut, "and begins anew")
    p.click(".message.user:nth-last-child(2) .foot button", "Edit")
    p.press("Escape")
    tap.ok(not p.shows(".edit") and "Italy" in p.text("#messages"), "an edit given up changes nothing")
    p.click(".message.user:first-child .foot button", "Edit")
    p.js("document.activeElement.select()")
    p.type("What is the capital of Spain?")
    p.press("Enter")
    talked(p, 2, "an edited question is asked again, and what followed it goes")
    tap.ok("Spain" in p.text("#messages") and "Italy" not in p.text("#messages"), "as it is now")
    p.fill("#input", "one")
    p.press("Enter", modifiers=8)
    p.type("two")
    tap.eq(p.js("document.querySelector('#input').value"), "one\ntwo", "Shift+Enter begins a line")
    p.fill("#input", "")


def stopped(p):
    p.press("n", modifiers=1)
    tap.eq(p.js("document.querySelectorAll('.message').length"), 0, "Alt+N: a new conversation")
    p.click("#settings-open")
    p.fill("#s-max_tokens", "1900")
    p.fill("#s-stop", "never said")
    p.press("Escape")
    long = "Once upon a time"
    for name, end in (("Escape", lambda: p.press("Escape")), ("the button", lambda: p.click("#stop"))):
        p.click("#new")
        p.js("""(() => { const f = window.fetch0f || (window.fetch0f = window.fetch);
            window.fetch = (u, o) => f(u, o && o.body ? {...o, body: JSON.stringify({...JSON.parse(o.body),
                ignore_eos: true})} : o); })()""")  # it would stop by itself
        ask(p, long)
        p.until("!!document.querySelector('.message.assistant .text')")
        end()
        tap.ok(p.until(DONE % 2) and "Stopped." in last(p) and len(last(p)) > 10,
               "%s stops an answer, and what came stays" % name, last(p))
    p.js("window.fetch = window.fetch0f")


def settings(p):
    p.click("#new")
    p.click("#settings-open")
    p.fill("#s-temperature", "-3")
    n = len(p.bodies)
    ask(p, "Hello")
    tap.ok(p.shows("#s-wrong") and "Temperature" in p.text("#s-wrong") and len(p.bodies) == n,
           "a wrong number is told beside it, and nothing is sent", p.text("#s-wrong"))
    p.fill("#s-temperature", "0")
    p.fill("#s-stop", "")
    p.choose("#s-form", "schema")
    p.fill("#s-schema", '{"type": "object",')
    ask(p, "Hello")
    tap.ok("not JSON" in p.text("#s-wrong") and len(p.bodies) == n, "so is a wrong schema")
    p.fill("#s-schema", json.dumps({"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
                                    "required": ["city"], "additionalProperties": False}))
    p.click("#settings-close")
    ask(p, "What is the capital of France?")
    talked(p, 2, "a schema is followed")
    block = p.text(".message .block pre")
    tap.ok(block and json.loads(block)["city"] in ("Paris", "Rome"), "and its JSON is shown as such", block)
    p.click("#settings-open")
    p.fill("#s-schema", '{"type": "object", "unevaluatedProperties": false}')
    p.press("Escape")
    ask(p, "Hello")
    talked(p, 4, "a schema that the server refuses")
    tap.ok("unevaluatedProperties" in p.text(".message .wrong"), "is explained in its words", last(p))
    p.choose("#s-form", "")


def tools(p):
    rng = random.Random(7)
    tool, asks = generate.TOOLS[0](rng)
    question, _, result, _ = asks(rng)
    p.click("#new")
    p.click("#settings-open")
    p.fill("#s-max_tokens", "120")
    p.choose("#s-form", "")
    p.fill("#s-tools", json.dumps([tool["function"]]))
    p.choose("#s-tool_choice", "required")
    p.press("Escape")
    ask(p, question)
    talked(p, 2, "a question with tools")
    tap.ok(tool["function"]["name"] in p.text(".call-name") and p.bodies[-1]["tool_choice"] == "required",
           "the call is shown apart", last(p))
    tap.ok(isinstance(json.loads(p.text(".call pre")), dict), "with its arguments")
    p.fill(".result", result if isinstance(result, str) else json.dumps(result))
    p.choose("#s-tool_choice", "none")
    p.click(".foot button", "Send results")
    talked(p, 4, "its result is sent")
    roles = [m["role"] for m in p.bodies[-1]["messages"]]
    tap.ok(roles[-3:] == ["user", "assistant", "tool"] and p.text(".message.tool .body") and last(p, ".text"),
           "and the model answers", (roles, last(p)))


def hostile(p, other):
    """The text is the person's own, put into an answer: what shows it is the same."""
    p.click("#new")
    p.click("#settings-open")
    p.fill("#s-tools", "")
    p.press("Escape")
    ask(p, "Hello")
    p.until(DONE % 2)
    p.click(".message.assistant .foot button", "Edit")
    p.js("document.activeElement.select()")
    p.type("<img src=x onerror=boom=1><script>boom=1</script> [a](javascript:boom=1) ![i](%s/i.png)\n\n"
           "# Head\n\n- one\n  - two **bold**\n\n| a | b |\n|---|---|\n| 1 | `2` |\n\n"
           "```html\n<b>code</b>\n```\n[good](https://example.org/) <iframe src=%s></iframe>\n\n"
           "[b](data:text/html,boom) **open `code" % (other, other))
    p.click(".foot button", "Keep")
    inside = p.js("""[...document.querySelectorAll('.message.assistant .text *')].map(e => e.tagName)
        .filter(t => ['IMG', 'SCRIPT', 'IFRAME', 'STYLE', 'OBJECT', 'EMBED', 'FORM'].includes(t))""")
    tap.ok(inside == [] and p.js("typeof boom") == "undefined" and "<script>boom=1</script>" in last(p),
           "markup in an answer is text", (inside, last(p)))
    tap.eq(p.js("[...document.querySelectorAll('.text a')].map(a => [a.href.split(':')[0], a.rel])"),
           [["https", "noopener noreferrer nofollow"]] * 3, "links lead to the web alone; an image is one")
    tap.eq(p.js("""['h3', 'li li strong', 'td code', '.block pre'].map(s =>
        document.querySelector('.text ' + s)?.innerText)"""), ["Head", "bold", "2", "<b>code</b>"],
           "headings, lists, tables and code are shown as such")
    p.click(".text .block .copy")
    tap.ok(p.until("document.querySelector('.text .block .copy').innerText.startsWith('Co')"), "code is copied")
    took = p.js("""import('./markdown.js').then(m => { const t = performance.now();
        for (const s of ['*', '[', '`', '_a', '> ', '- ', '|-', '**a', '![](', '1. '])
            m.markdown(s.repeat(8000 / s.length));
        return performance.now() - t; })""")
    tap.ok(took < 3000, "texts of nothing but marks are no trap (%.0f ms for ten of 8 kB)" % took, took)
    files(p, ("a.png", "image/png", "x"))
    tap.ok("text only" in p.text("#notice") and p.js("document.querySelector('#input').value") == "",
           "an image is refused kindly", p.text("#notice"))
    p.click("#notice-close")
    files(p, ("notes.txt", "text/plain", "alpha\n"))
    tap.ok(p.until("document.querySelector('#input').value.includes('alpha')"), "a text file is taken in")
    p.fill("#input", "")


def history(p):
    n = p.js("document.querySelectorAll('#conversations li').length")
    p.reload()
    p.until(READY)
    tap.ok(p.js("document.querySelectorAll('#conversations li').length") == n and n >= 5 and
           p.js("document.querySelectorAll('.message').length") == 2, "a reload keeps all", n)
    p.fill("#find", "spain")
    tap.eq(p.js("document.querySelectorAll('#conversations li').length"), 1, "a conversation is found")
    p.click("#conversations .name")
    tap.ok("Spain" in p.text("#messages") and p.js("document.querySelector('#s-system').value") ==
           "You are brief.", "and opened, with its settings")
    p.click("#conversations li button:last-child")
    p.press("Escape")
    p.until("!document.querySelector('#sure').open")
    tap.eq(p.js("document.querySelectorAll('#conversations li').length"), 1, "a deletion can be called off")
    p.click("#conversations li button:last-child")
    p.click("#sure-yes")
    tap.ok(p.until("document.querySelectorAll('#conversations li').length === 0") and
           p.js("document.querySelectorAll('.message').length") == 0, "or done")
    p.fill("#find", "")
    p.press("Backspace")


def state(s, p):
    p.click("#to-state")
    tap.ok(p.until("document.querySelectorAll('.tier').length === 3"), "the state: pages of three tiers")
    first = p.text("#engines")
    m = s.metrics()
    find = lambda name: next(v for k, v in m.items() if k.split("{")[0] == name)  # noqa: E731
    tap.ok("of {:,.0f}".format(find("quire:kv_pages")) in first and
           "of {:,.0f}".format(find("quire:kv_store_slots")) in first and "awake" in first and
           "running" in first and "hit rate" in first, "as the metrics have them", first)
    s.post("/v1/completions", s.completion("Once", max_tokens=40, ignore_eos=True))
    tap.ok(p.until("parseFloat(document.querySelector('dd').innerText) > 0"), "tokens a second", p.text("dl"))
    tap.ok("2,048" in p.text("#models") and "demo" in p.text("#models"), "the models", p.text("#models"))


def cache(s, p):
    p.click("#to-cache")
    tap.ok(p.until("document.querySelector('#cache-why').innerText.includes('key')") and
           not p.shows("#cache-drop-all"), "the cache is for operators", p.text("#cache"))
    p.click("#key-open")
    p.fill("#admin", ADMIN)
    p.click("#keys-use")
    tap.ok(p.until("document.querySelectorAll('#cache-lists table').length >= 2") and
           "device" in p.text("#cache-lists"), "with their key: tiers and namespaces", p.text("#cache"))
    p.click("#cache-pin-part summary")
    p.fill("#c-prompt", "A long system prompt that many requests share, word by word, from its start. " * 2)
    p.fill("#c-tenant", "tenant0")
    p.click("#c-pin")
    tap.ok(p.until("document.querySelector('#cache-lists').innerText.includes('pinned')") and
           "retained" in p.text("#notice"), "a prompt is pinned", p.text("#cache"))
    p.click("#c-drop")
    p.click("#sure-yes")
    tap.ok(p.until("!document.querySelector('#cache-lists').innerText.includes('pinned')") and
           "dropped" in p.text("#notice"), "and dropped", p.text("#cache"))
    p.click("#cache-lists button", "Drop")
    p.click("#sure-yes")
    tap.ok(p.until("document.querySelector('#notice').innerText.match(/^[1-9]\\d* pages dropped/)"),
           "a namespace is dropped", p.text("#notice"))
    s.post("/v1/completions", s.completion("One evening the whole village met beside the old bridge", max_tokens=40))
    device = "document.querySelector('#cache-lists td:nth-child(2)').innerText"
    p.click("#cache-read")
    tap.ok(p.until(device + " !== '0'"), "reading again shows new pages")
    p.js("""(() => { const real = fetch; let n = 0; window.late = false;
        window.fetch = async (...a) => { const r = await real(...a);
            if (!String(a[0]).includes('admin/cache') || ++n > 1) return r;
            await new Promise(t => setTimeout(t, 300)); window.late = true;
            return new Response('{"engines": []}', {headers: r.headers}); }; })()""")
    p.click("#cache-read")
    p.click("#cache-read")
    tap.ok(p.until("window.late") and p.js(device) != "0", "a late answer does not replace a newer one")
    p.click("#cache-drop-all")
    p.press("Escape")
    p.until("!document.querySelector('#sure').open")
    tap.ok(p.js(device) != "0", "dropping all can be called off")
    p.click("#cache-drop-all")
    p.click("#sure-yes")
    tap.ok(p.until(device + " === '0'"), "or done", p.text("#cache"))


def looks(p):
    back = "getComputedStyle(document.body).backgroundColor"
    light = p.js(back)
    p.colours(True)
    dark = p.js(back)
    p.click("#theme")
    tap.ok(light != dark and p.js(back) == light, "dark and light, as the system has it or by the button")
    p.click("#theme")
    p.click("#theme")
    tap.eq(p.js(back), dark, "three times is the system's again")


def keyboard(p):
    p.click("#to-chat")
    p.click("#new")
    p.js("document.activeElement.blur()")
    p.press("/")
    tap.eq(p.js("[document.activeElement.id, document.activeElement.value]"), ["input", ""], "/: to the message")
    p.js("document.activeElement.blur()")
    seen = []
    for _ in range(40):
        p.press("Tab")
        seen.append(p.js("document.activeElement.id || document.activeElement.className"))
    tap.ok({"skip", "to-chat", "to-state", "to-cache", "key-open", "theme", "new", "find", "model",
            "settings-open", "input", "send"} <= set(seen), "Tab reaches all", seen)
    wrong = p.js("""[...document.querySelectorAll('button, input, textarea, select, a')].filter(e =>
        !(e.innerText.trim() || e.getAttribute('aria-label') || e.labels?.length || e.tagName === 'SELECT' && e.title))
        .map(e => e.outerHTML)""")
    tap.eq(wrong, [], "everything that is used has a name")


def phone(s, b, p):
    q = b.page("https://127.0.0.1:%d/ui/" % s.port, 390, 780, context=p.context, mobile=True, dark=True)
    q.until(READY)
    q.fill("#key", "sk-test-0")
    q.press("Enter")
    q.until("document.querySelector('#model').value")
    tap.ok(not q.shows("#list"), "a phone: conversations are behind a button")
    q.click("#list-open")
    q.click("#conversations .name")
    tap.ok(q.until("document.querySelectorAll('.message').length > 0") and not q.shows("#list"),
           "one is opened, and the list goes")
    wide = []
    for view in ("chat", "state", "cache"):
        q.click("#to-" + view)
        q.until("!document.querySelector('#%s').hidden" % view)
        if q.js("document.documentElement.scrollWidth > innerWidth"):
            wide.append(view)
    tap.eq(wide, [], "nothing is wider than the screen")
    q.close()
    return q


def reasoning(b):
    with open(os.path.join(MODEL, "tokenizer_config.json")) as f:
        template = json.load(f)["chat_template"]
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as f:
        f.write(template + "<think>\n")
        f.flush()
        with Stack(n_fronts=1, keys='"~." anyone;\n', front=["--reasoning-parser", "think",
                                                            "--chat-template", f.name]) as s:
            with open(s.path("quire-locations.conf")) as locations:
                text = locations.read()
            p = b.page("https://127.0.0.1:%d/ui/" % s.port)
            p.until(READY)
            tap.ok(p.js("document.querySelector('#model').value") == "demo" and not p.shows("#keys"),
                   "a server without keys asks for none")
            p.click("#settings-open")
            p.fill("#s-thinking_token_budget", "6")
            p.fill("#s-max_tokens", "30")
            p.choose("#s-form", "regex")
            p.fill("#s-schema", "(yes|no)")
            p.press("Escape")
            ask(p, "What is the capital of France?")
            p.until(DONE % 2)
            thought = p.js("document.querySelector('.reasoning .text').textContent")
            tap.ok(thought and not p.shows(".reasoning .text") and last(p, ".body > .text") in ("yes", "no"), "reasoning is shown apart, and folded", (thought, last(p)))
            p.click(".reasoning summary")
            tap.ok(p.shows(".reasoning .text"), "it is read with a click")
            with open(s.path("quire-locations.conf"), "w") as locations:
                locations.write(text.replace("allow 127.0.0.1;", ""))
            s.nginx.proc.send_signal(1)  # reload
            p.click("#to-state")
            tap.ok(p.until("document.querySelector('#engines').innerText.includes('run or wait')"),
                   "from another machine: the number of requests, and why no more", p.text("#state"))
            p.click("#to-cache")
            tap.ok(p.until("document.querySelector('#cache-why').innerText.includes('key')"), "no cache")
            s.nginx.stop()
            p.click("#to-chat")
            ask(p, "Hello")
            tap.ok(p.until(DONE % 4) and "does not answer" in p.text(".message .wrong"),
                   "a server that is gone is told", p.text("#messages"))
            p.close()


def several(b, admin, folder):
    """Several models: which are awake, and an operator's buttons for it."""
    paths = [os.path.join(folder, name) for name in ("one", "two")]
    for path in paths:
        os.symlink(MODEL, path)
    with tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen([os.path.join(BUILDDIR, "quire"), "serve", *paths, "--port", "0",
                              "--device", "cpu", "--cpu-threads", "1", "--admin-key-file", admin, "--sleep-after-s", "3600"],
                             stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            url = p.stdout.readline().split()[1].rsplit("/", 1)[0]
            q = b.page(url + "/")
            q.until(READY)
            names = q.js("[...document.querySelector('#model').options].map(o => o.value)")
            tap.ok(len(names) == 2 and "stopped" in q.text("#model option"), "two models, not started yet", names)
            q.click("#key-open")
            q.fill("#admin", ADMIN)
            q.press("Enter")
            q.choose("#model", names[1])
            ask(q, "What is the capital of France?")
            talked(q, 2, "a chat starts the chosen one")
            tap.ok("Paris" in last(q) and q.bodies[-1]["model"] == names[1], "which answers", last(q))
            q.click("#to-state")
            state = "[...document.querySelectorAll('#models tbody tr')].map(r => r.cells[1].innerText).join()"
            tap.ok(q.until(state + " === 'stopped,awake'"), "the states of both", q.text("#models"))
            q.click("#models tr:first-child button", "Load")
            tap.ok(q.until(state + " === 'awake,awake'"), "an operator loads the other", q.text("#models"))
            q.click("#models tr:first-child button", "Unload")
            tap.ok(q.until(state + ".match(/^(asleep|stopped),awake/)"), "and unloads it", q.text("#models"))
            tap.ok(q.until("document.querySelectorAll('#engines .card').length === 2"), "a card for each")
            q.close()
        finally:
            p.terminate()
            p.wait(30)


with tempfile.NamedTemporaryFile("w") as secret, browser.Browser("--ignore-certificate-errors") as b:
    secret.write(ADMIN)
    secret.flush()
    with tap.section("page"), Stack(n_fronts=1, host="8M", store=True,
                                    front=["--admin-key-file", secret.name]) as s:
        served(s)
        p = keys(s, b)
        for name, part in (("chat", chat), ("stop", stopped), ("settings", settings), ("tools", tools),
                           ("hostile", lambda p: hostile(p, "https://elsewhere.example")),
                           ("history", history), ("state", lambda p: state(s, p)), ("cache", lambda p: cache(s, p)),
                           ("looks", looks), ("keyboard", keyboard)):
            with tap.section(name):
                began = time.monotonic()
                part(p)
                tap.note("%s: %.1f s" % (name, time.monotonic() - began))
        with tap.section("phone"):
            q = phone(s, b, p)
            asked = {r.split("/")[2] for r in p.requests + q.requests if not r.startswith(("data:", "blob:"))}
            tap.eq(asked, {"127.0.0.1:%d" % s.port}, "no other host was asked for anything")
            told = [e for e in p.errors + q.errors if "status of 4" not in e]
            tap.eq(told, [], "no script failed, and the policy hindered nothing")
            with open(s.path("access.log")) as f:
                tap.ok("sk-test" not in f.read(), "no key is in a path")
    with tap.section("reasoning"):
        reasoning(b)
    if LONG:
        with tap.section("several models"), tempfile.TemporaryDirectory(prefix="quire-t-") as d:
            several(b, secret.name, d)
    tap.note("the browser took %.1f s of CPU time" % b.cpu_seconds())
tap.done()
