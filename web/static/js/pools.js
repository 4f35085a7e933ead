// Pause and resume on the overview, where this reader may: one request however often one clicks, and what became of it.

import { $, $$, setText } from "./dom.js";
import { ask, newKey, problemText } from "./api.js";
import { settled, whyOf } from "./operation.js";

const NOTE_MS = 6000;
const requests = new Map();
const notes = new Map();
const lineOf = (name) => $$("[data-pools] [data-pool]").find((line) => line.dataset.pool === name);

/** A pool whose request is under way takes no second one, also when its line was drawn again. */
export function showRequests() {
  for (const line of $$("[data-pools] [data-pool]")) {
    const button = $("[data-pool-action]", line);
    if (button && requests.has(line.dataset.pool)) button.disabled = true;
  }
}

function show(name, text, isBad = false) {
  const note = $("[data-pool-note]", lineOf(name) ?? document);
  if (!note) return;
  setText(note, text);
  note.classList.toggle("bad", isBad);
  clearTimeout(notes.get(name));
  if (text && !isBad) notes.set(name, setTimeout(() => setText(note, ""), NOTE_MS));
}

async function press(button, name, generation, refresh) {
  if (requests.has(name)) return;
  const action = button.dataset.poolAction;
  requests.set(name, newKey());
  showRequests();
  show(name, action === "pause" ? "Pausing at the next safe point…" : "Resuming…");
  try {
    const path = `/resource-pools/${encodeURIComponent(name)}/${action}`;
    const operation = await settled(await ask(path, { key: requests.get(name), generation }));
    if (operation.state === "succeeded") show(name, action === "pause" ? "Paused. New calls wait." : "Resumed.");
    else show(name, `${action} ${operation.state}: ${whyOf(operation) || "no reason recorded"}`, true);
  } catch (problem) {
    show(name, problemText(problem), true);
  } finally {
    requests.delete(name);
    button.disabled = false;
    refresh();
  }
}

export function startPools(refresh) {
  $("[data-pools]").addEventListener("click", (event) => {
    const button = event.target.closest("[data-pool-action]");
    const line = button?.closest("[data-pool]");
    if (line) press(button, line.dataset.pool, line.dataset.generation, refresh);
  });
}
