// The way to the server's JSON: reading, and asking for a change.

import { $, root } from "./dom.js";

/** What the server said instead of an answer, as RFC 9457 has it. */
export class Problem extends Error {
  constructor(status, title, detail, more = {}) {
    super(detail ? `${title}: ${detail}` : title);
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.more = more;
  }
}

async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not a problem document: the status has to do.
  }
  return new Problem(response.status, body.title ?? `The server answered ${response.status}`, body.detail ?? "", body);
}

/** Read `/api/v1` + path; throws a Problem for a refusal and a TypeError when nobody answers. */
export async function read(path, params = {}, signal = undefined) {
  const query = new URLSearchParams(params).toString();
  const response = await fetch(`${root}/api/v1${path}${query ? `?${query}` : ""}`, {
    headers: { Accept: "application/json" }, signal,
  });
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

async function readDocument(path, signal) {
  const response = await fetch(root + path, { headers: { Accept: "text/html" }, signal });
  if (!response.ok) throw await problemOf(response);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** Read one of our own pages and return its element `selector`; its scripts do not run. */
export async function readPage(path, selector, signal = undefined) {
  const page = await readDocument(path, signal);
  return document.adoptNode(page.querySelector(selector));
}

/** Read one of our own pages, by the browser's own path, and return all its elements `selector`. */
export async function readParts(path, selector) {
  const page = await readDocument(path.slice(root.length), undefined);
  // They stay where they are until they are put to use: one may be a part of another.
  return [...page.querySelectorAll(selector)];
}

/** Ask for a change of one pool; `key` makes the same wish sent twice one wish. */
export function ask(path, { key, generation }) {
  return send(path, { expected_generation: Number(generation) }, key);
}

/** Send a JSON body to `/api/v1` + path as one who may change things; `key` may be empty. */
export async function send(path, body, key = "") {
  const response = await fetch(`${root}/api/v1${path}`, {
    method: "POST",
    headers: {
      Accept: "application/json",
      "Content-Type": "application/json",
      "X-CSRF": $('meta[name="csrf"]')?.content ?? "",
      ...(key ? { "Idempotency-Key": key } : {}),
    },
    body: JSON.stringify(body),
  });
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

/** A new idempotency key. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
