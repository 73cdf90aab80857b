// Draws spans as bars, one lane for each rank, and the arrows between them. Bars thinner than a pixel are drawn once
// for each pixel, so that 40,000 spans cost no more than the screen is wide.

import { seconds } from "../base/format.js";
import { ticks } from "../drawing/chart.js";
import { colour } from "../base/theme.js";
/** @import { Scene, Spans } from "./timeline_lanes.js" */

/**
 * @typedef {CanvasRenderingContext2D} Context
 * @typedef {(time: number) => number} Scale
 * @typedef {{ width: number, height: number, arrows: boolean, selected: number | null }} Look
 */

export const [LEFT, HEAD] = [74, 22];
const [LOWEST, HIGHEST] = [26, 56]; // of a lane, in CSS pixels
const [PAIR_LOWEST, PAIR_HIGHEST] = [46, 84]; // with the prediction under it
const MEASURED = 0.58; // its share of such a lane
const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
const MOST_ARROWS = 1500; // seen at once: more are unreadable
/** @type {Record<string, string>} */
export const CLASSES = {
  forward: "span-forward",
  backward: "span-backward",
  transfer: "span-transfer",
  collective: "span-collective",
  data: "span-data",
  optimizer: "span-optimizer",
  curvature: "span-curvature",
  "host copies": "span-copies",
  other: "span-other",
  waiting: "span-wait",
};

/** Colours of what a plan has, as `holdfast schedules --draw` has them. @type {Record<string, string | undefined>} */
const PLANNED = {
  forward: "plan-forward", backward: "plan-backward", backward_input: "plan-input", backward_weight: "plan-weight",
  recompute: "plan-recompute", reduce_grad: "plan-sum",
  factor: "plan-curvature", invert: "plan-curvature", precondition: "plan-curvature",
  fetch: "plan-copies", evict: "plan-copies", snapshot: "plan-copies",
};
/** The legend of both while a prediction is shown. @type {Record<string, string>} */
export const PAIR_CLASSES = {
  forward: "plan-forward", backward: "plan-backward", "input gradients": "plan-input", "weight gradients": "plan-weight",
  recompute: "plan-recompute", sum: "plan-sum", transfer: "span-transfer", collective: "span-collective",
  data: "span-data", optimizer: "span-optimizer", curvature: "plan-curvature", "host copies": "plan-copies",
  other: "span-other", waiting: "span-wait",
};

/** Which of CLASSES a kind of span is.
 * @param {string} kind */
export function classOf(kind) {
  if (/^(forward|recompute)/.test(kind)) return "forward";
  if (kind.startsWith("backward")) return "backward";
  if (/^(factor|invert|precondition)$/.test(kind)) return "curvature";
  if (/^(fetch|evict|snapshot)$|^host:/.test(kind)) return "host copies";
  if (/(^|:)(send|recv|isend|irecv)/.test(kind)) return "transfer";
  if (/reduce|gather|scatter|broadcast|barrier|unshard|all_to_all/.test(kind)) return "collective";
  if (/^(load|data)/.test(kind)) return "data";
  return kind.startsWith("optimizer") ? "optimizer" : "other";
}

/** How high a lane is: few ranks get more room.
 * @param {number} lanes @param {number} height @param {boolean} paired */
export const laneHeight = (lanes, height, paired = false) =>
  Math.min(
    paired ? PAIR_HIGHEST : HIGHEST,
    Math.max(paired ? PAIR_LOWEST : LOWEST, Math.floor((height - HEAD - 8) / lanes)),
  );

/** @param {Context} context @param {Scene} scene @param {Look} look */
export function drawTimeline(context, scene, { width, height, arrows, selected }) {
  const { view, lanes, lane: LANE } = scene;
  const scale = (width - LEFT) / (view.t1 - view.t0);
  /** @type {Scale} */
  const px = (time) => LEFT + (time - view.t0) * scale;
  context.font = FONT;
  const first = Math.max(0, Math.floor(view.y / LANE));
  const last = Math.min(lanes.length, Math.ceil((view.y + height - HEAD) / LANE));
  drawGrid(context, scene, { px, width, height });
  context.save();
  context.beginPath();
  context.rect(0, HEAD, width, height - HEAD);
  context.clip();
  drawLanes(context, scene, { first, last, width, selected });
  context.beginPath();
  context.rect(LEFT, HEAD, width - LEFT, height - HEAD);
  context.clip();
  for (let l = first; l < last; l++) {
    drawSpans(context, scene, l, { px, width });
    drawPredicted(context, scene, l, { px, width });
  }
  if (arrows) drawArrows(context, scene, { px, first, last, width });
  outline(context, scene, scene.hover, px, "text", 1);
  outline(context, scene, scene.chosen, px, "accent", 2.5);
  context.restore();
}

/** @param {Context} context @param {Scene} scene @param {{ px: Scale, width: number, height: number }} look */
function drawGrid(context, { view }, { px, width, height }) {
  context.textBaseline = "middle";
  context.textAlign = "center";
  for (const time of ticks(view.t0 / 1e6, view.t1 / 1e6, (width - LEFT) / 110)) {
    const x = Math.round(px(time * 1e6)) + 0.5;
    if (x < LEFT) continue;
    context.strokeStyle = colour("line");
    context.beginPath();
    context.moveTo(x, HEAD);
    context.lineTo(x, height);
    context.stroke();
    context.fillStyle = colour("muted");
    context.fillText(time ? seconds(time) : "0", Math.min(width - 22, x), HEAD / 2);
  }
}

/** @param {Context} context @param {Scene} scene
 * @param {{ first: number, last: number, width: number, selected: number | null }} look */
function drawLanes(context, scene, { first, last, width, selected }) {
  const { lanes, view, lane: LANE } = scene;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let l = first; l < last; l++) {
    const y = HEAD + l * LANE - view.y;
    if (lanes[l].rank === selected) {
      context.fillStyle = colour("accent-soft");
      context.fillRect(0, y, width, LANE);
    }
    context.fillStyle = colour(lanes[l].rank === selected ? "accent" : "muted");
    context.fillText(`rank ${lanes[l].rank}`, LEFT - 8, y + measuredHeight(scene) / 2);
    if (scene.paired) context.fillText("predicted", LEFT - 8, y + (LANE + measuredHeight(scene)) / 2 - 2);
    context.fillStyle = colour("line");
    context.fillRect(0, Math.round(y + LANE) - 1, width, 1);
  }
}

/** What of a lane is for measured spans. @param {Scene} scene */
const measuredHeight = ({ lane, paired }) => (paired ? Math.round(lane * MEASURED) : lane);
/** @param {Scene} scene @param {number} l @param {number} depth */
const top = (scene, l, depth) => HEAD + l * scene.lane - scene.view.y + 3 + depth * measuredHeight(scene) * 0.16;
/** @param {Scene} scene @param {number} depth */
const tall = (scene, depth) => measuredHeight(scene) - 7 - depth * measuredHeight(scene) * 0.2;
/** @param {Scene} scene @param {string} kind */
const inkOf = ({ paired }, kind) => (paired && PLANNED[kind]) || CLASSES[classOf(kind)];

/** @param {Context} context @param {Scene} scene @param {number} l @param {{ px: Scale, width: number }} look */
function drawSpans(context, scene, l, { px, width }) {
  const { data, lanes, view } = scene;
  const { from, to } = lanes[l];
  const reached = [-1, -1, -1, -1]; // last pixel drawn, by depth
  const inks = (scene.inks ??= data.kinds.map((kind) => inkOf(scene, kind)));
  context.textAlign = "left";
  for (let i = from; i < to; i++) {
    const begin = data.start[i];
    if (begin > view.t1) break;
    if (begin + data.took[i] < view.t0) continue;
    const depth = lanes.depth[i];
    const x = Math.max(LEFT, px(begin));
    const long = Math.min(width, px(begin + data.took[i])) - x;
    if (x + long < reached[depth]) continue;
    reached[depth] = x + Math.max(1, long);
    const y = top(scene, l, depth);
    context.fillStyle = colour(inks[data.kind[i]]);
    context.fillRect(x, y, Math.max(1, long - (long > 3 ? 1 : 0)), tall(scene, depth));
    // Until its last peer arrived it only waited: that is no transfer.
    const waited = data.waited[i] ? Math.min(width, px(begin + data.waited[i])) - x : 0;
    if (waited >= 1) hatch(context, x, y, Math.min(waited, long), tall(scene, depth));
    if (long < 24 || tall(scene, depth) < 11) continue;
    const text = data.kinds[data.kind[i]] + (data.micro_batch[i] >= 0 ? ` ${data.micro_batch[i]}` : "");
    if (context.measureText(text).width > long - 8) continue;
    context.fillStyle = colour(inks[data.kind[i]].startsWith("plan-") ? "plan-text" : "span-text");
    context.fillText(text, x + 4, y + tall(scene, depth) / 2 + 0.5);
  }
}

/** What the plan predicts for the rank of a lane, under its measured spans.
 * @param {Context} context @param {Scene} scene @param {number} l @param {{ px: Scale, width: number }} look */
function drawPredicted(context, scene, l, { px, width }) {
  const { paired, lanes, lane, view } = scene;
  const place = paired?.lanes.get(lanes[l].rank);
  if (!paired || !place) return;
  const { data, shift } = paired;
  const y = HEAD + l * lane - view.y + measuredHeight(scene) - 2;
  const high = lane - measuredHeight(scene) - 3;
  context.textAlign = "left";
  let reached = -1;
  for (let i = place.from; i < place.to; i++) {
    const begin = data.start[i] + shift;
    if (begin > view.t1) break;
    if (begin + data.took[i] < view.t0) continue;
    const x = Math.max(LEFT, px(begin));
    const long = Math.min(width, px(begin + data.took[i])) - x;
    if (x + long < reached) continue;
    reached = x + Math.max(1, long);
    context.fillStyle = colour(PLANNED[data.kinds[data.kind[i]]] ?? "span-other");
    context.fillRect(x, y, Math.max(1, long - (long > 3 ? 1 : 0)), high);
    const text = data.micro_batch[i] >= 0 ? `${data.micro_batch[i]}` : "sum";
    if (high < 11 || context.measureText(text).width > long - 4) continue;
    context.fillStyle = colour("plan-text");
    context.fillText(text, x + 3, y + high / 2 + 0.5);
  }
}

/** Waiting: grey, with slanted lines where there is room for them.
 * @param {Context} context @param {number} x @param {number} y @param {number} wide @param {number} high */
function hatch(context, x, y, wide, high) {
  context.fillStyle = colour("span-wait");
  context.fillRect(x, y, wide, high);
  if (wide < 8) return;
  context.save();
  context.beginPath();
  context.rect(x, y, wide, high);
  context.clip();
  context.strokeStyle = colour("muted");
  context.lineWidth = 1;
  context.beginPath();
  for (let at = x - high; at < x + wide; at += 6) {
    context.moveTo(at, y + high);
    context.lineTo(at + high, y);
  }
  context.stroke();
  context.restore();
}

/** @param {Context} context @param {Scene} scene @param {{ px: Scale, first: number, last: number, width: number }} look */
function drawArrows(context, scene, { px, first, last, width }) {
  const { data, lanes, view, lane: LANE } = scene;
  const { name, source, sent, target, seen } = data.arrows;
  /** @type {number[][]} */
  const chosen = [];
  for (let i = 0; i < name.length && chosen.length <= MOST_ARROWS; i++) {
    if (seen[i] < view.t0 || sent[i] > view.t1) continue;
    const [a, b] = [lanes.place.get(source[i]), lanes.place.get(target[i])];
    if (a === undefined || b === undefined) continue;
    if (Math.max(a, b) < first || Math.min(a, b) >= last) continue;
    chosen.push([i, a, b]);
  }
  // Too many to distinguish: those of what the pointer or the cursor is on are left.
  const focus = scene.hover >= 0 ? scene.hover : scene.chosen;
  const crowded = chosen.length > Math.min(MOST_ARROWS, width / 6);
  for (const [i, a, b] of chosen) {
    const mine = focus >= 0 && touches(data, focus, source[i], sent[i], target[i], seen[i]);
    if (crowded && !mine) continue;
    const [x0, x1] = [px(sent[i]), px(seen[i])];
    const [y0, y1] = [a, b].map((lane) => HEAD + lane * LANE - view.y + measuredHeight(scene) / 2);
    context.strokeStyle = context.fillStyle = colour(mine ? "accent" : name[i] ? "arrow-last" : "arrow-message");
    context.globalAlpha = mine ? 1 : 0.55;
    context.lineWidth = mine ? 2 : 1;
    context.beginPath();
    context.moveTo(x0, y0);
    const bend = Math.max(6, Math.abs(x1 - x0) / 2);
    context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
    context.stroke();
    context.beginPath();
    context.moveTo(x1, y1);
    context.lineTo(x1 - 5, y1 - 3);
    context.lineTo(x1 - 5, y1 + 3);
    context.fill();
  }
  context.globalAlpha = 1;
}

/** @param {Spans} data @param {number} i @param {number} rank @param {number} at */
const inside = (data, i, rank, at) =>
  data.rank[i] === rank && data.start[i] <= at + 1 && at <= data.start[i] + data.took[i] + 1;
/** @param {Spans} data @param {number} i @param {number} source @param {number} sent @param {number} target
 * @param {number} seen */
const touches = (data, i, source, sent, target, seen) => inside(data, i, source, sent) || inside(data, i, target, seen);

/** @param {Context} context @param {Scene} scene @param {number} i @param {Scale} px @param {string} ink @param {number} line */
function outline(context, scene, i, px, ink, line) {
  if (i < 0) return;
  const { data, lanes } = scene;
  const [l, depth] = [lanes.place.get(data.rank[i]) ?? 0, lanes.depth[i]];
  const x = px(data.start[i]);
  context.strokeStyle = colour(ink);
  context.lineWidth = line;
  context.strokeRect(
    x - 0.5,
    top(scene, l, depth) - 0.5,
    Math.max(2, px(data.start[i] + data.took[i]) - x),
    tall(scene, depth) + 1,
  );
}
