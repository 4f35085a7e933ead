// Pages that the server draws: during the run, each [data-live-part] is fetched again and changed in place.

import { readParts } from "./api.js";
import { takeIn } from "./morph.js";
import { drawsOwnFrame, isLive, onLive } from "./shell.js";
import { follow, stream } from "./stream.js";

const EVERY_MS = 1000;

/** Draw the parts again, and call `after` when that is done. */
export async function refreshParts(after = () => {}) {
  takeIn(await readParts(location.pathname + location.search));
  after();
}

/** Follow the run; the returned function asks for fresh parts soon. */
export function followParts(after, isWanted = () => true) {
  const isFollowed = () => isLive() && isWanted();
  drawsOwnFrame(isFollowed);
  const plan = follow(() => refreshParts(after), isFollowed, EVERY_MS);
  for (const name of ["pool", "operation"]) stream.addEventListener(name, () => isFollowed() && plan());
  onLive((live) => live && plan());
  return plan;
}
