// SPDX-License-Identifier: Apache-2.0
// The chat: one conversation, its requests and their answers.

import {$, copyButton, count, make, sure, tell} from "./dom.js";
import {ApiError, askStream, readModels} from "./api.js";
import {codeBlock, markdown} from "./markdown.js";
import {deleteConversation, listConversations, loadConversation, newConversation, saveConversation} from "./history.js";
import {closeSettings, keepSettings, readSettings, showSettings} from "./settings.js";

const LAST = "quire.last"; // of this tab: the open conversation
const TEXT_FILE_MAX = 200000;
let talk = newConversation("", {});
let running = null; // {abort, message, row}: the answer that comes in
let askForKey = () => {};

// --- one message ---------------------------------------------------------------------------------

function pretty(text) {
    try {
        return JSON.stringify(JSON.parse(text), null, 2);
    } catch {
        return text;
    }
}

// A tool's call, with a field for its result while nothing follows it.
function callPart(call, message) {
    const at = talk.messages.indexOf(message);
    const answered = talk.messages.slice(at + 1).some(m => m.call_id === call.id);
    const part = make("div", {class: "call"}, make("div", {class: "call-name"}, "calls ",
        make("b", null, call.name)), codeBlock(pretty(call.arguments), "arguments"));
    if (!answered && !running && at === talk.messages.length - 1) {
        const id = "r-" + call.id;
        part.append(make("label", {for: id}, "Result of " + call.name),
            make("textarea", {id, rows: "2", class: "code result", "data-call": call.id}));
    }
    return part;
}

function figuresText(f) {
    const parts = [];
    if (f.tokens) parts.push(count(f.tokens) + " tokens");
    if (f.rate) parts.push(f.rate.toFixed(1) + " a second");
    if (f.first_s) parts.push("first after " + f.first_s.toFixed(2) + " s");
    if (f.cached) parts.push(count(f.cached) + " of " + count(f.prompt) + " prompt tokens cached");
    return parts.join(" · ");
}

function fillAnswer(body, message, comes) {
    const parts = [];
    if (message.reasoning) {
        const open = body.querySelector(".reasoning");
        parts.push(make("details", {class: "reasoning", open: open ? open.open : comes && !message.content},
            make("summary", null, comes && !message.content ? "Reasoning ..." : "Reasoning"),
            make("div", {class: "text"}, markdown(message.reasoning))));
    }
    if (message.content && message.formed && !comes)
        parts.push(codeBlock(pretty(message.content), message.formed));
    else if (message.content)
        parts.push(make("div", {class: "text"}, markdown(message.content)));
    if (comes && !message.content && !message.reasoning) parts.push(make("span", {class: "waits"}, "..."));
    for (const call of message.calls || []) parts.push(callPart(call, message));
    if (message.note) parts.push(make("p", {class: "note"}, message.note));
    if (message.failed) parts.push(make("p", {class: "wrong", role: "alert"}, message.failed));
    body.replaceChildren(...parts);
}

function button(text, click, label) {
    return make("button", {type: "button", class: "plain", click, "aria-label": label || false}, text);
}

function toolButtons(message) {
    const last = talk.messages[talk.messages.length - 1] === message;
    if (!last || running || !(message.calls || []).length) return [];
    return [make("button", {type: "button", class: "results", click: () => sendResults(message)}, "Send results")];
}

function messageRow(message) {
    const who = {user: "You", assistant: message.model || "Model", tool: "Result"}[message.role] || message.role;
    const body = make("div", {class: "body"});
    const row = make("li", {class: "message " + message.role}, make("div", {class: "who"}, who), body);
    const foot = make("div", {class: "foot"});
    if (message.role === "assistant") fillAnswer(body, message, running !== null && running.message === message);
    else if (message.role === "tool") body.append(codeBlock(pretty(message.content), message.name));
    else body.append(make("div", {class: "said"}, message.content));
    if (running === null || running.message !== message) {
        foot.append(copyButton(() => message.content), button("Edit", () => edit(message, row)));
        if (message.role === "assistant") foot.append(button("Retry", () => retry(message)));
        if (message.cut && talk.messages[talk.messages.length - 1] === message)
            foot.append(button("Continue", () => answer(message)));
        foot.append(...toolButtons(message));
        if (message.figures) foot.append(make("span", {class: "figures"}, figuresText(message.figures)));
    }
    row.append(foot);
    return row;
}

// --- the list of messages ------------------------------------------------------------------------

const atEnd = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 60;
function toEnd() {
    $("scroll").scrollTop = $("scroll").scrollHeight;
}

function show() {
    $("messages").replaceChildren(...talk.messages.map(messageRow));
    $("empty").hidden = talk.messages.length > 0;
    $("send").hidden = running !== null;
    $("stop").hidden = running === null;
    document.title = talk.title ? talk.title + " - quire" : "quire";
    if (running) running.row = $("messages").lastElementChild;
}

function showList() {
    const wanted = $("find").value.trim().toLowerCase();
    const has = c => c.title.toLowerCase().includes(wanted) ||
        c.messages.some(m => String(m.content).toLowerCase().includes(wanted));
    const rows = listConversations().filter(c => wanted === "" || has(c)).map(c =>
        make("li", {class: c.id === talk.id ? "open" : null},
            make("button", {type: "button", class: "name", "aria-current": c.id === talk.id && "true",
                click: () => open(c.id)}, c.title),
            make("button", {type: "button", class: "plain", "aria-label": "Delete " + c.title, title: "Delete",
                click: () => remove(c)}, "\u00d7")));
    $("conversations").replaceChildren(...rows);
}

function setTalk(c) {
    stop();
    talk = c;
    sessionStorage.setItem(LAST, c.id);
    showSettings(c.settings);
    chooseModel(c.model);
    show();
    showList();
    toEnd();
    $("list").classList.remove("shown");
    $("list-open").setAttribute("aria-expanded", "false");
}

function open(id) {
    const c = loadConversation(id);
    if (c) setTalk(c);
}

export function begin() {
    keepSettings(talk.settings);
    setTalk(newConversation($("model").value, talk.settings));
    $("input").focus();
}

async function remove(c) {
    if (!await sure("Delete \"" + c.title + "\"?", "Delete")) return;
    if (c.id === talk.id) stop();
    deleteConversation(c.id);
    if (c.id === talk.id) begin();
    else showList();
}

async function removeAll() {
    const all = listConversations();
    if (!all.length || !await sure("Delete all " + all.length + " conversations?", "Delete all")) return;
    stop();
    all.forEach(c => deleteConversation(c.id));
    begin();
}

function exportAll() {
    const text = JSON.stringify(listConversations(), null, 1);
    const a = make("a", {href: URL.createObjectURL(new Blob([text], {type: "application/json"})),
        download: "quire-conversations.json"});
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
}

// --- models --------------------------------------------------------------------------------------

function chooseModel(name) {
    const options = [...$("model").options].map(o => o.value);
    if (options.includes(name)) $("model").value = name;
    else if (options.length) $("model").selectedIndex = 0;
}

// The models that the key may use; true when the server said them.
export async function loadModels() {
    try {
        const models = await readModels();
        $("model").replaceChildren(...models.map(m => make("option", {value: m.id},
            m.id + (m.state && m.state !== "awake" ? " (" + m.state + ")" : ""))));
        chooseModel(talk.model);
        return true;
    } catch (e) {
        if (e.status === 401) askForKey(e.message);
        else tell(e.message);
        return false;
    }
}

// --- requests ------------------------------------------------------------------------------------

// What the API gets of a message. Reasoning goes back as well: templates drop what they need not.
function wireMessage(m) {
    if (m.role === "tool") return {role: "tool", tool_call_id: m.call_id, content: m.content};
    if (m.role !== "assistant") return {role: m.role, content: m.content};
    const out = {role: "assistant", content: m.content};
    if (m.reasoning) out.reasoning = m.reasoning;
    if ((m.calls || []).length) {
        out.tool_calls = m.calls.map(c => ({id: c.id, type: "function",
            function: {name: c.name, arguments: c.arguments}}));
    }
    return out;
}

function requestOf(fields, upTo, goesOn) {
    const messages = talk.messages.slice(0, upTo).map(wireMessage);
    const body = {model: talk.model, messages, stream: true, stream_options: {include_usage: true}, ...fields};
    if (talk.settings.system) messages.unshift({role: "system", content: talk.settings.system});
    if (goesOn) Object.assign(body, {continue_final_message: true, add_generation_prompt: false});
    return body;
}

function takeCalls(message, deltas) {
    message.calls = message.calls || [];
    for (const d of deltas) {
        const call = message.calls[d.index] ||
            (message.calls[d.index] = {id: "", name: "", arguments: ""});
        if (d.id) call.id = d.id;
        if (d.function && d.function.name) call.name += d.function.name;
        if (d.function && d.function.arguments) call.arguments += d.function.arguments;
    }
}

function takeEvent(message, event, times) {
    const choice = event.choices[0], delta = choice ? choice.delta : {};
    if (event.usage) times.usage = event.usage;
    const reasoning = delta.reasoning || delta.reasoning_content;
    if (delta.content || reasoning || delta.tool_calls) {
        times.last = performance.now();
        if (!times.first) times.first = times.last;
    }
    if (reasoning) message.reasoning = (message.reasoning || "") + reasoning;
    if (delta.content) message.content += delta.content;
    if (delta.tool_calls) takeCalls(message, delta.tool_calls);
    if (choice && choice.finish_reason === "length") {
        message.note = "The answer reached its most tokens, or the end of the context.";
        message.cut = true;
    }
}

function figuresOf(times) {
    const u = times.usage, f = {};
    if (times.first) f.first_s = (times.first - times.began) / 1000;
    if (u) {
        f.tokens = u.completion_tokens;
        f.prompt = u.prompt_tokens;
        f.cached = (u.prompt_tokens_details || {}).cached_tokens || 0;
        if (f.tokens > 1 && times.last - times.first > 50) // fewer came together
            f.rate = (f.tokens - 1) * 1000 / (times.last - times.first);
    }
    return f;
}

// Show what has come, at most once a frame, and less often where that takes long.
function painter(run) {
    let planned = false, cost_ms = 0;
    return () => {
        if (planned) return;
        planned = true;
        setTimeout(() => requestAnimationFrame(() => {
            planned = false;
            if (running !== run) return;
            const began = performance.now(), follows = atEnd();
            fillAnswer(run.row.querySelector(".body"), run.message, true);
            if (follows) toEnd();
            cost_ms = performance.now() - began;
        }), Math.min(1000, 4 * cost_ms));
    };
}

// Ask for an answer to all messages, or go on with an answer that was cut.
async function answer(goesOnWith) {
    if (running) return;
    const fields = readSettings(talk.settings);
    if (fields === null) return;
    talk.model = $("model").value;
    const message = goesOnWith || {role: "assistant", content: "", model: talk.model};
    message.formed = {schema: "json", object: "json"}[talk.settings.form];
    delete message.note;
    delete message.failed;
    delete message.cut;
    if (!goesOnWith) talk.messages.push(message);
    const run = {abort: new AbortController(), message, row: null}, times = {began: performance.now()};
    const conversation = talk; // another may be opened meanwhile
    const body = requestOf(fields, talk.messages.length - (goesOnWith ? 0 : 1), goesOnWith);
    running = run;
    show();
    toEnd();
    saveConversation(talk);
    const paint = painter(run);
    try {
        for await (const event of askStream("v1/chat/completions", body, run.abort.signal)) {
            takeEvent(message, event, times);
            paint();
        }
    } catch (e) {
        if (e.name === "AbortError") message.note = "Stopped.";
        else message.failed = e instanceof ApiError ? e.message : "The answer could not be read: " + e.message;
        if (e.status === 401) askForKey(e.message);
    }
    message.figures = figuresOf(times);
    saveConversation(conversation);
    if (running !== run) return;
    running = null;
    const follows = atEnd();
    show();
    showList();
    if (follows) toEnd();
    $("said").textContent = message.failed ? "The answer failed." : "The answer has come.";
    const result = $("messages").querySelector(".result");
    if (result) result.focus();
}

// The stream ends with its run; what has come stays.
export function stop() {
    if (!running) return false;
    running.abort.abort();
    running.message.note = "Stopped.";
    running = null;
    saveConversation(talk);
    show();
    return true;
}

function send() {
    const text = $("input").value;
    if (running || text.trim() === "") return;
    if (readSettings(talk.settings) === null) return;
    if (!$("model").value) {
        tell("The server has named no model yet.");
        loadModels();
        return;
    }
    tell("");
    talk.messages.push({role: "user", content: text});
    $("input").value = "";
    fit();
    answer();
}

function sendResults(message) {
    for (const field of $("messages").querySelectorAll(".result")) {
        const call = message.calls.find(c => c.id === field.dataset.call);
        talk.messages.push({role: "tool", call_id: call.id, name: call.name, content: field.value});
    }
    answer();
}

// A new answer in the place of this one and of all that follows.
function retry(message) {
    stop();
    talk.messages.length = talk.messages.indexOf(message);
    answer();
}

// A message that was edited takes the place of what followed it; one's own is sent again.
function edit(message, row) {
    const area = make("textarea", {class: "edit", "aria-label": "Edit the message"});
    const end = () => {
        const k = talk.messages.indexOf(message);
        show();
        $("messages").children[k].querySelector(".foot button").focus();
    };
    const keep = () => {
        stop();
        message.content = area.value;
        if (message.role !== "assistant") talk.messages.length = talk.messages.indexOf(message) + 1;
        saveConversation(talk);
        if (message.role === "assistant") end();
        else answer();
    };
    area.value = message.content;
    area.rows = Math.min(16, message.content.split("\n").length + 1);
    area.addEventListener("keydown", e => {
        if (e.key === "Escape") {
            e.stopPropagation();
            end();
        } else if (e.key === "Enter" && !e.shiftKey && !e.isComposing && message.role !== "assistant") {
            e.preventDefault();
            keep();
        }
    });
    row.querySelector(".body").replaceChildren(area);
    row.querySelector(".foot").replaceChildren(
        button(message.role === "assistant" ? "Keep" : "Send again", keep), button("Cancel", end));
    area.focus();
}

// --- the field below -----------------------------------------------------------------------------

function fit() {
    const area = $("input");
    area.style.height = "auto";
    area.style.height = Math.min(area.scrollHeight, innerHeight * 0.4) + "px";
}

// Text files are put into the message; the models read nothing else.
async function takeFiles(files) {
    for (const file of files) {
        if (/^(image|audio|video)\//.test(file.type)) {
            tell("The models here read text only: " + (file.name || "the image") + " was not added.");
        } else if (file.size > TEXT_FILE_MAX) {
            tell(file.name + " is larger than " + count(TEXT_FILE_MAX) + " bytes: it was not added.");
        } else {
            const text = await file.text();
            if (text.includes("\0")) {
                tell(file.name + " is no text: it was not added.");
                continue;
            }
            $("input").setRangeText(file.name + ":\n```\n" + text.replace(/\n$/, "") + "\n```\n",
                $("input").selectionStart, $("input").selectionEnd, "end");
            fit();
        }
    }
}

export function startChat(options) {
    askForKey = options.askForKey;
    $("composer").addEventListener("submit", e => {
        e.preventDefault();
        send();
    });
    $("input").addEventListener("keydown", e => {
        if (e.key !== "Enter" || e.shiftKey || e.isComposing) return;
        e.preventDefault();
        send();
    });
    $("input").addEventListener("input", fit);
    $("stop").addEventListener("click", () => {
        stop();
        $("input").focus();
    });
    $("input").addEventListener("paste", e => {
        if (!e.clipboardData.files.length) return;
        e.preventDefault();
        takeFiles(e.clipboardData.files);
    });
    for (const kind of ["dragover", "drop"]) {
        $("talk").addEventListener(kind, e => {
            if (![...e.dataTransfer.types].includes("Files")) return;
            e.preventDefault();
            if (kind === "drop") takeFiles(e.dataTransfer.files);
        });
    }
    $("new").addEventListener("click", begin);
    $("find").addEventListener("input", showList);
    $("export").addEventListener("click", exportAll);
    $("forget").addEventListener("click", removeAll);
    $("model").addEventListener("change", () => { talk.model = $("model").value; });
    $("scroll").addEventListener("scroll", () => { $("down").hidden = atEnd(); }, {passive: true});
    $("down").addEventListener("click", toEnd);
    addEventListener("storage", showList); // another tab
    addEventListener("keydown", e => {
        if (e.key !== "Escape" || document.querySelector("dialog[open]")) return;
        if (stop() || closeSettings()) e.preventDefault();
    });
    const last = loadConversation(sessionStorage.getItem(LAST) || "");
    setTalk(last || newConversation("", {}));
}
