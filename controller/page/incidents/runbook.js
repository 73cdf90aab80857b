// One entry of the runbook: what a kind of finding means, what Holdfast does about it, and what a person can do.

import { get } from "../base/api.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { route } from "../base/router.js";
import { on } from "../base/store.js";

const PARTS = [["means", "What it means"], ["does", "What Holdfast does"], ["you", "What you can do"]];

/** `text` in backquotes is code. */
function prose(text) {
  return make("p", {}, ...text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part)));
}

/** Elements of the runbook's entry for a kind of finding. Rejects where there is none. */
export async function entryOf(kind) {
  const entry = await get(`/runbook/${encodeURIComponent(kind)}`);
  return PARTS.flatMap(([part, title]) => [make("h5", {}, title), prose(entry[part])]);
}

async function show() {
  const kind = route.id;
  if (route.view !== "runbook" || !kind) return;
  setText(byId("runbook-title"), `Runbook: ${kind}`);
  try {
    const entry = await get(`/runbook/${encodeURIComponent(kind)}`);
    if (kind !== route.id) return; // another one was opened meanwhile
    fill(byId("runbook"), ...PARTS.flatMap(([part, title]) => [make("h4", {}, title), prose(entry[part])]));
  } catch (error) {
    fill(byId("runbook"), make("p", {}, error.message));
  }
}

export function startRunbook() {
  on("route", show);
}
