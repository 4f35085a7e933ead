// What every page has: theme, live or frozen, connection, recorder strip, help, keys.

import { readParts } from "./api.js";
import { $, $$, root, setText } from "./dom.js";
import { takeIn } from "./morph.js";
import { follow, stream } from "./stream.js";

const FRAME_MS = 2000;

const html = document.documentElement;
const darkQuery = matchMedia("(prefers-color-scheme: dark)");
const isLiveRun = html.dataset.live === "yes";
const listeners = { live: [], theme: [] };

export const params = () => new URLSearchParams(location.search);

/** Change parameters of the URL in place; null takes one away. */
export function setParams(changes) {
  const query = params();
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  history.replaceState(history.state, "", location.pathname + (text ? `?${text}` : ""));
}

let live = isLiveRun && params().get("live") !== "0";
export const isLive = () => live;
export const onLive = (listener) => listeners.live.push(listener);
export const onTheme = (listener) => listeners.theme.push(listener);

export function setLive(value) {
  value = value && isLiveRun;
  if (value === live) return;
  live = value;
  setParams({ live: live || !isLiveRun ? null : "0" });
  showLive();
  listeners.live.forEach((listener) => listener(live));
}

function showLive() {
  const button = $("#live");
  if (!button) return;
  button.setAttribute("aria-pressed", String(live));
  setText($("span", button), live ? "Live" : "Frozen");
}

/** The theme that is shown: light or dark. */
export function themeName() {
  return html.dataset.theme ?? (darkQuery.matches ? "dark" : "light");
}

function chooseTheme(choice) {
  if (choice === "auto") delete html.dataset.theme;
  else html.dataset.theme = choice;
  try {
    localStorage.setItem("podium.theme", choice);
  } catch {
    // Storage is off: the choice holds for this page.
  }
  if (params().has("theme")) setParams({ theme: choice === "auto" ? null : choice });
  showTheme();
  listeners.theme.forEach((listener) => listener(themeName()));
}

function showTheme() {
  const choice = html.dataset.theme ?? "auto";
  for (const button of $$("[data-theme-choice]")) {
    button.setAttribute("aria-pressed", String(button.dataset.themeChoice === choice));
  }
}

/** Whether the page's own parts have the state and the recorder strip at the moment; see live_page.js. */
let hasOwnFrame = () => false;
export const drawsOwnFrame = (isDrawn) => {
  hasOwnFrame = isDrawn;
};

function followFrame() {
  const plan = follow(async () => takeIn(await readParts(`${root}/frame`)), () => !hasOwnFrame(), FRAME_MS);
  for (const name of ["pool", "operation"]) stream.addEventListener(name, () => !hasOwnFrame() && plan());
}

let lostSince = 0;
let lostWhy = "";
function showConnection() {
  const node = $("#connection");
  if (!node) return;
  node.hidden = !lostSince;
  if (!lostSince) return;
  setText($("b", node), `${lostWhy}, retrying`);
  setText($("span", node), ` ${Math.round((Date.now() - lostSince) / 1000)} s`);
}

/** Keys that work outside of fields; `handlers` maps a key to what it does. */
export function onKeys(handlers) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    const handler = handlers[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (handler && handler(event) !== false) event.preventDefault();
  });
}

/** On a narrow screen the tabs scroll sideways: the page's own is brought into sight. */
function showTab() {
  const tab = $(".tabs [aria-current]");
  if (tab) tab.parentElement.scrollLeft = tab.offsetLeft - (tab.parentElement.clientWidth - tab.offsetWidth) / 2;
}

function start() {
  showTab();
  showTheme();
  showLive();
  for (const button of $$("[data-theme-choice]")) {
    button.addEventListener("click", () => chooseTheme(button.dataset.themeChoice));
  }
  darkQuery.addEventListener("change", () => listeners.theme.forEach((listener) => listener(themeName())));
  $("#live")?.addEventListener("click", () => setLive(!live));
  const help = $("#help");
  $("#help-open")?.addEventListener("click", () => help.showModal());
  onKeys({ l: () => setLive(!live), "?": () => help.showModal() });
  stream.addEventListener("connection", ({ detail }) => {
    lostSince = detail.ok ? 0 : Date.now() - detail.sinceMs;
    lostWhy = detail.why ?? "";
    showConnection();
  });
  setInterval(() => lostSince && showConnection(), 1000);
  stream.addEventListener("end", () => {
    const button = $("#live");
    if (button) button.hidden = true;
  });
  if (!isLiveRun) return;
  followFrame();
  stream.start();
}

start();
