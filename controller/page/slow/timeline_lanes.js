// Where spans lie: which rank's lane, how deep in others, which one at an instant. Pure.

/** @import { Numbers } from "../base/store.js" */
/** @import { Packed } from "../base/api.js" */
/** @import { Paired } from "./predicted.js" */

/**
 * @typedef {Packed<Api.Lanes>} Spans
 * @typedef {{ rank: number, from: number, to: number }} Lane
 * @typedef {ReturnType<typeof lanesOf>} Lanes
 * @typedef {{ data: Spans, lanes: Lanes, lane: number, end: number, view: { t0: number, t1: number, y: number }, hover: number,
 *   chosen: number, inks?: string[], paired?: Paired | null }} Scene
 */

/** Where each rank's spans begin in the columns, and how deep each span lies in others. Sorted by rank, then start.
 * @param {Spans} data */
export function lanesOf(data) {
  /** @type {Map<number, number>} */
  const first = new Map();
  const depth = new Uint8Array(data.rank.length);
  const lanes = Array.from(data.ranks, (rank) => ({ rank, from: 0, to: 0 }));
  lanes.forEach((lane, i) => first.set(lane.rank, i));
  /** @type {number[]} */
  let open = [];
  for (let i = 0; i < data.rank.length; i++) {
    const lane = lanes[first.get(data.rank[i]) ?? -1];
    if (i === 0 || data.rank[i] !== data.rank[i - 1]) {
      lane.from = i;
      open = [];
    }
    lane.to = i + 1;
    while (open.length && open[open.length - 1] <= data.start[i]) open.pop();
    depth[i] = Math.min(3, open.length);
    open.push(data.start[i] + data.took[i]);
  }
  return Object.assign(lanes, { depth, place: first });
}

/** The innermost span of a lane at a time, or within `near` of it; -1 where there is none.
 * @param {{ start: Numbers, took: Numbers }} spans @param {Lane} lane @param {number} time @param {number} near */
export function spanAt({ start, took }, lane, time, near) {
  let found = -1;
  for (let i = lane.from; i < lane.to && start[i] <= time + near; i++) if (start[i] + took[i] >= time - near) found = i;
  return found;
}
