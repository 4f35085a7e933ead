// Pages that the server draws whole: while the run goes on, each [data-live-part] is taken anew from a fresh copy.

import { readParts } from "./api.js";
import { $$ } from "./dom.js";
import { isLive, onLive } from "./shell.js";
import { follow, stream } from "./stream.js";

const EVERY_MS = 1000;

/** What a person has unfolded stays unfolded, wherever the fresh copy has it too. */
function keepOpen(before, after) {
  const open = new Set($$("details[open]", before).map((node) => node.closest("[id]")?.id).filter(Boolean));
  for (const node of $$("details", after)) {
    if (open.has(node.closest("[id]")?.id)) node.open = true;
  }
  const twin = before.querySelector(".twin[open]");
  const other = after.querySelector(".twin");
  if (twin && other) other.open = true;
}

function takeIn(fresh) {
  const parts = new Map(fresh.map((part) => [part.dataset.livePart, part]));
  for (const part of $$("[data-live-part]")) {
    const next = parts.get(part.dataset.livePart);
    // A part of a part that was taken in is there already.
    if (!next || !part.isConnected || part.isEqualNode(next) || part.contains(document.activeElement)) continue;
    keepOpen(part, next);
    part.replaceWith(next);
  }
}

/** Draw the parts anew, and call `after` when that is done. */
export async function refreshParts(after = () => {}) {
  takeIn(await readParts(location.pathname + location.search, "[data-live-part]"));
  after();
}

/** Follow the run; the returned function asks for a fresh copy soon. */
export function followParts(after) {
  const plan = follow(() => refreshParts(after), isLive, EVERY_MS);
  for (const name of ["pool", "operation"]) stream.addEventListener(name, () => isLive() && plan());
  onLive((live) => live && plan());
  return plan;
}
