// SPDX-License-Identifier: Apache-2.0
// The settings of a conversation: fields of the page, and what they are in a request.

import {$} from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "presence_penalty",
    "frequency_penalty", "seed", "thinking_token_budget"];
const TEXTS = ["system", "stop", "reasoning_effort", "form", "schema", "tools", "tool_choice"];
const HINTS = {schema: '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}',
    regex: "(yes|no)"};

class Wrong extends Error {}

function parse(text, name) {
    try {
        return JSON.parse(text);
    } catch (e) {
        throw new Wrong(name + " is not JSON: " + e.message);
    }
}

function toolsOf(text) {
    const list = parse(text, "The list of tools");
    if (!Array.isArray(list)) throw new Wrong("The tools must be a list.");
    return list.map(t => {
        if (t && t.type === "function" && t.function) return t;
        if (!t || typeof t.name !== "string") throw new Wrong("Each tool needs a name.");
        return {type: "function", function: t};
    });
}

function formOf(s) {
    if (s.form === "object") return {response_format: {type: "json_object"}};
    if (s.form === "regex" && s.schema) return {structured_outputs: {regex: s.schema}};
    if (s.form !== "schema" || !s.schema) return {};
    return {response_format: {type: "json_schema",
        json_schema: {name: "answer", schema: parse(s.schema, "The schema")}}};
}

function fieldsOf(s) {
    const out = {};
    for (const name of NUMBERS) {
        const field = $("s-" + name);
        if (!field.validity.valid) throw new Wrong(field.labels[0].textContent + ": " + field.validationMessage);
        if (s[name]) out[name] = Number(s[name]);
    }
    if (s.stop) out.stop = s.stop.replace(/\\n/g, "\n");
    if (s.reasoning_effort) out.reasoning_effort = s.reasoning_effort;
    if (s.tools.trim()) {
        out.tools = toolsOf(s.tools);
        if (s.tool_choice) out.tool_choice = s.tool_choice;
    }
    return Object.assign(out, formOf(s));
}

function showForm() {
    const form = $("s-form").value, area = $("s-schema");
    area.hidden = !(form in HINTS);
    area.placeholder = HINTS[form] || "";
}

// What the fields hold, right or wrong.
export function keepSettings(settings) {
    for (const name of [...NUMBERS, ...TEXTS]) settings[name] = $("s-" + name).value;
}

// The fields of a request; null (told beside them): something is wrong. They are kept in `settings`.
export function readSettings(settings) {
    keepSettings(settings);
    $("s-wrong").textContent = "";
    try {
        return fieldsOf(settings);
    } catch (e) {
        if (!(e instanceof Wrong)) throw e;
        $("s-wrong").textContent = e.message;
        openSettings();
        return null;
    }
}

export function showSettings(settings) {
    for (const name of [...NUMBERS, ...TEXTS]) {
        const value = settings[name];
        $("s-" + name).value = typeof value === "string" ? value : "";
    }
    $("s-wrong").textContent = "";
    showForm();
}

function openSettings() {
    $("settings").hidden = false;
    $("settings-open").setAttribute("aria-expanded", "true");
}

export function closeSettings() {
    if ($("settings").hidden) return false;
    $("settings").hidden = true;
    $("settings-open").setAttribute("aria-expanded", "false");
    $("settings-open").focus();
    return true;
}

export function startSettings() {
    $("settings-open").addEventListener("click", () => {
        if (closeSettings()) return;
        openSettings();
        $("s-system").focus();
    });
    $("settings-close").addEventListener("click", closeSettings);
    $("s-form").addEventListener("change", showForm);
}
