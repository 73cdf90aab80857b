// Loss, step time and tokens per second by step, with a mark where an incident or a restart was.

import { Chart } from "../drawing/chart.js";
import { byId, segments, setText } from "../base/dom.js";
import { count, known, loss, seconds, short } from "../base/format.js";
import { past } from "../base/router.js";
import { on, state } from "../base/store.js";

let range = 0;

export function startCurves() {
  const charts = [
    { chart: new Chart(byId("loss"), { stroke: "curve", tick: (value) => String(Number(value.toPrecision(4))) }), column: "loss", text: loss, output: byId("loss-value") },
    { chart: new Chart(byId("time"), { stroke: "curve-2", tick: (value) => (value ? seconds(value) : "0"), cap: 3 }), column: "seconds", text: seconds, output: byId("time-value") },
    { chart: new Chart(byId("tokens"), { stroke: "curve", tick: (value) => short(value) }), column: "tokens", text: short, output: byId("tokens-value") },
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
      const values = column === "tokens" ? rates(steps, from).slice(0, x.length) : steps[column].slice(from, until);
      chart.set(x, values, marks);
      const last = values.at(-1);
      if (known(last)) chart.canvas.setAttribute("aria-label", `${column} by step, last ${last.toPrecision(4)} at step ${x.at(-1)}`);
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
  on("steps incidents then", show);
  on("theme", () => charts.forEach(({ chart }) => chart.redraw()));
  segments(document.querySelector(".curves .segments"), ({ range: wanted }) => {
    range = Number(wanted);
    show();
  });
}

const rates = ({ tokens, seconds: took }, from) => tokens.slice(from).map((many, i) => (took[from + i] > 0 ? many / took[from + i] : null));

function findMarks(steps, from) {
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
