// The last minute of a run as the timeline draws it; the table below it is the server's, and says what each rank did.

import { read } from "./api.js";
import { $, el, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { colours, draw } from "./plot.js";
import { onTheme } from "./shell.js";
import { colourOf } from "./timeline_colours.js";
import { figureOf } from "./timeline_figure.js";
import { rowsOf } from "./timeline_rows.js";
import { hideTip, showTip } from "./timeline_tooltip.js";

const ROW_PX = 22;
const figure = $("#last-minute");
const card = $(".last-minute");
const range = { from: Number(card.dataset.fromMs), to: Number(card.dataset.toMs) };
let data = null;
let shown = null;
let listening = false;

function pointOf(event) {
  const point = event.points?.[0];
  const points = point && shown.points[point.curveNumber];
  if (!points) return null;
  return typeof points === "function" ? points(...point.pointNumber) : points[point.pointNumber] ?? null;
}

function showLegend() {
  const used = [...new Set(data.bars.method)].map((i) => data.methods[i]).sort();
  $("#last-legend").replaceChildren(...used.map((name) => el("span", {},
    el("i", { class: "swatch", style: `background:${colourOf(name, colours().methods)}` }), name)));
}

function paint() {
  const rows = rowsOf(data.lanes, "");
  card.dataset.mode = data.mode;
  shown = figureOf({ data, range, rows, width: figure.clientWidth, height: rows.length * ROW_PX, selected: null, method: "" });
  shown.layout.dragmode = false;
  shown.layout.xaxis.fixedrange = true;
  draw(figure, shown.traces, shown.layout);
  setText($("#mode"), data.mode === "heat" ? `each cell is ${duration(data.heat.bucket_ms)}` : `${count(data.bars.lane.length)} spans`);
  showLegend();
  if (listening) return;
  listening = true;
  figure.on("plotly_hover", (event) => {
    const point = pointOf(event);
    if (point) showTip(point, event.event);
  });
  figure.on("plotly_unhover", hideTip);
}

async function start() {
  try {
    data = await read("/runs/current/timeline", { from: range.from, to: Math.max(range.to, range.from + 1), px: Math.max(Math.round(figure.clientWidth), 100) });
  } catch (problem) {
    setText($("#mode"), `the figure could not be drawn: ${problem.message}`);
    return;
  }
  if (!data.lanes.length) {
    figure.hidden = true;
    return;
  }
  paint();
  onTheme(paint);
  let width = figure.clientWidth;
  new ResizeObserver(() => {
    if (width === figure.clientWidth) return;
    width = figure.clientWidth;
    paint();
  }).observe(figure);
}

start();
