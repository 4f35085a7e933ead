// The whole run in one strip, with the window on it: drag to choose another.

import { read } from "./api.js";
import { $ } from "./dom.js";
import { colours } from "./plot.js";

const N_COLUMNS = 400;
const CLICK_PX = 4;

/** How busy the ranks were together, per column of the strip, 0..1. */
function busyOf(data) {
  const columns = new Float32Array(N_COLUMNS);
  const width = Math.max(data.to_ms - data.from_ms, 1e-6);
  const add = (start, end, share) => {
    const a = ((start - data.from_ms) / width) * N_COLUMNS;
    const b = ((end - data.from_ms) / width) * N_COLUMNS;
    for (let i = Math.max(Math.floor(a), 0); i < Math.min(b, N_COLUMNS); i += 1) {
      columns[i] += share * Math.max(Math.min(b, i + 1) - Math.max(a, i), 0);
    }
  };
  const nLanes = Math.max(data.lanes.length, 1);
  if (data.mode === "heat") {
    data.heat.busy.slice(1).forEach((row) => row.forEach((share, i) => {
      if (share > 0) add(data.from_ms + i * data.heat.bucket_ms, data.from_ms + (i + 1) * data.heat.bucket_ms, share / nLanes);
    }));
  } else {
    data.bars.lane.forEach((_, i) => add(data.bars.start_ms[i], data.bars.end_ms[i], 1 / nLanes));
  }
  return columns;
}

export class Minimap {
  #node = $("#minimap");
  #columns = new Float32Array(N_COLUMNS);
  #view;
  #from = 0;

  constructor(view, choose) {
    this.#view = view;
    this.#node.addEventListener("pointerdown", (event) => {
      this.#node.setPointerCapture(event.pointerId);
      this.#from = event.clientX;
    });
    this.#node.addEventListener("pointermove", (event) => {
      if (this.#node.hasPointerCapture(event.pointerId)) this.#frame(...this.#range(event));
    });
    this.#node.addEventListener("pointerup", (event) => {
      this.#node.releasePointerCapture(event.pointerId);
      choose(...this.#range(event));
    });
  }

  #timeAt(clientX) {
    const { left, width } = this.#node.getBoundingClientRect();
    return Math.min(Math.max((clientX - left) / width, 0), 1) * this.#view.runMs;
  }

  #range(event) {
    if (Math.abs(event.clientX - this.#from) < CLICK_PX) {
      const half = (this.#view.to - this.#view.from) / 2;
      const centre = this.#timeAt(event.clientX);
      return [centre - half, centre + half];
    }
    const ends = [this.#timeAt(this.#from), this.#timeAt(event.clientX)];
    return [Math.min(...ends), Math.max(...ends)];
  }

  async refresh() {
    this.#columns = busyOf(await read("/runs/current/timeline", { px: N_COLUMNS }));
    this.paint();
  }

  #frame(from, to) {
    const whole = Math.max(this.#view.runMs, 1);
    const mark = $("i", this.#node);
    const left = Math.min(Math.max(from / whole, 0), 1);
    mark.style.left = `${left * 100}%`;
    mark.style.width = `${Math.max(Math.min(to / whole, 1) - left, 0) * 100}%`;
  }

  paint() {
    this.#frame(this.#view.from, this.#view.to);
    const canvas = $("canvas", this.#node);
    const scale = devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * scale);
    const height = Math.round(canvas.clientHeight * scale);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const brush = canvas.getContext("2d");
    brush.clearRect(0, 0, width, height);
    brush.fillStyle = colours().phases.wait;
    this.#columns.forEach((share, i) => {
      if (share <= 0) return;
      const bar = Math.max(Math.min(share, 1) * (height - 6 * scale), scale);
      const left = Math.floor((i / N_COLUMNS) * width);
      brush.fillRect(left, height - bar, Math.ceil(((i + 1) / N_COLUMNS) * width) - left, bar);
    });
  }
}
