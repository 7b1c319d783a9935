// SPDX-License-Identifier: Apache-2.0
// The server's API: keys, requests, streams. The page lies one folder below the API, wherever that is.

const base = new URL("..", location.href.split("#")[0]);
const KEY = "quire.key", ADMIN = "quire.admin";

// Of this tab and until it is closed.
export const keys = {
    get key() { return sessionStorage.getItem(KEY) || ""; },
    get admin() { return sessionStorage.getItem(ADMIN) || ""; },
    set(key, admin) {
        for (const [name, value] of [[KEY, key], [ADMIN, admin]]) {
            if (value) sessionStorage.setItem(name, value);
            else sessionStorage.removeItem(name);
        }
    },
};

// status is 0 where no answer came.
export class ApiError extends Error {
    constructor(status, message, code) {
        super(message);
        this.status = status;
        this.code = code;
    }
}

async function errorOf(response) {
    let text = "The server answered with status " + response.status + ".", code = "";
    try {
        const error = (await response.json()).error;
        text = String(error.message);
        code = String(error.code);
    } catch { /* not in the API's shape: the status says it */ }
    const again = response.headers.get("Retry-After");
    if (response.status === 429 && again) text += " Try again in " + again + " s.";
    return new ApiError(response.status, text, code);
}

async function send(path, options) {
    const headers = {};
    const key = options.admin ? keys.admin : keys.key;
    // Headers are Latin-1: another character is in no key.
    if (key && /^[\x21-\x7e]+$/.test(key)) headers.Authorization = "Bearer " + key;
    if (options.body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
        response = await fetch(new URL(path, base), {
            method: options.body === undefined && !options.post ? "GET" : "POST", headers,
            body: options.body === undefined ? undefined : JSON.stringify(options.body),
            signal: options.signal, credentials: "omit", cache: "no-store", redirect: "error",
        });
    } catch (e) {
        if (e.name === "AbortError") throw e;
        throw new ApiError(0, "The server does not answer.", "");
    }
    if (!response.ok) throw await errorOf(response);
    return response;
}

// options: body (then POST), post, admin (use the operator's key), signal.
export async function askJson(path, options = {}) {
    return (await send(path, options)).json();
}

export async function askText(path, options = {}) {
    return (await send(path, options)).text();
}

// The events of a stream, as they come. ApiError: the server refused, or the stream broke off.
export async function* askStream(path, body, signal) {
    const response = await send(path, {body, signal});
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let rest = "";
    for (;;) {
        let part;
        try {
            part = await reader.read();
        } catch (e) {
            if (e.name === "AbortError") throw e;
            throw new ApiError(0, "The connection broke: the answer is incomplete.", "");
        }
        rest += part.done ? "" : decoder.decode(part.value, {stream: true});
        const lines = rest.split("\n");
        rest = lines.pop();
        for (const line of lines) {
            if (!line.startsWith("data:")) continue; // blank lines, and comments that keep it alive
            const text = line.slice(5).trim();
            if (text === "[DONE]") return;
            const event = JSON.parse(text);
            if (event.error) throw new ApiError(response.status, String(event.error.message), event.error.code);
            yield event;
        }
        if (part.done) throw new ApiError(0, "The connection broke: the answer is incomplete.", "");
    }
}

export async function readModels() {
    return (await askJson("v1/models")).data;
}
