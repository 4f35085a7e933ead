// plotly, its fixed parts from web/figures.py, and the escaping of what it would read as HTML.

import { dataBlock } from "./dom.js";
import { themeName } from "./shell.js";

const specs = dataBlock("specs");

export const plotly = () => window.Plotly;
export const config = specs?.config ?? {};
export const spec = (figure) => specs.themes[themeName()][figure];
export const colours = () => specs.themes[themeName()].colours;

/** plotly renders a part of HTML in labels: names are escaped before they reach it. */
export const label = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** A deep copy: plotly writes into what it is given. */
export const copy = (value) => structuredClone(value);

export function draw(node, traces, layout) {
  return plotly().react(node, traces, layout, config);
}
