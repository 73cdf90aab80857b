// What workers print: of some ranks or all, live or of an earlier generation, by level and by a search. Lines come as they
// are printed, so many a second at most; only those in sight are in the page.

import { get, listen } from "../base/api.js";
import { byId, fill, framed, make, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { clock, count, ranges } from "../base/format.js";
import { link, past, pinned, replace, route } from "../base/router.js";
import { announce } from "../base/select.js";
import { on, state } from "../base/store.js";
import { timeOf } from "../past/then.js";
import { levelShown, matcher } from "./log_lines.js";

/** @typedef {{ at: number, rank: number, node: string, generation: number, text: string, dropped: number }} Line */

const ROW = 18;
const MOST = 20_000; // lines that the page keeps
const RATE = 12_000; // characters a second, of all that one tab may receive
const AROUND_S = 60; // before the time that is shown
const LEVELS = ["debug", "info", "warning", "error"];
/** @type {HTMLElement} */
const list = byId("logs");
const height = make("div", { role: "presentation" });
/** @type {ReturnType<typeof makeRow>[]} */
const pool = [];
/** @type {Line[]} */
let lines = [];
/** @type {Line[]} */
let shown = []; // of them, what the search leaves
let line = new AbortController();
let asked = "";
/** @type {Line | null} */
let chosen = null;
let isHeld = false; // by a reader who scrolled up
let problem = "";
const redraw = framed(draw);

/** The stream's address by the page's; "" where the view is not open. */
function wanted() {
  if (route.view !== "logs" || document.hidden) return "";
  const { rank, node, level = "debug", generation } = route.query;
  const at = past();
  const parts = new URLSearchParams({ rate: String(RATE), level: LEVELS.includes(level) ? level : "debug" });
  if (rank) parts.set("ranks", rank);
  if (node) parts.set("node", node);
  if (generation) parts.set("generation", generation);
  if (at !== null) {
    parts.set("follow", "false");
    parts.set("seconds", String(Math.max(0, Math.ceil((state.status?.now ?? at) - at + AROUND_S))));
  }
  const job = pinned() ?? state.status?.job?.id;
  return job ? `/jobs/${encodeURIComponent(job)}/logs?${parts}` : "";
}

async function follow() {
  showForm();
  const address = wanted();
  if (address === asked) return filter();
  asked = address;
  line.abort();
  if (!address) return;
  line = new AbortController();
  const mine = line;
  [lines, chosen, problem, isHeld] = [[], null, "", false];
  fill(byId("logs-same"));
  filter();
  try {
    await listen(address, { line: take, end: () => mine.abort() }, () => {}, mine.signal);
  } catch (error) {
    if (mine.signal.aborted || mine !== line) return;
    problem = messageOf(error);
    asked = ""; // the next change of the page tries again
    filter();
  }
}

/** @param {Line} chunk of one or more lines */
function take(chunk) {
  const at = past();
  for (const [i, text] of chunk.text.replace(/\n$/, "").split("\n").entries()) {
    if (at !== null && chunk.at > at) continue;
    lines.push({ ...chunk, text, dropped: i ? 0 : chunk.dropped });
  }
  if (lines.length > MOST) lines = lines.slice(lines.length - MOST);
  later();
}

const later = framed(filter);

function filter() {
  const { matches, error } = matcher(route.query.grep ?? "");
  shown = lines.filter((one) => matches(one.text));
  setText(byId("logs-problem"), error || problem);
  const left = lines.reduce((sum, one) => sum + one.dropped, 0);
  const out = left ? `, ${count(left)} more left out: choose ranks or a level` : "";
  setText(byId("logs-about"), `${count(shown.length)} of ${count(lines.length)} lines${out}`);
  byId("logs-empty").hidden = shown.length > 0;
  height.style.height = `${shown.length * ROW}px`;
  if (!isHeld) list.scrollTop = list.scrollHeight;
  redraw();
}

function draw() {
  const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 4);
  const many = Math.min(shown.length - first, Math.ceil(list.clientHeight / ROW) + 8);
  while (pool.length < many) pool.push(makeRow());
  pool.forEach((row, i) => {
    row.element.hidden = i >= many;
    if (i < many) show(row, shown[first + i], first + i);
  });
  const at = chosen ? shown.indexOf(chosen) : -1;
  if (at >= 0) list.setAttribute("aria-activedescendant", `log-${at}`);
  else list.removeAttribute("aria-activedescendant");
}

function makeRow() {
  const [when, who, text] = [make("time"), make("b"), make("span")];
  const element = make("div", { class: "log-row", role: "option" }, when, who, text);
  element.addEventListener("click", () => choose(Number(element.dataset.at)));
  height.append(element);
  return { element, when, who, text };
}

/** @param {ReturnType<typeof makeRow>} row @param {Line} one @param {number} at */
function show({ element, when, who, text }, one, at) {
  element.id = `log-${at}`;
  element.dataset.at = String(at);
  element.dataset.level = levelShown(one.text);
  element.style.top = `${at * ROW}px`;
  element.setAttribute("aria-selected", String(one === chosen));
  setText(when, clock(one.at));
  setText(who, String(one.rank));
  setText(text, one.text);
}

/** @param {number} at */
async function choose(at) {
  chosen = shown[at] ?? null;
  redraw();
  if (!chosen) return;
  const mine = chosen;
  const job = pinned() ?? state.status?.job?.id ?? "";
  const query = new URLSearchParams({ text: mine.text.slice(0, 4000) || " " });
  /** @type {Api.SaidBy & { error?: undefined } | { error: string }} */
  const found = await get(`/jobs/${encodeURIComponent(job)}/logs/same?${query}`).catch((error) => ({ error: error.message }));
  if (mine !== chosen) return;
  fill(byId("logs-same"), ...(found.error !== undefined ? [make("p", {}, found.error)] : same(found)));
  announce(byId("logs-same").innerText);
}

/** All ranks that said this.
 * @param {Api.SaidBy} said */
function same({ ranks, lines: many, first, masked }) {
  if (!first) return [make("p", { class: "muted" }, "It is not kept any more.")];
  const who = make("a", { class: "link", href: link("overview", null, { rank: first.rank }) }, `rank ${first.rank}`);
  return [
    make("p", { class: "mono" }, masked),
    make("p", {}, make("b", {}, `${count(ranks.length)} rank${ranks.length === 1 ? "" : "s"} said this`), `, ${count(many)} times`),
    make("p", {}, `ranks ${ranges(ranks)}`),
    make("p", {}, "first ", who, ` on ${first.node || "–"} at ${timeOf(first.at)}, generation ${first.generation}`),
  ];
}

function showForm() {
  const { rank = "", grep = "", level = "debug", generation = "" } = route.query;
  for (const [id, value] of [["logs-rank", rank], ["logs-grep", grep], ["logs-level", level]]) {
    if (document.activeElement !== byId(id)) byId(id).value = value;
  }
  const newest = state.status?.job?.generation ?? 1;
  const names = [["", "all"], ...Array.from({ length: Math.min(newest, 9) }, (_, i) => [String(newest - i), String(newest - i)])];
  const options = names.map(([value, name]) => make("option", { value, selected: value === generation }, name));
  if (document.activeElement !== byId("logs-generation")) fill(byId("logs-generation"), ...options);
}

function onForm() {
  /** @param {string} id @returns {string | null} */
  const value = (id) => byId(id).value.trim() || null;
  const level = value("logs-level");
  replace(null, {
    ...route.query, rank: value("logs-rank"), grep: value("logs-grep"), generation: value("logs-generation"),
    level: level === "debug" ? null : level,
  });
  follow();
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  /** @type {Record<string, number | undefined>} */
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -shown.length, End: shown.length };
  const by = moves[event.key];
  if (!by || !shown.length) return;
  event.preventDefault();
  const from = chosen ? shown.indexOf(chosen) : shown.length;
  const to = Math.min(shown.length - 1, Math.max(0, from + by));
  isHeld = to < shown.length - 1;
  if (to * ROW < list.scrollTop) list.scrollTop = to * ROW;
  else if ((to + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (to + 1) * ROW - list.clientHeight;
  choose(to);
}

export function startLogs() {
  list.append(height);
  on("route then", follow);
  /** @type {string | null} */
  let job = null;
  on("status", () => {
    const newest = pinned() ?? state.status?.job?.id ?? null;
    if (newest !== job) follow();
    job = newest;
  });
  document.addEventListener("visibilitychange", follow);
  for (const id of ["logs-rank", "logs-grep", "logs-level", "logs-generation"]) byId(id).addEventListener("change", onForm);
  byId("logs-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    onForm();
  });
  list.addEventListener("scroll", () => {
    isHeld = list.scrollTop + list.clientHeight < list.scrollHeight - 2 * ROW;
    redraw();
  }, { passive: true });
  list.addEventListener("keydown", onKey);
  new ResizeObserver(redraw).observe(list);
}
