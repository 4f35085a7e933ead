// The list of calls follows the run while its first page is shown; older pages stand still.

import { read } from "./api.js";
import { $, el, pageUrl, statusMark } from "./dom.js";
import { bytesSize, count, duration, sinceStart } from "./format.js";
import { isLive, onKeys, onLive } from "./shell.js";
import { follow } from "./stream.js";

const LIMIT = 100;
const body = $("[data-calls]");

function row(c) {
  const href = pageUrl(`/calls/${c.id}`);
  return el("tr", { "data-id": c.id },
    el("td", { class: "num" }, el("a", { href }, `#${c.id}`)),
    el("th", { scope: "row" }, el("a", { href }, el("span", { class: "dim" }, `${c.group}.`), c.method)),
    el("td", {}, statusMark(c.status)),
    el("td", { class: "num" }, sinceStart(c.started_ms)),
    el("td", { class: "num" }, c.status === "running" ? "–" : duration(c.duration_ms)),
    el("td", { class: "num" }, c.step > 0 ? String(c.step) : "–"),
    el("td", { class: "num" }, count(c.rows)),
    el("td", { class: "num" }, c.padding_rows ? count(c.padding_rows) : "–"),
    el("td", { class: "num" }, bytesSize(c.bytes_out)),
    el("td", { class: "num" }, bytesSize(c.bytes_in)),
    el("td", {}, el("code", {}, c.dispatch_mode), c.blocking ? null : " ", c.blocking ? null : el("span", { class: "tag" }, "non-blocking")),
    el("td", {}, c.pool));
}

async function refresh() {
  // As the page took them: what cannot be meant narrows nothing there, and would be refused here.
  const filters = Object.entries(JSON.parse(body.dataset.filters)).filter(([, value]) => value !== "" && value !== null);
  const query = { limit: LIMIT, ...Object.fromEntries(filters) };
  const page = await read("/calls", query);
  if (!page.items.length || body.contains(document.activeElement)) return;
  const known = new Set([...body.children].map((line) => line.dataset.id));
  const rows = page.items.map(row);
  for (const line of rows) {
    if (!known.has(line.dataset.id)) line.classList.add("fresh");
  }
  body.replaceChildren(...rows);
}

onKeys({ "/": () => $("#filters select").focus() });

if (body.dataset.firstPage === "yes") {
  const plan = follow(refresh, isLive, 1000);
  onLive((live) => live && plan());
}
