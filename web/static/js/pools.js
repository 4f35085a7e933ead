// The pools of the overview: their state as it changes, and pause and resume where this reader may.

import { $, el, icon, setText, statePill } from "./dom.js";
import { ask, newKey, read } from "./api.js";
import { settled, whyOf } from "./operation.js";
import { stream } from "./stream.js";

const HELD = new Set(["paused", "pausing"]);
const wishes = new Map();
const notes = new Map();

/** Show the pools; a pool whose line is there already keeps it, so that a button under the pointer stays. */
export function showPools(list, all) {
  const open = all.filter((pool) => pool.state !== "closed");
  const pools = open.length ? open : all;
  const lines = new Map([...list.querySelectorAll("[data-pool]")].map((line) => [line.dataset.pool, line]));
  list.querySelector(".none")?.remove();
  for (const pool of pools) {
    if (!lines.has(pool.name)) list.append(newLine(list, pool));
    showPool(list, pool);
    lines.delete(pool.name);
  }
  lines.forEach((line) => line.remove());
}

export function showPool(list, pool) {
  const line = [...list.children].find((child) => child.dataset.pool === pool.name);
  if (!line) return;
  if (line.dataset.state !== pool.state) {
    line.dataset.state = pool.state;
    $("[data-state-pill]", line).replaceWith(statePill(pool.state));
  }
  const shape = pool.process_on_nodes.join(",");
  if (line.dataset.generation !== String(pool.generation) || line.dataset.shape !== shape) {
    line.dataset.generation = pool.generation;
    line.dataset.shape = shape;
    $(".nodes", line).replaceWith(nodesOf(pool));
    $(".pool-facts", line).replaceWith(factsOf(pool));
  }
  showButton(line);
}

function nodesOf(pool) {
  return el("div", {
    class: "nodes", role: "img", "aria-label": `${pool.world_size} processes on ${pool.process_on_nodes.length} nodes`,
  }, pool.process_on_nodes.map((n) => el("span", { class: "node" }, Array.from({ length: n }, () => el("i")))));
}

function factsOf(pool) {
  return el("p", { class: "pool-facts" },
    el("span", {}, `${pool.world_size} ranks`), el("span", {}, `generation ${pool.generation}`),
    el("span", { class: "names" }, pool.groups.map((group) => el("code", {}, group))));
}

function newLine(list, pool) {
  const may = list.dataset.controllable === "yes";
  return el("li", { class: "pool", "data-pool": pool.name, "data-generation": "", "data-state": pool.state },
    el("div", { class: "pool-head" }, el("strong", {}, pool.name), statePill(pool.state),
      may ? el("button", { type: "button", class: "action", "data-pool-action": "pause" }) : null),
    nodesOf(pool), factsOf(pool), el("p", { class: "pool-note", "data-pool-note": true, role: "status" }));
}

function showButton(line) {
  const button = $("[data-pool-action]", line);
  if (!button) return;
  const isHeld = HELD.has(line.dataset.state);
  const action = isHeld ? "resume" : "pause";
  button.disabled = wishes.has(line.dataset.pool) || ["changing", "closed", "failed"].includes(line.dataset.state);
  if (button.dataset.poolAction === action && button.childElementCount) return;
  button.dataset.poolAction = action;
  button.replaceChildren(icon(isHeld ? "play" : "pause"), el("span", {}, isHeld ? "Resume" : "Pause"));
}

function say(line, text, isBad = false) {
  const note = $("[data-pool-note]", line);
  setText(note, text);
  note.classList.toggle("bad", isBad);
  clearTimeout(notes.get(line.dataset.pool));
  if (text && !isBad) notes.set(line.dataset.pool, setTimeout(() => setText(note, ""), 6000));
}

async function press(list, line) {
  const name = line.dataset.pool;
  if (wishes.has(name)) return;
  const action = $("[data-pool-action]", line).dataset.poolAction;
  wishes.set(name, newKey());
  showButton(line);
  say(line, action === "pause" ? "Asked. Takes effect at the next call's border." : "Asked.");
  try {
    const generation = line.dataset.generation;
    let operation = await ask(`/resource-pools/${encodeURIComponent(name)}/${action}`, { key: wishes.get(name), generation });
    operation = await settled(operation);
    if (operation.state === "succeeded") say(line, action === "pause" ? "Paused: new calls wait at the gate." : "Going on.");
    else say(line, `The ${action} ${operation.state}${operation.error ? `: ${operation.error.detail}` : "."}`, true);
  } catch (problem) {
    say(line, problem.detail ? `${problem.title}. ${problem.detail}` : problem.title ?? "The server does not answer.", true);
  } finally {
    wishes.delete(name);
    showButton(line);
    read("/resource-pools").then((answer) => showPools(list, answer.items ?? answer), () => {});
  }
}

export function startPools(list) {
  for (const line of list.querySelectorAll("[data-pool]")) showButton(line);
  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pool-action]");
    if (button) press(list, button.closest("[data-pool]"));
  });
  stream.addEventListener("pool", ({ detail }) => showPool(list, detail));
}
