// How long a method's calls took over time: a heat map on a logarithmic scale, with its percentiles as lines.

import { $, dataBlock, pageUrl } from "./dom.js";
import { count, duration, sinceStart } from "./format.js";
import { followParts } from "./live_page.js";
import { copy, draw, spec } from "./plot.js";
import { paintRanks, refreshRanks } from "./rank_map.js";
import { onTheme } from "./shell.js";
import { ticksOf } from "./timeline_figure.js";

const HEIGHT_PX = 340;
const LEAST_ROWS = 10;
const LINES = [["p50_ms", "p50"], ["p95_ms", "p95"]];
const figure = $("#latency");
let data = null;

function lengthTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const digit of [1, 2, 5]) {
      const ms = digit * 10 ** power;
      if (ms >= low * 0.99 && ms <= high * 1.01) found.push(ms);
    }
  }
  return found.length > 9 ? found.filter((ms) => /^1/.test(ms.toExponential())) : found;
}

/** The rows that have calls and one on either side, at least LEAST_ROWS: neither mostly empty nor a few huge blocks. */
function rowsShown() {
  const used = data.counts.map((row) => row.some(Boolean));
  const low = used.indexOf(true);
  const high = used.lastIndexOf(true);
  const more = Math.max(1, Math.ceil((LEAST_ROWS - (high - low + 1)) / 2));
  const step = data.edges_ms[1] / data.edges_ms[0];
  const none = new Array(data.n_buckets).fill(0);
  const rows = [];
  for (let i = low - more; i <= high + more; i += 1) {
    rows.push({ from: data.edges_ms[0] * step ** i, to: data.edges_ms[0] * step ** (i + 1), counts: data.counts[i] ?? none });
  }
  return rows;
}

function paint() {
  if (!figure || !data?.counts.some((row) => row.some(Boolean))) return;
  const rows = rowsShown();
  const base = spec("latency");
  const most = rows.reduce((high, row) => row.counts.reduce((a, b) => Math.max(a, b), high), 1);
  const edges = [...rows.map((row) => row.from), rows[rows.length - 1].to].map(Math.log10);
  const times = Array.from({ length: data.n_buckets + 1 }, (_, i) => data.from_ms + i * data.bucket_ms);
  const end = times[times.length - 1];
  const heat = {
    ...copy(base.traces.heat), x: times, y: edges, z: rows.map((row) => row.counts.map((n) => Math.sqrt(n / most))),
    customdata: rows.map((row) => row.counts.map((n) => [count(n), duration(row.from), duration(row.to)])),
    text: rows.map((row) => row.counts.map((_, k) => sinceStart(times[k], 0))),
  };
  const lines = LINES.map(([name, text]) => ({
    ...copy(base.traces[text]), name: text, x: data[name].map((_, k) => times[k] + data.bucket_ms / 2),
    y: data[name].map((ms) => (ms === null ? null : Math.log10(ms))),
    text: data[name].map((ms) => (ms === null ? "" : `${text} ${duration(ms)}`)),
  }));
  const layout = copy(base.layout);
  layout.width = figure.clientWidth;
  layout.height = HEIGHT_PX;
  Object.assign(layout.xaxis, ticksOf(data.from_ms, end, Math.max(layout.width - 80, 50)), { range: [data.from_ms, end] });
  const ticks = lengthTicks(10 ** edges[0], 10 ** edges[edges.length - 1]);
  Object.assign(layout.yaxis, { tickvals: ticks.map(Math.log10), ticktext: ticks.map(duration), range: [edges[0], edges[edges.length - 1]] });
  draw(figure, [heat, ...lines], layout);
}

function refresh() {
  data = dataBlock("latency-data");
  paint();
  refreshRanks();
}

let listening = false;
function listen() {
  if (listening || !figure?.on) return;
  listening = true;
  figure.on("plotly_click", ({ points }) => {
    const at = points?.[0];
    if (!at || at.curveNumber !== 0) return;
    const from = data.from_ms + at.pointNumber[1] * data.bucket_ms;
    location.href = pageUrl("/timeline", { from: Math.round(from), to: Math.round(from + data.bucket_ms) });
  });
}

refresh();
listen();
onTheme(() => {
  paint();
  paintRanks();
});
followParts(refresh);
if (figure) {
  let width = figure.clientWidth;
  new ResizeObserver(() => {
    if (width === figure.clientWidth) return;
    width = figure.clientWidth;
    paint();
    paintRanks();
  }).observe(figure);
}
