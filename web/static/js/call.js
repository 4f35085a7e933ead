// The page of one call: it follows the call while that runs, and the keys lead to its neighbors.

import { $ } from "./dom.js";
import { followParts } from "./live_page.js";
import { onKeys } from "./shell.js";

const go = (name) => () => $(`#call a[rel="${name}"]`)?.click();
onKeys({ ",": go("prev"), ".": go("next"), ArrowLeft: go("prev"), ArrowRight: go("next") });
followParts(undefined, () => $("#call").dataset.status === "running");
