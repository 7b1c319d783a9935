// SPDX-License-Identifier: Apache-2.0
// The page as a whole: views, keys, colours. Each view has a module; api.js is the only one that
// talks with the server.

import {$, tell} from "./dom.js";
import {keys} from "./api.js";
import {begin, loadModels, startChat} from "./chat.js";
import {startSettings} from "./settings.js";
import {hideState, showState} from "./state.js";
import {showCache, startCache} from "./cache.js";

const VIEWS = ["chat", "state", "cache"];
const THEMES = ["", "light", "dark"], THEME = "quire.theme";

function showView() {
    const name = VIEWS.includes(location.hash.slice(1)) ? location.hash.slice(1) : "chat";
    for (const view of VIEWS) {
        $(view).hidden = view !== name;
        if (view === name) $("to-" + view).setAttribute("aria-current", "page");
        else $("to-" + view).removeAttribute("aria-current");
    }
    $("list-open").hidden = name !== "chat";
    if (name === "state") showState();
    else hideState();
    if (name === "cache") showCache();
}

function askForKey(reason) {
    if ($("keys").open) return;
    $("keys-why").textContent = (reason ? reason + " " : "") +
        "Keys are kept until this tab is closed, and sent to this server only.";
    $("key").value = keys.key;
    $("admin").value = keys.admin;
    $("keys").showModal();
}

async function useKeys(key, admin) {
    keys.set(key.trim(), admin.trim());
    tell("");
    showView();
    await loadModels();
}

function showTheme() {
    const theme = localStorage.getItem(THEME) || "";
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    $("theme").title = "Colours: " + (theme || "as the system has them");
}

function startTheme() {
    $("theme").addEventListener("click", () => {
        const now = THEMES.indexOf(localStorage.getItem(THEME) || "");
        localStorage.setItem(THEME, THEMES[(now + 1) % THEMES.length]);
        showTheme();
    });
    showTheme();
}

function startKeys() {
    $("key-open").addEventListener("click", () => askForKey(""));
    $("keys-form").addEventListener("submit", () => useKeys($("key").value, $("admin").value));
    $("keys-forget").addEventListener("click", () => {
        $("key").value = $("admin").value = "";
        useKeys("", "");
    });
}

startTheme();
startKeys();
startSettings();
startCache();
startChat({askForKey});
$("notice-close").addEventListener("click", () => tell(""));
$("skip").addEventListener("click", () => {
    location.hash = "chat";
    $("input").focus();
});
function toggleList() {
    const shown = $("list").classList.toggle("shown");
    $("list-open").setAttribute("aria-expanded", String(shown));
}

$("list-open").addEventListener("click", toggleList);
addEventListener("hashchange", showView);
addEventListener("keydown", e => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(e.target.tagName);
    if (document.querySelector("dialog[open]")) return;
    if (e.key === "Escape" && $("list").classList.contains("shown")) {
        toggleList();
        $("list-open").focus();
    } else if (e.key === "/" && !typing && !$("chat").hidden) {
        e.preventDefault();
        $("input").focus();
    } else if (e.altKey && e.key === "n") {
        e.preventDefault();
        location.hash = "chat";
        begin();
    }
});
showView();
if (await loadModels() && !$("chat").hidden) $("input").focus();
document.documentElement.dataset.ready = "yes"; // tests wait for it
