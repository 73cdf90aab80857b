// The mesh panel: holds the view (zoom, pan), what is under the pointer, and the legend; drawing is mesh_draw's.

import { categories, CELL, paint, timeLegend, timeRamp, WORST_FIRST } from "../drawing/colours.js";
import { all, byId, fit, framed, make, pairs, placeTip, segments, setText } from "../base/dom.js";
import { usePointer } from "../drawing/drag.js";
import { count, many, seconds } from "../base/format.js";
import { drawMarks, drawOver, paintCells } from "./mesh_draw.js";
import { culpritRanks } from "../base/health.js";
import { culpritsThen } from "../past/then.js";
import { arrangement, startArrangement, switchOf } from "./arrangement.js";
import { hit, layOut, neighbour, shapeOf } from "./mesh_layout.js";
import { link, route } from "../base/router.js";
import { announce, clearSelection, indexOf, select } from "../base/select.js";
import { on, state } from "../base/store.js";
import { colour } from "../base/theme.js";
/** @import { Paint } from "../drawing/colours.js" */
/** @import { Ranks } from "../base/store.js" */
/** @import { Gutter, Layout, Shape } from "./mesh_layout.js" */

/**
 * @typedef {{ scale: number, x: number, y: number }} View
 * @typedef {{ key: string, gutter: Gutter, layout: Layout, ranks: Ranks, cats: Uint8Array, isPast: boolean, paint: Paint,
 *   view: View }} Scene
 */

/** @type {Record<string, string>} */
const MEANING = {
  ok: "running", busy: "starting, restoring or saving", wait: "waiting for others", warn: "suspect", bad: "failed", ended: "ended along", idle: "idle",
};
/** @type {HTMLCanvasElement} */
const canvas = byId("mesh-canvas");
/** @type {HTMLElement} */
const tip = byId("mesh-tip");
/** @type {ImageData | null} */
let image = null; // the cells as pixels
/** @type {Scene | null} */
let scene = null;
/** @type {{ of: unknown[], shape: Shape } | null} */
let shaped = null; // kept while ranks stay where they are: 12,288 of them take 3 ms
let view = { scale: 1, x: 0, y: 0 };
let colourBy = "state";
let hover = -1;
let stale = true; // the cells have to be drawn again
let legendStale = true;
/** @type {number[]} */
export const timings = []; // milliseconds of scripting per frame, newest last

/** @type {Record<string, [number, number] | undefined>} to the right and down */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
/** @type {Record<string, number>} */
const ZOOMS = { in: 1.6, out: 1 / 1.6, fit: 0 };

const redraw = framed(draw);

function refresh() {
  stale = true;
  redraw();
}

function refreshAll() {
  legendStale = true;
  refresh();
}

/** Of the past: who was at fault. What each of the others did is not kept.
 * @param {Ranks} ranks */
function categoriesThen(ranks) {
  const { ranks: culprits, nodes } = culpritsThen();
  const found = new Uint8Array(ranks.rank.length).fill(WORST_FIRST.indexOf(state.past?.problem ? "idle" : "ok"));
  const away = nodes.map((name) => ranks.nodes.indexOf(name)).filter((i) => i >= 0);
  for (let i = 0; away.length && i < found.length; i++) if (away.includes(ranks.node[i])) found[i] = WORST_FIRST.indexOf("warn");
  for (const rank of culprits) if (rank < found.length) found[rank] = WORST_FIRST.indexOf("bad");
  return found;
}

/** @param {Ranks} ranks */
function shapeNow(ranks) {
  const of = [ranks.node, ranks.nodes, ranks.sizes, arrangement(), switchOf()];
  if (!shaped || of.some((each, i) => each !== shaped?.of[i])) shaped = { of, shape: shapeOf(ranks, arrangement(), switchOf()) };
  return shaped.shape;
}

/** @param {Ranks} ranks @param {number} width @param {number} height @returns {Scene} */
function build(ranks, width, height) {
  const shape = shapeNow(ranks);
  const gutter = { left: shape.pp > 1 || shape.dp > 64 ? 46 : 14, top: 30 };
  const key = [shape.by, shape.pp, shape.dp, shape.tp, ranks.rank.length, width, height].join();
  const placed = scene?.key === key ? scene : null;
  if (!placed) view = { scale: 1, x: 0, y: 0 };
  if (placed && placed.ranks === ranks && !legendStale) return { ...placed, view };
  const cats = state.past ? categoriesThen(ranks) : categories(ranks);
  const layout = placed?.layout ?? layOut(shape, ranks.rank.length, width, height, gutter);
  return { key, gutter, layout, ranks, cats, isPast: Boolean(state.past), paint: paint(ranks, cats, colourBy), view };
}

function draw() {
  const began = performance.now();
  const { context, width, height, ratio } = fit(canvas);
  const { ranks } = state;
  const empty = !ranks?.rank.length;
  byId("mesh-empty").hidden = !empty;
  setText(byId("mesh-empty"), ranks ? "No ranks yet. The mesh appears when a job starts." : "");
  if (empty || width === 0) {
    context.clearRect(0, 0, width, height);
    scene = null;
    return;
  }
  if (stale || !scene || !image) {
    scene = build(ranks, width, height);
    if (image?.width !== canvas.width || image.height !== canvas.height) image = new ImageData(canvas.width, canvas.height);
    paintCells(scene, image, ratio);
    stale = false;
    if (legendStale) showLegend(scene);
  }
  context.putImageData(image, 0, 0);
  drawOver(context, scene, width, height);
  const selected = indexOf(state.selected.rank);
  const node = ranks.nodes.indexOf(state.selected.node ?? "");
  const mates = [];
  if (node >= 0) for (let i = 0; i < scene.ranks.node.length; i++) if (scene.ranks.node[i] === node) mates.push(i);
  const culprits = culpritRanks().map(indexOf).filter((i) => i >= 0);
  drawMarks(context, scene, { culprits, selected, hover, mates });
  timings.push(performance.now() - began);
  if (timings.length > 600) timings.shift();
}

/** @param {Scene} scene @param {number} i */
function describe({ ranks, isPast }, i) {
  const node = ranks.nodes[ranks.node[i]];
  const rows = [["node", node]];
  const its = switchOf().get(node);
  if (its) rows.push(["switch", its]);
  if (ranks.sizes) rows.push(["pp, dp, tp", `${ranks.pp[i]}, ${ranks.dp[i]}, ${ranks.tp[i]}`]);
  if (isPast) return rows;
  rows.push(["state", ranks.states[ranks.state[i]]], ["phase", ranks.phases[ranks.phase[i]]]);
  const operation = ranks.operations[ranks.operation[i]];
  if (operation) rows.push(["operation", operation]);
  rows.push(["step", count(ranks.step[i])], ["step time", seconds(ranks.step_seconds[i])]);
  rows.push(["progress", `${seconds(ranks.progress_age[i])} ago`]);
  return rows;
}

/** @param {number} i @param {number} x @param {number} y */
function showTip(i, x, y) {
  if (i < 0 || !scene) {
    tip.hidden = true;
    return;
  }
  tip.replaceChildren(make("b", {}, `Rank ${scene.ranks.rank[i]}`), pairs(describe(scene, i)));
  placeTip(tip, x, y);
}

/** @param {MouseEvent} event */
function at(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  return { x, y, index: scene ? hit(scene.layout, (x - view.x) / view.scale, (y - view.y) / view.scale) : -1 };
}

/** @param {number} factor @param {number} x @param {number} y */
function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(40, Math.max(1, view.scale * factor));
  const grown = scale / view.scale;
  view = { scale, x: x - (x - view.x) * grown, y: y - (y - view.y) * grown };
  clampView();
}

function clampView() {
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  view.x = Math.min(0, Math.max(width * (1 - view.scale), view.x));
  view.y = Math.min(0, Math.max(height * (1 - view.scale), view.y));
  if (view.scale === 1) view = { scale: 1, x: 0, y: 0 };
  refresh();
}

/** Brings a rank into sight after the keyboard moved there.
 * @param {Scene} scene @param {number} i */
function reveal({ layout, gutter }, i) {
  const [x, y] = [layout.x[i] * view.scale + view.x, layout.y[i] * view.scale + view.y];
  const [right, bottom] = [canvas.clientWidth - layout.w * view.scale - 8, canvas.clientHeight - layout.h * view.scale - 8];
  if (x < gutter.left || x > right || y < gutter.top || y > bottom) {
    view.x += canvas.clientWidth / 2 - x;
    view.y += canvas.clientHeight / 2 - y;
    clampView();
  }
}

/** @param {Scene} scene @param {number} i */
function choose(scene, i) {
  select("rank", scene.ranks.rank[i]);
  reveal(scene, i);
  const rows = describe(scene, i).map(([name, value]) => `${name} ${value}`);
  announce(`Rank ${scene.ranks.rank[i]}: ${rows.join(", ")}`);
}

function nextProblem() {
  if (!scene) return;
  const from = indexOf(state.selected.rank);
  const { cats } = scene;
  for (const wanted of [0, 1]) { // WORST_FIRST: bad, then warn
    for (let k = 1; k <= cats.length; k++) {
      const i = (from + k) % cats.length;
      if (cats[i] === wanted) return choose(scene, i);
    }
  }
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!scene || event.ctrlKey || event.metaKey || event.altKey) return;
  const move = MOVES[event.key];
  tip.hidden = true;
  const from = indexOf(state.selected.rank);
  const last = scene.ranks.rank.length - 1;
  if (move) choose(scene, from < 0 ? 0 : neighbour(scene.layout, from, ...move));
  else if (event.key === "Home") choose(scene, 0);
  else if (event.key === "End") choose(scene, last);
  else if (event.key === "+" || event.key === "=") zoom(1.5);
  else if (event.key === "-") zoom(1 / 1.5);
  else if (event.key === "0") zoom(0);
  else if (event.key.toLowerCase() === "n") nextProblem();
  else if (event.key === "Escape") clearSelection();
  else return;
  event.preventDefault();
}

function listen() {
  usePointer(canvas, {
    dragged: (dx, dy) => {
      if (view.scale <= 1) return;
      view = { ...view, x: view.x + dx, y: view.y + dy };
      clampView();
    },
    pointed: (event, isDragging) => {
      const { x, y, index } = at(event);
      if (index !== hover) redraw();
      hover = index;
      showTip(isDragging ? -1 : index, x, y);
    },
    clicked: (event) => {
      const { index } = at(event);
      if (scene && index >= 0) choose(scene, index);
    },
    left: () => {
      hover = -1;
      tip.hidden = true;
      redraw();
    },
  });
  canvas.addEventListener("dblclick", (event) => zoom(2.5, at(event).x, at(event).y));
  canvas.addEventListener("wheel", (event) => {
    // A bare wheel scrolls the page unless the mesh is already zoomed; with Ctrl, or a pinch, it zooms.
    if (!event.ctrlKey && !event.metaKey && view.scale === 1) return;
    event.preventDefault();
    const { x, y } = at(event);
    zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), x, y);
  }, { passive: false });
}

/** @param {Scene} scene */
function showLegend(scene) {
  legendStale = false;
  const { cats } = scene;
  const legend = byId("legend");
  /** @type {Record<string, number>} */
  const tally = {};
  const found = new Uint32Array(WORST_FIRST.length);
  for (let i = 0; i < cats.length; i++) found[cats[i]]++;
  WORST_FIRST.forEach((cat, i) => (tally[cat] = found[i]));
  const problems = tally.bad + tally.warn;
  byId("next-problem").hidden = problems === 0;
  setText(byId("next-problem"), `${many(problems, "problem")}: show`);
  const key = colourBy + JSON.stringify([tally, scene.paint.median, document.documentElement.dataset.theme]);
  if (legend.dataset.key === key) return;
  legend.dataset.key = key;
  if (colourBy === "time") {
    const ramp = make("span", { class: "ramp" });
    ramp.style.background = timeRamp();
    const [low, mid, high] = timeLegend(scene.paint.median ?? NaN);
    legend.replaceChildren(make("span", {}, low), ramp, make("span", {}, high), make("span", {}, `(${mid})`));
    return;
  }
  legend.replaceChildren(...WORST_FIRST.toReversed().filter((cat) => tally[cat]).map((cat) => {
    const swatch = make("i");
    const ink = colour(CELL[cat]);
    swatch.style.background = cat === "ended" ? `repeating-linear-gradient(135deg, ${ink} 0 2px, transparent 2px 4px)` : ink;
    return make("span", {}, swatch, `${MEANING[cat]} ${count(tally[cat])}`);
  }));
}

/** @param {Ranks} ranks */
function showShape(ranks) {
  const { by, dp } = shapeNow(ranks);
  const sizes = ranks.sizes ?? [];
  const cells = by === "switch" ? many(dp, "switch", "switches") : many(dp, "node");
  const shape = by === "mesh" ? `pp ${sizes[0]} × dp ${sizes[1]} × tp ${sizes[2]}` : cells;
  setText(byId("mesh-shape"), ranks.rank.length ? `${shape} · ${count(ranks.rank.length)} ranks` : "");
  canvas.setAttribute("aria-label", `Mesh of ${ranks.rank.length} ranks, ${shape}`);
}

export function startMesh() {
  on("ranks", () => {
    if (state.ranks) showShape(state.ranks);
    refreshAll();
  });
  on("theme then", refreshAll);
  startArrangement(() => {
    if (!state.ranks) return;
    showShape(state.ranks);
    refresh();
  });
  on("route", () => {
    byId("mesh-3d").href = link("overview", null, { ...route.query, mesh: "3d" });
    byId("mesh-flat").href = link("overview", null, { ...route.query, mesh: null });
  });
  on("selected status", redraw);
  segments(byId("mesh-colour"), ({ colour: by }) => {
    colourBy = by;
    refreshAll();
  });
  byId("next-problem").addEventListener("click", () => {
    nextProblem();
    canvas.focus();
  });
  for (const button of all("[data-zoom]")) {
    button.addEventListener("click", () => zoom(ZOOMS[button.dataset.zoom]));
  }
  canvas.addEventListener("keydown", onKey);
  listen();
  new ResizeObserver(refresh).observe(canvas);
}
