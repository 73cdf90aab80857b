// What is selected, in step with the address: #rank=3, #node=node1, #incident=i1 can be sent to a colleague.

import { byId } from "./dom.js";
import { on, state, tell } from "./store.js";

export function select(kind, value) {
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
  const hash = value === null ? " " : `#${kind}=${encodeURIComponent(value)}`;
  history.replaceState(null, "", hash === " " ? location.pathname : hash);
  tell("selected");
}

export function clearSelection() {
  state.selected = { rank: null, node: null, incident: null };
  history.replaceState(null, "", location.pathname);
  tell("selected");
}

/** Name of the node that holds a rank. */
export function nodeOf(rank) {
  const index = indexOf(rank);
  return index < 0 ? null : state.ranks.nodes[state.ranks.node[index]];
}

/** Where a rank stands in the columns; -1 when it is not there. */
export function indexOf(rank) {
  const ranks = state.ranks?.rank;
  if (!ranks || rank === null) return -1;
  return ranks[rank] === rank ? rank : ranks.indexOf(rank);
}

/** "rank3" or "node1", as incidents name their culprits. */
export function selectSubject(subject) {
  const rank = /^rank(\d+)$/.exec(subject);
  if (rank) select("rank", Number(rank[1]));
  else if (state.status?.nodes[subject]) select("node", subject);
}

function fromAddress() {
  const [, kind, value] = /^#(rank|node|incident)=(.+)$/.exec(location.hash) ?? [];
  if (!kind) return;
  const text = decodeURIComponent(value);
  if (kind === "rank") select("rank", Number.isInteger(Number(text)) ? Number(text) : null);
  else select(kind, text);
}

export function startSelect() {
  fromAddress();
  on("ranks", () => {
    // A linked rank is known by number before its node is.
    const { rank, node } = state.selected;
    if (rank !== null && node !== nodeOf(rank) && indexOf(rank) >= 0) select("rank", rank);
  });
  addEventListener("hashchange", fromAddress);
}

export function announce(text) {
  byId("announce").textContent = text;
}
