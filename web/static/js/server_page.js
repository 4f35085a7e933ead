// A page of which the browser has nothing to add: it only follows the run.

import { followParts } from "./live_page.js";

followParts();
