// A group's ranks over time: how much longer each ran than the median of them.

import { $, dataBlock, pageUrl } from "./dom.js";
import { duration, sinceStart } from "./format.js";
import { copy, draw, spec } from "./plot.js";
import { ticksOf } from "./timeline_figure.js";

const LEAST_TICK_PX = 14;
const figure = $("#ranks");
let data = null;

/** Take in what the page says now, and draw it. */
export function refreshRanks() {
  data = dataBlock("ranks-data");
  paintRanks();
}

export function paintRanks() {
  if (!figure || !data) return;
  const base = spec("latency");
  const layout = copy(base.layout);
  layout.width = figure.clientWidth;
  layout.height = figure.clientHeight;
  layout.showlegend = false;
  layout.margin.t = 8;
  const times = Array.from({ length: data.n_buckets + 1 }, (_, i) => data.from_ms + i * data.bucket_ms);
  const n = data.ranks.length;
  const every = Math.ceil((n * LEAST_TICK_PX) / Math.max(layout.height - 42, 1));
  const shown = data.ranks.map((_, i) => i).filter((i) => i % every === 0);
  const end = times[times.length - 1];
  Object.assign(layout.xaxis, ticksOf(data.from_ms, end, Math.max(layout.width - 80, 50)), { range: [data.from_ms, end] });
  Object.assign(layout.yaxis, {
    tickvals: shown, ticktext: shown.map((i) => `rank ${data.ranks[i]}`), range: [n - 0.5, -0.5], showgrid: false,
  });
  draw(figure, [{
    ...copy(base.traces.ranks), x: times, y: data.ranks.map((_, i) => i), ygap: n > 32 ? 0 : 2,
    z: data.over_median.map((row) => row.map((over) => (over === null ? null : Math.min(Math.max(over - 1, 0), 1)))),
    customdata: data.longest_ms.map((row, i) => row.map((ms, k) => [
      data.ranks[i], duration(ms), data.over_median[i][k] === null ? "alone" : `${data.over_median[i][k].toFixed(2)} × the median`,
    ])),
    text: data.ranks.map(() => times.slice(0, -1).map((ms) => sinceStart(ms, 0))),
  }], layout);
  listen();
}

let listening = false;
function listen() {
  if (listening || !figure.on) return;
  listening = true;
  figure.on("plotly_click", ({ points }) => {
    if (!points?.length) return;
    const from = data.from_ms + points[0].pointNumber[1] * data.bucket_ms;
    const { group } = document.getElementById("ranks-data").dataset;
    location.href = pageUrl("/timeline", { group, from: Math.round(from), to: Math.round(from + data.bucket_ms) });
  });
}
