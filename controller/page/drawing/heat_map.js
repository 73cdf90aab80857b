// A heat map of any size on a canvas: names along two sides, a cell for each pair. Where cells are finer than pixels a
// pixel shows the worst of its cells, so that one slow rank of 12,288 is not averaged away. Keys move a cursor.

import { level as levelOf } from "./colours.js";
import { fit, framed, make, pairs, placeTip } from "../base/dom.js";
import { announce } from "../base/select.js";
import { colour, pixel } from "../base/theme.js";
/** @import { Pair } from "../base/dom.js" */

const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
const MOST_WORST = 50; // cells that N goes through, from the worst on
const WORSE = 1.05; // times what is usual, from which it does
const LEAST = { x: 3, y: 3 }; // CSS pixels of a cell; finer ones share
/** @type {number[]} */
export const timings = []; // milliseconds of scripting per frame

/** @type {Record<string, number[] | undefined>} columns and rows */
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/**
 * @typedef {{ column: number, row: number }} Cell
 * @typedef {{ left: number, top: number, width: number, height: number }} Box
 * @typedef {{ columns: string[], rows: string[], level: Uint8Array, palette: string[], passed?: boolean[] }} Data level: rows
 *   × columns; palette: css, the last for unknown; passed: rows that N passes by
 * @typedef {{ describe: (column: number, row: number) => [string, Pair[]], choose: (column: number, row: number) => void }} Options
 */

export class HeatMap {
  /** @param {HTMLCanvasElement} canvas @param {HTMLElement} tip @param {Options} options */
  constructor(canvas, tip, options) {
    this.canvas = canvas;
    this.tip = tip;
    this.options = options;
    /** @type {Data | null} */
    this.data = null;
    /** @type {Cell | null} */
    this.cursor = null;
    /** @type {Cell | null} */
    this.hover = null;
    /** @type {ImageData | null} */
    this.image = null; // of the cells
    /** @type {Box | null} */
    this.box = null; // of the cells, as they were drawn last
    this.view = { x0: 0, x1: 1, y0: 0, y1: 1 }; // the part of all cells that is seen
    this.redraw = framed(() => this.draw());
    new ResizeObserver(this.redraw).observe(canvas);
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", (event) => this.onClick(event));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** @param {Data} data */
  set(data) {
    const { data: before } = this;
    if (!before || before.columns.length !== data.columns.length || before.rows.length !== data.rows.length)
      this.view = { x0: 0, x1: 1, y0: 0, y1: 1 };
    this.data = data;
    if (this.cursor && (this.cursor.column >= data.columns.length || this.cursor.row >= data.rows.length))
      this.cursor = null;
    this.redraw();
  }

  clear() {
    this.data = null;
    this.redraw();
  }

  /** How many cells there are each way, and which of them are seen.
   * @param {Data} data */
  range({ columns, rows }) {
    const { x0, x1, y0, y1 } = this.view;
    return { first: x0 * columns.length, last: x1 * columns.length, top: y0 * rows.length, bottom: y1 * rows.length };
  }

  draw() {
    const began = performance.now();
    const { context, width, height, ratio } = fit(this.canvas);
    context.clearRect(0, 0, width, height);
    const { data } = this;
    if (!data || width < 80 || height < 40 || !data.columns.length) return;
    context.font = FONT;
    const wide = Math.min(
      width * 0.3,
      Math.max(...sample(data.rows).map((name) => context.measureText(name).width)) + 20,
    );
    const box = { left: wide, top: 10, width: width - wide - 12, height: height - 36 };
    this.box = box;
    this.paintCells(context, data, box, ratio);
    this.drawNames(context, data, box);
    this.drawCursor(context, data, box);
    timings.push(performance.now() - began);
    if (timings.length > 600) timings.shift();
  }

  /** @param {CanvasRenderingContext2D} context @param {Data} data @param {Box} box @param {number} ratio */
  paintCells(context, data, box, ratio) {
    const { columns, level, palette } = data;
    const { first, last, top, bottom } = this.range(data);
    const [wide, high] = [Math.round(box.width * ratio), Math.round(box.height * ratio)];
    const nx = Math.min(Math.ceil(last - first), Math.floor(box.width / LEAST.x));
    const ny = Math.min(Math.ceil(bottom - top), Math.floor(box.height / LEAST.y));
    const worst = new Uint8Array(nx * ny);
    const seen = new Uint8Array(nx * ny);
    const [perX, perY] = [(last - first) / nx, (bottom - top) / ny];
    const unknown = palette.length - 1;
    for (let row = Math.floor(top); row < bottom; row++) {
      const y = Math.min(ny - 1, Math.max(0, Math.floor((row + 0.5 - top) / perY)));
      for (let column = Math.floor(first); column < last; column++) {
        const value = level[row * columns.length + column];
        if (value === unknown) continue;
        const at = y * nx + Math.min(nx - 1, Math.max(0, Math.floor((column + 0.5 - first) / perX)));
        if (!seen[at] || value > worst[at]) worst[at] = value;
        seen[at] = 1;
      }
    }
    const inks = palette.map(pixel);
    const kept = this.image?.width === wide && this.image.height === high ? this.image : null;
    const image = (this.image = kept ?? new ImageData(wide, high));
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0);
    const gap = box.width / nx >= 12 ? Math.round(ratio) : 0;
    for (let y = 0; y < ny; y++) {
      const [y0, y1] = [
        Math.round((y * high) / ny),
        Math.round(((y + 1) * high) / ny) - (box.height / ny >= 8 ? Math.round(ratio) : 0),
      ];
      for (let x = 0; x < nx; x++) {
        const at = y * nx + x;
        pixels.fill(
          inks[seen[at] ? worst[at] : unknown],
          y0 * wide + Math.round((x * wide) / nx),
          y0 * wide + Math.round(((x + 1) * wide) / nx) - gap,
        );
      }
      for (let line = y0 + 1; line < y1; line++) pixels.copyWithin(line * wide, y0 * wide, (y0 + 1) * wide);
    }
    context.putImageData(image, Math.round(box.left * ratio), Math.round(box.top * ratio));
  }

  /** @param {CanvasRenderingContext2D} context @param {Data} data @param {Box} box */
  drawNames(context, data, box) {
    const { columns, rows } = data;
    const { first, last, top, bottom } = this.range(data);
    context.fillStyle = colour("muted");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const [pitchX, pitchY] = [box.width / (last - first), box.height / (bottom - top)];
    const everyY = Math.max(1, Math.ceil(15 / pitchY));
    for (let row = Math.ceil(top / everyY) * everyY; row < bottom; row += everyY) {
      context.fillText(rows[row], box.left - 8, box.top + (row + 0.5 - top) * pitchY, box.left - 12);
    }
    context.textAlign = "center";
    const everyX = Math.max(1, Math.ceil(56 / pitchX));
    for (let column = Math.ceil(first / everyX) * everyX; column < last; column += everyX) {
      context.fillText(
        columns[column],
        Math.min(box.left + box.width - 14, box.left + (column + 0.5 - first) * pitchX),
        box.top + box.height + 13,
      );
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Data} data @param {Box} box */
  drawCursor(context, data, box) {
    const { first, last, top, bottom } = this.range(data);
    const [pitchX, pitchY] = [box.width / (last - first), box.height / (bottom - top)];
    for (const { cell, ink, line } of [
      { cell: this.hover, ink: "text", line: 1 },
      { cell: this.cursor, ink: "accent", line: 2.5 },
    ]) {
      if (!cell || cell.column + 1 <= first || cell.column >= last || cell.row + 1 <= top || cell.row >= bottom)
        continue;
      context.strokeStyle = colour(ink);
      context.lineWidth = line;
      context.strokeRect(
        box.left + (cell.column - first) * pitchX - 1,
        box.top + (cell.row - top) * pitchY - 1,
        Math.max(4, pitchX) + 1,
        Math.max(4, pitchY) + 1,
      );
    }
  }

  /** @param {MouseEvent} event */
  at(event) {
    if (!this.data || !this.box) return null;
    const { first, last, top, bottom } = this.range(this.data);
    const [x, y] = [(event.offsetX - this.box.left) / this.box.width, (event.offsetY - this.box.top) / this.box.height];
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    const cell = { column: Math.floor(first + x * (last - first)), row: Math.floor(top + y * (bottom - top)) };
    return this.worstNear(this.data, cell, (last - first) / this.box.width, (bottom - top) / this.box.height);
  }

  /** Of the cells that share the pointer's pixels, the one whose colour is seen.
   * @param {Data} data @param {Cell} cell @param {number} perX @param {number} perY */
  worstNear({ columns, rows, level, palette }, cell, perX, perY) {
    let best = cell;
    let most = -1;
    for (let row = cell.row; row < Math.min(rows.length, cell.row + Math.ceil(perY * LEAST.y)); row++) {
      for (
        let column = cell.column;
        column < Math.min(columns.length, cell.column + Math.ceil(perX * LEAST.x));
        column++
      ) {
        const value = level[row * columns.length + column];
        if (value !== palette.length - 1 && value > most) [most, best] = [value, { column, row }];
      }
    }
    return best;
  }

  /** @param {PointerEvent} event */
  onMove(event) {
    this.hover = this.at(event);
    if (!this.hover) this.tip.hidden = true;
    else {
      const [title, rows] = this.options.describe(this.hover.column, this.hover.row);
      this.tip.replaceChildren(make("b", {}, title), pairs(rows));
      placeTip(this.tip, event.offsetX, event.offsetY);
    }
    this.redraw();
  }

  leave() {
    this.hover = null;
    this.tip.hidden = true;
    this.redraw();
  }

  /** @param {MouseEvent} event */
  onClick(event) {
    const cell = this.at(event);
    if (cell) this.choose(cell);
  }

  /** @param {Cell} cell */
  choose(cell) {
    this.cursor = cell;
    this.options.choose(cell.column, cell.row);
    const [title, rows] = this.options.describe(cell.column, cell.row);
    announce(`${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}`);
    if (this.data) this.reveal(this.data, cell);
    this.redraw();
  }

  /** @param {Data} data @param {Cell} cell */
  reveal({ columns, rows }, { column, row }) {
    /** @param {number} low @param {number} high @param {number} at */
    const inside = (low, high, at) => (at < low ? at - low : at > high ? at - high : 0);
    const dx = inside(this.view.x0, this.view.x1 - 1 / columns.length, column / columns.length);
    const dy = inside(this.view.y0, this.view.y1 - 1 / rows.length, row / rows.length);
    this.view = { x0: this.view.x0 + dx, x1: this.view.x1 + dx, y0: this.view.y0 + dy, y1: this.view.y1 + dy };
  }

  /** @param {Data} data @param {number} factor @param {number} x @param {number} y */
  zoom({ columns, rows }, factor, x = 0.5, y = 0.5) {
    /** @param {number} low @param {number} high @param {number} at @param {number} least */
    const part = (low, high, at, least) => {
      const span = Math.min(1, Math.max(least, (high - low) / factor));
      const from = Math.min(1 - span, Math.max(0, low + (high - low - span) * at));
      return [from, from + span];
    };
    const [x0, x1] = part(this.view.x0, this.view.x1, x, Math.min(1, 8 / columns.length));
    const [y0, y1] = part(this.view.y0, this.view.y1, y, Math.min(1, 24 / rows.length)); // few rows are always all seen
    this.view = { x0, x1, y0, y1 };
    this.redraw();
  }

  /** @param {WheelEvent} event */
  onWheel(event) {
    if (!this.data || !this.box || (!event.ctrlKey && !event.metaKey && this.view.x1 - this.view.x0 === 1)) return;
    event.preventDefault();
    this.zoom(
      this.data,
      Math.exp(-event.deltaY * 0.004),
      (event.offsetX - this.box.left) / this.box.width,
      (event.offsetY - this.box.top) / this.box.height,
    );
  }

  /** @param {KeyboardEvent} event */
  onKey(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const { columns, rows } = this.data;
    const move = MOVES[event.key];
    const from = this.cursor ?? { column: move ? -Math.max(0, move[0]) : -1, row: move ? -Math.max(0, move[1]) : 0 };
    /** @param {number} value @param {number} many */
    const clamp = (value, many) => Math.min(many - 1, Math.max(0, value));
    if (move)
      this.choose({
        column: clamp(from.column + move[0], columns.length),
        row: clamp(from.row + move[1], rows.length),
      });
    else if (event.key === "Home") this.choose({ column: 0, row: from.row });
    else if (event.key === "End") this.choose({ column: columns.length - 1, row: from.row });
    else if (event.key === "+" || event.key === "=") this.zoom(this.data, 1.6);
    else if (event.key === "-") this.zoom(this.data, 1 / 1.6);
    else if (event.key === "0") this.zoom(this.data, 1e-9);
    else if (event.key.toLowerCase() === "n") this.nextWorst(this.data);
    else return;
    event.preventDefault();
  }

  /** The worst cells in turn.
   * @param {Data} data */
  nextWorst({ columns, level, palette, passed }) {
    /** @type {number[][]} */
    const at = Array.from(palette, () => []); // by level, no more than are looked at
    for (let cell = 0; cell < level.length; cell++) {
      if (at[level[cell]].length < MOST_WORST && !passed?.[Math.floor(cell / columns.length)]) at[level[cell]].push(cell);
    }
    const worst = at.slice(levelOf(WORSE), -1).reverse().flat().slice(0, MOST_WORST);
    if (!worst.length) return announce("nothing stands out");
    const now = this.cursor ? this.cursor.row * columns.length + this.cursor.column : -1;
    const next = worst[(worst.indexOf(now) + 1) % worst.length];
    this.choose({ column: next % columns.length, row: Math.floor(next / columns.length) });
  }
}

/** Some of many names, to see how long they are.
 * @param {string[]} names */
const sample = (names) => (names.length <= 40 ? names : [...names.slice(0, 20), ...names.slice(-20)]);
