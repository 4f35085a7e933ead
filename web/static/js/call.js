// The page of one call: the server drew it; while the call runs it is drawn again, and the keys walk to its neighbours.

import { readPage } from "./api.js";
import { $, root } from "./dom.js";
import { isLive, onKeys } from "./shell.js";
import { follow } from "./stream.js";

const go = (name) => () => $(`#call a[rel="${name}"]`)?.click();
onKeys({ ",": go("prev"), ".": go("next"), ArrowLeft: go("prev"), ArrowRight: go("next") });

const isRunning = () => $("#call").dataset.status === "running";
follow(async () => {
  if (isRunning()) $("#call").replaceWith(await readPage(location.pathname.slice(root.length), "#call"));
}, () => isLive() && isRunning(), 1000);
