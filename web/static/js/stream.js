// What happens at the server, as events: "tick" when something was recorded, "pool", "operation", "end", and
// "connection" with {ok, sinceMs, why}. A hidden tab holds no connection. After three failures, or when an open stream
// brings nothing (the server pings every few seconds; a proxy may buffer its answer), the ticks come from polling, while
// the stream is tried again now and then.

import { root } from "./dom.js";

const POLL_MS = 2000;
const RETRY_MS = 5000;
const SILENCE_MS = 15000;
const FAILURES_BEFORE_POLLING = 3;
const SHARE = 4;
const NAMES = ["tick", "pool", "operation", "end", "resync", "ping"];

class Stream extends EventTarget {
  #source = null;
  #failures = 0;
  #poll = 0;
  #retry = 0;
  #silence = 0;
  #lostAt = 0;
  #ended = false;

  get polling() {
    return this.#poll !== 0;
  }

  start() {
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.#close();
      else if (!this.#ended) {
        this.#open();
        this.#emit("tick", { seq: -1 });
      }
    });
    if (!document.hidden) this.#open();
  }

  /** Called by whoever reads data: whether the server answered. */
  answered(ok, why = "disconnected") {
    if (ok) {
      if (this.#lostAt) this.#emit("connection", { ok: true });
      this.#lostAt = 0;
    } else {
      this.#lostAt = this.#lostAt || Date.now();
      this.#emit("connection", { ok: false, sinceMs: Date.now() - this.#lostAt, why });
    }
  }

  #emit(name, data) {
    this.dispatchEvent(new CustomEvent(name, { detail: data }));
  }

  #open() {
    this.#source?.close();
    const source = new EventSource(`${root}/api/v1/stream`);
    this.#source = source;
    source.onerror = () => this.#failed(source);
    for (const name of NAMES) {
      source.addEventListener(name, (event) => this.#heard(source, name, event.data));
    }
    this.#awaitEvent(source);
  }

  /** The headers of an answer say nothing of its events, so only an event shows that the stream works. */
  #awaitEvent(source) {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      source.close();
      this.#startPolling();
    }, SILENCE_MS);
  }

  #heard(source, name, text) {
    this.#failures = 0;
    this.#stopPolling();
    this.answered(true);
    this.#awaitEvent(source);
    let data = {};
    try {
      data = JSON.parse(text || "{}");
    } catch {
      return;
    }
    if (name === "end") {
      this.#close();
      if (data.state === "running") {
        this.answered(false);
        this.#startPolling();
        return;
      }
      this.#ended = true;
    }
    if (name !== "ping") this.#emit(name === "resync" ? "tick" : name, data);
  }

  #failed(source) {
    this.#failures += 1;
    this.answered(false);
    if (source.readyState === EventSource.CLOSED || this.#failures >= FAILURES_BEFORE_POLLING) {
      source.close();
      clearTimeout(this.#silence);
      this.#startPolling();
    }
  }

  #startPolling() {
    if (!this.#poll) this.#poll = setInterval(() => this.#emit("tick", { seq: -1 }), POLL_MS);
    clearTimeout(this.#retry);
    this.#retry = setTimeout(() => this.#open(), RETRY_MS);
  }

  #stopPolling() {
    clearInterval(this.#poll);
    clearTimeout(this.#retry);
    this.#poll = 0;
  }

  #close() {
    this.#source?.close();
    this.#source = null;
    this.#failures = 0;
    clearTimeout(this.#silence);
    this.#stopPolling();
  }
}

export const stream = new Stream();

/**
 * Call `refresh` at most every `everyMs` while the page follows the run, never twice at once, never when hidden.
 * What takes long is asked for less often, so that a busy driver is left in peace.
 * `refresh` may throw: the page keeps what it shows, and says that the server is silent.
 */
export function follow(refresh, isLive, everyMs = 500) {
  let nextAt = 0;
  let timer = 0;
  let busy = false;
  let again = false;
  const run = async () => {
    timer = 0;
    if (busy) {
      again = true;
      return;
    }
    if (document.hidden) return;
    busy = true;
    const startedAt = performance.now();
    try {
      await refresh();
      stream.answered(true);
    } catch (error) {
      if (error.name !== "AbortError") stream.answered(false, error.title);
    } finally {
      busy = false;
      nextAt = startedAt + Math.max(everyMs, (performance.now() - startedAt) * SHARE);
      if (again) {
        again = false;
        plan();
      }
    }
  };
  const plan = () => {
    if (!timer) timer = setTimeout(run, Math.max(0, nextAt - performance.now()));
  };
  stream.addEventListener("tick", () => isLive() && plan());
  stream.addEventListener("end", plan);
  return plan;
}
