// What is selected, in step with the address: #/overview?rank=3 and #/nodes/node1 can be sent to a colleague.

import { byId } from "./dom.js";
import { link, replace, route } from "./router.js";
import { on, state, notify } from "./store.js";

/** @typedef {["rank", number | null] | ["node", string | null] | ["incident", string | null]} Choice a kind and which */

const KINDS = ["rank", "node", "incident"];
/** @type {Record<string, string | undefined>} */
const HOME = { node: "nodes", incident: "incidents" };

/** Selects a rank, a node or an incident within the view that is shown.
 * @param {Choice} choice */
export function select(...choice) {
  take(...choice);
  const [kind, value] = choice;
  const others = Object.fromEntries(Object.entries(route.query).filter(([key]) => !KINDS.includes(key)));
  if (HOME[kind] === route.view) replace(value, others);
  else replace(route.id, { ...others, [kind]: value });
  notify("selected");
}

/** @param {Choice} choice */
function take(...choice) {
  const [kind, value] = choice;
  const { selected } = state;
  if (kind === "rank") {
    selected.rank = value;
    selected.node = value === null ? selected.node : (nodeOf(value) ?? selected.node);
  } else if (kind === "node") {
    selected.node = value;
    if (selected.rank !== null && nodeOf(selected.rank) !== value) selected.rank = null;
  } else {
    selected.incident = value;
  }
}

export function clearSelection() {
  state.selected = { rank: null, node: null, incident: null };
  const others = Object.fromEntries(Object.entries(route.query).filter(([key]) => !KINDS.includes(key)));
  replace(Object.values(HOME).includes(route.view) ? null : route.id, others);
  notify("selected");
}

/** Name of the node that holds a rank.
 * @param {number | null} rank */
export function nodeOf(rank) {
  const index = indexOf(rank);
  return index < 0 || !state.ranks ? null : state.ranks.nodes[state.ranks.node[index]];
}

/** Where a rank stands in the columns; -1 when it is not there.
 * @param {number | null} rank */
export function indexOf(rank) {
  const ranks = state.ranks?.rank;
  if (!ranks || rank === null) return -1;
  return ranks[rank] === rank ? rank : ranks.indexOf(rank);
}

/** Address of what an incident's culprit names: "rank3", "node1"; null for the job.
 * @param {string} subject */
export function subjectLink(subject) {
  const rank = /^rank(\d+)$/.exec(subject);
  if (rank) return link("overview", null, { rank: rank[1] });
  return state.status?.nodes[subject] ? link("nodes", subject) : null;
}

function fromAddress() {
  /** @type {Record<string, string | undefined>} */
  const found = { ...route.query };
  for (const [kind, view] of Object.entries(HOME)) if (route.view === view && route.id !== null) found[kind] = route.id;
  const rank = Number(found.rank);
  if (found.rank !== undefined) take("rank", Number.isInteger(rank) ? rank : null);
  else if (found.node !== undefined) take("node", found.node);
  if (found.incident !== undefined) take("incident", found.incident);
  notify("selected");
}

export function startSelect() {
  on("route", fromAddress);
  on("ranks", () => {
    // A linked rank is known by number before its node is.
    const { rank, node } = state.selected;
    if (rank === null || node === nodeOf(rank) || indexOf(rank) < 0) return;
    take("rank", rank);
    notify("selected");
  });
}

/** @param {string} text */
export function announce(text) {
  byId("announce").textContent = text;
}
