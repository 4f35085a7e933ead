// Which window of the run is shown. The URL says it: `last=60` (seconds) or `last=all` follow the run's end, `from` and
// `to` (ms since the run's start) do not move.

import { params, setParams } from "./shell.js";

const LEAST_MS = 0.05;

const numberOf = (text) => (text !== null && text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);

export class View {
  constructor(runMs, isLiveRun) {
    this.runMs = runMs;
    const query = params();
    const from = numberOf(query.get("from"));
    const to = numberOf(query.get("to"));
    const last = query.get("last");
    this.selected = callOf(query.get("sel"));
    this.group = query.get("group") ?? "";
    this.method = query.get("method") ?? "";
    this.asTable = query.get("table") === "1";
    this.last = null;
    if (from !== null && to !== null && to > from) [this.from, this.to] = [Math.max(from, 0), to];
    else this.follow(last === "all" || numberOf(last) > 0 ? last : isLiveRun ? "60" : "all", false);
  }

  /** Follow the run's end with `last` seconds of it, or with all of it. */
  follow(last, write = true) {
    this.last = String(last);
    this.slide(this.runMs);
    if (write) setParams({ last: this.last, from: null, to: null });
  }

  /** The run has grown: a window that follows moves on. */
  slide(runMs) {
    this.runMs = Math.max(runMs, this.runMs);
    if (this.last === null) return;
    this.to = Math.max(this.runMs, 1);
    this.from = this.last === "all" ? 0 : Math.max(this.to - Number(this.last) * 1000, 0);
  }

  /** Stop at a window within the run. */
  stand(from, to) {
    const most = Math.max(this.runMs, 1) * 1.02;
    const width = Math.min(Math.max(to - from, LEAST_MS), most);
    this.from = Math.min(Math.max(from, 0), Math.max(most - width, 0));
    this.to = this.from + width;
    this.last = null;
    const digits = width < 10 ? 3 : 1;
    setParams({ last: null, from: Number(this.from.toFixed(digits)), to: Number(this.to.toFixed(digits)) });
  }

  zoom(factor, centre = (this.from + this.to) / 2) {
    this.stand(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  pan(share) {
    const by = (this.to - this.from) * share;
    this.stand(this.from + by, this.to + by);
  }

  select(call) {
    this.selected = call;
    setParams({ sel: call === null ? null : `call:${call}` });
  }

  narrow(changes) {
    Object.assign(this, changes);
    setParams({ group: this.group, method: this.method, table: this.asTable ? "1" : null });
  }

  /** What to ask the server for. */
  query(px) {
    const range = this.last === "all" ? {} : { from: this.from, to: this.to };
    return { ...range, px: Math.round(px) };
  }
}

function callOf(text) {
  const match = /^call:(\d{1,15})$/.exec(text ?? "");
  return match ? Number(match[1]) : null;
}
