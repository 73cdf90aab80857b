// The six figures of the overview, each with its last hour as a line.

import { get } from "../base/api.js";
import { byId, make, setText } from "../base/dom.js";
import { count, known, percent, seconds, short } from "../base/format.js";
import { Sparkline } from "../drawing/sparkline.js";
import { whileShown } from "../base/live.js";
import { past, route } from "../base/router.js";
import { now, on, state } from "../base/store.js";

const HOUR_S = 3600;
const tiles = new Map();
let hour = null; // as /api/v1/job/hour

/** [{name, value, more, at, line}] of a job's document, its steps and its last hour. Pure. */
export function figuresOf(job, steps, past) {
  const ofLife = job.step_of_life ?? null;  // then nobody knows which step of the job it is
  const left = ofLife === null && job.max_steps && known(job.step_seconds) ? (job.max_steps - job.step - 1) * job.step_seconds : 0;
  const of = ofLife !== null ? "of this life" : job.max_steps ? `of ${count(job.max_steps)}` : "";
  const remaining = left > 0 && job.state === "running" ? `, ${seconds(left)} left` : "";
  const risk = job.at_risk ?? {};
  const worse = [["node", risk.node], ["job", risk.job]].filter(([, cost]) => known(cost));
  const rates = steps.tokens.map((many, i) => (steps.seconds[i] > 0 ? many / steps.seconds[i] : null));
  const spares = past?.spares.at(-1);
  return [
    { name: "Step", value: (ofLife ?? job.step) < 0 ? "–" : count(ofLife ?? job.step), more: `${of}${remaining}`, at: steps.at, line: steps.step },
    { name: "Tokens/s", value: short(job.tokens_per_s), more: `step ${seconds(job.step_seconds)}`, at: steps.at, line: rates },
    { name: "MFU", value: percent(job.mfu), more: "of the peak", at: past?.at, line: past?.mfu },
    { name: "Goodput", value: percent(job.time.last_day), more: `of 24 h, ${percent(job.goodput)} of all`, at: past?.at, line: past?.goodput },
    {
      name: "Work at risk", value: seconds(risk.worker ?? risk.job), at: past?.at, line: past?.at_risk,
      more: worse.map(([what, cost]) => `${what}: ${seconds(cost)}`).join(", ") || "if a worker fails",
    },
    { name: "Spares", value: count(spares), more: spares === 0 ? "none could take over" : spares === 1 ? "node" : "nodes", at: past?.at, line: past?.spares },
  ];
}

/** The same of a time of the past: what the controller kept of it, and the steps before. Pure. */
export function figuresThen(then, steps) {
  const job = { ...then, step: then.step, time: { last_day: then.goodput }, at_risk: { worker: then.at_risk } };
  const last = steps.at.findLastIndex((at) => at <= then.at) + 1;
  const before = Object.fromEntries(["at", "step", "seconds", "tokens"].map((name) => [name, steps[name].slice(0, last)]));
  return figuresOf({ ...job, goodput: null }, before, { spares: [then.spares] }).map((one) =>
    one.name === "Goodput" ? { ...one, more: "of 24 h" } : one.name === "Work at risk" ? { ...one, more: "if a worker failed" } : one,
  );
}

function tile(name) {
  const line = new Sparkline();
  const parts = { value: document.createTextNode(""), more: make("small"), line };
  const dd = make("dd", {}, parts.value, parts.more);
  return { ...parts, element: make("div", {}, make("dt", {}, name), dd, line.element) };
}

function show() {
  const job = state.status?.job;
  if (route.view !== "overview") return;
  byId("figures").hidden = !job;
  if (!job) return;
  const until = past() ?? now();
  const figures = state.past && !state.past.problem ? figuresThen(state.past, state.steps) : figuresOf(job, state.steps, hour);
  for (const { name, value, more, at, line } of figures) {
    if (!tiles.has(name)) {
      tiles.set(name, tile(name));
      byId("figures").append(tiles.get(name).element);
    }
    const found = tiles.get(name);
    setText(found.value, value);
    setText(found.more, more);
    found.more.title = more;
    found.line.show(at, line, until - HOUR_S, until);
  }
}

async function poll() {
  const since = hour?.job === state.steps.job ? hour.at.at(-1) : undefined;
  const fresh = await get(since === undefined ? "/job/hour" : `/job/hour?since=${since}`);
  if (!fresh) hour = null;
  else if (fresh.job !== hour?.job || since === undefined) hour = fresh;
  else {
    const first = hour.at.findIndex((when) => when >= now() - HOUR_S);
    for (const name of ["at", "mfu", "goodput", "at_risk", "spares"])
      hour[name] = [...hour[name].slice(Math.max(0, first)), ...fresh[name]];
  }
  show();
}

export function startFigures() {
  on("status steps route then", show);
  on("job", () => (hour = null));
  whileShown(["overview"], poll, () => 15_000);
}
