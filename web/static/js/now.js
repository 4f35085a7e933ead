// The panel of calls in flight: the server draws it, this asks for the stacks of the ranks that a call waits for.

import { send } from "./api.js";
import { $, el, setText } from "./dom.js";
import { isLive } from "./shell.js";
import { stream } from "./stream.js";

const EVERY_MS = 1000;

async function openStacks(button) {
  const id = button.dataset.stacks;
  const label = button.textContent;
  button.dataset.keep = "";
  button.disabled = true;
  setText(button, "Reading stacks…");
  const dialog = $("#stacks");
  let content;
  try {
    const { items } = await send(`/calls/${id}/stacks`, {});
    content = items.map((one) => el("section", {}, el("h3", {}, `rank ${one.rank}`),
      el("pre", { class: "log", tabindex: 0 }, one.text || "No answer.")));
    if (!items.length) content = el("p", { class: "none" }, "All ranks have returned.");
  } catch (problem) {
    content = el("p", { class: "cannot", role: "alert" }, problem.message);
  }
  setText($("#stacks-title"), `Stacks of the pending ranks of call #${id}`);
  $("[data-stacks-body]", dialog).replaceChildren(...[content].flat());
  if (!dialog.open) dialog.showModal();
  delete button.dataset.keep;
  button.disabled = false;
  setText(button, label);
}

/** Answer the panel's buttons, and keep its times current: a driver that hangs records nothing, so that no tick comes. */
export function startNow(refresh) {
  $("#now").addEventListener("click", (event) => {
    const button = event.target.closest("[data-stacks]");
    if (button && !button.disabled) openStacks(button);
  });
  if (document.documentElement.dataset.live !== "yes") return;
  const timer = setInterval(() => isLive() && !document.hidden && refresh(), EVERY_MS);
  stream.addEventListener("end", () => clearInterval(timer));
}
