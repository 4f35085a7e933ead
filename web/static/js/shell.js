// What every page has: theme, live or frozen, connection, recorder strip, help, keys.

import { read } from "./api.js";
import { $, $$, cssWord, setText } from "./dom.js";
import { bytesSize, count, duration, sinceStart } from "./format.js";
import { stream } from "./stream.js";

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

/** What the pill is made of: web/pill.py does the same with what the record says. */
const WAITING = "waiting_for_safe_point";
const N_OPERATIONS = 20;
const known = {
  run: $(".run")?.dataset.runState ?? "",
  waiting: new Set(($(".run")?.dataset.waiting ?? "").split(" ").filter(Boolean)),
  pools: new Map(),
};

/** Show the run's state, and of a running one whether it is held. */
export function showState(state = known.run) {
  known.run = state;
  const pill = $(".bar [data-state-pill]");
  if (!pill) return;
  const living = [...known.pools.values()].filter((one) => one !== "closed");
  const isPaused = living.length > 0 && living.every((one) => one === "paused");
  const shown = state !== "running" ? state : known.waiting.size ? WAITING : isPaused ? "paused" : state;
  pill.className = `pill state-${cssWord(shown)}`;
  setText($("span", pill), shown.replaceAll("_", " "));
}

function knowOperation({ id, state }) {
  if (state === WAITING) known.waiting.add(id);
  else known.waiting.delete(id);
  showState();
}

function knowPool({ name, state }) {
  known.pools.set(name, state);
  showState();
}

/** Nothing is known of pools and operations any more: what went while nobody listened is not told. */
function forget() {
  known.pools.clear();
  known.waiting.clear();
}

/** Without a stream nobody tells: ask for what the pill is made of. */
async function askState() {
  try {
    const [run, pools, operations] = await Promise.all([
      read("/runs/current"), read("/resource-pools"), read("/operations", { limit: N_OPERATIONS }),
    ]);
    if (!stream.polling) return;
    forget();
    for (const { name, state } of pools.items) known.pools.set(name, state);
    for (const { id, state } of operations.items) if (state === WAITING) known.waiting.add(id);
    showState(run.state);
  } catch {
    // The server is silent: the page says so, and the pill stays as it was.
  }
}

const RECORDER_TEXT = {
  n_recorded: count,
  n_dropped: count,
  n_gaps: (n) => (n ? ` in ${count(n)} gap${n === 1 ? "" : "s"}` : ""),
  pruned_before_ms: (ms) => (ms === null ? "nothing" : sinceStart(ms)),
  writer_lag_ms: duration,
  db_bytes: bytesSize,
  log_bytes: bytesSize,
};

export function showRecorder(recorder) {
  for (const node of $$("[data-recorder]")) {
    const name = node.dataset.recorder;
    setText(node, RECORDER_TEXT[name](recorder[name]));
    if (name === "n_gaps") node.hidden = !recorder[name];
  }
  $("[data-recorder-warn]")?.classList.toggle("bad", recorder.n_dropped > 0);
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
  stream.addEventListener("tick", ({ detail }) => {
    if (detail.state) showState(detail.state);
    else if (stream.polling) askState();
  });
  stream.addEventListener("open", forget);
  stream.addEventListener("pool", ({ detail }) => knowPool(detail));
  stream.addEventListener("operation", ({ detail }) => knowOperation(detail));
  stream.addEventListener("end", ({ detail }) => {
    showState(detail.state ?? "ended");
    const button = $("#live");
    if (button) button.hidden = true;
  });
  if (isLiveRun) stream.start();
}

start();
