// Loss, gradient norm, step time, tokens per second and MFU by step, with a mark where an incident or a restart was.
// Behind them lie earlier generations and another job, where there are any.

import { Chart } from "../drawing/chart.js";
import { all, byId, segments, setText } from "../base/dom.js";
import { count, known, loss, percent, perSecond, seconds, short } from "../base/format.js";
import { past } from "../base/router.js";
import { on, state } from "../base/store.js";
import { behind } from "./laid_over.js";
/** @import { Mark } from "../drawing/chart.js" */

/** @typedef {"loss" | "grad_norm" | "seconds" | "tokens" | "mfu"} Curve */

let range = 0;

export function startCurves() {
  /** @param {number} value */
  const plain = (value) => String(Number(value.toPrecision(4)));
  /** @type {{ chart: Chart, column: Curve, text: (value: number | null) => string, output: HTMLElement }[]} */
  const charts = [
    { chart: new Chart(byId("loss"), { stroke: "curve", tick: plain }), column: "loss", text: loss, output: byId("loss-value") },
    { chart: new Chart(byId("norm"), { stroke: "curve", tick: plain, cap: 5 }), column: "grad_norm", text: (value) => short(value), output: byId("norm-value") },
    { chart: new Chart(byId("time"), { stroke: "curve-2", tick: (value) => (value ? seconds(value) : "0"), cap: 3 }), column: "seconds", text: seconds, output: byId("time-value") },
    { chart: new Chart(byId("tokens"), { stroke: "curve", tick: (value) => short(value) }), column: "tokens", text: short, output: byId("tokens-value") },
    { chart: new Chart(byId("mfu"), { stroke: "curve-2", tick: (value) => percent(value) }), column: "mfu", text: (value) => percent(value), output: byId("mfu-value") },
  ];

  const tellValues = () => {
    for (const { chart, text, output } of charts) {
      const i = chart.cursor === null ? chart.x.length - 1 : chart.nearest(chart.cursor);
      const label = i < 0 ? "" : chart.cursor === null ? text(chart.y[i]) : `step ${count(chart.x[i])}: ${text(chart.y[i])}`;
      setText(output, label);
    }
  };
  const show = () => {
    const { steps } = state;
    const at = past();
    const until = at === null ? steps.step.length : steps.at.findLastIndex((when) => (when ?? 0) <= at) + 1;
    const from = range ? Math.max(0, until - range) : 0;
    const x = steps.step.slice(from, until);
    const marks = findMarks(steps, from).filter(({ x: step }) => !x.length || step <= x[x.length - 1]);
    for (const { chart, column } of charts) {
      const own = line(steps, column, from, until);
      // What began earlier is cut off where the shown range begins.
      const others = behind().map(({ steps: other, ...look }) => {
        const first = range ? other.step.findIndex((step) => step >= (x[0] ?? 0)) : 0;
        return { ...look, ...(first < 0 ? { x: [], y: [] } : line(other, column, first, other.step.length)) };
      });
      chart.set(own.x, own.y, marks, others);
      /** @type {HTMLElement} */ (chart.canvas.closest("figure")).hidden = SOMETIMES.includes(column) && !own.x.length;
      const last = own.y.at(-1);
      if (known(last)) chart.canvas.setAttribute("aria-label", `${NAMES[column]} by step, last ${last.toPrecision(4)} at step ${own.x.at(-1)}`);
    }
    tellValues();
  };
  for (const { chart } of charts) {
    chart.onCursor = (x) => {
      for (const { chart: each } of charts) {
        each.cursor = x;
        each.redraw();
      }
      tellValues();
    };
  }
  on("steps incidents then laid-over", show);
  on("theme", () => charts.forEach(({ chart }) => chart.redraw()));
  segments(all(".curves .segments")[0], ({ range: wanted }) => {
    range = Number(wanted);
    show();
  });
}

const NAMES = { loss: "loss", grad_norm: "gradient norm", seconds: "step time", tokens: "tokens per second", mfu: "MFU" };
/** @type {Curve[]} */
const SOMETIMES = ["grad_norm", "mfu"]; // a script reports neither; of fast steps only some are reported

/** The points of a column from one position to another, for a chart. Pure.
 * @param {Api.Steps} steps @param {Curve} column @param {number} from @param {number} until */
export function line(steps, column, from, until) {
  const x = steps.step.slice(from, until);
  const y = column === "tokens" ? rates(steps, from, until) : steps[column].slice(from, until);
  if (!SOMETIMES.includes(column)) return { x, y };
  return { x: x.filter((_, i) => known(y[i])), y: y.filter(known) };
}

/** @param {Api.Steps} steps @param {number} from @param {number} until */
const rates = ({ tokens, seconds: took }, from, until) => tokens.slice(from, until).map((many, i) => perSecond(many, took[from + i]));

/** @param {Api.Steps} steps @param {number} from */
function findMarks(steps, from) {
  /** @type {Mark[]} */
  const marks = [];
  for (let i = Math.max(1, from); i < steps.step.length; i++) {
    if (steps.generation[i] !== steps.generation[i - 1]) marks.push({ x: steps.step[i], colour: "busy" });
  }
  for (const incident of state.incidents.values()) {
    const settled = incident.state === "closed";
    const x = settled ? (incident.step_resumed ?? incident.step_at_fault) : incident.step_at_fault;
    if (known(x) && incident.opened >= (state.status?.job?.submitted_at ?? 0)) marks.push({ x: Math.max(0, x), colour: settled ? "warn" : "bad" });
  }
  return marks;
}
