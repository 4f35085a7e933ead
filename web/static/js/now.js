// The panel of now: calls in flight with the ranks that are still out, every second while the page follows the run.

import { read, send } from "./api.js";
import { $, el, icon, pageUrl, setText } from "./dom.js";
import { count, duration } from "./format.js";
import { isLive, onLive } from "./shell.js";
import { follow, stream } from "./stream.js";

const EVERY_MS = 1000;
const MOST_CALLS = 4;
const MOST_RANKS = 16;
const STACKS_AFTER_MS = 1000;
const panel = $("#now");
const list = $("[data-now]", panel);
const may = panel.dataset.controllable === "yes";

function outOf(call) {
  if (!call.out.length) return [el("span", { class: "dim" }, `all ${call.n_ranks} ranks have answered`)];
  const more = call.out.length - MOST_RANKS;
  return [
    el("span", { class: "dim" }, `${call.out.length} of ${call.n_ranks} out: `),
    call.out.slice(0, MOST_RANKS).map((one) => el("span", { class: "rank-out", title: `${one.node}, pid ${one.pid}` },
      `rank ${one.rank} `, el("span", { class: "dim" }, duration(one.out_ms)))),
    more > 0 ? el("span", { class: "dim" }, ` and ${more} more`) : null,
  ].flat();
}

function itemOf(call) {
  const canAsk = may && call.out.length && (call.is_stalled || call.running_ms > STACKS_AFTER_MS);
  return el("li", { class: "now-item", "data-call": call.id },
    el("a", { href: pageUrl(`/calls/${call.id}`) }, el("span", { class: "dim" }, `${call.group}.`), call.method, el("span", { class: "dim" }, ` #${call.id}`)),
    el("span", { class: "now-for" }, duration(call.running_ms),
      call.is_stalled ? " " : null, call.is_stalled ? el("span", { class: "tag stalled" }, icon("warn"), " stalled") : null),
    el("span", { class: "now-out" }, outOf(call)),
    canAsk ? el("button", { type: "button", "data-stacks": call.id }, "Stacks of these ranks") : null);
}

function show(calls) {
  const more = calls.length - MOST_CALLS;
  setText($("[data-now-head]", panel), calls.length ? `${count(calls.length)} call${calls.length === 1 ? "" : "s"} in flight` : "");
  const held = document.activeElement?.closest?.("[data-stacks]")?.dataset.stacks;
  list.replaceChildren(...(calls.length ? calls.slice(0, MOST_CALLS).map(itemOf)
    : [el("li", { class: "none" }, "No call is in flight: the driver is in its own code.")]),
  ...(more > 0 ? [el("li", { class: "none" }, el("a", { href: pageUrl("/calls", { status: "running" }) }, `${more} more`))] : []));
  if (held) $(`[data-stacks="${CSS.escape(held)}"]`, list)?.focus();
}

async function openStacks(button) {
  const id = button.dataset.stacks;
  button.disabled = true;
  setText(button, "Asking…");
  const dialog = $("#stacks");
  let content;
  try {
    const { items } = await send(`/calls/${id}/stacks`, {});
    content = items.map((one) => el("section", {}, el("h3", {}, `rank ${one.rank}`),
      el("pre", { class: "log", tabindex: 0 }, one.text || "It said nothing.")));
    if (!items.length) content = el("p", { class: "none" }, "All ranks have answered meanwhile.");
  } catch (problem) {
    content = el("p", { class: "cannot", role: "alert" }, problem.message);
  }
  setText($("#stacks-title"), `Stacks of the ranks that call #${id} waits for`);
  $("[data-stacks-body]", dialog).replaceChildren(...[content].flat());
  if (!dialog.open) dialog.showModal();
}

export function startNow() {
  list.addEventListener("click", (event) => {
    const button = event.target.closest("[data-stacks]");
    if (button && !button.disabled) openStacks(button);
  });
  const plan = follow(async () => show((await read("/now")).items), isLive, EVERY_MS);
  onLive((live) => live && plan());
  if (document.documentElement.dataset.live !== "yes") return;
  // A driver that hangs records nothing, so that no tick comes: the seconds go on all the same.
  const timer = setInterval(() => isLive() && !document.hidden && plan(), EVERY_MS);
  stream.addEventListener("end", () => clearInterval(timer));
}
