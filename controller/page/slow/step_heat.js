// Node or rank by step, the worst first: how long each works in each step, against its peers.

import { level, ratioPalette, timeRamp } from "../drawing/colours.js";
import { cell } from "../drawing/grid.js";
import { HeatMap } from "../drawing/heat_map.js";
import { byId, segments, setText } from "../base/dom.js";
import { count, known, many, percent } from "../base/format.js";
import { select } from "../base/select.js";
import { on, state } from "../base/store.js";
/** @import { Packed } from "../base/api.js" */
/** @import { Pair } from "../base/dom.js" */

/** @type {HeatMap | null} */
let map = null;
let by = "node";
/** @type {number[]} */
let order = []; // rows of the answer, as they are shown

/** @param {Packed<Api.Heat>} heat @returns {(row: number, column: number) => number} */
const figuresOf = (heat) => (row, column) => cell(by === "node" ? heat.by_step : heat.worst_by_step, row, column);

/** @param {Packed<Api.Heat>} heat @param {number} row */
const nameOf = (heat, row) => (by === "node" ? heat.nodes[row] : `rank ${heat.worst[row]}`);

function show() {
  const { heat } = state;
  const some = (heat?.steps.length ?? 0) > 0;
  byId("stepheat-empty").hidden = some;
  setText(byId("stepheat-empty"), some ? "" : "No step of which all spans are here.");
  if (heat && some) draw(heat);
  else map?.clear();
}

/** The rows from the worst on: by the median over steps, so that one late step makes none. Pure.
 * @param {number} rows @param {number} columns @param {(row: number, column: number) => number} figure */
export function worstFirst(rows, columns, figure) {
  const typical = Array.from({ length: rows }, (_, row) => {
    const values = Array.from({ length: columns }, (_, column) => figure(row, column)).filter(known).sort((a, b) => a - b);
    return values.length ? values[values.length >> 1] : -Infinity;
  });
  return typical.map((_, row) => row).sort((a, b) => typical[b] - typical[a] || a - b);
}

/** @param {Packed<Api.Heat>} heat */
function draw(heat) {
  const numbers = heat.steps;
  const figure = figuresOf(heat);
  const rows = by === "node" ? heat.nodes.length : heat.worst.length;
  order = worstFirst(rows, numbers.length, figure);
  const levels = new Uint8Array(rows * numbers.length);
  let worst = [0, 0, 0];
  order.forEach((row, place) => {
    for (let s = 0; s < numbers.length; s++) {
      const value = figure(row, s);
      levels[place * numbers.length + s] = level(value);
      if (value > worst[0]) worst = [value, row, s];
    }
  });
  map?.set({ columns: Array.from(numbers, String), rows: order.map((row) => nameOf(heat, row)), level: levels, palette: ratioPalette() });
  const text = `slowest: ${nameOf(heat, worst[1])} in step ${count(numbers[worst[2]])}, ${worst[0].toFixed(2)} × its peers`;
  setText(byId("stepheat-about"), `steps ${count(numbers[0])} to ${count(numbers[numbers.length - 1])}; ${text}`);
  const what = by === "node" ? many(rows, "node") : `the worst ${many(rows, "rank")}`;
  byId("stepheat").setAttribute("aria-label", `Heat map of ${what} by ${many(numbers.length, "step")}; ${text}`);
  byId("stepheat-ramp").style.background = timeRamp();
  setText(byId("stepheat-low"), "0.8 × peers");
  setText(byId("stepheat-high"), "1.5 × and more");
}

/** @param {number} column @param {number} place @returns {[string, Pair[]]} */
function describe(column, place) {
  const { heat } = state;
  if (!heat) return ["", []];
  const value = figuresOf(heat)(order[place], column);
  const more = known(value) ? `${value.toFixed(3)} × (${value >= 1 ? "+" : "−"}${percent(Math.abs(value - 1))})` : "–";
  return [`${nameOf(heat, order[place])}, step ${count(heat.steps[column])}`, [["own work against peers", more]]];
}

/** @param {number} place */
function choose(place) {
  const { heat } = state;
  if (!heat) return;
  if (by === "node") select("node", heat.nodes[order[place]]);
  else select("rank", heat.worst[order[place]]);
}

export function startStepHeat() {
  map = new HeatMap(byId("stepheat"), byId("stepheat-tip"), { describe, choose: (_, place) => choose(place) });
  segments(byId("stepheat-by"), ({ rows }) => {
    by = String(rows);
    show();
  });
  on("heat theme", show);
}
