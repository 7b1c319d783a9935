// SPDX-License-Identifier: Apache-2.0
// Conversations, in the browser's local storage, one item each, so that two tabs lose nothing of
// each other.
//
//   {id, title, changed, model, settings: {system, temperature, ...}, messages: [message]}
//   message: {role, content, reasoning, calls, call_id, note, figures, failed}

import {tell} from "./dom.js";

const PREFIX = "quire.chat.";

export function newConversation(model, settings) {
    return {id: Date.now().toString(36) + Math.random().toString(36).slice(2, 8), title: "",
        changed: Date.now(), model, settings: {...settings}, messages: []};
}

function read(key) {
    try {
        const c = JSON.parse(localStorage.getItem(key));
        return c && Array.isArray(c.messages) && typeof c.id === "string" ? c : null;
    } catch {
        return null;
    }
}

// The newest first.
export function listConversations() {
    const all = Object.keys(localStorage).filter(k => k.startsWith(PREFIX)).map(read).filter(c => c);
    return all.sort((a, b) => b.changed - a.changed);
}

export const loadConversation = id => read(PREFIX + id);

export function saveConversation(c) {
    if (c.messages.length === 0) return;
    const first = c.messages.find(m => m.role === "user");
    c.title = (first ? first.content : "").trim().split("\n")[0].slice(0, 80) || "Conversation";
    c.changed = Date.now();
    try {
        localStorage.setItem(PREFIX + c.id, JSON.stringify(c));
    } catch {
        tell("The browser has no more room for conversations: this one is not kept. Delete some.");
    }
}

export function deleteConversation(id) {
    localStorage.removeItem(PREFIX + id);
}
