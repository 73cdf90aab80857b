// A heat map of any size on a canvas: names along two sides, a cell for each pair. Where cells are finer than pixels a
// pixel shows the worst of its cells, so that one slow rank of 12,288 is not averaged away. Keys move a cursor.

import { level as levelOf } from "./colours.js";
import { fit, framed, make, pairs, placeTip } from "../base/dom.js";
import { announce } from "../base/select.js";
import { colour, pixel } from "../base/theme.js";

const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
const MOST_WORST = 50; // cells that N goes through, from the worst on
const WORSE = 1.05; // times what is usual, from which it does
const LEAST = { x: 3, y: 3 }; // CSS pixels of a cell; finer ones share
export const timings = []; // milliseconds of scripting per frame

export class HeatMap {
  /** options: {describe(column, row) -> [title, rows of pairs], choose(column, row)} */
  constructor(canvas, tip, options) {
    this.canvas = canvas;
    this.tip = tip;
    this.options = options;
    /** @type {any} */
    this.data = null;
    /** @type {{ column: number, row: number } | null} */
    this.cursor = null;
    /** @type {{ column: number, row: number } | null} */
    this.hover = null;
    this.view = { x0: 0, x1: 1, y0: 0, y1: 1 }; // the part of all cells that is seen
    this.redraw = framed(() => this.draw());
    new ResizeObserver(this.redraw).observe(canvas);
    canvas.addEventListener("keydown", (event) => this.onKey(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("click", (event) => this.onClick(event));
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
  }

  /** data: {columns: [name], rows: [name], level: Uint8Array (rows × columns), palette: [css, the last: unknown],
   * passed: rows that N passes by, or nothing} */
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

  /** How many cells there are each way, and which of them are seen. */
  range() {
    const { columns, rows } = this.data;
    const { x0, x1, y0, y1 } = this.view;
    return { first: x0 * columns.length, last: x1 * columns.length, top: y0 * rows.length, bottom: y1 * rows.length };
  }

  draw() {
    const began = performance.now();
    const { context, width, height, ratio } = fit(this.canvas);
    context.clearRect(0, 0, width, height);
    if (!this.data || width < 80 || height < 40 || !this.data.columns.length) return;
    context.font = FONT;
    const wide = Math.min(
      width * 0.3,
      Math.max(...sample(this.data.rows).map((name) => context.measureText(name).width)) + 20,
    );
    const box = { left: wide, top: 10, width: width - wide - 12, height: height - 36 };
    this.box = box;
    this.paintCells(context, box, ratio);
    this.drawNames(context, box);
    this.drawCursor(context, box);
    timings.push(performance.now() - began);
    if (timings.length > 600) timings.shift();
  }

  paintCells(context, box, ratio) {
    const { columns, level, palette } = this.data;
    const { first, last, top, bottom } = this.range();
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
    if (this.image?.width !== wide || this.image.height !== high) this.image = new ImageData(wide, high);
    const pixels = new Uint32Array(this.image.data.buffer);
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
    context.putImageData(this.image, Math.round(box.left * ratio), Math.round(box.top * ratio));
  }

  drawNames(context, box) {
    const { columns, rows } = this.data;
    const { first, last, top, bottom } = this.range();
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

  drawCursor(context, box) {
    const { first, last, top, bottom } = this.range();
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

  at(event) {
    if (!this.data || !this.box) return null;
    const { first, last, top, bottom } = this.range();
    const [x, y] = [(event.offsetX - this.box.left) / this.box.width, (event.offsetY - this.box.top) / this.box.height];
    if (x < 0 || x >= 1 || y < 0 || y >= 1) return null;
    const cell = { column: Math.floor(first + x * (last - first)), row: Math.floor(top + y * (bottom - top)) };
    return this.worstNear(cell, (last - first) / this.box.width, (bottom - top) / this.box.height);
  }

  /** Of the cells that share the pointer's pixels, the one whose colour is seen. */
  worstNear(cell, perX, perY) {
    const { columns, rows, level, palette } = this.data;
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

  onClick(event) {
    const cell = this.at(event);
    if (cell) this.choose(cell);
  }

  choose(cell) {
    this.cursor = cell;
    this.options.choose(cell.column, cell.row);
    const [title, rows] = this.options.describe(cell.column, cell.row);
    announce(`${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}`);
    this.reveal(cell);
    this.redraw();
  }

  reveal({ column, row }) {
    const { columns, rows } = this.data;
    const inside = (low, high, at) => (at < low ? at - low : at > high ? at - high : 0);
    const dx = inside(this.view.x0, this.view.x1 - 1 / columns.length, column / columns.length);
    const dy = inside(this.view.y0, this.view.y1 - 1 / rows.length, row / rows.length);
    this.view = { x0: this.view.x0 + dx, x1: this.view.x1 + dx, y0: this.view.y0 + dy, y1: this.view.y1 + dy };
  }

  zoom(factor, x = 0.5, y = 0.5) {
    const { columns, rows } = this.data;
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

  onWheel(event) {
    if (!this.data || !this.box || (!event.ctrlKey && !event.metaKey && this.view.x1 - this.view.x0 === 1)) return;
    event.preventDefault();
    this.zoom(
      Math.exp(-event.deltaY * 0.004),
      (event.offsetX - this.box.left) / this.box.width,
      (event.offsetY - this.box.top) / this.box.height,
    );
  }

  onKey(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const { columns, rows } = this.data;
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    const from = this.cursor ?? { column: move ? -Math.max(0, move[0]) : -1, row: move ? -Math.max(0, move[1]) : 0 };
    const clamp = (value, many) => Math.min(many - 1, Math.max(0, value));
    if (move)
      this.choose({
        column: clamp(from.column + move[0], columns.length),
        row: clamp(from.row + move[1], rows.length),
      });
    else if (event.key === "Home") this.choose({ column: 0, row: from.row });
    else if (event.key === "End") this.choose({ column: columns.length - 1, row: from.row });
    else if (event.key === "+" || event.key === "=") this.zoom(1.6);
    else if (event.key === "-") this.zoom(1 / 1.6);
    else if (event.key === "0") this.zoom(1e-9);
    else if (event.key.toLowerCase() === "n") this.nextWorst();
    else return;
    event.preventDefault();
  }

  /** The worst cells in turn. */
  nextWorst() {
    const { columns, level, palette, passed } = this.data;
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

/** Some of many names, to see how long they are. */
const sample = (names) => (names.length <= 40 ? names : [...names.slice(0, 20), ...names.slice(-20)]);
