// What the flat mesh is arranged by: the job's mesh, its nodes, or the switches that the nodes hang on. It is in the address.

import { get } from "../base/api.js";
import { byId, check, segments } from "../base/dom.js";
import { replace, route } from "../base/router.js";
import { on, state } from "../base/store.js";

const OTHERS = ["node", "switch"];
/** @type {Map<string, string>} by node */
let switches = new Map();
let asked = "";

const wanted = () => (OTHERS.includes(route.query.mesh ?? "") ? String(route.query.mesh) : "mesh");

/** By node until the switches are known. */
export const arrangement = () => (wanted() === "switch" && !switches.size ? "node" : wanted());

/** The switch of each node, once it was wanted. */
export const switchOf = () => switches;

/** Of nodes nothing is known here but their names: asked for once for the nodes that a job runs on.
 * @param {() => void} changed */
async function ask(changed) {
  const key = (state.ranks?.nodes ?? []).join();
  if (wanted() !== "switch" || route.view !== "overview" || key === asked) return;
  asked = key;
  try {
    /** @type {Api.NodeBrief[]} */
    const nodes = await get("/nodes?detail=false");
    switches = new Map(nodes.map((node) => [node.name, node.switch]));
    changed();
  } catch {
    asked = ""; // with the next ranks
  }
}

/** @param {() => void} changed */
export function startArrangement(changed) {
  let shown = arrangement();
  segments(byId("mesh-by"), ({ by }) => {
    replace(route.id, { ...route.query, mesh: by === "mesh" ? undefined : by });
    follow();
  });
  const follow = () => {
    check(byId("mesh-by"), ({ by }) => by === wanted());
    ask(changed);
    if (shown === arrangement()) return;
    shown = arrangement();
    changed();
  };
  on("route", follow);
  on("ranks", () => ask(changed));
}
