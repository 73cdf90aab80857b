// A line of a figure over time, without axes, as wide as its box.

import { known } from "../base/format.js";

const POINTS = 120; // what a tile has room for
const [WIDTH, HEIGHT] = [200, 30]; // of the drawing, scaled to its box
const SVG = "http://www.w3.org/2000/svg";

/** @typedef {(number | null)[]} Values */

/** [[x, y], ...] from `from` to `until`, x and y from 0 to 1; of many points the extremes of each column. Pure.
 * @param {Values | undefined} at @param {Values | undefined} line @param {number} from @param {number} until */
export function sparkline(at, line, from, until) {
  /** @type {number[][]} */
  const inside = [];
  for (let i = 0; i < (at?.length ?? 0); i++) {
    const [when, value] = [at?.[i] ?? 0, line?.[i]];
    if (when >= from && when <= until + 60 && known(value)) inside.push([when, value]);
  }
  if (inside.length < 2) return [];
  inside.sort((a, b) => a[0] - b[0]); // steps that were done again come by number
  const start = Math.min(inside[0][0], until - 60); // a young job fills the width
  const values = inside.map(([, value]) => value);
  const [low, high] = values.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
  const spread = high - low || 1;
  const columns = new Map();
  for (const [when, value] of inside) {
    const column = Math.floor(((when - start) / (until - start || 1)) * (POINTS / 2));
    const found = columns.get(column) ?? { low: value, high: value };
    columns.set(column, { low: Math.min(found.low, value), high: Math.max(found.high, value) });
  }
  /** @param {number} value */
  const y = (value) => (high === low ? 0.5 : (value - low) / spread);
  return [...columns].flatMap(([column, found]) => {
    const x = Math.min(1, column / (POINTS / 2));
    return found.low === found.high ? [[x, y(found.low)]] : [[x, y(found.low)], [x, y(found.high)]];
  });
}

export class Sparkline {
  constructor() {
    this.element = document.createElementNS(SVG, "svg");
    this.element.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.element.setAttribute("preserveAspectRatio", "none");
    this.element.setAttribute("aria-hidden", "true");
    this.path = document.createElementNS(SVG, "polyline");
    this.element.append(this.path);
  }

  /** @param {Values | undefined} at @param {Values | undefined} line @param {number} from @param {number} until */
  show(at, line, from, until) {
    const points = sparkline(at, line, from, until).map(([x, y]) => `${(x * WIDTH).toFixed(1)},${(2 + (1 - y) * (HEIGHT - 4)).toFixed(1)}`);
    this.path.setAttribute("points", points.join(" "));
  }
}
