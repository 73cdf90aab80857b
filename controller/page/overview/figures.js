// The six figures of the overview, each with its last hour as a line.

import { get } from "../base/api.js";
import { byId, make, setText } from "../base/dom.js";
import { count, known, percent, perSecond, seconds, short } from "../base/format.js";
import { Sparkline } from "../drawing/sparkline.js";
import { whileShown } from "../base/live.js";
import { past, route } from "../base/router.js";
import { now, on, state } from "../base/store.js";

const HOUR_S = 3600;
/** @type {Map<string, ReturnType<typeof tile>>} */
const tiles = new Map();
/** @type {Api.Hour | null} */
let hour = null; // as /api/v1/job/hour

/**
 * @typedef {Pick<Api.Then, "state" | "step" | "tokens_per_s" | "step_seconds" | "mfu" | "goodput"> & { max_steps: number | null, step_of_life?: number | null,
 *   at_risk: Partial<Api.AtRisk> | null, time: Pick<Api.Spent, "last_day"> }} Job
 * @typedef {Pick<Api.Steps, "at" | "step" | "seconds" | "tokens">} Steps
 * @typedef {Pick<Api.Hour, "spares"> & Partial<Api.Hour>} Hour
 */

/** [{name, value, more, at, line}] of a job's document, its steps and its last hour. Pure.
 * @param {Job} job @param {Steps} steps @param {Hour | null} past */
export function figuresOf(job, steps, past) {
  const ofLife = job.step_of_life ?? null; // then nobody knows which step of the job it is
  const left = ofLife === null && job.max_steps && known(job.step_seconds) ? (job.max_steps - job.step - 1) * job.step_seconds : 0;
  const of = ofLife !== null ? "of this life" : job.max_steps ? `of ${count(job.max_steps)}` : "";
  const remaining = left > 0 && job.state === "running" ? `, ${seconds(left)} left` : "";
  const risk = job.at_risk ?? {};
  const worse = [{ what: "node", cost: risk.node }, { what: "job", cost: risk.job }].filter(({ cost }) => known(cost));
  const rates = steps.tokens.map((many, i) => perSecond(many, steps.seconds[i]));
  const spares = past?.spares.at(-1);
  return [
    { name: "Step", value: (ofLife ?? job.step) < 0 ? "–" : count(ofLife ?? job.step), more: `${of}${remaining}`, at: steps.at, line: steps.step },
    { name: "Tokens/s", value: short(job.tokens_per_s), more: `step ${seconds(job.step_seconds)}`, at: steps.at, line: rates },
    { name: "MFU", value: percent(job.mfu), more: "of the peak", at: past?.at, line: past?.mfu },
    { name: "Goodput", value: percent(job.time.last_day), more: `of 24 h, ${percent(job.goodput)} of all`, at: past?.at, line: past?.goodput },
    {
      name: "Work at risk", value: seconds(risk.worker ?? risk.job), at: past?.at, line: past?.at_risk,
      more: worse.map(({ what, cost }) => `${what}: ${seconds(cost)}`).join(", ") || "if a worker fails",
    },
    { name: "Spares", value: count(spares), more: spares === 0 ? "none could take over" : spares === 1 ? "node" : "nodes", at: past?.at, line: past?.spares },
  ];
}

/** The same of a time of the past: what the controller kept of it, and the steps before. Pure.
 * @param {Api.Then} then @param {Steps} steps */
export function figuresThen(then, steps) {
  const job = { ...then, step: then.step, time: { last_day: then.goodput }, at_risk: { worker: then.at_risk } };
  const last = steps.at.findLastIndex((at) => (at ?? 0) <= then.at) + 1;
  const before = {
    at: steps.at.slice(0, last), step: steps.step.slice(0, last), seconds: steps.seconds.slice(0, last), tokens: steps.tokens.slice(0, last),
  };
  return figuresOf({ ...job, goodput: null }, before, { spares: [then.spares] }).map((one) =>
    one.name === "Goodput" ? { ...one, more: "of 24 h" } : one.name === "Work at risk" ? { ...one, more: "if a worker failed" } : one,
  );
}

/** @param {string} name */
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
  const figures = state.past && state.past.problem === undefined ? figuresThen(state.past, state.steps) : figuresOf(job, state.steps, hour);
  for (const { name, value, more, at, line } of figures) {
    const found = tiles.get(name) ?? tile(name);
    if (!tiles.has(name)) {
      tiles.set(name, found);
      byId("figures").append(found.element);
    }
    setText(found.value, value);
    setText(found.more, more);
    found.more.title = more;
    found.line.show(at, line, until - HOUR_S, until);
  }
}

/** The rows of an hour from `from` on, and those that came after them.
 * @param {Api.Hour} hour @param {Api.Hour} fresh @param {number} from @returns {Api.Hour} */
function joined(hour, fresh, from) {
  const first = Math.max(0, hour.at.findIndex((when) => when >= from));
  return {
    ...hour,
    at: [...hour.at.slice(first), ...fresh.at],
    mfu: [...hour.mfu.slice(first), ...fresh.mfu],
    goodput: [...hour.goodput.slice(first), ...fresh.goodput],
    at_risk: [...hour.at_risk.slice(first), ...fresh.at_risk],
    spares: [...hour.spares.slice(first), ...fresh.spares],
  };
}

async function poll() {
  const since = hour && hour.job === state.steps.job ? hour.at.at(-1) : undefined;
  /** @type {Api.Hour | null} */
  const fresh = await get(since === undefined ? "/job/hour" : `/job/hour?since=${since}`);
  if (!fresh) hour = null;
  else if (!hour || fresh.job !== hour.job || since === undefined) hour = fresh;
  else hour = joined(hour, fresh, now() - HOUR_S);
  show();
}

export function startFigures() {
  on("status steps route then", show);
  on("job", () => (hour = null));
  whileShown(["overview"], poll, () => 15_000);
}
