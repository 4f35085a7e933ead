// The Pools page: the server draws the map; a pool opens in a drawer, with its actions.

import { openChange } from "./change_dialog.js";
import { $, $$ } from "./dom.js";
import { followParts, refreshParts } from "./live_page.js";
import { onKeys, params, setParams } from "./shell.js";
import { stream } from "./stream.js";

const drawer = $("#drawer");
const body = $("#drawer-body");
const sheetOf = (name) => $$("[data-sheet]").find((sheet) => sheet.dataset.sheet === name && !drawer.contains(sheet));

function open(name, { focus = true } = {}) {
  const sheet = sheetOf(name);
  if (!sheet) return close();
  const copy = sheet.cloneNode(true);
  copy.hidden = false;
  const shown = body.firstElementChild;
  const held = body.contains(document.activeElement) ? document.activeElement.dataset.change : undefined;
  if (!shown || !shown.isEqualNode(copy)) body.replaceChildren(copy);
  if (held) $(`[data-change="${held}"]`, body)?.focus();
  drawer.hidden = false;
  setParams({ pool: name });
  for (const button of $$("[data-open-pool]")) button.setAttribute("aria-expanded", String(button.dataset.openPool === name));
  if (focus) body.focus();
}

function close() {
  const name = params().get("pool");
  drawer.hidden = true;
  body.replaceChildren();
  setParams({ pool: null });
  const opener = $$("[data-open-pool]").find((button) => button.dataset.openPool === name);
  opener?.setAttribute("aria-expanded", "false");
  opener?.focus();
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-open-pool]");
  if (opener) open(opener.dataset.openPool);
});
$("#drawer-close").addEventListener("click", close);
body.addEventListener("click", (event) => {
  const button = event.target.closest("[data-change]");
  if (button) openChange(button.dataset.change, button.closest("[data-sheet]").dataset.sheet);
});
onKeys({ Escape: () => !drawer.hidden && close() });

/** The slider selects a change: the map is drawn again as it was after that change. */
let sliding = Promise.resolve();
document.addEventListener("input", (event) => {
  const { id, value, dataset } = event.target;
  if (id !== "moment") return;
  close();
  setParams({ at: JSON.parse(dataset.moments)[Number(value)] });
  sliding = sliding.then(() => $("#moment")?.value === value && refreshParts()).catch(() => {});
});

const plan = followParts(() => !drawer.hidden && open(params().get("pool"), { focus: false }));
stream.addEventListener("operation", () => plan());
if (params().get("pool")) open(params().get("pool"), { focus: false });
