// DOM functions. Text goes in as text only, never as HTML: names come from the user's program.

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

export const cssWord = (word) => word.replace(/[^a-z_-]/gi, "");

export function dataBlock(id) {
  const node = document.getElementById(id);
  return node ? JSON.parse(node.textContent) : null;
}
