// What a state means, and what colour it has. The worse it is, the more it stands out from the surface, for every kind of
// colour vision (tests/controller/page/test_colours.py); what is bad has a ring or another shape as well.

import { known, seconds } from "../base/format.js";
import { colour, mix } from "../base/theme.js";
/** @import { Column } from "../base/api.js" */
/** @import { Ranks } from "../base/store.js" */

/** @type {Record<string, string | undefined>} */
export const CATEGORY = {
  running: "ok", healthy: "ok", spare: "idle", finished: "idle", done: "idle", joining: "busy", cordoned: "warn",
  pending: "busy", starting: "busy", restoring: "busy", recovering: "busy", waiting: "wait", suspect: "warn", slow: "warn",
  ended: "ended", hung: "bad", stopped: "bad", exited: "bad", killed: "bad", failed: "bad", faulty: "bad", lost: "bad", dead: "bad",
};
export const WORST_FIRST = ["bad", "warn", "wait", "busy", "ok", "ended", "idle"];
// Many ranks wait when one fails: the one stands out more, and has a ring.
/** @type {Record<string, string>} */
export const CELL = { ok: "ok-cell", busy: "busy-cell", wait: "wait-cell", warn: "warn", bad: "bad", ended: "idle", idle: "idle" };
const WORKING = new Set(["train", "eval", "done"]);
const LEVELS = 48; // colours of the step-time scale
export const UNKNOWN = LEVELS; // the place after the scale
const FASTEST = 0.8; // of the median: end of the scale
const SLOWEST = 1.5;

/** @typedef {{ palette: string[], index: Uint8Array, hatched?: number, median?: number | null }} Paint */

/** @param {string} name */
export const category = (name) => CATEGORY[name] ?? "idle";

/** Category of each rank, as its place in WORST_FIRST: a rank that runs but restores, compiles or saves is busy.
 * @param {Ranks} ranks */
export function categories(ranks) {
  const ofState = ranks.states.map((name) => WORST_FIRST.indexOf(category(name)));
  const works = ranks.phases.map((phase) => WORKING.has(phase));
  const [ok, busy] = [WORST_FIRST.indexOf("ok"), WORST_FIRST.indexOf("busy")];
  const found = new Uint8Array(ranks.state.length);
  for (let i = 0; i < found.length; i++) {
    const cat = ofState[ranks.state[i]];
    found[i] = cat === ok && !works[ranks.phase[i]] ? busy : cat;
  }
  return found;
}

/** Places of the ranks that failed, at most `most` + 1 of them.
 * @param {Uint8Array} cats @param {number} most */
export function failed(cats, most) {
  const found = [];
  for (let i = 0; i < cats.length && found.length <= most; i++) if (cats[i] === 0) found.push(i);
  return found;
}

/** One way to colour the ranks.
 * @param {Ranks} ranks @param {Uint8Array} cats @param {string} by @returns {Paint} */
export function paint(ranks, cats, by) {
  return by === "time" ? byTime(ranks) : byState(cats);
}

/** @param {Uint8Array} cats */
function byState(cats) {
  return { palette: WORST_FIRST.map((cat) => colour(CELL[cat])), index: cats, hatched: WORST_FIRST.indexOf("ended") };
}

/** @param {Ranks} ranks */
function byTime(ranks) {
  const median = medianOf(ranks.step_seconds);
  const index = new Uint8Array(ranks.step_seconds.length).fill(UNKNOWN);
  for (let i = 0; median && i < index.length; i++) {
    const value = ranks.step_seconds[i];
    if (value !== null) index[i] = level(value / median);
  }
  return { palette: ratioPalette(), index, median };
}

/** Colours of "so many times what is usual", the last one for what is not known. */
export function ratioPalette() {
  return [...[...Array(LEVELS).keys()].map((at) => timeColour(at / (LEVELS - 1))), colour("idle")];
}

/** Place of a ratio in that palette.
 * @param {number} ratio */
export const level = (ratio) => (ratio === ratio ? Math.round(Math.min(1, Math.max(0, share(ratio))) * (LEVELS - 1)) : UNKNOWN);

/** Half of the scale for faster than the median, half for slower.
 * @param {number} ratio */
function share(ratio) {
  return ratio < 1 ? (0.5 * (ratio - FASTEST)) / (1 - FASTEST) : 0.5 + (0.5 * (ratio - 1)) / (SLOWEST - 1);
}

/** @param {number} at */
function timeColour(at) {
  if (at < 0.5) return mix(colour("fast"), colour("mid"), at * 2);
  if (at < 0.75) return mix(colour("mid"), colour("slow"), (at - 0.5) * 4);
  return mix(colour("slow"), colour("slowest"), (at - 0.75) * 4);
}

export function timeRamp() {
  const stops = [...Array(13).keys()].map((i) => timeColour(i / 12));
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

/** @param {number} median */
export const timeLegend = (median) => [seconds(median * FASTEST), `${seconds(median)} median`, `${seconds(median * SLOWEST)} and more`];

/** @param {Column} values */
export function medianOf(values) {
  const sorted = Float64Array.from(/** @type {(number | null)[]} */ (values).filter(known)).sort();
  return sorted.length ? sorted[sorted.length >> 1] : null;
}
