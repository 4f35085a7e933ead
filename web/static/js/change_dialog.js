// The dialog of a change: its fields, the plan (drawn by the server), the name typed where something could be lost,
// one request however often one clicks, and the progress of the operation.

import { newKey, problemText, read, send, sendForPart } from "./api.js";
import { FORMS } from "./change_forms.js";
import { $, el, setText } from "./dom.js";
import { duration } from "./format.js";
import { settled, whyOf } from "./operation.js";

const PAUSE_MS = 300;
const STATES = ["pending", "preparing", "waiting_for_safe_point", "running", "succeeded"];
const dialog = $("#change");

const usable = async () => (await read("/resource-pools")).items.filter((pool) => pool.state !== "closed");

/** One opened dialog. Its idempotency key is made with it, so that two clicks are one request. */
class Change {
  #change;
  #key = newKey();
  #pools;
  #pool;
  #hasPlan = false;
  #asked = 0;
  #timer = 0;
  #isSent = false;
  #isRefused = false;

  constructor(kind, pool, pools) {
    this.#change = FORMS[kind];
    [this.#pool, this.#pools] = [pool, pools];
  }

  /** Draw the form; `note` says why it was drawn again. */
  show(note = null) {
    const title = this.#change.titleOf(this.#pool);
    const form = el("form", { class: "change-form", novalidate: true },
      note, el("p", { class: "dim" }, `${this.#change.effect} `, el("span", { class: "expects" }, this.#expects())),
      el("div", { class: "fields" }, this.#change.controls(this.#pool, this.#pools)),
      el("section", { class: "preview", "aria-label": "Plan", "aria-live": "polite" }, el("p", { class: "dim" }, "Loading the plan…")),
      el("label", { class: "field confirm", hidden: true }, el("span", {}, "Type ", el("b", {}, this.#pool.name), " to confirm"),
        el("input", { name: "confirm", autocomplete: "off", spellcheck: "false" })),
      el("p", { class: "refusal", role: "alert" }),
      el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "ghost", "data-close": true }, "Cancel"),
        el("button", { type: "submit", class: "primary", disabled: true }, this.#change.verb)));
    dialog.replaceChildren(el("div", { class: "dialog-head" }, el("h2", { id: "change-title" }, title),
      el("button", { type: "button", class: "ghost square", "data-close": true, "aria-label": "Close" }, "✕")), form);
    form.addEventListener("input", (event) => this.#edited(event));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    if (!dialog.open) dialog.showModal();
    (form.querySelector("input, select") ?? $("[data-close]", form)).focus();
    this.#askPlan();
  }

  #expects() {
    return `Generation of ${this.#pool.name}: ${this.#pool.generation}.`;
  }

  get #form() {
    return $("form", dialog);
  }

  #edited(event) {
    if (event.target.name !== "confirm") {
      this.#hasPlan = false;
      if (this.#isRefused) this.#key = newKey();
      this.#isRefused = false;
      setText($(".refusal", dialog), "");
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#askPlan(), PAUSE_MS);
    }
    this.#showSubmit();
  }

  #showSubmit() {
    const form = this.#form;
    const isDestructive = this.#change.needsConfirmation(form, this.#pool);
    $(".confirm", form).hidden = !isDestructive;
    const isTyped = !isDestructive || form.elements.confirm.value === this.#pool.name;
    $("[type=submit]", form).disabled = !this.#hasPlan || !isTyped || this.#isSent;
  }

  async #askPlan() {
    const mine = ++this.#asked;
    const preview = $(".preview", dialog);
    const form = this.#form;
    const misfit = this.#change.misfit(form, this.#pool);
    if (misfit) {
      preview.replaceChildren(el("p", { class: "cannot" }, misfit));
      this.#showSubmit();
      return;
    }
    let shown;
    try {
      const { path, body } = this.#change.request(form, this.#pool, this.#pools);
      shown = await sendForPart(`${path}?dry_run=true`, body, ".plan");
      if (mine !== this.#asked || form !== this.#form) return;
      this.#hasPlan = true;
    } catch (problem) {
      if (mine !== this.#asked || form !== this.#form) return;
      if (problem.status === 412) {
        await this.#reload(problem);
        return;
      }
      shown = el("p", { class: "cannot" }, problemText(problem));
    }
    preview.replaceChildren(shown);
    this.#showSubmit();
  }

  async #send() {
    if (this.#isSent || $("[type=submit]", this.#form).disabled) return;
    this.#isSent = true;
    this.#showSubmit();
    const { path, body } = this.#change.request(this.#form, this.#pool, this.#pools);
    try {
      const operation = await send(path, body, this.#key);
      this.#follow(operation);
    } catch (problem) {
      this.#isSent = false;
      // Without an answer the request may have been accepted all the same: the same key is the same operation.
      this.#isRefused = problem.status !== undefined;
      if (problem.status === 412) await this.#reload(problem);
      else {
        setText($(".refusal", dialog), problemText(problem));
        this.#showSubmit();
      }
    }
  }

  /** The pool was changed in the meantime: show by whom, and start again from what is there now. */
  async #reload(problem) {
    const last = problem.more.last_change;
    const who = last ? `Last change by ${last.who}: ${last.kind} of ${last.pool}, ${last.before || "–"} → ${last.after || "–"}. ` : "";
    this.#pools = await usable();
    const pool = this.#pools.find((one) => one.name === this.#pool.name);
    const note = el("p", { class: "cannot", role: "alert" }, `The pool was changed in the meantime. ${who}${problem.detail}. `);
    if (!pool) {
      dialog.replaceChildren(el("h2", { id: "change-title" }, `${this.#pool.name} no longer exists`), note, closeRow());
      return;
    }
    note.append("The form shows its current state. Check it before you submit again.");
    this.#pool = pool;
    this.#key = newKey();
    this.#hasPlan = false;
    this.show(note);
  }

  async #follow(operation) {
    const states = el("ol", { class: "way" }, STATES.map((state) => el("li", { "data-step": state }, state.replaceAll("_", " "))));
    const note = el("p", { class: "way-note", role: "status" });
    const cancel = el("button", { type: "button" }, "Cancel operation");
    cancel.addEventListener("click", async () => {
      cancel.disabled = true;
      try {
        await send(`/operations/${encodeURIComponent(operation.id)}/cancel`, {});
      } catch (problem) {
        setText(note, problemText(problem));
      }
    });
    const foot = el("div", { class: "dialog-foot" }, cancel, el("button", { type: "button", class: "primary", "data-close": true }, "Close"));
    dialog.replaceChildren(el("div", { class: "dialog-head" }, el("h2", { id: "change-title" }, this.#change.titleOf(this.#pool))),
      states, note, el("p", { class: "dim", "data-goes-on": true }, "The operation continues when you close this dialog."), foot);
    dialog.dataset.operation = operation.id;
    $("[data-close]", foot).focus();
    const show = (news) => {
      showWay(states, news);
      setText(note, wordsOf(news));
      note.classList.toggle("bad", news.done && news.state !== "succeeded");
      cancel.hidden = news.done || news.state === "running";
      $("[data-goes-on]", dialog)?.toggleAttribute("hidden", news.done);
    };
    try {
      await settled(operation, show);
    } catch (problem) {
      setText(note, problemText(problem));
    }
  }
}

function closeRow() {
  return el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "primary", "data-close": true }, "Close"));
}

function showWay(states, { state, done }) {
  const ended = done && state !== "succeeded";
  const at = STATES.indexOf(state);
  [...states.children].forEach((step, i) => {
    const is = ended ? "" : i < at || state === "succeeded" ? "past" : i === at ? "now" : "";
    step.className = is;
    if (is === "now") step.setAttribute("aria-current", "step");
    else step.removeAttribute("aria-current");
  });
  if (ended && !states.querySelector(".ended")) states.append(el("li", { class: "ended" }, state));
}

function wordsOf(operation) {
  if (operation.state === "succeeded") {
    const downtime = operation.downtime_ms ? ` Downtime: ${duration(operation.downtime_ms)}.` : "";
    return `Done: ${operation.before || "–"} → ${operation.after || "–"}.${downtime}`;
  }
  if (operation.done) return `The operation ${operation.state === "cancelled" ? "was cancelled" : operation.state}. Nothing was changed. ${whyOf(operation)}`;
  if (operation.progress) return operation.progress;
  return operation.state === "waiting_for_safe_point" ? "Takes effect at the next safe point of the driver." : "";
}

/** Open the dialog of a change of the pool called `name`. */
export async function openChange(kind, name) {
  delete dialog.dataset.operation;
  const pools = await usable();
  const pool = pools.find((one) => one.name === name);
  if (pool) new Change(kind, pool, pools).show();
}

dialog.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) dialog.close();
});
