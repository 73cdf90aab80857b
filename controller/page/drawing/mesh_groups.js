// The ranks that a rank works with: its groups, and the ranks that its activations come from and go to. Pure.

/** @import { Ranks } from "../base/store.js" */

/** @typedef {Pick<Ranks, "rank" | "pp" | "dp" | "tp" | "sizes">} Mesh */

/** {tp, dp, pp: [places in the columns]} of the rank at a place, itself included; null without a mesh.
 * @param {Mesh} ranks @param {number} at */
export function groupsOf(ranks, at) {
  if (!ranks.sizes || at < 0) return null;
  const { pp, dp, tp } = ranks;
  // Where pipeline ranks differ in tp, no rank has its own in the next stage: a pipeline is all that dp has in common.
  const [stages, replicas, widest] = ranks.sizes;
  const isUnlike = stages * replicas * widest !== ranks.rank.length;
  /** @type {{ tp: number[], dp: number[], pp: number[] }} */
  const found = { tp: [], dp: [], pp: [] };
  for (let i = 0; i < ranks.rank.length; i++) {
    const [p, d, t] = [pp[i] === pp[at], dp[i] === dp[at], tp[i] === tp[at]];
    if (p && d) found.tp.push(i);
    if (p && t) found.dp.push(i);
    if (d && (t || isUnlike)) found.pp.push(i);
  }
  return found;
}

/** {from, to: [places]}: the ranks before and after it. `plan`: as /api/v1/job/plan, or null.
 * @param {Mesh} ranks @param {number} at @param {Api.Plan | null} plan @returns {{ from: number[], to: number[] }} */
export function flowOf(ranks, at, plan) {
  const groups = groupsOf(ranks, at);
  if (!groups || !ranks.sizes) return { from: [], to: [] };
  const stages = plan?.stages.length ? plan.stages.map((stage) => stage.rank) : [...Array(ranks.sizes[0]).keys()];
  const mine = ranks.pp[at];
  const [before, after] = [new Set(), new Set()];
  stages.forEach((holder, stage) => {
    if (holder !== mine) return;
    if (stage > 0 && stages[stage - 1] !== mine) before.add(stages[stage - 1]);
    if (stage + 1 < stages.length && stages[stage + 1] !== mine) after.add(stages[stage + 1]);
  });
  return {
    from: groups.pp.filter((i) => before.has(ranks.pp[i])),
    to: groups.pp.filter((i) => after.has(ranks.pp[i])),
  };
}

/** A rank that does the same work as the one at a place, and is not among `named`; -1 where there is none.
 * @param {Mesh} ranks @param {number} at @param {number[]} named */
export function peerOf(ranks, at, named) {
  const groups = groupsOf(ranks, at);
  const peers = (groups?.dp ?? []).map((i) => ranks.rank[i]);
  return peers.find((rank) => rank !== ranks.rank[at] && !named.includes(rank)) ?? -1;
}

/** A few ranks of a large mesh that are worth seeing together: one rank's pipeline and its tensor group.
 * @param {Mesh} ranks @param {number} at */
export function company(ranks, at) {
  const groups = groupsOf(ranks, Math.max(0, at));
  if (!groups) return Array.from(ranks.rank.slice(0, 16));
  return [...new Set([...groups.pp, ...groups.tp])]
    .map((i) => ranks.rank[i])
    .sort((a, b) => a - b)
    .slice(0, 64);
}
