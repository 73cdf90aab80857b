// The job at the time of the address (`at=`), as the controller kept it: while it is set, all views show that time.

import { get } from "../base/api.js";
import { byId, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { known } from "../base/format.js";
import { past, route, travel } from "../base/router.js";
import { notify, now, on, state } from "../base/store.js";
/** @import { Kept, NotKept } from "../base/store.js" */

/** @type {string | null} */
let asked = null;

/** "02:10:00", with the date where it is not today's.
 * @param {number} at */
export function timeOf(at, today = now()) {
  const [then, day] = [new Date(at * 1000), new Date(today * 1000)];
  const time = then.toLocaleTimeString("en-GB");
  const date = then.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return then.toDateString() === day.toDateString() ? time : `${date}, ${time}`;
}

/** Incidents that were there at the time that is shown; all of them where that is now.
 * @template {{ opened: number }} Incident @param {Incident[]} incidents */
export function thenOrNow(incidents) {
  const at = past();
  return at === null ? incidents : incidents.filter((one) => one.opened <= at);
}

/** Whether an incident was open at the time that is shown.
 * @param {{ opened: number, closed: number | null }} incident @param {number} at */
export const wasOpen = (incident, at) => incident.opened <= at && (!known(incident.closed) || incident.closed > at);

/** Ranks that were at fault, and nodes that were out of service, as far as the controller kept it.
 * @returns {{ ranks: number[], nodes: string[] }} */
export function culpritsThen() {
  const { past: then } = state;
  if (!then || then.problem !== undefined) return { ranks: [], nodes: [] };
  const named = then.incidents.map((one) => /^rank(\d+)$/.exec(one.culprit)?.[1]).filter((rank) => rank !== undefined);
  const ranks = [then.health, ...then.health.others].map((one) => one.rank).filter(known);
  return { ranks: [...new Set([...named.map(Number), ...ranks])], nodes: Object.keys(then.doubtful) };
}

async function look() {
  const at = past();
  const key = at === null ? null : `${route.query.job ?? ""} ${at}`;
  document.body.toggleAttribute("data-past", at !== null);
  byId("lane-now").hidden = at === null;
  if (key === asked) return;
  asked = key;
  if (at === null) return take(null);
  /** @type {Kept | NotKept} */
  let found;
  try {
    found = await get(`/job/then?at=${at}`);
  } catch (error) {
    found = { at, problem: messageOf(error) };
  }
  if (key === asked) take(found);
}

/** @param {Kept | NotKept | null} found */
function take(found) {
  state.past = found;
  setText(byId("lane-shown"), found ? `Shown: ${timeOf(found.at)}` : "");
  notify("then");
}

export function startThen() {
  byId("lane-now").addEventListener("click", () => travel(null));
  on("route", look);
}
