// A change of a pool, from the wish to its end: the fields, the plan of what they would do, the name typed where
// something could be lost, one request however often one clicks, and the operation's way.

import { newKey, read, send } from "./api.js";
import { CHANGES } from "./change_forms.js";
import { $, el, setText } from "./dom.js";
import { duration } from "./format.js";
import { isDone, settled, whyOf } from "./operation.js";
import { planView } from "./plan_view.js";

const PAUSE_MS = 300;
const STATES = ["pending", "preparing", "waiting_for_safe_point", "running", "succeeded"];
const CANCELLABLE = new Set(["pending", "preparing", "waiting_for_safe_point"]);
const dialog = $("#change");

const usable = async () => (await read("/resource-pools")).items.filter((pool) => pool.state !== "closed");
const saying = (problem) => (problem.detail ? `${problem.title}: ${problem.detail}` : problem.title ?? "The server does not answer.");

/** One opened dialog. Its key is made with it: whatever is clicked twice is asked for once. */
class Change {
  #change;
  #key = newKey();
  #pools;
  #pool;
  #plan = null;
  #asked = 0;
  #timer = 0;
  #isSent = false;
  #isRefused = false;

  constructor(kind, pool, pools) {
    this.#change = CHANGES[kind];
    [this.#pool, this.#pools] = [pool, pools];
  }

  /** Draw the form; `note` says why it was drawn again. */
  show(note = null) {
    const title = this.#change.title(this.#pool);
    const form = el("form", { class: "change-form", novalidate: true },
      note, el("p", { class: "dim" }, `${this.#change.says} `, el("span", { class: "expects" }, this.#expects())),
      el("div", { class: "fields" }, this.#change.fields(this.#pool, this.#pools)),
      el("section", { class: "preview", "aria-label": "The plan", "aria-live": "polite" }, el("p", { class: "dim" }, "Asking for the plan…")),
      el("label", { class: "field confirm", hidden: true }, el("span", {}, "Type ", el("b", {}, this.#pool.name), " to confirm"),
        el("input", { name: "confirm", autocomplete: "off", spellcheck: "false" })),
      el("p", { class: "refusal", role: "alert" }),
      el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "ghost", "data-close": true }, "Not now"),
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
    return `${this.#pool.name} is at generation ${this.#pool.generation}.`;
  }

  get #form() {
    return $("form", dialog);
  }

  #edited(event) {
    if (event.target.name !== "confirm") {
      this.#plan = null;
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
    const isDestructive = this.#change.isDestructive(form, this.#pool);
    $(".confirm", form).hidden = !isDestructive;
    const isTyped = !isDestructive || form.elements.confirm.value === this.#pool.name;
    $("[type=submit]", form).disabled = !this.#plan || !isTyped || this.#isSent;
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
      const plan = await send(`${path}?dry_run=true`, body);
      if (mine !== this.#asked || form !== this.#form) return;
      this.#plan = plan;
      shown = planView(plan);
    } catch (problem) {
      if (mine !== this.#asked || form !== this.#form) return;
      if (problem.status === 412) {
        await this.#reload(problem);
        return;
      }
      shown = el("p", { class: "cannot" }, saying(problem));
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
      // Where nobody answered, it may have been taken all the same: the same key asks for the same operation.
      this.#isRefused = problem.status !== undefined;
      if (problem.status === 412) await this.#reload(problem);
      else {
        setText($(".refusal", dialog), saying(problem));
        this.#showSubmit();
      }
    }
  }

  /** Somebody was faster: show what they did, and ask again with what is there now. */
  async #reload(problem) {
    const last = problem.more.last_change;
    const who = last ? `${last.who} did a ${last.kind} of ${last.pool}: ${last.before || "–"} → ${last.after || "–"}. ` : "";
    this.#pools = await usable();
    const pool = this.#pools.find((one) => one.name === this.#pool.name);
    const note = el("p", { class: "cannot", role: "alert" }, `Somebody was faster. ${who}${problem.detail}. `);
    if (!pool) {
      dialog.replaceChildren(el("h2", { id: "change-title" }, `${this.#pool.name} is gone`), note, closeRow());
      return;
    }
    note.append("This is what is there now; look again before you ask for it.");
    this.#pool = pool;
    this.#key = newKey();
    this.#plan = null;
    this.show(note);
  }

  async #follow(operation) {
    const states = el("ol", { class: "way" }, STATES.map((state) => el("li", { "data-step": state }, state.replaceAll("_", " "))));
    const note = el("p", { class: "way-note", role: "status" });
    const cancel = el("button", { type: "button" }, "Cancel it");
    cancel.addEventListener("click", async () => {
      cancel.disabled = true;
      try {
        await send(`/operations/${encodeURIComponent(operation.id)}/cancel`, {});
      } catch (problem) {
        setText(note, saying(problem));
      }
    });
    const foot = el("div", { class: "dialog-foot" }, cancel, el("button", { type: "button", class: "primary", "data-close": true }, "Close"));
    dialog.replaceChildren(el("div", { class: "dialog-head" }, el("h2", { id: "change-title" }, this.#change.title(this.#pool))),
      states, note, el("p", { class: "dim", "data-goes-on": true }, "It goes on when this is closed."), foot);
    dialog.dataset.operation = operation.id;
    $("[data-close]", foot).focus();
    const show = (news) => {
      showWay(states, news);
      setText(note, wordsOf(news));
      note.classList.toggle("bad", isDone(news) && news.state !== "succeeded");
      cancel.hidden = !CANCELLABLE.has(news.state);
      $("[data-goes-on]", dialog)?.toggleAttribute("hidden", isDone(news));
    };
    try {
      await settled(operation, show);
    } catch (problem) {
      setText(note, saying(problem));
    }
  }
}

function closeRow() {
  return el("div", { class: "dialog-foot" }, el("button", { type: "button", class: "primary", "data-close": true }, "Close"));
}

function showWay(states, { state }) {
  const ended = isDone({ state }) && state !== "succeeded";
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
    const still = operation.stand_still_ms ? ` The driver stood still for ${duration(operation.stand_still_ms)}.` : "";
    return `Done: ${operation.before || "–"} → ${operation.after || "–"}.${still}`;
  }
  if (isDone(operation)) return `It ${operation.state}; the pools are as they were. ${whyOf(operation)}`;
  if (operation.progress) return operation.progress;
  return operation.state === "waiting_for_safe_point" ? "It takes effect at the driver's next call." : "";
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
