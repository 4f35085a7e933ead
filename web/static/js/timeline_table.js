// The timeline as a table: the same window, the same data.

import { el, pageUrl, statusMark } from "./dom.js";
import { count, duration, percent, sinceStart } from "./format.js";

const MOST_ROWS = 200;
const cell = (text) => el("td", { class: "num" }, text);
const head = (...names) => el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", class: name.startsWith("#") ? "num" : null }, name.replace("#", "")))));

export function tableOf(data, rows) {
  return data.mode === "heat" ? heatTable(data, rows) : barTable(data, rows);
}

function barTable({ bars, methods }, rows) {
  const lanes = new Map(rows.filter((row) => row.kind === "rank").map((row) => [row.lane.index, row]));
  const order = [...bars.lane.keys()].filter((i) => lanes.has(bars.lane[i])).sort((a, b) => bars.start_ms[a] - bars.start_ms[b]);
  const lines = order.slice(0, MOST_ROWS).map((i) => el("tr", {},
    el("td", { class: "num" }, el("a", { href: pageUrl(`/calls/${bars.call_id[i]}`) }, `#${bars.call_id[i]}`)),
    el("th", { scope: "row" }, methods[bars.method[i]]), el("td", {}, lanes.get(bars.lane[i]).text),
    cell(sinceStart(bars.start_ms[i])), cell(duration(bars.queued_ms[i])), cell(duration(bars.end_ms[i] - bars.start_ms[i])),
    el("td", {}, statusMark(bars.status[i]))));
  const more = order.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${count(order.length)} spans in this window; zoom in to see the others.` : `${count(order.length)} spans.`;
  return [el("table", { class: "table" }, el("caption", { class: "sr" }, "Spans in this window"),
    head("#Call", "Method", "Lane", "#Started", "#Queued", "#Ran", "Status"), el("tbody", {}, lines)), el("p", { class: "none" }, more)];
}

function heatTable({ heat }, rows) {
  const lines = rows.filter((row) => row.heatRow !== undefined).map((row) => {
    const busy = heat.busy[row.heatRow];
    const longest = heat.max_ms[row.heatRow];
    const at = longest.reduce((best, ms, i) => (ms > longest[best] ? i : best), 0);
    const id = heat.max_call_id[row.heatRow][at];
    return el("tr", {}, el("th", { scope: "row" }, row.text), cell(percent(busy.reduce((a, b) => a + b, 0) / Math.max(busy.length, 1))),
      cell(id ? duration(longest[at]) : "–"), el("td", { class: "num" }, id ? el("a", { href: pageUrl(`/calls/${id}`) }, `#${id}`) : "–"));
  });
  return [el("table", { class: "table" }, el("caption", { class: "sr" }, "Lanes in this window"),
    head("Lane", "#Busy", "#Longest span", "#Its call"), el("tbody", {}, lines))];
}
