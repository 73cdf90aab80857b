// Rank by phase: how long each rank spends in each phase of a step, against its peers or as a share of the step.

import { getLarge } from "../base/api.js";
import { level, ratioPalette, timeRamp } from "../drawing/colours.js";
import { all, byId, segments, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { count, known, percent, seconds } from "../base/format.js";
import { cell, isKnown } from "../drawing/grid.js";
import { HeatMap } from "../drawing/heat_map.js";
import { whileShown } from "../base/live.js";
import { select } from "../base/select.js";
import { notify, on, state } from "../base/store.js";
/** @import { Packed } from "../base/api.js" */
/** @import { Pair } from "../base/dom.js" */

const FAINT = 0.02; // of the step: of a phase shorter than that, a doubling does not matter

/** @type {Packed<Api.Heat> | null} */
let found = null;
let problem = "";
let by = "peers";
/** @type {HeatMap | null} */
let map = null;

async function poll() {
  try {
    found = await getLarge("/blame/heat");
    problem = "";
  } catch (error) {
    [found, problem] = [null, messageOf(error)];
  }
  state.heat = found;
  notify("heat");
  show();
}

/** What a rank spends in a phase, and what its peers do; for waiting and garbage collection there is no baseline.
 * @param {Packed<Api.Heat>} heat @param {number} i @param {number} p */
function measured(heat, i, p) {
  const value = cell(heat.seconds, i, p);
  return { value, usual: value / cell(heat.ratio, i, p) };
}

function show() {
  byId("heat-empty").hidden = Boolean(found);
  setText(byId("heat-empty"), found ? "" : problem || "Loading…");
  if (!found) return map?.clear();
  const { ranks, phases, ratio: ratios, seconds: table } = found;
  const step = state.status?.job?.step_seconds ?? 0;
  const passed = phases.map((_, p) => !isKnown(ratios, ranks.length, p));
  const levels = new Uint8Array(ranks.length * phases.length);
  let worst = { excess: 0, rank: -1, phase: "" };
  for (let p = 0; p < phases.length; p++) {
    for (let i = 0; i < ranks.length; i++) {
      const value = cell(table, i, p); // as `measured`, without an object for each of a hundred thousand
      const usual = value / cell(ratios, i, p);
      const ratio =
        by === "share" ? 0.8 + (0.7 * value) / (step || 1) : 1 + (value - usual) / Math.max(usual, FAINT * step, 1e-6);
      levels[p * ranks.length + i] = level(ratio);
      if (value - usual > worst.excess && phases[p] !== "transfer")
        worst = { excess: value - usual, rank: ranks[i], phase: phases[p] };
    }
  }
  map?.set({ columns: Array.from(ranks, String), rows: phases, passed, level: levels, palette: ratioPalette() });
  const most = worst.excess > 0 ? `rank ${worst.rank} in ${worst.phase}, ${seconds(worst.excess)} more` : "no rank";
  setText(byId("heat-about"), `steps ${count(found.first)} to ${count(found.last)}; most against its peers: ${most}`);
  byId("heat").setAttribute(
    "aria-label",
    `Heat map of ${count(ranks.length)} ranks by ${phases.length} phases. Most against its peers: ${most}`,
  );
  byId("heat-ramp").style.background = timeRamp();
  setText(byId("heat-low"), by === "peers" ? "0.8 × peers" : "0% of the step");
  setText(byId("heat-high"), by === "peers" ? "1.5 × and more" : "100%");
}

/** @param {number} column @param {number} row @returns {[string, Pair[]]} */
function describe(column, row) {
  if (!found) return ["", []];
  const { value, usual } = measured(found, column, row);
  const rows = [["per step", seconds(value)]];
  if (known(usual))
    rows.push(
      ["median of its peers", seconds(usual)],
      ["against them", `${value >= usual ? "+" : "−"}${percent(Math.abs(value / usual - 1))}`],
    );
  return [`Rank ${found.ranks[column]}, ${found.phases[row]}`, rows];
}

export function startRankHeat() {
  map = new HeatMap(byId("heat"), byId("heat-tip"), {
    describe,
    choose: (column) => found && select("rank", found.ranks[column]),
  });
  whileShown(["slow"], poll, () => 10_000);
  on("theme", () => found && show());
  on("selected", () => {
    if (!map) return;
    const column = found ? found.ranks.indexOf(state.selected.rank ?? -1) : -1;
    map.cursor = column < 0 ? null : { column, row: map.cursor?.row ?? 0 };
    map.redraw();
  });
  segments(all(".heat .segments")[0], ({ by: wanted }) => {
    by = wanted;
    if (found) show();
  });
}
