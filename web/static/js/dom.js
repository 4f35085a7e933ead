// Small words for the DOM. Text goes in as text only, never as HTML: names come from the user's program.

export const root = document.documentElement.dataset.root ?? "";
export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

/** Make an element: attributes by name, children as nodes or text; null children are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

/** Change a node's text only when it differs, so that nothing is laid out in vain. */
export function setText(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

const ICONS = {
  pause: "M5 3v10M11 3v10",
  play: "M4 2.5 13 8l-9 5.5z",
  warn: "M8 2 15 14H1zM8 6.5v3.5M8 12v.5",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({
    class: "icon", viewBox: "0 0 16 16", width: 14, height: 14, fill: "none", stroke: "currentColor",
    "stroke-width": 1.5, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true",
  })) svg.setAttribute(key, value);
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** The address of one of our pages, without empty parameters. */
export function pageUrl(path, params = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== "" && value !== null && value !== undefined) query.set(name, value);
  }
  const text = query.toString();
  return root + path + (text ? `?${text}` : "");
}

export function statusMark(status) {
  return el("span", { class: `status status-${cssWord(status)}` }, el("i", { "aria-hidden": "true" }), status);
}

export function statePill(state) {
  return el("span", { class: `pill state-${cssWord(state)}`, "data-state-pill": true },
    el("i", { "aria-hidden": "true" }), el("span", {}, state.replaceAll("_", " ")));
}

export const cssWord = (word) => word.replace(/[^a-z_-]/gi, "");

export function dataBlock(id) {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
}
