// Whether the controller answers: the one state that the page itself has to report.

import { byId, setText } from "./dom.js";
import { clock } from "./format.js";
import { now, on, state } from "./store.js";

/** @type {Record<string, string>} */
const TEXT = { live: "live", lost: "controller lost" };

function show() {
  const { state: name, since, retryAt } = state.connection;
  const sign = byId("connection");
  sign.dataset.state = name;
  setText(sign.lastElementChild, TEXT[name] ?? "connecting");
  // A blip while the page loads or the controller restarts is not yet worth a red bar.
  const lost = name === "lost" && now() - since > 1;
  byId("lost").hidden = !lost;
  document.body.toggleAttribute("data-stale", lost);
  if (!lost) return;
  const wait = Math.max(0, Math.ceil(retryAt - now()));
  const retry = wait ? `in ${wait} s` : "now";
  setText(
    byId("lost"),
    `Controller lost: it does not answer. All below is as of ${clock(since)}. Training does not depend on it. Retry ${retry}.`,
  );
}

export function startConnection() {
  on("connection", show);
  setInterval(show, 1000);
}
