// SPDX-License-Identifier: Apache-2.0
// Elements. Texts become text nodes and nothing here reads markup, so what a model says cannot become
// part of the page.

export const $ = id => document.getElementById(id);

// make("p", {class: "small", title: "..."}, "text", element): attributes by name; a function is a
// listener of the event of that name.
export function make(kind, attributes, ...children) {
    const e = document.createElement(kind);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (typeof value === "function") e.addEventListener(name, value);
        else if (value === true) e.setAttribute(name, "");
        else if (value !== false && value !== null && value !== undefined) e.setAttribute(name, value);
    }
    e.append(...children.filter(c => c !== null && c !== undefined));
    return e;
}

export function makeSvg(kind, attributes, ...children) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    e.append(...children);
    return e;
}

// A line above the views; it stays until it is closed or another comes.
export function tell(text) {
    $("notice").hidden = text === "";
    $("notice").firstElementChild.textContent = text;
}

// Ask before what cannot be undone.
export function sure(text, yes) {
    const dialog = $("sure");
    $("sure-text").textContent = text;
    $("sure-yes").textContent = yes;
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise(resolve => {
        dialog.onclose = () => {
            if (!dialog.open) resolve(dialog.returnValue === "yes"); // open: of the question before
        };
    });
}

// The clipboard is there on HTTPS and localhost only; elsewhere a selection is copied.
export async function copyText(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        const area = make("textarea", {class: "hidden"});
        area.value = text;
        document.body.append(area);
        area.select();
        const good = document.execCommand("copy");
        area.remove();
        return good;
    }
}

export function copyButton(text) {
    const button = make("button", {type: "button", class: "plain copy", click: async () => {
        button.textContent = await copyText(text()) ? "Copied" : "Not copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }}, "Copy");
    return button;
}

export const count = n => Number(n).toLocaleString("en-US", {maximumFractionDigits: 0});
export const percent = x => (100 * x).toFixed(1) + "%";
