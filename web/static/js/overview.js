// The overview follows the run: the server drew it, this keeps its numbers fresh.

import { read } from "./api.js";
import { $, $$, cssWord, dataBlock, el, pageUrl, setText } from "./dom.js";
import { bytesSize, count, duration, metric, percent, rate, sinceStart } from "./format.js";
import { drawMetrics } from "./metrics.js";
import { startNow } from "./now.js";
import { showPools, startPools } from "./pools.js";
import { isLive, onLive, onTheme, showRecorder, showState } from "./shell.js";
import { follow } from "./stream.js";

const PHASES = ["gate", "dispatch", "execute", "wait", "collect", "unpad"];
const N_TOP_METHODS = 12;
const N_SLOW_RANKS = 8;
const N_STEPS_IN_TABLE = 50;

let steps = dataBlock("steps") ?? [];
const chart = $("#metrics");

function showFigures({ run, steps, methods, workers, calls_per_s }) {
  const step = steps.at(-1);
  const died = workers.filter((worker) => worker.state === "died").length;
  const texts = {
    step: step ? count(step.index) : "–",
    step_total: step?.total ? ` of ${count(step.total)}` : "",
    duration_ms: duration(run.duration_ms),
    n_calls: count(run.n_calls),
    n_failed_calls: run.n_failed_calls ? `${count(run.n_failed_calls)} failed` : "",
    calls_per_s: rate(calls_per_s),
    n_alive: count(workers.filter((worker) => worker.state === "alive").length),
    n_died: died ? `${count(died)} died` : "",
    bytes_out: bytesSize(methods.reduce((sum, m) => sum + m.bytes_out, 0)),
    bytes_in: bytesSize(methods.reduce((sum, m) => sum + m.bytes_in, 0)),
  };
  for (const node of $$("[data-kpi]")) setText(node, texts[node.dataset.kpi]);
  $("[data-kpi=n_failed_calls]").hidden = !run.n_failed_calls;
  const share = step?.total ? step.index / step.total : 0;
  $("[data-kpi-meter]").style.width = `${(100 * share).toFixed(2)}%`;
  $('[role="progressbar"]').setAttribute("aria-valuenow", step?.index ?? 0);
}

function phaseBar(shares, name) {
  const said = shares.map((s) => `${s.name} ${percent(s.share)}`).join(", ");
  return el("div", { class: "phase-bar", role: "img", "aria-label": `${name}: ${said}` }, shares.map((s) => el("span", {
    class: `ph ph-${s.name}`, style: `flex-grow:${s.share.toFixed(5)}`, title: `${s.name} ${duration(s.ms)} (${percent(s.share)})`,
  })));
}

function sharesOf(durations, wholeMs = 0) {
  const sum = durations.reduce((a, b) => a + b, 0);
  const whole = Math.max(sum, wholeMs);
  return PHASES.map((name, i) => ({ name, ms: durations[i], share: whole > 0 ? durations[i] / whole : 0 }));
}

const durationsOf = (method) => PHASES.map((name) => method[`${name}_ms`]);

function showWall(methods, wallMs) {
  const sums = PHASES.map((name) => methods.reduce((sum, m) => sum + m[`${name}_ms`], 0));
  const outsideMs = Math.max(wallMs - sums.reduce((a, b) => a + b, 0), 0);
  const shares = [...sharesOf(sums, wallMs), { name: "driver", ms: outsideMs, share: wallMs > 0 ? outsideMs / wallMs : 0 }];
  $("[data-wall-bar]").replaceChildren(phaseBar(shares, "Share of wall time"));
  for (const { name, ms, share } of shares) {
    const line = $(`#wall [data-phase="${name}"]`);
    setText($("[data-share]", line), percent(share));
    setText($("[data-ms]", line), duration(ms));
  }
}

function methodRow(m) {
  const filter = { group: m.group, method: m.method };
  const padding = m.padding_rows ? m.padding_rows / (m.rows + m.padding_rows) : 0;
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: pageUrl("/calls", filter) }, el("span", { class: "dim" }, `${m.group}.`), m.method)),
    el("td", { class: "num" }, count(m.n_calls), m.n_failed
      ? el("a", { class: "bad-text", href: pageUrl("/calls", { ...filter, status: "error" }) }, ` ${count(m.n_failed)} failed`) : null),
    ...[m.total_ms, m.mean_ms, m.max_ms].map((ms) => el("td", { class: "num" }, duration(ms))),
    el("td", { class: "num" }, percent(padding)),
    el("td", { class: "wide-cell" }, phaseBar(sharesOf(durationsOf(m)), m.method)));
}

function rankRow(k) {
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: pageUrl("/timeline", { group: k.group }) },
      el("span", { class: "dim" }, `${k.group} · `), `rank ${k.rank}`)),
    el("td", { class: "num" }, duration(k.lost_ms)),
    el("td", { class: "num" }, `${count(k.n_slowest)} `, el("span", { class: "dim" }, `of ${count(k.n_calls)}`)),
    el("td", { class: "num" }, duration(k.busy_ms)));
}

function workerRows(workers) {
  const groups = new Map();
  for (const worker of workers) {
    const key = JSON.stringify([worker.pool, worker.group]);
    if (!groups.has(key)) groups.set(key, { pool: worker.pool, group: worker.group, alive: 0, ended: 0, died: 0 });
    groups.get(key)[worker.state] += 1;
  }
  return [...groups.keys()].sort().map((key) => groups.get(key)).map((g) => el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "dim" }, `${g.pool} › `), g.group),
    el("td", { class: "num" }, String(g.alive)), el("td", { class: "num" }, String(g.ended)),
    el("td", { class: `num${g.died ? " bad-text" : ""}` }, String(g.died))));
}

function eventLine(h) {
  const around = { from: Math.max(Math.floor(h.at_ms - 5000), 0), to: Math.floor(h.at_ms + 5000) };
  return el("li", { class: `level-${cssWord(h.level)}` },
    el("a", { href: pageUrl("/timeline", around) }, sinceStart(h.at_ms)),
    el("span", { class: "level" }, h.level), el("code", {}, h.kind), el("span", {}, h.text));
}

function stepRow(step) {
  return el("tr", {}, el("td", { class: "num" }, String(step.index)),
    el("td", { class: "num" }, step.ended_ms === null ? "running" : duration(step.ended_ms - step.started_ms)),
    el("td", {}, step.metrics.map(([name, value]) => el("span", { class: "metric" }, `${name} `, el("b", {}, metric(value))))));
}

/** Put rows in place of others unless the pointer or the focus is in there. */
function fill(selector, rows) {
  const body = $(selector);
  if (rows.length && !body.contains(document.activeElement)) body.replaceChildren(...rows);
}

function show(overview) {
  steps = overview.steps;
  showState(overview.run.state);
  showRecorder(overview.recorder);
  showFigures(overview);
  showWall(overview.methods, overview.run.duration_ms);
  fill("[data-methods]", overview.methods.slice(0, N_TOP_METHODS).map(methodRow));
  fill("[data-ranks]", overview.ranks.slice(0, N_SLOW_RANKS).map(rankRow));
  fill("[data-workers]", workerRows(overview.workers));
  fill("[data-happenings]", overview.happenings.map(eventLine));
  fill("[data-metrics-table] tbody", steps.slice(-N_STEPS_IN_TABLE).reverse().map(stepRow));
  showPools($("[data-pools]"), overview.pools);
  showChart();
}

/** A page that was empty when it was made has no place for figures: it is made again. */
function outgrown(overview) {
  const isFirstCall = overview.run.n_calls > 0 && $(".empty");
  const isFirstMetric = !chart && overview.steps.some((step) => step.metrics.length);
  return Boolean(isFirstCall || isFirstMetric);
}

let shown = "";
function showChart(force = false) {
  const state = `${steps.length}/${steps.at(-1)?.metrics.length ?? 0}`;
  if (!chart || (!force && shown === state)) return;
  shown = state;
  drawMetrics(chart, steps);
}

const refresh = follow(async () => {
  const overview = await read("/runs/current/overview");
  if (outgrown(overview)) location.reload();
  else show(overview);
}, isLive, 1000);

startPools($("[data-pools]"));
startNow();
showChart();
onTheme(() => showChart(true));
onLive((live) => live && refresh());
