// SPDX-License-Identifier: Apache-2.0
// The state of the server: /metrics every two seconds, which nginx gives to this machine's
// addresses (and to those that the operator has added); elsewhere the number of requests of /load.

import {$, count, make, makeSvg, percent, tell} from "./dom.js";
import {askJson, askText, keys, readModels} from "./api.js";

const EVERY_MS = 2000, POINTS = 60;
let timer = 0, reading = false;
const before = new Map(); // engine -> {at, values, rates}

// Prometheus' text: model and engine -> name{other labels} -> value.
function parseMetrics(text) {
    const engines = new Map();
    for (const line of text.split("\n")) {
        const m = line.match(/^([\w:]+)\{model_name="((?:[^"\\]|\\.)*)",engine="(\d+)"(?:,(.*))?\} (\S+)$/);
        if (!m) continue;
        const id = m[2] + " / " + m[3];
        if (!engines.has(id)) engines.set(id, {model: m[2], engine: m[3], values: new Map()});
        engines.get(id).values.set(m[1] + (m[4] ? "{" + m[4] + "}" : ""), Number(m[5]));
    }
    return engines;
}

function figure(name, value, more) {
    return make("div", {class: "figure"}, make("dt", null, name), make("dd", null, value),
        more ? make("div", {class: "small"}, more) : null);
}

function bar(name, used, all, more) {
    const share = all > 0 ? Math.min(1, used / all) : 0;
    const fill = make("div", {class: "fill"});
    fill.style.width = percent(share);
    return make("div", {class: "tier"}, make("span", null, name),
        make("div", {class: "meter", role: "img", "aria-label": name + ": " + count(used) + " of " + count(all)}, fill),
        make("span", {class: "small"}, count(used) + " of " + count(all) + (more ? ", " + more : "")));
}

function line(points) {
    const top = Math.max(1, ...points), n = POINTS - 1;
    const at = points.map((p, i) => ((POINTS - points.length + i) * 300 / n).toFixed(1) + "," +
        (38 - 36 * p / top).toFixed(1));
    return makeSvg("svg", {viewBox: "0 0 300 40", class: "line", "aria-hidden": "true", preserveAspectRatio: "none"},
        makeSvg("polyline", {points: at.join(" "), "vector-effect": "non-scaling-stroke"}));
}

// Rates since the last look.
function ratesOf(id, values) {
    const last = before.get(id), at = performance.now();
    const grown = name => (values.get(name) || 0) - (last.values.get(name) || 0);
    const now = {at, values, rates: last ? last.rates : [], out: null, prompt: null};
    if (last && at > last.at && grown("vllm:generation_tokens_total") >= 0) { // less: another engine
        const s = (at - last.at) / 1000;
        now.out = grown("vllm:generation_tokens_total") / s;
        now.prompt = grown("vllm:prompt_tokens_total") / s;
        now.rates.push(now.out);
        if (now.rates.length > POINTS) now.rates.shift();
    }
    before.set(id, now);
    return now;
}

function stateOf(v) {
    if (!v.get("quire:engine_up")) return "not running";
    return v.get('vllm:engine_sleep_state{sleep_state="weights_offloaded"}') ? "asleep" : "awake";
}

function engineCard(id, e) {
    const v = e.values, value = name => v.get(name) || 0, rates = ratesOf(id, v);
    const card = make("section", {class: "card", "aria-label": id}, make("h3", null, e.model,
        make("span", {class: "small"}, " engine " + e.engine + ", " + stateOf(v))));
    if (!v.has("vllm:num_requests_running")) return card;
    const pages = value("quire:kv_pages"), cached = value("quire:kv_pages_cached");
    const prompt = value("vllm:prompt_tokens_total"), hits = value("vllm:prompt_tokens_cached_total");
    const firsts = value("vllm:time_to_first_token_seconds_count");
    card.append(make("dl", {class: "figures"},
        figure("tokens a second", rates.out === null ? "-" : rates.out.toFixed(1),
            rates.prompt === null ? "" : "prompts " + rates.prompt.toFixed(1)),
        figure("running", count(value("vllm:num_requests_running"))),
        figure("waiting", count(value("vllm:num_requests_waiting"))),
        figure("hit rate", prompt ? percent(hits / prompt) : "-", count(hits) + " of " + count(prompt) + " prompt tokens"),
        figure("first token", firsts ? (value("vllm:time_to_first_token_seconds_sum") / firsts).toFixed(3) + " s" : "-", "mean since the start")),
    line(rates.rates), make("h4", null, "Pages"),
    bar("device", value("vllm:kv_cache_usage_perc") * pages + cached, pages, count(cached) + " kept for reuse"),
    bar("host", value("quire:kv_host_pages"), value("quire:kv_host_slots")),
    bar("disk", value("quire:kv_store_pages"), value("quire:kv_store_slots")));
    return card;
}

async function setModel(name, action) {
    try {
        await askJson("v1/models/" + action, {body: {model: name}, admin: true});
        tell("");
    } catch (e) {
        tell(e.message);
    }
    look();
}

function modelRow(m) {
    const buttons = m.state && keys.admin ? [
        make("button", {type: "button", class: "plain", click: () => setModel(m.id, "load")}, "Load"),
        make("button", {type: "button", class: "plain", click: () => setModel(m.id, "unload")}, "Unload")] : [];
    return make("tr", null, make("td", null, m.id), make("td", null, m.parent ? "adapter of " + m.parent : m.state || "served"),
        make("td", {class: "right"}, m.max_model_len ? count(m.max_model_len) : "-"), make("td", null, ...buttons));
}

async function showModels() {
    let models = [];
    try {
        models = await readModels();
    } catch { /* the chat says why */ }
    $("models").replaceChildren(...(models.length ? [make("h3", null, "Models"), make("div", {class: "table"},
        make("table", null, make("thead", null, make("tr", null, ...["model", "state", "context", ""].map(t => make("th", null, t)))),
            make("tbody", null, ...models.map(modelRow))))] : []));
}

async function showLoad(status) {
    before.clear();
    try {
        const load = (await askJson("load")).server_load;
        $("state-why").textContent = "The metrics are for this machine and for addresses of metrics.allow" +
            (status ? " (status " + status + ")" : "") + ". A key may see the number of requests:";
        $("engines").replaceChildren(make("dl", {class: "figures card"}, figure("requests that run or wait", count(load))));
    } catch (e) {
        $("state-why").textContent = e.message;
        $("engines").replaceChildren();
    }
}

async function look() {
    if (reading) return;
    reading = true;
    try {
        const engines = parseMetrics(await askText("metrics"));
        $("state-why").textContent = "Every two seconds.";
        $("engines").replaceChildren(...[...engines].map(([id, e]) => engineCard(id, e)));
    } catch (e) {
        await showLoad(e.status);
    }
    await showModels();
    reading = false;
}

export function showState() {
    clearInterval(timer);
    look();
    timer = setInterval(() => { if (!document.hidden) look(); }, EVERY_MS);
}

export function hideState() {
    clearInterval(timer);
    before.clear();
}
