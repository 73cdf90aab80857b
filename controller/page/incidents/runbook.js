// One entry of the runbook: what a kind of finding means, what Holdfast does about it, and what a person can do.

import { get } from "../base/api.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { route } from "../base/router.js";
import { on } from "../base/store.js";

/** @type {["means" | "does" | "you", string][]} */
const PARTS = [["means", "What it means"], ["does", "What Holdfast does"], ["you", "What you can do"]];

/** `text` in backquotes is code.
 * @param {string} text */
function prose(text) {
  return make("p", {}, ...text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part)));
}

/** Elements of the runbook's entry for a kind of finding. Rejects where there is none.
 * @param {string} kind */
export async function entryOf(kind) {
  /** @type {Api.RunbookEntry} */
  const entry = await get(`/runbook/${encodeURIComponent(kind)}`);
  return PARTS.flatMap(([part, title]) => [make("h5", {}, title), prose(entry[part])]);
}

async function show() {
  const kind = route.id;
  if (route.view !== "runbook" || !kind) return;
  setText(byId("runbook-title"), `Runbook: ${kind}`);
  try {
    /** @type {Api.RunbookEntry} */
    const entry = await get(`/runbook/${encodeURIComponent(kind)}`);
    if (kind !== route.id) return; // another one was opened meanwhile
    fill(byId("runbook"), ...PARTS.flatMap(([part, title]) => [make("h4", {}, title), prose(entry[part])]));
  } catch (error) {
    fill(byId("runbook"), make("p", {}, messageOf(error)));
  }
}

export function startRunbook() {
  on("route", show);
}
