// SPDX-License-Identifier: Apache-2.0
// Markdown as elements: headings, lists, quotes, tables, rules, fenced code; code, emphasis and links
// inside a line. Only text nodes and elements of a fixed list are made. Links to web and mail
// addresses are links; an image becomes a link, because loading it would tell another host.
//
// A text may end anywhere, because it is shown while it is written: an open fence is code to the end.

import {copyButton, make} from "./dom.js";

const DEPTH_MAX = 8;    // of lists, quotes and emphasis in each other
const REACH = 4000;     // a mark is closed within so many characters, or is text

function addressOf(text) {
    let url;
    try {
        url = new URL(text);
    } catch {
        return null;
    }
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

function link(address, ...children) {
    return make("a", {href: address, target: "_blank", rel: "noopener noreferrer nofollow"}, ...children);
}

function find(text, mark, from) {
    const at = text.slice(from, from + REACH).indexOf(mark);
    return at < 0 ? -1 : from + at;
}

const isWord = c => c !== undefined && c !== "" && /[\p{L}\p{N}_]/u.test(c);
const isSpace = c => c === undefined || c === "" || /\s/.test(c);

// The end of an emphasis that begins at i with the mark; -1: it is none.
function emphasisEnd(text, i, mark) {
    const first = i + mark.length;
    if (isSpace(text[first]) || (mark[0] === "_" && isWord(text[i - 1]))) return -1;
    for (let at = find(text, mark, first); at >= 0; at = find(text, mark, at + 1)) {
        if (at === first || isSpace(text[at - 1])) continue;
        if (mark.length === 1 && text[at + 1] === mark) { // the beginning or end of a longer one
            at++;
            continue;
        }
        if (mark[0] === "_" && isWord(text[at + mark.length])) continue;
        return at;
    }
    return -1;
}

// [text](address) at i, or null.
function linkAt(text, i) {
    const close = find(text, "](", i);
    if (close < 0 || text.slice(i, close).includes("\n\n")) return null;
    let end = close + 2, open = 1;
    for (; end < text.length && end - close < REACH && !/\s/.test(text[end]); end++) {
        if (text[end] === "(") open++;
        if (text[end] === ")" && --open === 0) break;
    }
    const title = text.slice(end, end + 300).match(/^\s+"[^"\n]*"\)/); // it is not shown
    const after = title ? end + title[0].length : end + 1;
    if (!title && text[end] !== ")") return null;
    return {label: text.slice(i + 1, close), address: addressOf(text.slice(close + 2, end)), after};
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "del"], ["*", "em"], ["_", "em"]];

// One construct at i: {after, node}, or null where it is text.
function inlineAt(text, i, depth) {
    const c = text[i];
    if (c === "\\" && /[!-/:-@[-`{-~]/.test(text[i + 1] || ""))
        return {after: i + 2, node: text[i + 1]};
    if (c === "\n") return {after: i + 1, node: make("br")};
    if (c === "`") {
        const run = text.slice(i).match(/^`+/)[0], end = find(text, run, i + run.length);
        if (end < 0 || text[end + run.length] === "`") return {after: i + run.length, node: run};
        const code = text.slice(i + run.length, end).replace(/\n/g, " ");
        return {after: end + run.length, node: make("code", null, code.replace(/^ (.*\S.*) $/, "$1"))};
    }
    if (c === "[" || (c === "!" && text[i + 1] === "[")) {
        const found = linkAt(text, c === "!" ? i + 1 : i);
        if (!found) return null;
        const inside = document.createDocumentFragment();
        if (c === "!") inside.append("image: ");
        inline(found.label, inside, depth + 1);
        return {after: found.after, node: found.address ? link(found.address, inside) : inside};
    }
    if ((c === "h" || c === "<") && !isWord(text[i - 1])) {
        const found = text.slice(i, i + 2000).match(/^<?(https?:\/\/[^\s<>"'`]+)>?/);
        if (!found) return null;
        const raw = c === "<" ? found[1] : found[1].replace(/[.,;:!?)\]*_]+$/, "");
        const address = addressOf(raw);
        return address && {after: i + (c === "<" ? found[0].length : raw.length), node: link(address, raw)};
    }
    for (const [mark, kind] of MARKS) {
        if (!text.startsWith(mark, i)) continue;
        const end = emphasisEnd(text, i, mark);
        if (end < 0) continue;
        const node = make(kind);
        inline(text.slice(i + mark.length, end), node, depth + 1);
        return {after: end + mark.length, node};
    }
    return null;
}

function inline(text, into, depth) {
    const special = /[\\\n`[!h<*_~]/g;
    let from = 0;
    if (depth > DEPTH_MAX) {
        into.append(text);
        return;
    }
    for (let i = 0; i < text.length;) {
        special.lastIndex = i;
        const next = special.exec(text);
        if (!next) break;
        const found = inlineAt(text, next.index, depth);
        i = next.index + 1;
        if (!found) continue;
        into.append(text.slice(from, next.index), found.node);
        i = from = found.after;
    }
    into.append(text.slice(from));
}

export function codeBlock(text, language) {
    return make("div", {class: "block"},
        make("div", {class: "block-head"}, make("span", null, language || "text"), copyButton(() => text)),
        make("pre", {tabindex: "0"}, make("code", null, text)));
}

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}> ?/;
const COLUMNS = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const indentOf = line => line.match(/^ */)[0].length;

const beginsBlock = line => FENCE.test(line) || HEADING.test(line) || RULE.test(line) ||
    QUOTE.test(line) || ITEM.test(line);

function fence(lines, i, into) {
    const [, indent, mark, language] = lines[i].match(FENCE), inside = [];
    for (i++; i < lines.length; i++) {
        const trimmed = lines[i].trim();
        if (trimmed.startsWith(mark) && trimmed === mark[0].repeat(trimmed.length)) break;
        inside.push(lines[i].replace(new RegExp("^ {0," + indent.length + "}"), ""));
    }
    into.append(codeBlock(inside.join("\n"), language));
    return i + 1;
}

function list(lines, i, into, depth) {
    const first = lines[i].match(ITEM), ordered = /\d/.test(first[2]), base = first[1].length;
    const e = make(ordered ? "ol" : "ul", ordered ? {start: parseInt(first[2], 10)} : null);
    while (i < lines.length) {
        const item = lines[i].match(ITEM);
        if (!item || item[1].length > base + 1 || item[1].length < base || /\d/.test(item[2]) !== ordered)
            break;
        const width = item[1].length + item[2].length + Math.min(Math.max(item[3].length, 1), 4);
        const inside = [item[4]];
        for (i++; i < lines.length; i++) {
            const line = lines[i], blank = line.trim() === "";
            const indent = indentOf(line);
            if (blank ? !(i + 1 < lines.length && indentOf(lines[i + 1]) > base && lines[i + 1].trim() !== "")
                : indent <= base && (beginsBlock(line) || lines[i - 1].trim() === "")) break;
            inside.push(line.slice(Math.min(indent, width)));
        }
        const li = make("li");
        blocks(inside, li, depth + 1, true);
        e.append(li);
        while (i < lines.length && lines[i].trim() === "" && ITEM.test(lines[i + 1] || "")) i++;
    }
    into.append(e);
    return i;
}

function cells(line) {
    const out = [""];
    for (const c of line.trim().replace(/^\|/, "").replace(/([^\\])\|$/, "$1").split(/(\\\||\|)/)) {
        if (c === "|") out.push("");
        else out[out.length - 1] += c === "\\|" ? "|" : c;
    }
    return out.map(c => c.trim());
}

function table(lines, i, into) {
    const e = make("table"), head = cells(lines[i]);
    const sides = cells(lines[i + 1]).map(c => c.endsWith(":") ? (c.startsWith(":") ? "middle" : "right") : null);
    const add = (kind, texts) => {
        const row = make("tr");
        head.forEach((_, k) => {
            const cell = make(kind, {class: sides[k] || null});
            inline(texts[k] || "", cell, 0);
            row.append(cell);
        });
        return row;
    };
    e.append(make("thead", null, add("th", head)));
    const body = make("tbody");
    for (i += 2; i < lines.length && lines[i].includes("|") && lines[i].trim() !== ""; i++)
        body.append(add("td", cells(lines[i])));
    e.append(body);
    into.append(make("div", {class: "table", tabindex: "0"}, e));
    return i;
}

// tight: paragraphs of list items are not elements of their own.
function blocks(lines, into, depth, tight) {
    for (let i = 0; i < lines.length;) {
        const line = lines[i], heading = line.match(HEADING);
        if (line.trim() === "") {
            i++;
        } else if (FENCE.test(line)) {
            i = fence(lines, i, into);
        } else if (heading) {
            const e = make("h" + Math.min(6, heading[1].length + 2));
            inline(heading[2], e, 0);
            into.append(e);
            i++;
        } else if (RULE.test(line)) {
            into.append(make("hr"));
            i++;
        } else if (QUOTE.test(line) && depth < DEPTH_MAX) {
            const inside = [], e = make("blockquote");
            for (; i < lines.length && QUOTE.test(lines[i]); i++) inside.push(lines[i].replace(QUOTE, ""));
            blocks(inside, e, depth + 1, false);
            into.append(e);
        } else if (ITEM.test(line) && depth < DEPTH_MAX) {
            i = list(lines, i, into, depth);
        } else if (line.includes("|") && COLUMNS.test(lines[i + 1] || "") && lines[i + 1].includes("-") &&
                   cells(line).length === cells(lines[i + 1]).length) {
            i = table(lines, i, into);
        } else {
            const inside = [line.trim()];
            for (i++; i < lines.length && lines[i].trim() !== "" && !beginsBlock(lines[i]); i++)
                inside.push(lines[i].trim());
            const e = tight && i >= lines.length && into.childNodes.length === 0 ? into : make("p");
            inline(inside.join("\n"), e, 0);
            if (e !== into) into.append(e);
            else tight = false;
        }
    }
}

// The text as nodes.
export function markdown(text) {
    const into = document.createDocumentFragment();
    blocks(text.replace(/\r\n?/g, "\n").replace(/\t/g, "    ").split("\n"), into, 0, false);
    return into;
}
