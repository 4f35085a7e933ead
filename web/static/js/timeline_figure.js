// From a window's columns to plotly's traces: bars when they can be told apart, a heat map when not.

import { colours, copy, label, spec } from "./plot.js";
import { sinceStart } from "./format.js";
import { colourOf, learn } from "./timeline_colours.js";
import { shortText, sizesOf } from "./timeline_rows.js";

const LEAST_PX = 1.4;
const LEAST_PHASE_PX = 0.7;
const MOST_DRIVER_PIECES = 700;
const LETTER_PX = 6.6;
const DIMMED = 0.16;
const TICK_STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];

/** Traces and layout of a window, and for each hoverable trace what its points are. */
export function figureOf({ data, rows, width, selected, method }) {
  const base = spec("timeline");
  learn(data.methods, colours().methods.length);
  const sizes = sizesOf(rows, width);
  const plotPx = Math.max(width - sizes.labelPx - base.layout.margin.r, 50);
  const msPerPx = (data.to_ms - data.from_ms) / plotPx;
  const scene = { data, rows, msPerPx, selected, method, traces: base.traces, rowOf: rowNumbers(rows) };
  const parts = data.mode === "heat"
    ? [steps(scene), heat(scene), markers(scene)]
    : [steps(scene), driver(scene), queued(scene), spans(scene), chosen(scene), markers(scene)];
  return {
    traces: parts.map((part) => part.trace),
    points: parts.map((part) => part.points),
    layout: layoutOf(base.layout, { data, rows, width, sizes, plotPx }),
    sizes,
  };
}

function rowNumbers(rows) {
  const numbers = new Map();
  rows.forEach((row, i) => {
    if (row.kind === "rank") numbers.set(row.lane.index, i);
  });
  return numbers;
}

function layoutOf(base, { data, rows, width, sizes, plotPx }) {
  const layout = copy(base);
  layout.width = width;
  layout.height = rows.length * sizes.rowPx + base.margin.t + base.margin.b;
  layout.margin.l = sizes.labelPx;
  layout.uirevision = "timeline";
  Object.assign(layout.xaxis, ticksOf(data.from_ms, data.to_ms, plotPx), { range: [data.from_ms, data.to_ms], autorange: false });
  Object.assign(layout.yaxis, {
    range: [rows.length - 0.5, -0.5],
    autorange: false,
    tickvals: rows.map((_, i) => i),
    ticktext: rows.map((row) => (row.kind === "group" ? `<b>${label(shortText(row, width))}</b>` : label(shortText(row, width)))),
    tickfont: { ...layout.yaxis.tickfont, size: Math.min(11, sizes.rowPx - 1) },
  });
  return layout;
}

function ticksOf(from, to, plotPx) {
  const wanted = ((to - from) / plotPx) * 96;
  let step = TICK_STEPS_MS.find((ms) => ms >= wanted) ?? Math.ceil(wanted / 864e5) * 864e5;
  if (wanted < 1) step = 10 ** Math.ceil(Math.log10(wanted));
  const digits = step >= 1000 ? 0 : Math.min(Math.max(3 - Math.floor(Math.log10(step)), 1), 6);
  const tickvals = [];
  for (let i = Math.ceil(from / step); i * step <= to && tickvals.length < 60; i += 1) tickvals.push(i * step);
  return { tickvals, ticktext: tickvals.map((ms) => sinceStart(ms, digits)) };
}

/** An empty bar trace of a kind, with columns to push into. */
function barTrace(template) {
  return { ...copy(template), y: [], base: [], x: [] };
}

function push(trace, row, start, ms) {
  trace.y.push(row);
  trace.base.push(start);
  trace.x.push(ms);
}

function steps({ data, rows, msPerPx, traces }) {
  const trace = { ...barTrace(traces.step), text: [] };
  const points = [];
  const row = rows.findIndex((one) => one.kind === "steps");
  for (const step of data.steps) {
    const start = Math.max(step.started_ms, data.from_ms);
    const ms = Math.min(step.ended_ms ?? data.run_ms, data.to_ms) - start;
    if (ms <= 0) continue;
    push(trace, row, start, Math.max(ms - 1.5 * msPerPx, ms * 0.5));
    const text = `step ${step.index}`;
    trace.text.push(ms / msPerPx > text.length * LETTER_PX + 8 ? text : "");
    points.push({ kind: "step", step });
  }
  return { trace, points };
}

const PHASES = ["gate", "dispatch", "execute", "wait", "collect", "unpad"];

/** The pieces of one call on the driver's lane, in order, as [phase, start, ms]. */
function piecesOf(driver, i) {
  const gate = driver.start_ms[i];
  const dispatch = gate + driver.gate_ms[i];
  const execute = dispatch + driver.dispatch_ms[i];
  const submitted = execute + driver.execute_ms[i];
  const wait = driver.blocking[i] ? submitted : Math.max(driver.waited_from_ms[i], submitted);
  const collect = wait + driver.wait_ms[i];
  const starts = [gate, dispatch, execute, wait, collect, collect + driver.collect_ms[i]];
  const pieces = PHASES.map((phase, k) => [phase, starts[k], driver[`${phase}_ms`][i]]);
  if (!driver.blocking[i] && wait > submitted) pieces.push(["not awaited", submitted, wait - submitted]);
  return pieces;
}

function driver({ data, rows, msPerPx, method, traces }) {
  const trace = { ...barTrace(traces.phase) };
  const marker = { ...trace.marker, color: [], opacity: [], pattern: { ...trace.marker.pattern, shape: [], fgcolor: [] } };
  const points = [];
  const { phases, surface } = colours();
  const row = rows.findIndex((one) => one.kind === "driver");
  const column = data.driver;
  const n = column.call_id.length;
  for (let i = 0; i < n; i += 1) {
    const name = data.methods[column.method[i]];
    for (const [phase, start, ms] of piecesOf(column, i)) {
      const px = ms / msPerPx;
      if (px < LEAST_PHASE_PX && !(phase === "wait" && n < MOST_DRIVER_PIECES)) continue;
      if (points.length >= MOST_DRIVER_PIECES && px < 3) continue;
      push(trace, row, start, Math.max(ms, msPerPx * LEAST_PX));
      const isOpen = phase === "not awaited";
      marker.color.push(isOpen ? surface : phases[phase]);
      marker.pattern.shape.push(isOpen || phase === "gate" ? "/" : column.status[i] === "error" || column.status[i] === "died" ? "x" : "");
      marker.pattern.fgcolor.push(isOpen ? phases.wait : surface);
      marker.opacity.push(method && method !== name ? DIMMED : 1);
      points.push({ kind: "phase", call: column.call_id[i], method: name, phase, start, ms, status: column.status[i], blocking: column.blocking[i] });
    }
  }
  trace.marker = marker;
  return { trace, points };
}

function queued({ data, rowOf, msPerPx, method, traces }) {
  const trace = barTrace(traces.queued);
  const { lane, start_ms, queued_ms, method: names } = data.bars;
  for (let i = 0; i < lane.length; i += 1) {
    const row = rowOf.get(lane[i]);
    if (row === undefined || queued_ms[i] / msPerPx < 2 || trace.y.length >= 300) continue;
    if (method && method !== data.methods[names[i]]) continue;
    push(trace, row, start_ms[i] - queued_ms[i], queued_ms[i]);
  }
  return { trace, points: null };
}

const PATTERNS = { error: "x", died: "x", running: "/", cancelled: "." };

function spans({ data, rows, rowOf, msPerPx, method, traces }) {
  const trace = { ...barTrace(traces.span), text: [] };
  const marker = { ...trace.marker, color: [], opacity: [], pattern: { ...trace.marker.pattern, shape: [] } };
  const points = [];
  const { methods: palette, error } = colours();
  const bars = data.bars;
  for (let i = 0; i < bars.lane.length; i += 1) {
    const row = rowOf.get(bars.lane[i]);
    if (row === undefined) continue;
    const name = data.methods[bars.method[i]];
    const ms = bars.end_ms[i] - bars.start_ms[i];
    push(trace, row, bars.start_ms[i], Math.max(ms, msPerPx * LEAST_PX));
    const failed = bars.status[i] === "error" || bars.status[i] === "died";
    marker.color.push(failed ? error : colourOf(name, palette));
    marker.pattern.shape.push(PATTERNS[bars.status[i]] ?? "");
    marker.opacity.push(method && method !== name ? DIMMED : 1);
    const short = name.slice(name.indexOf(".") + 1);
    const seenMs = Math.min(bars.end_ms[i], data.to_ms) - Math.max(bars.start_ms[i], data.from_ms);
    trace.text.push(seenMs / msPerPx > short.length * LETTER_PX + 10 ? label(short) : "");
    points.push({
      kind: "span", call: bars.call_id[i], method: name, lane: rows[row].lane,
      start: bars.start_ms[i], ms, queued: bars.queued_ms[i], status: bars.status[i],
    });
  }
  trace.marker = marker;
  return { trace, points };
}

function chosen({ data, rowOf, msPerPx, selected, traces }) {
  const trace = barTrace(traces.selected);
  const { lane, call_id, start_ms, end_ms } = data.bars;
  for (let i = 0; i < lane.length; i += 1) {
    if (call_id[i] !== selected || !rowOf.has(lane[i])) continue;
    push(trace, rowOf.get(lane[i]), start_ms[i], Math.max(end_ms[i] - start_ms[i], msPerPx * LEAST_PX));
  }
  return { trace, points: null };
}

function heat({ data, rows, traces }) {
  const { bucket_ms: bucket, n_buckets: n, busy, max_ms, max_call_id } = data.heat;
  const trace = { ...copy(traces.heat), z: [], y: [], x: [] };
  for (let i = 0; i <= n; i += 1) trace.x.push(data.from_ms + i * bucket);
  rows.forEach((row, i) => {
    trace.y.push(i);
    trace.z.push(row.heatRow === undefined ? new Array(n).fill(null) : busy[row.heatRow]);
  });
  const at = (y, x) => {
    const row = rows[y];
    return {
      kind: "cell", row, start: data.from_ms + x * bucket, ms: bucket, busy: busy[row.heatRow][x],
      call: max_call_id[row.heatRow][x], longest: max_ms[row.heatRow][x],
    };
  };
  return { trace, points: { at } };
}

const SYMBOLS = { info: "circle", warning: "triangle-up", error: "x" };

function markers({ data, rows, traces }) {
  const trace = { ...copy(traces.marker), x: [], y: [] };
  const { error, warning, muted } = colours();
  const shades = { error, warning, info: muted };
  const row = rows.findIndex((one) => one.kind === "events");
  trace.marker.color = data.markers.map((one) => shades[one.level] ?? muted);
  trace.marker.symbol = data.markers.map((one) => SYMBOLS[one.level] ?? "circle");
  trace.x = data.markers.map((one) => one.at_ms);
  trace.y = data.markers.map(() => row);
  return { trace, points: data.markers.map((happening) => ({ kind: "event", happening })) };
}
