// Draws the ranks. Cells are written as pixels into an image, which is kept until something changes: 12,288 rectangles
// through the canvas cost 20 ms a frame, as pixels 2. Texts, rings, axes and what follows the pointer go over it.

import { failed } from "../drawing/colours.js";
import { count, seconds } from "../base/format.js";
import { colour, inkOn, mix, pixel } from "../base/theme.js";
/** @import { Scene } from "./mesh.js" */

const LABEL = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
const MOST_RINGS = 64;

/** The cells as an image, in the screen's own pixels: {layout, paint, view, gutter} of a canvas of this size.
 * @param {Scene} scene @param {ImageData} image @param {number} ratio */
export function paintCells(scene, image, ratio) {
  const { layout, paint, view, gutter } = scene;
  const { width, height } = image;
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const scale = view.scale * ratio;
  const gap = gapOf(scene) * ratio;
  const inks = paint.palette.map(pixel);
  const pale = pixel(mix(colour("idle"), colour("surface"), 0.35));
  const [left, top] = [Math.round((gutter.left - 3) * ratio), Math.round((gutter.top - 3) * ratio)];
  const [wide, high] = [layout.w * scale - gap, layout.h * scale - gap];
  const [ox, oy] = [view.x * ratio, view.y * ratio];
  const { x: xs, y: ys } = layout;
  const { index } = paint;
  for (let i = 0; i < index.length; i++) {
    const [x, y] = [xs[i] * scale + ox, ys[i] * scale + oy];
    const x0 = Math.max(left, Math.round(x));
    const y0 = Math.max(top, Math.round(y));
    const x1 = Math.min(width, Math.max(Math.round(x) + 1, Math.round(x + wide)));
    const y1 = Math.min(height, Math.max(Math.round(y) + 1, Math.round(y + high)));
    if (x0 >= x1) continue;
    const ink = inks[index[i]];
    if (index[i] === paint.hatched) hatch(pixels, width, [x0, y0, x1, y1], ink, pale, wide < 12 * ratio ? 3 : Math.round(7 * ratio));
    else for (let row = y0; row < y1; row++) pixels.fill(ink, row * width + x0, row * width + x1);
  }
}

/** Stripes: another shape for what was only ended along.
 * @param {Uint32Array} pixels @param {number} width @param {number[]} box x0, y0, x1, y1 @param {number} ink
 * @param {number} pale @param {number} period */
function hatch(pixels, width, [x0, y0, x1, y1], ink, pale, period) {
  for (let row = y0; row < y1; row++)
    for (let x = x0; x < x1; x++) pixels[row * width + x] = (x + row) % period < period / 2 ? ink : pale;
}

/** What is drawn over the cells: texts where there is room, rings around what is bad, the axes.
 * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} width @param {number} height */
export function drawOver(context, scene, width, height) {
  const { layout, view, gutter } = scene;
  const gap = gapOf(scene);
  const [cw, ch] = [layout.w * view.scale - gap, layout.h * view.scale - gap];
  context.save();
  context.beginPath();
  context.rect(gutter.left - 3, gutter.top - 3, width, height);
  context.clip();
  if (cw >= 30 && ch >= 16) drawTexts(context, scene, cw, ch, width, height);
  drawRings(context, scene, cw, ch);
  context.restore();
  drawAxes(context, scene, width, height);
}

/** @param {Scene} scene */
const gapOf = ({ layout, view }) => Math.max(layout.gaps.rank * Math.min(view.scale, 2), layout.w * view.scale >= 14 ? 2 : 0);

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} cw @param {number} ch @param {number} width
 * @param {number} height */
function drawTexts(context, scene, cw, ch, width, height) {
  const { layout, view, ranks, paint } = scene;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const rich = cw >= 96 && ch >= 44;
  for (let i = 0; i < ranks.rank.length; i++) {
    const x = layout.x[i] * view.scale + view.x;
    const y = layout.y[i] * view.scale + view.y;
    if (x > width || y > height || x + cw < 0 || y + ch < 0) continue;
    context.fillStyle = inkOn(paint.palette[paint.index[i]]);
    if (!rich) {
      context.font = LABEL;
      context.fillText(String(ranks.rank[i]), x + 5, y + ch / 2, cw - 8);
      continue;
    }
    context.font = `600 13px ${LABEL.slice(5)}`;
    context.fillText(`rank ${ranks.rank[i]}`, x + 10, y + ch / 2 - (scene.isPast ? 0 : 9), cw - 16);
    if (scene.isPast) continue; // what each did then is not kept
    context.font = LABEL;
    const doing = ranks.states[ranks.state[i]] === "running" ? seconds(ranks.step_seconds[i]) : ranks.states[ranks.state[i]];
    const step = (ranks.step[i] ?? 0) < 0 ? "no step" : `step ${count(ranks.step[i])}`;
    context.fillText(`${step} · ${doing}`, x + 10, y + ch / 2 + 9, cw - 16);
  }
}

/** One bad cell of four pixels among twelve thousand must be seen at once: it gets a ring.
 * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} cw @param {number} ch */
function drawRings(context, scene, cw, ch) {
  const { layout, view, cats } = scene;
  if (Math.min(cw, ch) >= 16) return;
  const bad = failed(cats, MOST_RINGS);
  if (bad.length > MOST_RINGS) return; // then the colour alone is plain enough
  for (const { style, line } of [{ style: colour("surface"), line: 6 }, { style: colour("bad"), line: 3 }]) {
    context.strokeStyle = style;
    context.lineWidth = line;
    for (const i of bad) {
      const [x, y] = [layout.x[i] * view.scale + view.x + cw / 2, layout.y[i] * view.scale + view.y + ch / 2];
      context.beginPath();
      context.arc(x, y, Math.max(cw, ch) / 2 + 8, 0, 7);
      context.stroke();
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} width @param {number} height */
function drawAxes(context, scene, width, height) {
  const { layout, view, gutter } = scene;
  const { shape, perBand, bands } = layout;
  context.font = LABEL;
  context.fillStyle = colour("muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  const pitch = layout.cellH * view.scale;
  const every = Math.max(1, Math.ceil(16 / pitch));
  for (let band = 0; band < bands; band++) {
    for (let pp = 0; pp < shape.pp; pp += every) {
      const y = (layout.top + band * layout.bandH + pp * layout.cellH) * view.scale + view.y + (layout.h * layout.down * view.scale) / 2;
      if (y < gutter.top - 4 || y > height - 6) continue;
      if (shape.pp > 1) context.fillText(`pp ${pp}`, Math.max(gutter.left, layout.left * view.scale + view.x) - 9, y);
    }
  }
  context.textAlign = "left";
  const wide = shape.by === "mesh" ? 50 : 12 + context.measureText(shape.label(0)).width;
  const step = niceStep(wide / (layout.cellW * view.scale));
  for (let dp = 0; dp < shape.dp; dp += step) {
    const band = Math.floor(dp / perBand);
    const x = (layout.left + (dp % perBand) * layout.cellW) * view.scale + view.x;
    const y = (layout.top + band * layout.bandH) * view.scale + view.y;
    if (x < gutter.left - 4 || x > width - 30 || (band > 0 && y < gutter.top)) continue;
    context.fillText(shape.label(dp), x, Math.max(gutter.top, y) - 11, step * layout.cellW * view.scale - 4);
  }
}

/** @param {number} least */
function niceStep(least) {
  for (const step of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]) if (step >= least) return step;
  return 1024;
}

/** The name of a rank whose cell has no room for it.
 * @param {CanvasRenderingContext2D} context @param {Scene} scene @param {number} i @param {number} cw */
function nameBeside(context, { layout, view, ranks }, i, cw) {
  const text = `rank ${ranks.rank[i]}`;
  context.font = `600 ${LABEL}`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  const wide = context.measureText(text).width + 10;
  const [x, y] = [layout.x[i] * view.scale + view.x + cw + 9, layout.y[i] * view.scale + view.y];
  const left = x + wide > context.canvas.clientWidth ? x - cw - 18 - wide : x;
  context.fillStyle = colour("surface");
  context.strokeStyle = colour("bad");
  context.lineWidth = 1.5;
  context.beginPath();
  context.roundRect(left, y - 9, wide, 18, 4);
  context.fill();
  context.stroke();
  context.fillStyle = colour("text");
  context.fillText(text, left + 5, y);
}

/** The culprits, the selected rank, the ranks of its node, and the one under the pointer.
 * @param {CanvasRenderingContext2D} context @param {Scene} scene
 * @param {{ culprits: number[], mates: number[], hover: number, selected: number }} marks */
export function drawMarks(context, scene, marks) {
  const { layout, view, gutter } = scene;
  const gap = gapOf(scene);
  const [cw, ch] = [Math.max(1, layout.w * view.scale - gap), Math.max(1, layout.h * view.scale - gap)];
  const round = cw > 40 ? 3 : 1;
  /** @param {number} i @param {number} grow @param {string} style @param {number} line */
  const outline = (i, grow, style, line) => {
    const [x, y] = [layout.x[i] * view.scale + view.x, layout.y[i] * view.scale + view.y];
    if (x + cw < gutter.left - 4 || y + ch < gutter.top - 4) return;
    context.strokeStyle = style;
    context.lineWidth = line;
    context.beginPath();
    context.roundRect(Math.round(x) - grow, Math.round(y) - grow, Math.round(cw) + 2 * grow, Math.round(ch) + 2 * grow, round);
    context.stroke();
  };
  for (const i of marks.culprits) {
    outline(i, 3, colour("surface"), 6);
    outline(i, 3, colour("bad"), 3);
    if (cw < 30) nameBeside(context, scene, i, cw);
  }
  for (const i of marks.mates) outline(i, 0.5, colour("accent"), 1);
  if (marks.hover >= 0) outline(marks.hover, 1, colour("text"), 1.5);
  if (marks.selected >= 0) {
    outline(marks.selected, 1.5, colour("surface"), 4);
    outline(marks.selected, 1.5, colour("accent"), 2.5);
  }
}
