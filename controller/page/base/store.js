// The page's state, and its subscribers. Views read `state`; live.js and select.js write it, and each
// view what only it asks for.

/** @import { Column, Packed } from "./api.js" */

/**
 * @typedef {number[] | Float64Array} Numbers
 * @typedef {Omit<Packed<Api.Ranks>, "pp" | "dp" | "tp"> & Record<"pp" | "dp" | "tp", Numbers>} Ranks coordinates: of a mesh only
 * @typedef {"compute_s" | "other_s" | "transfer_s" | "named_s" | "plan_s" | "jitter_s" | "self_s" | "induced_s"} Share
 * @typedef {Record<Share | "rank", Numbers> & { self_ratio: Column }} BlamedRanks
 * @typedef {{ rank: number, what: string, peer: number, seconds: number }} Stay of the critical path at a rank
 * @typedef {Omit<Api.Blame, "ranks" | "course"> & { ranks: BlamedRanks, course: Stay[] }} Blame
 * @typedef {Api.Then & { problem?: undefined }} Kept
 * @typedef {{ at: number, problem: string } & { [Name in Exclude<keyof Api.Then, "at">]?: undefined }} NotKept
 */

/** @type {{
 *   status: Api.Status | null, ranks: Ranks | null, nodes: Api.NodeBrief[], incidents: Map<Api.Incident["id"], Api.Incident>,
 *   steps: Api.Steps & { job: string | null }, blame: Api.BlameBrief | null, blamed: Blame | null, past: Kept | NotKept | null,
 *   heat: Packed<Api.Heat> | null,
 *   selected: { rank: number | null, node: string | null, incident: string | null },
 *   connection: { state: string, since: number, retryAt: number }, skew: number }} */
export const state = {
  status: null, // as /api/v1/status, nodes and incidents merged in
  ranks: null, // as /api/v1/ranks, columns maybe Float64Array
  nodes: [], // as /api/v1/nodes?detail=false
  incidents: new Map(), // by id, oldest history included
  steps: { job: null, step: [], loss: [], seconds: [], tokens: [], at: [], generation: [], mfu: [], grad_norm: [] },
  blame: null, // as /api/v1/blame/newest
  blamed: null, // as /api/v1/blame, once it was opened
  past: null, // as /api/v1/job/then, while the address names a time; with `problem` where nothing is kept of it
  heat: null, // as /api/v1/blame/heat, while the view Slow is shown
  selected: { rank: null, node: null, incident: null },
  connection: { state: "connecting", since: 0, retryAt: 0 },
  skew: 0, // controller's clock minus the browser's, seconds
};

/** @type {Map<string, (() => void)[]>} */
const listeners = new Map();

/** @param {string} topic one or several @param {() => any} listener */
export function on(topic, listener) {
  for (const name of topic.split(" ")) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name)?.push(listener);
  }
}

/** @param {string} topic */
export function notify(topic) {
  for (const listener of listeners.get(topic) ?? []) listener();
}

/** The controller's time now, in Unix seconds. */
export function now() {
  return Date.now() / 1000 + state.skew;
}
