#!/usr/bin/env python3
"""Kept responses (responses_dir): what two fronts answered is had again, listed, removed and gone on
from at either, by the keys of one tenant alone; a response whose end was seen outlives kill -9 of the
fronts; bounds in bytes and days hold; a full disk or a damaged file costs no answer."""

import glob
import json
import os
import random
import shutil
import tempfile
import threading
import time

from harness import MODEL_NAME, Stack, Tap, memory_folder, need_nginx, until

need_nginx()
tap = Tap()
PATH = "/v1/responses"
OTHER = {"Authorization": "Bearer sk-test-1"}
TWIN = {"Authorization": "Bearer sk-twin"}
WEATHER = {"type": "function", "name": "get_weather", "description": "Get the weather",
           "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                          "required": ["city"]}}


def folder():
    """The fronts' own, and in memory: an answer waits 5 s for the disk and is then sent with store
    false, so that a disk that others write to would decide what is tested here."""
    return tempfile.mkdtemp(dir=memory_folder())


def stack(path, *settings, **kw):
    return Stack(front=["--responses-dir", path] + [str(v) for v in settings],
                 keys='"Bearer sk-twin" tenant0;\n', **kw)


def ask(s, content, headers=None, **fields):
    body = dict({"model": MODEL_NAME, "temperature": 0, "input": content}, **fields)
    return s.post(PATH, body, headers=headers)


def text_of(r):
    return "".join(p["text"] for i in r["output"] if i["type"] == "message" for p in i["content"])


def kept(s, name, headers=None, rest="", method="GET"):
    return s.request(method, "%s/%s%s" % (PATH, name, rest), headers=headers)


def everywhere(s, name, want, headers=None):
    """Every front says the same of a response; each is asked, because nginx takes them in turn."""
    return all(kept(s, name, headers).status == want for _ in range(6))


def without_ids(items):
    return [{k: v for k, v in i.items() if k != "id"} for i in items]


def refused(r, status, param, code, name):
    e = r.json.get("error", {})
    tap.eq((r.status, e.get("type"), e.get("param"), e.get("code")),
           (status, "invalid_request_error", param, code), name)


def basics(s):
    r = ask(s, "Hello").json
    tap.eq(r["store"], True, "a response says that it is kept")
    got = kept(s, r["id"])
    tap.eq((got.status, got.json), (200, r), "GET: the response as it was answered")
    tap.ok(everywhere(s, r["id"], 200), "at every front")
    _, events = s.events(PATH, {"model": MODEL_NAME, "temperature": 0, "input": "Hello"})
    last = events[-1]["response"]
    tap.eq((events[0]["response"]["store"], last["store"], events[-1]["type"]),
           (True, True, "response.completed"), "a stream is kept")
    tap.eq(kept(s, last["id"]).json, last, "    as its last event has it")
    items = kept(s, r["id"], rest="/input_items").json
    tap.eq(without_ids(items["data"]),
           [{"type": "message", "status": "completed", "role": "user",
             "content": [{"type": "input_text", "text": "Hello"}]}], "its input items")
    no = ask(s, "Hello", store=False).json
    tap.eq((no["store"], kept(s, no["id"]).status), (False, 404), "store false: it is not")
    refused(kept(s, no["id"]), 404, None, "not_found", "404 of OpenAI's shape")
    cut = ask(s, "Hello", max_output_tokens=2).json
    tap.eq((cut["status"], kept(s, cut["id"]).json), ("incomplete", cut), "a cut response")
    nul = ask(s, "a\0b", max_output_tokens=1).json
    part = kept(s, nul["id"], rest="/input_items").json["data"][0]["content"][0]
    tap.eq(part["text"], "a\0b", "a text with \\u0000")


def conversation(s):
    """Each turn with previous_response_id is what the whole conversation is."""
    talk, last = [], None
    for i, line in enumerate(("Hello", "What is the capital of France?", "And who are you?")):
        talk.append({"role": "user", "content": line})
        whole = ask(s, talk, store=False, instructions="Be brief." if i == 0 else None).json
        r = ask(s, line if i % 2 else talk[-1:], previous_response_id=last,
                instructions="Be brief." if i == 0 else None).json
        tap.eq((text_of(r), r["usage"]["input_tokens"], r["previous_response_id"]),
               (text_of(whole), whole["usage"]["input_tokens"], last),
               "turn %d: as the whole conversation; instructions are not inherited" % i)
        talk += r["output"]
        last = r["id"]
    items = kept(s, last, rest="/input_items?order=asc&limit=100").json
    tap.eq([(i["type"], i["role"]) for i in items["data"]],
           [("message", r) for r in ("user", "assistant") * 2 + ("user",)],
           "its input items are the conversation")
    ids = [i["id"] for i in items["data"]]
    tap.eq((len(set(ids)), items["first_id"], items["last_id"], items["has_more"]),
           (5, ids[0], ids[-1], False), "    with ids of their own")
    seen, after = [], ""
    while True:
        page = kept(s, last, rest="/input_items?limit=2" + after).json
        seen += [i["id"] for i in page["data"]]
        after = "&after=" + page["last_id"]
        if not page["has_more"]:
            break
    tap.eq(seen, ids[::-1], "in pages, the newest first")
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"),
                         ("order=up", "order"), ("after=item", "after")):
        refused(kept(s, last, rest="/input_items?" + query), 400, param, None, "400 for " + query)
    return last


def tools(s):
    body = dict(tools=[WEATHER], max_output_tokens=80)
    r = ask(s, "What is the weather in Rome?", **body).json
    call = [i for i in r["output"] if i["type"] == "function_call"][0]
    out = {"type": "function_call_output", "call_id": call["call_id"],
           "output": '{"temperature": 21, "sky": "sunny"}'}
    whole = ask(s, [{"role": "user", "content": "What is the weather in Rome?"}] + r["output"] +
                [out], store=False, **body).json
    _, events = s.events(PATH, dict(body, model=MODEL_NAME, temperature=0, input=[out],
                                    previous_response_id=r["id"]))
    got = events[-1]["response"]
    tap.eq((text_of(got), got["usage"]["input_tokens"]),
           (text_of(whole), whole["usage"]["input_tokens"]), "a tool's turn, streamed")
    tap.eq([i["type"] for i in kept(s, got["id"], rest="/input_items?order=asc").json["data"]],
           ["message", "function_call", "function_call_output"], "    and its items")
    tap.ok("21" in text_of(got), "    the answer is of the tool's output", text_of(got))


def tenants(s, name):
    tap.ok(everywhere(s, name, 404, OTHER), "another key does not find it")
    tap.eq(kept(s, name, OTHER, "/input_items").status, 404, "    nor its items")
    tap.eq(kept(s, name, OTHER, method="DELETE").status, 404, "    nor removes it")
    refused(ask(s, "Hi", OTHER, previous_response_id=name), 400, "previous_response_id",
            "previous_response_not_found", "    nor goes on from it")
    tap.ok(everywhere(s, name, 200, TWIN), "another key of the same tenant does")


def refusals(s, name):
    for value, code in (("resp_none", "previous_response_not_found"),
                        (name + "\0", "previous_response_not_found"), (5, None), ([], None)):
        refused(ask(s, "Hi", previous_response_id=value), 400, "previous_response_id", code,
                "400 for previous_response_id %r" % value)
    refused(ask(s, "Hi", previous_response_id=name, conversation="c"), 400, "conversation",
            "unsupported", "400 for a conversation")
    refused(kept(s, name, rest="/cancel", method="POST"), 400, "response_id", None,
            "400 for a cancel: it is complete")
    refused(kept(s, name, rest="?stream=true&starting_after=3"), 400, "starting_after",
            "unsupported", "400 for a stream that begins within")
    refused(kept(s, name, method="PUT"), 405, None, "method_not_allowed", "405 for a PUT")
    refused(kept(s, name, rest="/none"), 404, None, "not_found", "404 below it")
    bad = ask(s, [{"role": "nobody", "content": "x"}], previous_response_id=name)
    tap.ok(bad.status == 400 and "input[0]" in bad.text, "an error counts the request's own items",
           bad.text)


def refer(name):
    return {"type": "item_reference", "id": name}


def references(s):
    """An item by its id is that item."""
    first = ask(s, "Hello").json
    said = kept(s, first["id"], rest="/input_items").json["data"][0]
    line = {"role": "user", "content": "What is the capital of France?"}
    whole = ask(s, [{"role": "user", "content": "Hello"}] + first["output"] + [line],
                store=False).json
    names = [refer(said["id"]), {"id": first["output"][0]["id"]}, line]
    got = ask(s, names).json
    tap.eq((text_of(got), got["usage"]["input_tokens"]),
           (text_of(whole), whole["usage"]["input_tokens"]), "references stand for their items")
    items = kept(s, got["id"], rest="/input_items?order=asc").json["data"]
    tap.eq(items[:2], [said, dict(first["output"][0])], "which are kept in their place")
    tap.eq(kept(s, first["id"], method="DELETE").status, 200, "the response that they are of goes")
    again = ask(s, [refer(first["output"][0]["id"]), line], previous_response_id=got["id"])
    tap.eq(again.status, 200, "a reference into the conversation that goes on")
    gone = ask(s, names)
    refused(gone, 400, "input", None, "400 for an item that is not kept any more")
    tap.ok("input[0]" in gone.text and said["id"] in gone.text, "    its place and id", gone.text)
    other = ask(s, "Hello").json["output"][0]["id"]
    refused(ask(s, [refer(other), line], OTHER), 400, "input", None, "    or is another key's")
    for bad in ("x", "", "msg_", "msg__0", other + "0", other[:-1] + "7", 5, None):
        refused(ask(s, [refer(bad), line]), 400, "input", None, "400 for the id %r" % (bad,))
    many = ask(s, [refer(other)] * 257 + [line])
    refused(many, 400, "input", None, "400 for 257 references")
    tap.ok("257" in many.text and "256" in many.text, "    with the number and the bound", many.text)
    body = dict(tools=[WEATHER], max_output_tokens=80)
    r = ask(s, "What is the weather in Rome?", **body).json
    call = [i for i in r["output"] if i["type"] == "function_call"][0]
    out = {"type": "function_call_output", "call_id": call["call_id"], "output": "21, sunny"}
    got = ask(s, [{"role": "user", "content": "What is the weather in Rome?"}] +
              [refer(i["id"]) for i in r["output"]] + [out], **body)
    tap.eq(got.status, 200, "a reference to a call, and its output")


def replayed(s, name, what):
    """The events of a GET, checked as those of any stream."""
    r = kept(s, name, rest="?stream=true")
    tap.eq((r.status, r.headers["Content-Type"].split(";")[0]), (200, "text/event-stream"),
           what + ": a stream")
    out = []
    for block in r.text.split("\n\n")[:-1]:
        event, data = block.split("\n")
        out.append(json.loads(data[len("data: "):]))
        tap.eq(event, "event: " + out[-1]["type"], what + ": event and type agree")
        if s.heard:
            s.heard(PATH, 200, out[-1], True)
    tap.eq([e["sequence_number"] for e in out], list(range(len(out))), what + ": numbered")
    return out


def merged(events):
    """Deltas of one text as one."""
    out = []
    for e in events:
        e = dict(e, sequence_number=0)
        if e["type"].endswith(".delta") and out and out[-1]["type"] == e["type"]:
            out[-1]["delta"] += e["delta"]
            if "logprobs" in e:
                out[-1]["logprobs"] += e["logprobs"]
        else:
            out.append(e)
    return out


def replays(s):
    patch = {"type": "custom", "name": "patch", "description": "Change a file."}
    for what, body in (
            ("a text", dict(input="Hello")),
            ("a cut text", dict(input="Hello", max_output_tokens=2)),
            ("log probabilities", dict(input="Hello", include=["message.output_text.logprobs"],
                                       top_logprobs=2)),
            ("a call", dict(input="What is the weather in Rome?", tools=[WEATHER],
                            max_output_tokens=80)),
            ("a custom call", dict(input="Hi", tools=[patch], tool_choice={
                "type": "custom", "name": "patch"}, max_output_tokens=80))):
        _, events = s.events(PATH, dict(body, model=MODEL_NAME, temperature=0))
        name = events[-1]["response"]["id"]
        tap.eq(replayed(s, name, what), [dict(e, sequence_number=i)
                                         for i, e in enumerate(merged(events))],
               what + ": the events that there were, each text in one piece")


def removal(s, name):
    later = ask(s, "Go on.", previous_response_id=name).json
    r = kept(s, name, method="DELETE")
    tap.eq((r.status, r.json), (200, {"id": name, "object": "response", "deleted": True}), "DELETE")
    tap.ok(everywhere(s, name, 404), "it is gone at every front")
    tap.eq(kept(s, name, method="DELETE").status, 404, "    once")
    tap.eq(ask(s, "And?", previous_response_id=later["id"]).status, 200,
           "what went on from it goes on")


def kills(s):
    """Clients that go on from response to response while fronts are killed."""
    over = time.monotonic() + 8
    seen, bad, n_cut = [], [], [0]

    def client(c):
        rng, last = random.Random(c), None
        while time.monotonic() < over:
            body = {"model": MODEL_NAME, "input": "Hello", "max_output_tokens": 3,
                    "previous_response_id": last}
            try:
                if rng.random() < 0.5:
                    status, events = s.events(PATH, body)
                    done = events and events[-1].get("type", "") == "response.incomplete"
                    r = events[-1]["response"] if done else None
                else:
                    reply = s.post(PATH, body)
                    status, r = reply.status, reply.json if reply.status == 200 else None
            except Exception:  # a front that died: the client knows that the answer is cut
                status, r = 0, None
            if r is None:
                n_cut[0] += 1
                if status == 400:
                    bad.append("not found: %s" % last)
            elif r["store"]:
                seen.append(r)
                last = r["id"] if rng.random() < 0.9 else None

    threads = [threading.Thread(target=client, args=(c,)) for c in range(4)]
    for t in threads:
        t.start()
    n_kills = 0
    while time.monotonic() < over - 1:
        time.sleep(random.uniform(0.1, 0.5))
        for f in random.sample(s.fronts, 1 if n_kills % 3 else 2):
            if f.alive():
                f.kill()
                n_kills += 1
    for t in threads:
        t.join()
    until(lambda: all(f.alive() for f in s.fronts) and s.get("/health").status == 200)
    lost = [r["id"] for r in seen if kept(s, r["id"]).json != r]
    tap.ok(len(seen) > 10 and n_kills > 8, "%d responses, %d cut, %d kills" %
           (len(seen), n_cut[0], n_kills))
    tap.eq((lost, bad), ([], []), "every response whose end was seen is there")
    return seen[-1]


path = folder()
with tap.section("kept responses"), stack(path) as s:
    basics(s)
    name = conversation(s)
    tools(s)
    references(s)
    replays(s)
    tenants(s, name)
    refusals(s, name)
    removal(s, name)
    last = kills(s)
with tap.section("a restart of everything"), stack(path) as s:
    tap.eq(kept(s, last["id"]).json, last, "it is there after a restart of everything")
    tap.eq(glob.glob(path + "/*.bad"), [], "no file was called damaged")
    modes = [oct(os.stat(p).st_mode & 0o777) for p in glob.glob(path + "/responses/*")]
    tap.eq(modes, ["0o600"] * 2, "the files are the fronts' alone")

with tap.section("a damaged file"):
    with open(path + "/responses/data.mdb", "r+b") as f:
        f.truncate(8192)
    with stack(path) as s:
        tap.eq(kept(s, last["id"]).status, 404, "what was in it is gone")
        r = ask(s, "Hello").json
        tap.ok(r["store"] and everywhere(s, r["id"], 200), "new ones are kept")
        tap.ok(os.path.exists(path + "/responses.bad/data.mdb") and "set aside" in s.logs(),
               "the file was set aside, and the log says so", s.logs())
        tap.eq([len(f.exits) for f in s.fronts], [0, 0], "no front died of it")
shutil.rmtree(path)

path = folder()
with tap.section("a bound in bytes"), stack(path, "--responses-bytes", "1M") as s:
    fill = "word " * 1000
    ids = [ask(s, fill, max_output_tokens=1).json["id"] for _ in range(150)]
    there = [kept(s, i).status == 200 for i in ids]
    first = there.index(True)
    tap.ok(first > 0 and all(there[first:]) and len(ids) - first > 40,
           "of 150 the last %d are there" % (len(ids) - first))
    size = os.stat(path + "/responses/data.mdb").st_size
    tap.ok(size <= 1 << 20, "the file has %d bytes" % size)
shutil.rmtree(path)

path = folder()
with tap.section("a bound in days"), stack(path, "--responses-days", 3 / 86400) as s:
    r = ask(s, "A secret: swordfish").json
    tap.eq(kept(s, r["id"]).status, 200, "a young one is there")
    tap.ok(until(lambda: everywhere(s, r["id"], 404)), "an old one is not")
    refused(ask(s, "Hi", previous_response_id=r["id"]), 400, "previous_response_id",
            "previous_response_not_found", "    nor is it gone on from")
shutil.rmtree(path)

path = folder()
with tap.section("a full disk"), stack(path, env={"QUIRE_FAULT": "kept_commit:2+"},
                                       n_fronts=1) as s:
    first, r = (ask(s, "Hello").json for _ in range(2))
    tap.eq((first["store"], r["store"], text_of(r)), (True, False, text_of(first)),
           "an answer that cannot be kept is an answer, and says so")
    tap.eq((kept(s, first["id"]).status, kept(s, r["id"]).status), (200, 404), "    and is not")
    _, events = s.events(PATH, {"model": MODEL_NAME, "input": "Hello", "temperature": 0})
    tap.eq((events[-1]["type"], events[-1]["response"]["store"]), ("response.completed", False),
           "a stream, too")
shutil.rmtree(path)

path = folder()
os.mkdir(path + "/responses")
os.chmod(path + "/responses", 0o777)
with tap.section("a folder of others"), stack(path) as s:
    r = ask(s, "Hello")
    tap.eq((r.status, r.json["store"]), (200, False), "it is not used; answers come the same")
    tap.ok("is not used" in s.logs(), "the log says why")
    tap.eq(kept(s, r.json["id"]).status, 500, "what was kept cannot be read")
shutil.rmtree(path)
tap.done()
