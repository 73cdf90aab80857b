// The mesh as it is meant: pipeline × data × tensor parallel, in three dimensions. A selected rank shows its groups and
// the ranks its activations come from and go to; lines lead from a slow rank to the ranks that wait for it.

import { get, getLarge } from "../base/api.js";
import { CELL, categories, WORST_FIRST } from "../drawing/colours.js";
import { all, byId, fill, fit, framed, make, pairs, placeTip, segments, setText } from "../base/dom.js";
import { usePointer } from "../drawing/drag.js";
import { count, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { flowOf, groupsOf } from "../drawing/mesh_groups.js";
import { isShown, link } from "../base/router.js";
import { announce, clearSelection, indexOf, select } from "../base/select.js";
import { on, state, notify } from "../base/store.js";
import { AXES, blameLines, drawMesh3d, hit3d, place3d, sameMesh } from "./mesh3d_draw.js";
import { colour } from "../base/theme.js";
/** @import { Ranks } from "../base/store.js" */
/** @import { Line, MeshRanks, Scene } from "./mesh3d_draw.js" */

/** @typedef {{ tp: number[], dp: number[], pp: number[] }} Groups places of ranks */

/** @type {HTMLCanvasElement} */
const canvas = byId("mesh3d");
/** @type {HTMLElement} */
const tip = byId("mesh3d-tip");
const BLAME = { "slow itself": "bad", "waits for others": "wait-cell", neither: "ok-cell", "not known": "idle" };
const BLAME_INKS = Object.values(BLAME);
const [BAD, WAITING, NEITHER, UNKNOWN] = BLAME_INKS.keys();
const STATE_INKS = WORST_FIRST.map((cat) => CELL[cat]);
const WAITS = 0.02; // of the step
const camera = { yaw: -0.6, pitch: -0.45, zoom: 1 };
/** @type {Api.Plan | null} */
let plan = null;
let by = "blame";
/** @type {Scene | null} */
let scene = null;
let hover = -1;
/** @type {number[]} */
export const timings = [];
// What comes is taken in in one frame and drawn in the next: both of thousands of ranks would be much for one.
const redraw = framed(draw);
const refresh = framed(rebuild);

async function poll() {
  if (!plan) plan = await get("/job/plan");
  state.blamed = await getLarge("/blame").catch(() => null);
  notify("blamed");
  refresh();
}

/** Places, colours and lines: all that does not change while the mesh turns. */
function rebuild() {
  if (!isShown("mesh3d")) return;
  const some = state.ranks?.sizes && state.ranks.rank.length;
  byId("mesh3d-empty").hidden = Boolean(some);
  setText(byId("mesh3d-empty"), state.ranks ? "This job reported no mesh: the overview shows its ranks by node." : "");
  if (!some) {
    scene = null;
    return redraw();
  }
  const ranks = /** @type {MeshRanks} */ (state.ranks);
  // The mesh itself stays; what was drawn of it may be drawn over.
  const place = scene && sameMesh(ranks, scene.ranks) ? scene.place : place3d(ranks);
  /** @type {Line[]} */
  const lines = [];
  const chosen = indexOf(state.selected.rank);
  const groups = groupsOf(ranks, chosen);
  if (groups) {
    for (const axis of AXES)
      for (const to of groups[axis])
        if (to !== chosen) lines.push({ from: chosen, to, ink: `axis-${axis}`, width: 1.5 });
    const flow = flowOf(ranks, chosen, plan);
    for (const to of flow.to) lines.push({ from: chosen, to, ink: "accent", width: 3.5, arrow: true });
    for (const from of flow.from) lines.push({ from, to: chosen, ink: "accent", width: 3.5, arrow: true });
  }
  if (by === "blame" && state.blamed) lines.push(...blameLines(ranks, state.blamed));
  const marked = groups ? new Set([...groups.tp, ...groups.dp, ...groups.pp]) : null;
  scene = { ...scene, ranks, place, ...inks(ranks), lines, chosen, marked };
  setText(
    byId("mesh3d-about"),
    `pp ${ranks.sizes[0]} × dp ${ranks.sizes[1]} × tp ${ranks.sizes[2]} · ${count(ranks.rank.length)} ranks`,
  );
  canvas.setAttribute("aria-label", `Mesh of ${ranks.rank.length} ranks in three dimensions. ${summary()}`);
  showLegend();
  showRelations(ranks, chosen, groups);
  redraw();
}

function summary() {
  const named = (state.blamed?.culprits ?? [])
    .filter((c) => c.rank >= 0)
    .slice(0, 3)
    .map((c) => c.text);
  return named.length ? named.join(". ") : "No rank is slow by itself.";
}

/** {inks: names of colours, ink: the place of each rank's own in them}.
 * @param {Ranks} ranks */
function inks(ranks) {
  if (by === "state") return { inks: STATE_INKS, ink: categories(ranks) };
  const ink = new Uint8Array(ranks.rank.length).fill(UNKNOWN);
  if (state.blamed) {
    const { ranks: reported, culprits, step_s } = state.blamed;
    for (let i = 0; i < reported.rank.length; i++)
      if (reported.rank[i] < ink.length)
        ink[reported.rank[i]] = reported.named_s[i] > WAITS * step_s ? WAITING : NEITHER;
    for (const rank of culprits.flatMap((c) => [c.rank, c.peer])) if (rank >= 0 && rank < ink.length) ink[rank] = BAD;
  }
  return { inks: BLAME_INKS, ink };
}

function showLegend() {
  const entries =
    by === "blame"
      ? Object.entries(BLAME)
      : WORST_FIRST.toReversed().map((cat) => [cat === "ok" ? "healthy" : cat, CELL[cat]]);
  const lines = [
    ["tensor group", "axis-tp"],
    ["data group", "axis-dp"],
    ["pipeline", "axis-pp"],
    ["data flow", "accent"],
  ];
  fill(
    byId("mesh3d-legend"),
    ...[...entries, ...lines].map(([name, ink], i) => {
      const swatch = make("i", { class: i >= entries.length ? "line" : null });
      swatch.style.background = colour(ink);
      return make("span", {}, swatch, name);
    }),
  );
}

/** What the lines say, as text.
 * @param {Ranks} ranks @param {number} at @param {Groups | null} groups */
function showRelations(ranks, at, groups) {
  if (!groups)
    return fill(
      byId("relations"),
      make("p", { class: "muted" }, "Choose a rank: click it, or use the arrow keys in the picture."),
      make("p", {}, summary()),
    );
  /** @param {number} i */
  const name = (i) =>
    make("a", { class: "link", href: link("overview", null, { mesh: "3d", rank: ranks.rank[i] }) }, String(ranks.rank[i]));
  /** @param {number[]} places */
  const list = (places) =>
    make(
      "span",
      {},
      ...places.slice(0, 24).flatMap((i, k) => [k ? ", " : "", name(i)]),
      places.length > 24 ? ` and ${count(places.length - 24)} more` : "",
    );
  const flow = flowOf(ranks, at, plan);
  const rows = [
    ["tensor group", list(groups.tp)],
    ["data group", list(groups.dp)],
    ["pipeline", list(groups.pp)],
    ["activations from", flow.from.length ? list(flow.from) : "the data"],
    ["activations to", flow.to.length ? list(flow.to) : "the loss"],
  ];
  fill(byId("relations"), pairs(rows), make("h4", {}, "Blame"), make("p", {}, blameOf(ranks.rank[at])));
}

/** @param {number} rank */
function blameOf(rank) {
  const reported = state.blamed?.ranks;
  const i = reported?.rank.indexOf(rank) ?? -1;
  if (!reported || i < 0) return "Not known: no spans of it.";
  const named = state.blamed?.culprits.find((c) => c.rank === rank || c.peer === rank);
  if (named) return named.text;
  const waits = seconds(reported.named_s[i] + reported.jitter_s[i]);
  return `It waits ${waits} per step for others beyond the waits of the plan.`;
}

function draw() {
  const began = performance.now();
  const { context, width, height, ratio } = fit(canvas);
  context.clearRect(0, 0, width, height);
  if (!scene || width < 80) return;
  drawMesh3d(context, scene, camera, { width, height, ratio, hover });
  timings.push(performance.now() - began);
  if (timings.length > 600) timings.shift();
}

/** @param {Ranks} ranks @param {number} i */
function describe(ranks, i) {
  return [
    ["node", ranks.nodes[ranks.node[i]]],
    ["pp, dp, tp", `${ranks.pp[i]}, ${ranks.dp[i]}, ${ranks.tp[i]}`],
    ["state", ranks.states[ranks.state[i]]],
    ["doing", ranks.operations[ranks.operation[i]] || ranks.phases[ranks.phase[i]]],
    ["step time", seconds(ranks.step_seconds[i])],
  ];
}

/** @param {Ranks} ranks @param {number} i */
function choose(ranks, i) {
  select("rank", ranks.rank[i]);
  announce(
    `Rank ${ranks.rank[i]}: ${describe(ranks, i)
      .map(([name, value]) => `${name} ${value}`)
      .join(", ")}. ${blameOf(ranks.rank[i])}`,
  );
}

/** @type {Record<string, [number, number] | undefined>} yaw and pitch */
const TURNS = { a: [-0.12, 0], d: [0.12, 0], w: [0, -0.1], s: [0, 0.1] };
/** @type {Record<string, number[] | undefined>} of pp, dp and tp */
const STEPS = {
  ArrowLeft: [0, -1, 0],
  ArrowRight: [0, 1, 0],
  ArrowUp: [0, 0, 1],
  ArrowDown: [0, 0, -1],
  PageUp: [-1, 0, 0],
  PageDown: [1, 0, 0],
};

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!scene || event.ctrlKey || event.metaKey || event.altKey) return;
  const { ranks } = scene;
  const [pp, dp, tp] = ranks.sizes;
  const turn = TURNS[event.key.toLowerCase()];
  const step = STEPS[event.key];
  if (turn) turnBy(...turn);
  else if (step) {
    const from = indexOf(state.selected.rank);
    const to = from < 0 ? [0, 0, 0] : [ranks.pp[from] + step[0], ranks.dp[from] + step[1], ranks.tp[from] + step[2]];
    if (to.some((value, axis) => value < 0 || value >= [pp, dp, tp][axis])) return event.preventDefault();
    const isThere = (/** @type {number} */ _, /** @type {number} */ i) => AXES.every((axis, k) => ranks[axis][i] === to[k]);
    choose(ranks, ranks.rank.findIndex(isThere));
  } else if (event.key === "+" || event.key === "=") zoom(1.25);
  else if (event.key === "-") zoom(0.8);
  else if (event.key === "0") {
    Object.assign(camera, { yaw: -0.6, pitch: -0.45, zoom: 1 });
    redraw();
  } else if (event.key === "Escape") clearSelection();
  else return;
  event.preventDefault();
}

/** @param {number} yaw @param {number} pitch */
function turnBy(yaw, pitch) {
  camera.yaw += yaw;
  camera.pitch = Math.min(1.5, Math.max(-1.5, camera.pitch + pitch));
  redraw();
}

/** @param {number} factor */
function zoom(factor) {
  camera.zoom = Math.min(12, Math.max(0.5, camera.zoom * factor));
  redraw();
}

function listen() {
  usePointer(canvas, {
    dragged: (dx, dy) => turnBy(dx * 0.008, -dy * 0.008),
    pointed: (event, isDragging) => {
      const found = scene && !isDragging ? hit3d(scene, event.offsetX, event.offsetY) : -1;
      if (found !== hover) redraw();
      hover = found;
      tip.hidden = found < 0;
      if (!scene || found < 0) return;
      tip.replaceChildren(make("b", {}, `Rank ${scene.ranks.rank[found]}`), pairs(describe(scene.ranks, found)));
      placeTip(tip, event.offsetX, event.offsetY);
    },
    clicked: (event) => {
      const found = scene ? hit3d(scene, event.offsetX, event.offsetY) : -1;
      if (scene && found >= 0) choose(scene.ranks, found);
    },
    left: () => {
      hover = -1;
      tip.hidden = true;
      redraw();
    },
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * 0.004));
    },
    { passive: false },
  );
}

export function startMesh3d() {
  whileShown(["mesh3d"], poll, () => 10_000);
  on("ranks selected route theme", refresh);
  segments(all(".mesh3d .segments")[0], ({ by: wanted }) => {
    by = wanted;
    refresh();
  });
  canvas.addEventListener("keydown", onKey);
  listen();
  new ResizeObserver(redraw).observe(canvas);
}
