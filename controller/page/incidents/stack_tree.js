// Calls of all ranks as a tree: where ranks part, the fewest come first, for the odd ones out are the suspects.

import { make } from "../base/dom.js";
import { count } from "../base/format.js";

/** @typedef {{ ranks: string, frames: string[], children: Branch[], depth?: number }} Branch */

/** {ranks, frames, children}: frames that the same ranks stand in are one branch. `rows`: each with a depth, in order of
 * the tree. Pure.
 * @param {Api.StackRow[]} rows @returns {Branch[]} */
export function branches(rows) {
  /** @type {Branch & { depth: number }} */
  const root = { ranks: "", frames: [], children: [], depth: -1 };
  const open = [root];
  for (const { depth, ranks, frame } of rows) {
    while (open.length > 1 && open[open.length - 1].depth >= depth) open.pop();
    /** @type {typeof root} */
    const node = { ranks, frames: [frame], children: [], depth };
    open[open.length - 1].children.push(node);
    open.push(node);
  }
  return root.children.map(joined);
}

/** @param {Branch} node @returns {Branch} */
function joined(node) {
  const frames = [...node.frames];
  let last = node;
  while (last.children.length === 1 && last.children[0].ranks === node.ranks) {
    last = last.children[0];
    frames.push(...last.frames);
  }
  const children = last.children.map(joined);
  return { ranks: node.ranks, frames, children: children.sort((a, b) => many(a.ranks) - many(b.ranks)) };
}

/** How many ranks "0-3,8" are. Pure.
 * @param {string} ranks */
export function many(ranks) {
  return ranks.split(",").reduce((sum, part) => {
    const [first, last = first] = part.split("-").map(Number);
    return sum + (last - first + 1 || 1);
  }, 0);
}

/** `tree`: as POST /api/v1/job/stacks answers.
 * @param {Api.Stacks} tree */
export function stackTree(tree) {
  const roots = branches(tree.rows);
  const all = Math.max(1, ...roots.map(({ ranks }) => many(ranks)));
  const missing = Object.entries(tree.missing).map(([node, why]) => make("p", { class: "muted" }, `${node} did not answer: ${why}`));
  return make("div", { class: "tree" }, ...missing, ...roots.map((root) => branch(root, all)));
}

/** @param {Branch} root @param {number} all @returns {HTMLElement} */
function branch({ ranks, frames, children }, all) {
  const few = many(ranks) * 2 < all ? "few" : "most";
  const head = make("span", { class: "pill", "data-cat": few === "few" ? "warn" : "none" }, ranks);
  const label = ` ${count(many(ranks))} of ${count(all)}: `;
  const body = make("pre", {}, frames.join("\n"));
  if (!children.length) return make("div", { class: "leaf", "data-ranks": few }, head, label, body);
  return make("details", { open: "", "data-ranks": few }, make("summary", {}, head, label, make("code", {}, frames.at(-1))), body, ...children.map((child) => branch(child, all)));
}
