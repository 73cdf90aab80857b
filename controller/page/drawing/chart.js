// A small line chart on a canvas: nice ticks, one min-max stroke per pixel column (so 50,000 points cost as much as
// 500 and no spike is lost), marks, a crosshair. The vertical range follows the bulk; spikes above it get a caret.

import { fit, framed } from "../base/dom.js";
import { known } from "../base/format.js";
import { colour } from "../base/theme.js";

const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
const PAD = { left: 54, right: 14, top: 10, bottom: 22 };

/**
 * @typedef {(number | null)[]} Values
 * @typedef {{ x: number, colour: string }} Mark
 * @typedef {{ x: number[], y: Values, stroke: string, dash: number[] }} Line
 * @typedef {(value: number) => number} Scale
 * @typedef {{ left: number, top: number, width: number, height: number, x0: number, x1: number, low: number, high: number,
 *   px: Scale, py: Scale }} Frame
 */

export class Chart {
  /** cap: highest multiple of the median shown.
   * @param {HTMLCanvasElement} canvas
   * @param {{ stroke: string, tick: (value: number) => string, cap?: number }} options */
  constructor(canvas, options) {
    this.canvas = canvas;
    this.options = options;
    /** @type {number[]} */
    this.x = [];
    /** @type {Values} */
    this.y = [];
    /** @type {Mark[]} */
    this.marks = [];
    /** @type {Line[]} */
    this.behind = []; // other runs, drawn first
    /** @type {[number, number] | null} */
    this.bounds = null; // of what is shown vertically
    /** @type {number | null} */
    this.cursor = null; // x under the pointer, shared between charts
    /** @type {(x: number | null) => void} */
    this.onCursor = () => {};
    /** @type {Frame | null} */
    this.frame = null; // of the last drawing
    this.redraw = framed(() => this.draw());
    new ResizeObserver(this.redraw).observe(canvas);
    canvas.addEventListener("pointermove", (event) => this.onCursor(this.xAt(event.offsetX)));
    canvas.addEventListener("pointerleave", () => this.onCursor(null));
  }

  /** @param {number[]} x @param {Values} y @param {Mark[]} marks @param {Line[]} behind */
  set(x, y, marks, behind = []) {
    Object.assign(this, { x, y, marks, behind });
    this.bounds = this.range();
    this.redraw();
  }

  /** Position of the point nearest to a value of x; -1 when there is none.
   * @param {number} value */
  nearest(value) {
    let [low, high] = [0, this.x.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.x[middle] < value) low = middle + 1;
      else high = middle;
    }
    return low > 0 && value - this.x[low - 1] < this.x[low] - value ? low - 1 : this.x.length ? low : -1;
  }

  /** @param {number} pixel */
  xAt(pixel) {
    if (!this.frame) return null;
    const { left, width, x0, x1 } = this.frame;
    return x0 + ((pixel - left) / width) * (x1 - x0);
  }

  draw() {
    const { context, width: full, height: tall } = fit(this.canvas);
    context.clearRect(0, 0, full, tall);
    const [width, height] = [full - PAD.left - PAD.right, tall - PAD.top - PAD.bottom];
    if (width < 20 || height < 20 || this.bounds === null) return;
    const [low, high] = this.bounds;
    const series = [this, ...this.behind].filter((one) => one.x.length);
    const x0 = Math.min(...series.map((one) => one.x[0]));
    const x1 = Math.max(x0 + 1, ...series.map((one) => Math.max(one.x[one.x.length - 1], one.x[0])));
    /** @type {Scale} */
    const px = (x) => PAD.left + ((x - x0) / (x1 - x0)) * width;
    /** @type {Scale} */
    const py = (y) => PAD.top + height - ((y - low) / (high - low)) * height;
    const frame = { left: PAD.left, top: PAD.top, width, height, x0, x1, low, high, px, py };
    this.frame = frame;
    context.font = FONT;
    this.drawGrid(context, frame);
    this.drawMarks(context, frame);
    for (const other of this.behind) this.drawLine(context, frame, other);
    this.drawLine(context, frame, { x: this.x, y: this.y, stroke: this.options.stroke, dash: [] });
    this.drawCursor(context, frame);
  }

  /** @returns {[number, number] | null} */
  range() {
    const values = [this, ...this.behind].flatMap((one) => one.y.filter(known));
    if (!values.length) return null;
    const sorted = Float64Array.from(values).sort();
    const low = sorted[0];
    let high = sorted[sorted.length - 1];
    if (this.options.cap) high = Math.min(high, sorted[sorted.length >> 1] * this.options.cap);
    const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  }

  /** @param {CanvasRenderingContext2D} context @param {Frame} frame */
  drawGrid(context, { left, top, width, height, px, py, x0, x1, low, high }) {
    context.strokeStyle = colour("line");
    context.fillStyle = colour("muted");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const y of ticks(low, high, Math.max(2, height / 34))) {
      const at = Math.round(py(y)) + 0.5;
      context.beginPath();
      context.moveTo(left, at);
      context.lineTo(left + width, at);
      context.stroke();
      context.fillText(this.options.tick(y), left - 8, at);
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const x of ticks(x0, x1, width / 80)) {
      if (!Number.isInteger(x)) continue;
      const at = Math.min(left + width - 12, Math.max(left + 6, px(x)));
      context.fillText(x.toLocaleString("en-US"), at, top + height + 7);
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Frame} frame */
  drawMarks(context, { top, height, px, x0, x1 }) {
    for (const mark of this.marks) {
      if (mark.x < x0 || mark.x > x1) continue;
      const at = Math.round(px(mark.x)) + 0.5;
      context.strokeStyle = context.fillStyle = colour(mark.colour);
      context.setLineDash([3, 3]);
      context.beginPath();
      context.moveTo(at, top);
      context.lineTo(at, top + height);
      context.stroke();
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(at - 4, top - 6);
      context.lineTo(at + 4, top - 6);
      context.lineTo(at, top);
      context.fill();
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Frame} frame @param {Line} line */
  drawLine(context, { left, top, width, px, py, high }, { x, y, stroke, dash }) {
    context.strokeStyle = context.fillStyle = colour(stroke);
    context.lineWidth = 1.5;
    context.setLineDash(dash);
    context.lineJoin = "round";
    context.beginPath();
    let [column, least, most, last, drawing] = [-1, 0, 0, 0, false];
    const carets = new Set();
    const flush = () => {
      if (!drawing || column < 0) return;
      if (most - least > 0.5) {
        context.lineTo(left + column, least);
        context.lineTo(left + column, most);
      }
      context.lineTo(left + column, last);
    };
    for (let i = 0; i < x.length; i++) {
      const value = y[i];
      if (!known(value)) {
        flush();
        [drawing, column] = [false, -1];
        continue;
      }
      const at = Math.round((px(x[i]) - left) * 2) / 2;
      if (value > high) carets.add(Math.round(at));
      const to = Math.max(top, py(value));
      if (at !== column) {
        flush();
        if (!drawing) context.moveTo(left + at, to);
        [column, least, most, drawing] = [at, to, to, true];
      }
      [least, most, last] = [Math.min(least, to), Math.max(most, to), to];
    }
    flush();
    context.stroke();
    context.setLineDash([]);
    if (x.length === 1) context.fillRect(left - 1, last - 1, 3, 3);
    if (carets.size > width / 4) return;
    for (const at of carets) {
      context.beginPath();
      context.moveTo(left + at - 3.5, top + 3);
      context.lineTo(left + at + 3.5, top + 3);
      context.lineTo(left + at, top - 3);
      context.fill();
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Frame} frame */
  drawCursor(context, { top, height, px, py, high }) {
    if (this.cursor === null) return;
    const i = this.nearest(this.cursor);
    const value = this.y[i];
    if (!known(value)) return;
    const at = Math.round(px(this.x[i])) + 0.5;
    context.strokeStyle = colour("faint");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(at, top);
    context.lineTo(at, top + height);
    context.stroke();
    context.fillStyle = colour(this.options.stroke);
    context.beginPath();
    context.arc(at, py(Math.min(value, high)), 3.5, 0, 7);
    context.fill();
  }
}

/** Round numbers from low to high, about as many as asked.
 * @param {number} low @param {number} high @param {number} many */
export function ticks(low, high, many) {
  const rough = (high - low) / Math.max(1, many);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough) ?? 10 * power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step + 0); // not -0
  return found;
}
