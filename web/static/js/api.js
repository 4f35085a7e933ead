// Requests to the server: JSON, parts of pages, and changes.

import { $, root } from "./dom.js";

const PARTS = { Accept: "text/html", "X-Podium-Parts": "1" };

/** A problem document (RFC 9457) that the server answered with. */
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
    // Not a problem document: only the status is known.
  }
  return new Problem(response.status, body.title ?? `The server answered ${response.status}`, body.detail ?? "", body);
}

/** What to show a reader of a failed request. */
export const problemText = (problem) => (problem.detail ? `${problem.title}: ${problem.detail}` : problem.title ?? "The server does not answer.");

/** Read `/api/v1` + path; throws a Problem when it is refused and a TypeError when the server does not answer. */
export async function read(path, params = {}, signal = undefined) {
  const query = new URLSearchParams(params).toString();
  const response = await fetch(`${root}/api/v1${path}${query ? `?${query}` : ""}`, {
    headers: { Accept: "application/json" }, signal,
  });
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

async function documentOf(response) {
  if (!response.ok) throw await problemOf(response);
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

/** Read the parts of one of our own pages and return its element `selector`; its scripts do not run. */
export async function readPage(path, selector) {
  const page = await documentOf(await fetch(root + path, { headers: PARTS }));
  return document.adoptNode(page.querySelector(selector));
}

/** Read one of our own pages, by the path that the browser shows, and return its live parts. */
export async function readParts(path) {
  const page = await documentOf(await fetch(path, { headers: PARTS }));
  return [...page.querySelectorAll("[data-live-part]")];
}

/** Request a change of one pool; the same `key` again is the same request. */
export function ask(path, { key, generation }) {
  return send(path, { expected_generation: Number(generation) }, key);
}

/** Send a JSON body to `/api/v1` + path; `key` may be empty. */
export async function send(path, body, key = "") {
  const response = await post(path, body, "application/json", key);
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

/** Send a JSON body to `/api/v1` + path and return the answer's element `selector`, as the server drew it. */
export async function sendForPart(path, body, selector) {
  const page = await documentOf(await post(path, body, "text/html"));
  return document.adoptNode(page.querySelector(selector));
}

function post(path, body, accept, key = "") {
  return fetch(`${root}/api/v1${path}`, {
    method: "POST",
    headers: {
      Accept: accept,
      "Content-Type": "application/json",
      "X-CSRF": $('meta[name="csrf"]')?.content ?? "",
      ...(key ? { "Idempotency-Key": key } : {}),
    },
    body: JSON.stringify(body),
  });
}

/** A new idempotency key. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
