// What the pointer is on, in words beside it. Made of text nodes, so names stay names.

import { el } from "./dom.js";
import { duration, metric, percent, sinceStart } from "./format.js";

const box = el("div", { class: "pointer-tip", role: "tooltip", hidden: true });
document.body.append(box);

const fact = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
const facts = (...pairs) => el("dl", {}, pairs.filter(Boolean).flatMap(([name, value]) => fact(name, value)));

const LINES = {
  span: (p) => [el("strong", {}, p.method), facts(["call", `#${p.call}`],
    ["rank", `${p.lane.rank} on ${p.lane.node}`], [p.status === "running" ? "running" : "ran", duration(p.ms)],
    ["queued", duration(p.queued)], ["from", sinceStart(p.start)], p.status === "ok" ? null : ["status", p.status])],
  phase: (p) => [el("strong", {}, p.method), facts(["call", `#${p.call}${p.blocking ? "" : ", non-blocking"}`],
    ["driver", p.phase], ["took", duration(p.ms)], ["from", sinceStart(p.start)], p.status === "ok" ? null : ["status", p.status])],
  cell: (p) => [el("strong", {}, p.row.text), facts(["busy", percent(p.busy)], ["in", `${duration(p.ms)} from ${sinceStart(p.start)}`],
    p.call ? ["longest", `${duration(p.longest)}, call #${p.call}`] : null)],
  step: (p) => [el("strong", {}, `step ${p.step.index}${p.step.total ? ` of ${p.step.total}` : ""}`), facts(
    ["took", p.step.ended_ms === null ? "running" : duration(p.step.ended_ms - p.step.started_ms)],
    ["from", sinceStart(p.step.started_ms)], ...p.step.metrics.map(([name, value]) => [name, metric(value)]))],
  event: (p) => [el("strong", {}, p.event.kind), el("p", {}, p.event.text), facts(["at", sinceStart(p.event.at_ms)], ["level", p.event.level])],
};

export function showTip(point, event) {
  box.replaceChildren(...LINES[point.kind](point));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - 12 - width : event.clientX + 16;
  const top = event.clientY + 18 + height > innerHeight ? event.clientY - 12 - height : event.clientY + 18;
  box.style.left = `${Math.max(left, 4)}px`;
  box.style.top = `${Math.max(top, 4)}px`;
}

export const hideTip = () => {
  box.hidden = true;
};
