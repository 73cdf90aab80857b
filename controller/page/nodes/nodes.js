// The list of nodes, worst first. Only the rows in sight exist, so 1,536 nodes cost as much as 12.

import { category, WORST_FIRST } from "../drawing/colours.js";
import { byId, framed, make, setText } from "../base/dom.js";
import { ago, byteRate, count, known, ranges, seconds } from "../base/format.js";
import { route } from "../base/router.js";
import { announce, select } from "../base/select.js";
import { on, state } from "../base/store.js";

const ROW = 28;
const byName = new Intl.Collator("en", { numeric: true }).compare;
/** @type {HTMLElement} */
const list = byId("nodes");
const height = make("div", { role: "presentation" });
/** @type {ReturnType<typeof makeRow>[]} */
const pool = [];
/** @typedef {Omit<Api.NodeBrief, "state"> & { state: string }} Row */
/** @type {Row[]} */
let rows = [];
const redraw = framed(draw);

/** States by node: now, or at the time that is shown.
 * @returns {Record<string, string>} */
function statesShown() {
  const { past: then } = state;
  if (!then || then.problem !== undefined) return state.status?.nodes ?? {};
  return Object.fromEntries(state.nodes.map(({ name }) => [name, then.doubtful[name] ?? "healthy"]));
}

function arrange() {
  const words = byId("nodes-filter").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const states = statesShown();
  const fresh = state.nodes.map((node) => ({ ...node, state: states[node.name] ?? node.state }));
  rows = fresh.filter((node) => {
    const text = `${node.name} ${node.state} ${node.switch} ${node.reason ?? ""}`.toLowerCase();
    return words.every((/** @type {string} */ word) => text.includes(word));
  });
  /** @param {Row} node */
  const rank = (node) => WORST_FIRST.indexOf(category(node.state));
  rows.sort((a, b) => rank(a) - rank(b) || byName(a.name, b.name));
  const shown = rows.length === fresh.length ? count(fresh.length) : `${count(rows.length)} of ${count(fresh.length)}`;
  setText(byId("nodes-count"), shown);
  height.style.height = `${rows.length * ROW}px`;
  list.style.height = `${Math.min(rows.length, 11) * ROW}px`;
  redraw();
}

function draw() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 2);
  const many = Math.min(rows.length - first, Math.ceil(list.clientHeight / ROW) + 5);
  while (pool.length < many) pool.push(makeRow());
  pool.forEach((row, i) => {
    const node = i < many ? rows[first + i] : undefined;
    row.element.hidden = !node;
    if (node) fill(row, node, first + i);
  });
  const active = rows.findIndex((node) => node.name === state.selected.node);
  if (active >= 0) list.setAttribute("aria-activedescendant", `node-${active}`);
  else list.removeAttribute("aria-activedescendant");
}

function makeRow() {
  const cells = [...Array(7)].map((_, i) => make("span", i > 3 ? { class: "num" } : {}));
  const pill = make("span", { class: "pill" });
  cells[1].append(pill);
  const element = make("div", { class: "node-row", role: "option" }, ...cells);
  element.addEventListener("click", () => select("node", element.dataset.node ?? null));
  height.append(element);
  return { element, cells, pill };
}

/** @param {ReturnType<typeof makeRow>} row @param {Row} node @param {number} at */
function fill({ element, cells, pill }, node, at) {
  element.dataset.node = node.name;
  element.id = `node-${at}`;
  element.style.top = `${at * ROW}px`;
  element.setAttribute("aria-selected", String(node.name === state.selected.node));
  element.setAttribute("aria-setsize", String(rows.length));
  element.setAttribute("aria-posinset", String(at + 1));
  pill.dataset.cat = category(node.state);
  setText(cells[0], node.name);
  setText(pill, node.reason ? `${node.state}: ${node.reason}` : node.state);
  setText(cells[2], node.switch || "–");
  setText(cells[3], node.ranks.length ? ranges(node.ranks) : "–");
  setText(cells[4], byteRate(node.tx_bytes_per_s));
  setText(cells[5], byteRate(node.rx_bytes_per_s));
  setText(cells[6], known(node.frame_age) ? (node.frame_age < 1 ? seconds(node.frame_age) : ago(node.frame_age)) : "–");
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  const page = Math.floor(list.clientHeight / ROW);
  /** @type {Record<string, number | undefined>} */
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
  const by = moves[event.key];
  if (!by || !rows.length) return;
  event.preventDefault();
  const from = rows.findIndex((node) => node.name === state.selected.node);
  const to = Math.min(rows.length - 1, Math.max(0, from < 0 ? 0 : from + by));
  select("node", rows[to].name);
  reveal(to);
  announce(`${rows[to].name}, ${rows[to].state}, ranks ${ranges(rows[to].ranks)}`);
}

/** @param {number} at */
function reveal(at) {
  if (at * ROW < list.scrollTop) list.scrollTop = at * ROW;
  else if ((at + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (at + 1) * ROW - list.clientHeight;
}

export function startNodes() {
  list.append(height);
  on("nodes then", arrange);
  on("selected", redraw);
  /** @type {Record<string, string> | null} */
  let states = null;
  on("status", () => {
    if (!state.status || state.status.nodes === states || route.view !== "nodes") return;
    states = state.status.nodes;
    arrange();
  });
  byId("nodes-filter").addEventListener("input", arrange);
  list.addEventListener("scroll", redraw, { passive: true });
  list.addEventListener("keydown", onKey);
  new ResizeObserver(redraw).observe(list);
}
