// The list of jobs above the views, where there is more than one: its links choose whose page this is.

import { byId, make } from "./dom.js";
import { pinned, route, link } from "./router.js";
import { on, state } from "./store.js";

let drawn = "";

export function startJobs() {
  on("status route", draw);
}

function draw() {
  const jobs = state.status?.jobs ?? [];
  const shown = pinned() ?? state.status?.job?.id ?? null;
  const key = JSON.stringify([route.view, shown, jobs.map((job) => [job.id, job.name, job.state, job.step, job.priority, job.shares_with])]);
  if (key === drawn) return;
  drawn = key;
  const list = byId("jobs");
  list.hidden = jobs.length < 2;
  const names = new Map(jobs.map((job) => [job.id, job.name]));
  list.replaceChildren(...jobs.map((job) => entry(job, job.id === shown, (job.shares_with ?? []).map((id) => names.get(id) ?? id))));
}

/** @param {Api.JobBrief} job @param {boolean} current @param {string[]} beside jobs with which it shares nodes */
function entry(job, current, beside) {
  const ofLife = job.step_of_life ?? null;
  const progress = (ofLife ?? job.step) < 0 ? "" : ofLife !== null ? `step ${ofLife + 1} of this life` : job.max_steps ? `step ${job.step + 1} of ${job.max_steps}` : `step ${job.step + 1}`;
  const priority = job.priority ? `priority ${job.priority}` : "";
  const shared = beside.length ? `on the nodes of ${beside.join(" and ")}` : "";
  const parts = [job.state, progress, priority, shared].filter(Boolean).join(", ");
  const one = make("a", { href: link(route.view, null, { job: job.id }), title: job.reason || job.id });
  one.dataset.state = job.state;
  if (current) one.setAttribute("aria-current", "true");
  one.append(make("b", {}, job.name), ` ${parts}`);
  return one;
}
