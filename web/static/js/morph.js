// Takes in parts of a page that the server drew again, in place: what did not change keeps its node, and with it the
// focus, the scroll position, an open <details>, a text selection and what was typed.

import { $$ } from "./dom.js";

/** Attributes that belong to the reader, not to the server. */
const KEPT = new Set(["open", "aria-expanded"]);

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.dataset.key ?? (node.id || null) : null);
const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

function syncAttributes(node, next) {
  for (const { name } of [...node.attributes]) {
    if (!next.hasAttribute(name) && !KEPT.has(name)) node.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (!KEPT.has(name) && node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  if (node.type === "range" && node !== document.activeElement) node.value = next.value;
}

function syncChildren(node, next) {
  const keyed = new Map([...node.children].filter((child) => keyOf(child) !== null).map((child) => [keyOf(child), child]));
  let at = node.firstChild;
  for (const wanted of [...next.childNodes]) {
    const key = keyOf(wanted);
    let match = key === null ? at : keyed.get(key);
    if (match && !isAlike(match, wanted)) match = null;
    if (!match) {
      if (key !== null && "markNew" in node.dataset) wanted.classList.add("fresh");
      node.insertBefore(wanted, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else node.insertBefore(match, at);
    morph(match, wanted);
  }
  while (at) {
    const rest = at.nextSibling;
    at.remove();
    at = rest;
  }
}

/** Make `node` equal to `next`; what is marked `data-keep` is JavaScript's own and stays as it is. */
export function morph(node, next) {
  if (node.isEqualNode(next)) return;
  if (node.nodeType !== Node.ELEMENT_NODE) {
    node.nodeValue = next.nodeValue;
    return;
  }
  if ("keep" in node.dataset) return;
  syncAttributes(node, next);
  syncChildren(node, next);
}

/** Take in each fresh [data-live-part] whose part is on this page. */
export function takeIn(fresh) {
  const parts = new Map(fresh.map((part) => [part.dataset.livePart, part]));
  const focused = document.activeElement;
  for (const part of $$("[data-live-part]")) {
    const next = parts.get(part.dataset.livePart);
    // A part within a part is there already.
    if (next && part.isConnected && !part.parentElement.closest("[data-live-part]")) morph(part, next);
  }
  // A row that moved has lost it.
  if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}
