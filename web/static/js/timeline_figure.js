// From a window's columns to plotly's traces: bars when they are few enough, else a heat map.

import { colours, copy, label, spec } from "./plot.js";
import { sinceStart } from "./format.js";
import { colourOf, learn } from "./timeline_colours.js";
import { shortText, sizesOf } from "./timeline_rows.js";

const LEAST_PX = 1.4;
const LEAST_PHASE_PX = 0.7;
const LEAST_HATCH_PX = 3;
const MOST_DRIVER_PIECES = 700;
const LETTER_PX = 6.6;
const DIMMED = 0.16;
const TICK_STEPS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 144e5, 288e5, 864e5];

/** Traces and layout of a window, and for each hoverable trace what its points are. */
export function figureOf({ data, range, rows, width, height, selected, method }) {
  const base = spec("timeline");
  learn(data.methods, colours().methods.length);
  const sizes = sizesOf(rows, width, height);
  const plotPx = Math.max(width - sizes.labelPx - base.layout.margin.r, 50);
  const msPerPx = (range.to - range.from) / plotPx;
  const scene = { data, range, rows, msPerPx, selected, method, traces: base.traces, rowOf: rowNumbers(rows) };
  const parts = data.mode === "heat"
    ? [steps(scene), heat(scene), markers(scene)]
    : [steps(scene), ...driver(scene), queued(scene), ...spans(scene), chosen(scene), markers(scene)];
  return {
    traces: parts.map((part) => part.trace),
    points: parts.map((part) => part.points),
    layout: layoutOf(base.layout, { range, rows, width, sizes, plotPx }),
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

function layoutOf(base, { range, rows, width, sizes, plotPx }) {
  const layout = copy(base);
  layout.width = width;
  layout.height = rows.length * sizes.rowPx + base.margin.t + base.margin.b;
  layout.margin.l = sizes.labelPx;
  layout.uirevision = "timeline";
  Object.assign(layout.xaxis, ticksOf(range.from, range.to, plotPx), { range: [range.from, range.to], autorange: false });
  Object.assign(layout.yaxis, {
    range: [rows.length - 0.5, -0.5],
    autorange: false,
    tickvals: rows.map((_, i) => i),
    ticktext: rows.map((row) => (row.kind === "group" ? `<b>${label(shortText(row, width))}</b>` : label(shortText(row, width)))),
    tickfont: { ...layout.yaxis.tickfont, size: Math.min(11, sizes.rowPx - 1) },
  });
  return layout;
}

/** Where the ticks of an axis of time stand, and what they say. */
export function ticksOf(from, to, plotPx) {
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

/** Two traces for one lane: plain bars and hatched ones, which plotly can colour one by one only apart. */
function twoTraces(plainTemplate, hatchedTemplate) {
  const plain = { trace: { ...barTrace(plainTemplate), text: [] }, points: [] };
  const hatched = { trace: barTrace(hatchedTemplate), points: [] };
  Object.assign(plain.trace.marker, { color: [], opacity: [] });
  Object.assign(hatched.trace.marker, { opacity: [] });
  Object.assign(hatched.trace.marker.pattern, { shape: [], fgcolor: [], bgcolor: [] });
  return [plain, hatched];
}

/** Add a bar to the trace it belongs to; `hatch` is [shape, colour of its lines, colour of its ground] or null. */
function addBar([plain, hatched], { row, start, ms, colour, hatch, opacity, text, point }) {
  const part = hatch ? hatched : plain;
  push(part.trace, row, start, ms);
  part.points.push(point);
  part.trace.marker.opacity.push(opacity);
  if (hatch) {
    const { pattern } = part.trace.marker;
    [pattern.shape, pattern.fgcolor, pattern.bgcolor].forEach((column, i) => column.push(hatch[i]));
  } else {
    part.trace.marker.color.push(colour);
    part.trace.text.push(text);
  }
}

const isFailed = (status) => status === "error" || status === "died";
const shortName = (name) => name.slice(name.indexOf(".") + 1);

/** A bar's text when the part of it that is in the window has room for it, else nothing. */
function fitting(text, start, ms, range, msPerPx) {
  const seenMs = Math.min(start + ms, range.to) - Math.max(start, range.from);
  return seenMs / msPerPx > text.length * LETTER_PX + 10 ? label(text) : "";
}

function push(trace, row, start, ms) {
  trace.y.push(row);
  trace.base.push(start);
  trace.x.push(ms);
}

function steps({ data, range, rows, msPerPx, traces }) {
  const trace = { ...barTrace(traces.step), text: [] };
  const points = [];
  const row = rows.findIndex((one) => one.kind === "steps");
  for (const step of data.steps) {
    const start = Math.max(step.started_ms, range.from);
    const ms = Math.min(step.ended_ms ?? data.run_ms, range.to) - start;
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

/** A phase's hatching: held at the gate, not awaited, failed; null for a plain one. */
function hatchOfPhase(phase, status) {
  const { phases, surface } = colours();
  if (phase === "not awaited") return ["/", phases.wait, surface];
  if (phase === "gate") return ["/", surface, phases.gate];
  return isFailed(status) ? ["x", surface, phases[phase]] : null;
}

function driver({ data, range, rows, msPerPx, method, traces }) {
  const parts = twoTraces(traces.phase, traces.hatched_phase);
  const { phases } = colours();
  const row = rows.findIndex((one) => one.kind === "driver");
  const column = data.driver;
  let n = 0;
  for (let i = 0; i < column.call_id.length; i += 1) {
    const name = data.methods[column.method[i]];
    const [status, blocking] = [column.status[i], column.blocking[i]];
    for (const [phase, start, ms] of piecesOf(column, i)) {
      const px = ms / msPerPx;
      if (px < (phase === "not awaited" ? LEAST_HATCH_PX : LEAST_PHASE_PX) || (n >= MOST_DRIVER_PIECES && px < 3)) continue;
      n += 1;
      addBar(parts, {
        row, start, ms: Math.max(ms, msPerPx * LEAST_PX), colour: phases[phase], hatch: hatchOfPhase(phase, status),
        opacity: method && method !== name ? DIMMED : 1,
        text: phase === "wait" ? fitting(shortName(name), start, ms, range, msPerPx) : "",
        point: { kind: "phase", call: column.call_id[i], method: name, phase, start, ms, status, blocking },
      });
    }
  }
  return parts;
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

function spans({ data, range, rows, rowOf, msPerPx, method, traces }) {
  const parts = twoTraces(traces.span, traces.hatched_span);
  const { methods: palette, error, surface } = colours();
  const bars = data.bars;
  for (let i = 0; i < bars.lane.length; i += 1) {
    const row = rowOf.get(bars.lane[i]);
    if (row === undefined) continue;
    const name = data.methods[bars.method[i]];
    const [start, status] = [bars.start_ms[i], bars.status[i]];
    const ms = bars.end_ms[i] - start;
    const colour = isFailed(status) ? error : colourOf(name, palette);
    addBar(parts, {
      row, start, ms: Math.max(ms, msPerPx * LEAST_PX), colour,
      hatch: PATTERNS[status] ? [PATTERNS[status], surface, colour] : null,
      opacity: method && method !== name ? DIMMED : 1,
      text: fitting(shortName(name), start, ms, range, msPerPx),
      point: { kind: "span", call: bars.call_id[i], method: name, lane: rows[row].lane, start, ms, queued: bars.queued_ms[i], status },
    });
  }
  return parts;
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

/** Where the longest span of cell `x` began: in it, or in the last one before it that still lasts; -1 for none. */
function longestIn(ids, longest, x, bucket) {
  for (let k = x; k >= 0; k -= 1) {
    if (ids[k]) return k === x || (x - k - 1) * bucket < longest[k] ? k : -1;
  }
  return -1;
}

function heat({ data, rows, traces }) {
  const { bucket_ms: bucket, n_buckets: n, busy, max_ms, max_call_id } = data.heat;
  const trace = { ...copy(traces.heat), z: [], y: [], x: [] };
  for (let i = 0; i <= n; i += 1) trace.x.push(data.from_ms + i * bucket);
  rows.forEach((row, i) => {
    trace.y.push(i);
    trace.z.push(row.heatRow === undefined ? new Array(n).fill(null) : busy[row.heatRow]);
  });
  const cell = (y, x) => {
    const row = rows[y];
    const k = row.heatRow;
    if (k === undefined) return null;
    const at = longestIn(max_call_id[k], max_ms[k], x, bucket);
    return {
      kind: "cell", row, start: data.from_ms + x * bucket, ms: bucket, busy: busy[k][x],
      call: at < 0 ? 0 : max_call_id[k][at], longest: at < 0 ? 0 : max_ms[k][at],
    };
  };
  return { trace, points: cell };
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
  return { trace, points: data.markers.map((event) => ({ kind: "event", event })) };
}
