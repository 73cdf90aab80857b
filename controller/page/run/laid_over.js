// What lies behind the curves: steps of earlier generations that were done again, and those of another job.

import { get } from "../base/api.js";
import { byId, make, setText } from "../base/dom.js";
import { many } from "../base/format.js";
import { route } from "../base/router.js";
import { notify, on, state } from "../base/store.js";

const EVERY_MS = 5000;
/** @type {{ key: string, earlier: Api.Steps | null, other: Api.Steps | null, name: string }} */
const kept = { key: "", earlier: null, other: null, name: "" };
let listed = "";

/** [{steps, stroke, dash}] of the runs that are laid behind the job's own; `steps` as /api/v1/steps, one generation each. */
export function behind() {
  if (kept.key.split(" ")[0] !== state.steps.job) return []; // of a job that was shown before
  /** @type {{ steps: Api.Steps, stroke: string, dash: number[] }[]} */
  const found = split(kept.earlier).map((steps) => ({ steps, stroke: "faint", dash: [] }));
  if (kept.other) found.push({ steps: kept.other, stroke: "muted", dash: [5, 3] });
  return found;
}

/** One part for each generation. Pure.
 * @param {Api.Steps | null} steps */
export function split(steps) {
  if (!steps) return [];
  /** @type {Api.Steps[]} */
  const parts = [];
  for (let from = 0, i = 1; i <= steps.step.length; i++) {
    if (steps.generation[i] === steps.generation[from]) continue;
    const begin = from;
    const part = Object.fromEntries(Object.entries(steps).map(([name, column]) => [name, column.slice(begin, i)]));
    parts.push(/** @type {Api.Steps} */ (part));
    from = i;
  }
  return parts;
}

const chosen = () => byId("curves-job").value;

/** What is done again is known from the first step of a generation on. */
const generation = () => state.steps.generation.at(-1) ?? 0;

/** Asked for again when a generation does its first step, another job is chosen, or the other one has gone on. */
async function ask() {
  if (route.view !== "run" || !state.status?.job) return;
  const { id } = state.status.job;
  const other = (state.status.jobs ?? []).find((job) => job.id === chosen());
  const key = `${id} ${generation()} ${other ? `${other.id} ${other.step}` : ""}`;
  if (key === kept.key) return;
  const before = kept.key;
  kept.key = key;
  try {
    const [earlier, steps] = await Promise.all([
      generation() > 1 ? get("/steps/superseded?limit=20000") : null,
      other ? get(`/jobs/${encodeURIComponent(other.id)}/steps?limit=50000`) : null,
    ]);
    if (kept.key === key) Object.assign(kept, { earlier, other: steps, name: other?.name ?? "" });
  } catch {
    if (kept.key === key) kept.key = before; // asked for again with the next status
  }
  tell();
  notify("laid-over");
}

function tell() {
  const generations = split(kept.earlier).length;
  const texts = [];
  if (generations) texts.push(`faint: ${many(generations, "earlier generation")}, done again since`);
  if (kept.other) texts.push(`dashed: ${kept.name}`);
  setText(byId("curves-behind"), texts.join("; "));
}

function offer() {
  const others = (state.status?.jobs ?? []).filter((job) => job.id !== state.status?.job?.id);
  const key = JSON.stringify(others.map((job) => [job.id, job.name]));
  if (key === listed) return;
  listed = key;
  const select = byId("curves-job");
  const was = chosen();
  select.replaceChildren(make("option", { value: "" }, "no other job"), ...others.map((job) => make("option", { value: job.id }, job.name)));
  select.value = others.some((job) => job.id === was) ? was : "";
  byId("curves-other").hidden = !others.length;
}

export function startLaidOver() {
  let [tried, last] = ["", -Infinity];
  on("status steps route", () => {
    offer();
    const run = `${state.status?.job?.id} ${generation()}`;
    if (run === tried && performance.now() - last < EVERY_MS) return; // also after a failure
    [tried, last] = [run, performance.now()];
    ask();
  });
  byId("curves-job").addEventListener("change", ask);
}
