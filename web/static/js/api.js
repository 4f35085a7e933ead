// The way to the server's JSON: reading, and asking for a change.

import { $, root } from "./dom.js";

/** What the server said instead of an answer, as RFC 9457 has it. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail ? `${title}: ${detail}` : title);
    this.status = status;
    this.title = title;
    this.detail = detail;
  }
}

async function problemOf(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not a problem document: the status has to do.
  }
  return new Problem(response.status, body.title ?? `The server answered ${response.status}`, body.detail ?? "");
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

/** Read one of our own pages and return its element `selector`; its scripts do not run. */
export async function readPage(path, selector, signal = undefined) {
  const response = await fetch(root + path, { headers: { Accept: "text/html" }, signal });
  if (!response.ok) throw await problemOf(response);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  return document.adoptNode(page.querySelector(selector));
}

/** Ask for a change; `key` makes the same wish sent twice one wish. */
export async function ask(path, { key, generation }) {
  const response = await fetch(`${root}/api/v1${path}`, {
    method: "POST",
    headers: {
      Accept: "application/json",
      "Content-Type": "application/json",
      "X-CSRF": $('meta[name="csrf"]')?.content ?? "",
      "Idempotency-Key": key,
      "If-Match": `"g${generation}"`,
    },
    body: "{}",
  });
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

/** A new idempotency key. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
