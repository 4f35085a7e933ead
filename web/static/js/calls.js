// The list of calls follows the run while its first page is shown; older pages do not change.

import { $ } from "./dom.js";
import { followParts } from "./live_page.js";
import { onKeys } from "./shell.js";

onKeys({ "/": () => $("#filters select").focus() });
if ($("[data-mark-new]")) followParts();
