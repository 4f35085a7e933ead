// The overview: the server draws it, this adds the chart of step metrics and the buttons of pools and calls.

import { $, dataBlock } from "./dom.js";
import { followParts } from "./live_page.js";
import { drawMetrics } from "./metrics.js";
import { startNow } from "./now.js";
import { showRequests, startPools } from "./pools.js";
import { onTheme } from "./shell.js";

let shown = "";
function showChart(force = false) {
  const chart = $("#metrics");
  const text = document.getElementById("steps").textContent;
  if (!chart || (!force && shown === text)) return;
  shown = text;
  drawMetrics(chart, dataBlock("steps"));
}

const refresh = followParts(() => {
  showChart();
  showRequests();
});
startPools(refresh);
startNow(refresh);
showChart();
onTheme(() => showChart(true));
