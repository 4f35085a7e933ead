// A call beside the timeline: its own page, taken in.

import { readPage } from "./api.js";
import { $, el, pageUrl } from "./dom.js";

const drawer = $("#drawer");
const body = $("#drawer-body");
let wanted = null;

export async function openDrawer(id, { focus = false } = {}) {
  wanted = id;
  drawer.hidden = false;
  $("#drawer-page").href = pageUrl(`/calls/${id}`);
  let content;
  try {
    content = await readPage(`/calls/${id}`, "#call");
  } catch (error) {
    content = el("p", { class: "none", role: "alert" }, error.status === 404 ? `There is no call #${id}.` : `Call #${id} could not be read: ${error.message}`);
  }
  if (wanted !== id) return;
  body.replaceChildren(content);
  body.scrollTop = 0;
  if (focus) body.focus();
}

export function closeDrawer() {
  wanted = null;
  drawer.hidden = true;
  body.replaceChildren();
}

export function startDrawer(select) {
  $("#drawer-close").addEventListener("click", () => select(null));
  body.addEventListener("click", (event) => {
    const link = event.target.closest("[data-call-link]");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    select(Number(link.dataset.callLink));
  });
}
