// A plan as two maps and what it means, for the dialog; templates/plans.html draws the same for the record.

import { el } from "./dom.js";
import { duration } from "./format.js";

const HOW = {
  untouched: "stays as it is",
  stateless: "built anew, it keeps no state",
  state: "built anew, its state is carried over",
  reconfigure: "its processes stay and are told their new ranks",
};

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** Little boxes: a frame per node, a box per process. */
export function nodesOf(processOnNodes) {
  const n = processOnNodes.length;
  return el("div", {
    class: "nodes", role: "img", "aria-label": `${sum(processOnNodes)} processes on ${n} node${n === 1 ? "" : "s"}`,
  }, processOnNodes.map((k) => el("span", { class: "node" }, Array.from({ length: k }, () => el("i")))));
}

function side(label, boxes) {
  return el("div", { class: "plan-side" }, el("h3", {}, label), boxes.map((box) => el("div", { class: "plan-pool" },
    el("b", {}, box.name), nodesOf(box.shape),
    el("p", { class: "names" }, box.groups.length ? box.groups.map((name) => el("code", {}, name)) : el("span", { class: "dim" }, "no group")))));
}

function boxesOf(plan, when) {
  return plan.pools.filter((pool) => pool[when].length).map((pool) => ({
    name: pool.pool,
    shape: pool[when],
    groups: plan.groups.filter((move) => (when === "before" ? move.from_pool : move.to_pool) === pool.pool).map((move) => move.group),
  }));
}

function fateOf(move) {
  const ranks = move.world_size_before === move.world_size_after
    ? `${move.world_size_after} ranks` : `${move.world_size_before} → ${move.world_size_after} ranks`;
  const where = move.from_pool === move.to_pool ? "" : `, ${move.from_pool} → ${move.to_pool}`;
  return el("li", {}, el("code", {}, move.group), ` ${ranks}${where}: ${HOW[move.how] ?? move.how}`);
}

function standStill(plan) {
  const length = plan.stand_still_s > 0 ? `about ${duration(plan.stand_still_s * 1000)}` : "for a time that nothing yet measured lets us estimate";
  const from = plan.estimate_from ? ` (estimate: ${plan.estimate_from})` : "";
  if (["pause", "resume"].includes(plan.kind)) return "";
  if (plan.prepared) return `New workers come up while the driver goes on; then it stands still ${length}${from}.`;
  return `The driver stands still for all of it, ${length}${from}${plan.why_not_prepared ? `: ${plan.why_not_prepared}` : ""}.`;
}

function drained(plan) {
  if (plan.drains.length) return `It takes effect at the next call's border, when these are over: ${plan.drains.join("; ")}.`;
  return "It takes effect at the next call's border; no call of these groups is in flight now.";
}

/** The plan's maps and its consequences. */
export function planView(plan) {
  const same = plan.pools.every((pool) => String(pool.before) === String(pool.after));
  const changes = plan.groups.filter((move) => move.how !== "untouched" || move.from_pool !== move.to_pool);
  return el("div", { class: "plan" },
    same ? null : el("div", { class: "plan-maps" }, side("Before", boxesOf(plan, "before")),
      el("span", { class: "plan-arrow", "aria-hidden": "true" }, "→"), side("After", boxesOf(plan, "after"))),
    changes.length ? el("ul", { class: "fates" }, changes.map(fateOf)) : null,
    plan.lost.length ? el("ul", { class: "losses" }, plan.lost.map((text) => el("li", {}, `Lost: ${text}`))) : null,
    el("p", { class: "plan-note" }, drained(plan), " ", standStill(plan)));
}
