// The steps' metrics as small multiples: one little chart each, over one axis of steps.

import { colours, copy, draw, label, spec } from "./plot.js";

const MAX_METRICS = 6;
const MAX_STEPS = 600;
const GAP_X = 0.07;
const ROW_PX = 156;
const GAP_PX = 62;
const MARGIN_PX = 50;

function seriesOf(steps) {
  const series = new Map();
  const stride = Math.ceil(steps.length / MAX_STEPS);
  for (const step of steps.filter((_, i) => i % stride === 0 || i === steps.length - 1)) {
    for (const [name, value] of step.metrics) {
      if (!series.has(name)) series.set(name, { x: [], y: [] });
      series.get(name).x.push(step.index);
      series.get(name).y.push(value);
    }
  }
  return [...series.entries()].slice(0, MAX_METRICS);
}

export function drawMetrics(node, steps) {
  const series = seriesOf(steps);
  if (!series.length) return;
  const base = spec("metrics");
  const layout = { ...copy(base.layout), annotations: [] };
  const nColumns = node.clientWidth < 520 ? 1 : Math.min(series.length, series.length === 4 ? 2 : 3);
  const nRows = Math.ceil(series.length / nColumns);
  const heightPx = nRows === 1 ? 232 : ROW_PX * nRows;
  const gapY = GAP_PX / (heightPx - MARGIN_PX);
  node.style.height = `${heightPx}px`;
  const traces = series.map(([name, { x, y }], i) => {
    const suffix = i ? String(i + 1) : "";
    const column = i % nColumns;
    const row = Math.floor(i / nColumns);
    const width = (1 - GAP_X * (nColumns - 1)) / nColumns;
    const height = (1 - gapY * (nRows - 1)) / nRows;
    const left = column * (width + GAP_X);
    const top = 1 - row * (height + gapY);
    layout[`xaxis${suffix}`] = { ...copy(base.xaxis), domain: [left, left + width], anchor: `y${suffix}` };
    layout[`yaxis${suffix}`] = { ...copy(base.yaxis), domain: [Math.max(top - height, 0), top], anchor: `x${suffix}` };
    layout.annotations.push({ ...copy(base.title), text: label(name), x: left, y: top });
    const trace = { ...copy(base.traces.metric), x, y, xaxis: `x${suffix}`, yaxis: `y${suffix}` };
    if (x.length > 60) trace.mode = "lines";
    trace.line.color = trace.marker.color = colours().methods[i % colours().methods.length];
    return trace;
  });
  draw(node, traces, layout);
}
