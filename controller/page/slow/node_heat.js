// Node by step: how long the ranks of a node work in each step, against their peers.

import { level, ratioPalette, timeRamp } from "../drawing/colours.js";
import { cell } from "../drawing/grid.js";
import { HeatMap } from "../drawing/heat_map.js";
import { byId, setText } from "../base/dom.js";
import { count, known, percent } from "../base/format.js";
import { select } from "../base/select.js";
import { on, state } from "../base/store.js";
/** @import { Packed } from "../base/api.js" */
/** @import { Pair } from "../base/dom.js" */

/** @type {HeatMap | null} */
let map = null;

function show() {
  const { heat } = state;
  const some = (heat?.steps.length ?? 0) > 0;
  byId("nodeheat-empty").hidden = some;
  setText(byId("nodeheat-empty"), some ? "" : "No step of which all spans are here.");
  if (heat && some) draw(heat);
  else map?.clear();
}

/** @param {Packed<Api.Heat>} heat */
function draw({ nodes, steps: numbers, by_step: ratio }) {
  const levels = new Uint8Array(nodes.length * numbers.length);
  let worst = [0, 0, 0];
  for (let s = 0; s < numbers.length; s++) {
    for (let n = 0; n < nodes.length; n++) {
      const value = cell(ratio, n, s);
      levels[n * numbers.length + s] = level(value);
      if (value > worst[0]) worst = [value, n, s];
    }
  }
  map?.set({ columns: Array.from(numbers, String), rows: nodes, level: levels, palette: ratioPalette() });
  const text = `slowest: ${nodes[worst[1]]} in step ${count(numbers[worst[2]])}, ${worst[0].toFixed(2)} × its peers`;
  setText(byId("nodeheat-about"), `steps ${count(numbers[0])} to ${count(numbers[numbers.length - 1])}; ${text}`);
  byId("nodeheat").setAttribute(
    "aria-label",
    `Heat map of ${count(nodes.length)} nodes by ${numbers.length} steps; ${text}`,
  );
  byId("nodeheat-ramp").style.background = timeRamp();
  setText(byId("nodeheat-low"), "0.8 × peers");
  setText(byId("nodeheat-high"), "1.5 × and more");
}

/** @param {number} column @param {number} row @returns {[string, Pair[]]} */
function describe(column, row) {
  const { heat } = state;
  if (!heat) return ["", []];
  const value = cell(heat.by_step, row, column);
  const more = known(value) ? `${value.toFixed(3)} × (${value >= 1 ? "+" : "−"}${percent(Math.abs(value - 1))})` : "–";
  return [`${heat.nodes[row]}, step ${count(heat.steps[column])}`, [["own work against peers", more]]];
}

export function startNodeHeat() {
  map = new HeatMap(byId("nodeheat"), byId("nodeheat-tip"), {
    describe,
    choose: (_, row) => state.heat && select("node", state.heat.nodes[row]),
  });
  on("heat theme", show);
}
