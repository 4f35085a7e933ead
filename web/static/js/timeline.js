// The timeline's page: asks for the window, draws it, and turns gestures and keys into another window.

import { read } from "./api.js";
import { $, $$, el, pageUrl, setText } from "./dom.js";
import { count, duration, sinceStart } from "./format.js";
import { colours, draw } from "./plot.js";
import { isLive, onKeys, onLive, onTheme, setLive, themeName } from "./shell.js";
import { follow, stream } from "./stream.js";
import { colourOf } from "./timeline_colours.js";
import { closeDrawer, openDrawer, startDrawer } from "./timeline_drawer.js";
import { figureOf } from "./timeline_figure.js";
import { Minimap } from "./timeline_minimap.js";
import { groupsOf, rowsOf } from "./timeline_rows.js";
import { tableOf } from "./timeline_table.js";
import { hideTip, showTip } from "./timeline_tooltip.js";
import { View } from "./timeline_view.js";

const ZOOM = 0.6;
const PAN = 0.25;
const LEAST_GAP_MS = 80;
const MINIMAP_MS = 5000;
const NARROW_PX = 560;
const NARROW_LANES = 12;
const AROUND_PX = 262;
const LEAST_HEIGHT_PX = 240;

const figure = $("#timeline");
const card = $(".timeline-card");
const isLiveRun = document.documentElement.dataset.live === "yes";
const view = new View(Number(card.dataset.runMs), isLiveRun);
const minimap = new Minimap(view, (from, to) => moved(() => view.stand(from, to)));

let data = null;
let range = null;
let shown = null;
let dragging = false;
let pointerMs = null;
let minimapAt = 0;

/** For tests and the curious: what is shown at the moment. */
window.podium = { timeline: { view, get data() { return data; }, get figure() { return shown; }, draws: 0 } };

async function load() {
  const wanted = view.query(card.clientWidth);
  data = await read("/runs/current/timeline", wanted);
  range = { from: wanted.from ?? data.from_ms, to: wanted.to ?? data.to_ms };
  view.slide(data.run_ms);
  paint();
  if (performance.now() - minimapAt > MINIMAP_MS || !minimapAt) {
    minimapAt = performance.now();
    await minimap.refresh();
  }
}

const plan = follow(load, () => isLive() && view.last !== null && !dragging);
stream.addEventListener("tick", ({ detail }) => detail.until_ms && isLive() && view.slide(detail.until_ms));

/** The window was moved by hand: it stops following the run and is loaded at once. */
let pending = false;
let loading = false;
async function moved(change) {
  change();
  setLive(false);
  await reload();
}

async function reload() {
  showTools();
  minimap.paint();
  if (loading) {
    pending = true;
    return;
  }
  loading = true;
  try {
    do {
      pending = false;
      await load();
      if (pending) await new Promise((resolve) => setTimeout(resolve, LEAST_GAP_MS));
    } while (pending);
    stream.answered(true);
  } catch (error) {
    if (error.status) setText($("#mode"), error.message);
    else stream.answered(false);
  } finally {
    loading = false;
  }
}

function groupShown() {
  if (view.group) return view.group;
  return card.clientWidth < NARROW_PX && data.lanes.length > NARROW_LANES ? data.lanes[0].group : "";
}

function paint() {
  const rows = rowsOf(data.lanes, groupShown());
  card.dataset.mode = data.mode;
  const nothing = !data.lanes.length || (data.mode === "bars" && !data.bars.lane.length && !data.driver.call_id.length);
  showEmpty(nothing);
  figure.hidden = view.asTable;
  $("#timeline-table").hidden = !view.asTable;
  if (view.asTable) $("#timeline-table").replaceChildren(...tableOf(data, rows));
  else {
    const width = card.clientWidth;
    const height = innerHeight - AROUND_PX - $(".bar").offsetHeight;
    shown = figureOf({ data, range, rows, width, height, selected: view.selected, method: view.method });
    figure.style.minHeight = `${Math.max(shown.layout.height, LEAST_HEIGHT_PX)}px`;
    card.style.setProperty("--lane-px", `${shown.sizes.labelPx}px`);
    draw(figure, shown.traces, shown.layout);
    window.podium.timeline.draws += 1;
    listen();
  }
  showLanes(rows);
  showTools();
  showLegend();
  minimap.paint();
}

function showEmpty(nothing) {
  const note = $("#empty");
  note.hidden = !nothing || view.asTable;
  if (!nothing) return;
  setText(note, data.lanes.length ? "No call in this window." : "No calls yet. The first call of a bound method will appear here.");
}

function showLanes(rows) {
  const texts = rows.filter((row) => row.kind === "driver" || row.kind === "rank");
  const list = $("#lanes");
  const state = texts.map((row) => row.text).join("\n");
  if (list.dataset.state === state) return;
  list.dataset.state = state;
  list.replaceChildren(...texts.map((row) => el("li", row.lane
    ? { "data-lane": `${row.lane.group}/${row.lane.rank}`, "data-pool": row.lane.pool } : { "data-lane": "driver" }, row.text)));
}

function showTools() {
  for (const button of $$("[data-last-s]")) button.setAttribute("aria-pressed", String(button.dataset.lastS === view.last));
  const width = view.to - view.from;
  const digits = width < 100 ? 3 : width < 60000 ? 1 : 0;
  setText($("#window"), `${sinceStart(view.from, digits)} – ${sinceStart(view.to, digits)}  (${duration(width)})`);
  $("#as-table").setAttribute("aria-pressed", String(view.asTable));
  const { px, ...window } = view.query(0);
  $("#trace").href = pageUrl("/export/trace.json", window);
  if (!data) return;
  const groups = groupsOf(data.lanes);
  const pick = $("#group");
  if (pick.options.length !== groups.length + 1) {
    pick.replaceChildren(el("option", { value: "" }, "all"), ...groups.map((group) => el("option", { value: group }, group)));
  }
  pick.value = groupShown();
  setText($("#mode"), data.mode === "heat"
    ? `Each cell is ${duration(data.heat.bucket_ms)}. Zoom in to see single calls.`
    : `${count(data.bars.lane.length)} spans of ${count(data.driver.call_id.length)} calls`);
}

function showLegend() {
  const legend = $("#legend-methods");
  const used = new Set([...data.bars.method, ...data.driver.method]);
  const names = data.methods.filter((name, i) => used.has(i) || name === view.method).sort();
  const state = JSON.stringify([names, view.method, themeName()]);
  if (legend.dataset.state === state) return;
  legend.dataset.state = state;
  legend.replaceChildren(...names.map((name) => el("button", {
    type: "button", "data-method": name, "aria-pressed": String(view.method === name), title: `Show ${name} alone`,
  }, el("i", { class: "swatch", style: `background:${colourOf(name, colours().methods)}` }), el("span", {}, name))));
}

function pointOf(event) {
  const point = event.points?.[0];
  const points = point && shown.points[point.curveNumber];
  if (!points) return null;
  return typeof points === "function" ? points(...point.pointNumber) : points[point.pointNumber] ?? null;
}

let listening = false;
function listen() {
  if (listening) return;
  listening = true;
  figure.on("plotly_relayout", (change) => {
    const from = change["xaxis.range[0]"];
    const to = change["xaxis.range[1]"];
    if (from !== undefined) moved(() => view.stand(Number(from), Number(to)));
  });
  figure.on("plotly_doubleclick", () => {
    view.follow("all");
    reload();
  });
  figure.on("plotly_hover", (event) => {
    const point = pointOf(event);
    if (point) showTip(point, event.event);
  });
  figure.on("plotly_unhover", hideTip);
  figure.on("plotly_click", (event) => {
    const call = pointOf(event)?.call;
    if (call) select(call);
  });
}

function select(call, options = {}) {
  view.select(call);
  hideTip();
  if (call === null) closeDrawer();
  else openDrawer(call, options);
  if (data) paint();
}

/** Go `by` calls on from the selected one, among those in the window. */
function step(by) {
  if (!data) return;
  const ids = [...new Set(data.mode === "heat" ? data.heat.max_call_id.flat().filter(Boolean) : data.driver.call_id)].sort((a, b) => a - b);
  if (!ids.length) return;
  const at = view.selected === null ? -1 : ids.findIndex((id) => id >= view.selected);
  const next = at < 0 ? (by > 0 ? 0 : ids.length - 1) : Math.min(Math.max(at + by, 0), ids.length - 1);
  select(ids[next]);
}

async function focusSelected() {
  if (view.selected === null) return;
  const { call } = await read(`/calls/${view.selected}`);
  const margin = Math.max(call.duration_ms * 0.15, 1);
  moved(() => view.stand(call.started_ms - margin, call.started_ms + call.duration_ms + margin));
}

const MOVES = {
  in: () => moved(() => view.zoom(ZOOM, pointerMs ?? undefined)),
  out: () => moved(() => view.zoom(1 / ZOOM, pointerMs ?? undefined)),
  earlier: () => moved(() => view.pan(-PAN)),
  later: () => moved(() => view.pan(PAN)),
};

function timeAt(clientX) {
  const left = figure.getBoundingClientRect().left + (shown?.sizes.labelPx ?? 0);
  const width = card.clientWidth - (shown?.sizes.labelPx ?? 0) - 16;
  return view.from + ((clientX - left) / width) * (view.to - view.from);
}

function start() {
  for (const button of $$("[data-last-s]")) {
    button.addEventListener("click", () => {
      view.follow(button.dataset.lastS);
      setLive(true);
      reload();
    });
  }
  for (const button of $$("[data-move]")) {
    button.addEventListener("click", () => {
      pointerMs = null;
      MOVES[button.dataset.move]();
    });
  }
  $("#group").addEventListener("change", (event) => {
    view.narrow({ group: event.target.value });
    paint();
  });
  $("#as-table").addEventListener("click", () => {
    view.narrow({ asTable: !view.asTable });
    paint();
  });
  $("#legend-methods").addEventListener("click", (event) => {
    const name = event.target.closest("[data-method]")?.dataset.method;
    if (name === undefined) return;
    view.narrow({ method: view.method === name ? "" : name });
    paint();
  });
  figure.addEventListener("pointerdown", () => {
    dragging = true;
    hideTip();
  }, true);
  addEventListener("pointerup", () => setTimeout(() => { dragging = false; }), true);
  figure.addEventListener("pointermove", (event) => {
    const ms = timeAt(event.clientX);
    pointerMs = ms >= view.from && ms <= view.to ? ms : null;
  });
  figure.addEventListener("pointerleave", () => {
    pointerMs = null;
    hideTip();
  });
  figure.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    if (event.ctrlKey) moved(() => view.zoom(Math.exp(event.deltaY * 0.002), timeAt(event.clientX)));
    else moved(() => view.pan((event.deltaY || event.deltaX) * 0.001));
  }, { passive: false });
  onKeys({
    w: MOVES.in, s: MOVES.out, a: MOVES.earlier, d: MOVES.later, f: focusSelected,
    ",": () => step(-1), ".": () => step(1),
    Enter: (event) => (event.target === figure && view.selected !== null ? openDrawer(view.selected, { focus: true }) : false),
    Escape: () => {
      if (view.selected !== null) select(null);
      else if (view.method) {
        view.narrow({ method: "" });
        paint();
      }
    },
  });
  onTheme(() => data && paint());
  onLive((live) => {
    if (!live) {
      if (view.last !== null) view.stand(view.from, view.to);
      showTools();
      return;
    }
    if (view.last === null) view.follow(Math.max(Math.round((view.to - view.from) / 1000), 1));
    plan();
  });
  let width = card.clientWidth;
  new ResizeObserver(() => {
    if (!data || width === card.clientWidth) return;
    width = card.clientWidth;
    paint();
  }).observe(card);
  startDrawer(select);
  if (view.last === null) setLive(false);
  if (view.selected !== null) openDrawer(view.selected);
  reload();
}

start();
