// SPDX-License-Identifier: Apache-2.0
// Operators' view of the prefix cache: tiers, namespaces, retained prefixes; pin and drop.

import {$, count, make, percent, sure, tell} from "./dom.js";
import {askJson, keys, readModels} from "./api.js";

function table(heads, rows, empty) {
    if (rows.length === 0) return make("p", {class: "small"}, empty);
    const cell = (kind, c) => make(kind, typeof c === "number" ? {class: "right"} : null,
        typeof c === "number" ? count(c) : c);
    return make("div", {class: "table", tabindex: "0"}, make("table", null,
        make("thead", null, make("tr", null, ...heads.map((h, i) =>
            make("th", {class: typeof rows[0][i] === "number" && "right"}, h)))),
        make("tbody", null, ...rows.map(r => make("tr", null, ...r.map(c => cell("td", c)))))));
}

function why(e) {
    if (e.status === 403) return "nginx lets only this machine in, and addresses that quire-locations.conf allows.";
    if (e.status === 401) return "The operator's key is missing or wrong: the button with the key sets it.";
    return e.message;
}

const target = () => $("cache-model").value ? {model: $("cache-model").value} : {};

async function act(path, body, done) {
    try {
        const answer = await askJson(path, {body: {...target(), ...body}, admin: true});
        tell(done(answer));
    } catch (e) {
        tell(why(e));
    }
    read();
}

async function drop(what, text) {
    if (await sure(text, "Drop"))
        act("admin/cache/drop", what, a => count(a.dropped_pages) + " pages dropped.");
}

function until(hint) {
    if (hint.pinned) return "pinned";
    return hint.until ? new Date(hint.until * 1000).toLocaleString() : "without end";
}

function engineParts(e) {
    const name = n => make("code", null, n || "several");
    const dropSpace = n => n === null ? "" : make("button", {type: "button", class: "plain",
        "aria-label": "Drop " + n, click: () => drop({namespace: n}, "Drop all pages of namespace " + n + "?")}, "Drop");
    return [
        e.engine === undefined ? null : make("h3", null, "Engine " + e.engine),
        make("h4", null, "Tiers, pages of " + e.page_tokens + " tokens"),
        table(["tier", "pages", "room", "retained", "at most"], Object.entries(e.tiers).map(([n, t]) =>
            [n, t.pages, t.slots, t.retained, t.retained_max]), "There is none."),
        make("h4", null, "Namespaces"),
        table(["namespace", "device", "host", "disk", "retained", "hit rate", ""], e.namespaces.map(s =>
            [name(s.namespace), s.pages.device, s.pages.host, s.pages.disk, s.retained,
                s.queries ? percent(s.hit_rate) : "-", dropSpace(s.namespace)]), "No pages are cached."),
        make("h4", null, "Retained prefixes"),
        table(["namespace", "priority", "until", "device", "host", "disk"], e.retained.map(h =>
            [name(h.namespace), h.priority === null ? "several" : h.priority, until(h),
                h.pages.device, h.pages.host, h.pages.disk]), "None is retained."),
    ].filter(p => p);
}

let reads = 0;

// Answers may come in another order than they were asked for: only the last question's is shown.
async function read() {
    const name = $("cache-model").value, mine = ++reads;
    let parts = [], text;
    try {
        if (!keys.admin) throw Object.assign(new Error(), {status: 401});
        const list = await askJson("admin/cache" + (name ? "?model=" + encodeURIComponent(name) : ""), {admin: true});
        parts = (list.engines || [list]).flatMap(engineParts);
        text = "Read at " + new Date().toLocaleTimeString() + ".";
    } catch (e) {
        text = why(e);
    }
    if (mine !== reads) return;
    $("cache-why").textContent = text;
    $("cache-lists").replaceChildren(...parts);
    for (const e of [$("cache-drop-all"), $("cache-pin-part")]) e.hidden = parts.length === 0;
}

export async function showCache() {
    const chosen = $("cache-model").value;
    try {
        const models = (await readModels()).filter(m => !m.parent);
        $("cache-model").replaceChildren(...models.map(m => make("option", null, m.id)));
        if (models.some(m => m.id === chosen)) $("cache-model").value = chosen;
    } catch { /* without names the first model is meant */ }
    read();
}

function promptBody() {
    const body = {prompt: $("c-prompt").value};
    if ($("c-tenant").value) body.tenant = $("c-tenant").value;
    if ($("c-salt").value) body.cache_salt = $("c-salt").value;
    return body;
}

export function startCache() {
    $("cache-read").addEventListener("click", read);
    $("cache-model").addEventListener("change", read);
    $("cache-drop-all").addEventListener("click", () =>
        drop({all: true}, "Drop all pages of all tiers? Every prompt is computed again."));
    $("cache-prompt").addEventListener("submit", e => {
        e.preventDefault();
        const body = promptBody();
        if ($("c-priority").value) body.priority = Number($("c-priority").value);
        if ($("c-seconds").value) body.seconds = Number($("c-seconds").value);
        act("admin/cache/pin", body, a => count(a.retained_tokens) + " of " + count(a.tokens) + " tokens retained.");
    });
    $("c-drop").addEventListener("click", () => {
        if ($("c-prompt").reportValidity()) drop(promptBody(), "Drop the pages of this prompt?");
    });
}
