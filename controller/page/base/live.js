// Keeps `state` as the controller has it: status and steps by events, ranks and nodes by asking, of what the view shows
// only. A hidden tab asks for nothing. A broken connection is retried with back-off, and shown until it is back.

import { get, getLarge, listen, received } from "./api.js";
import { messageOf } from "./errors.js";
import { isShown, pinned, route } from "./router.js";
import { now, on, state, notify } from "./store.js";
/** @import { Ranks } from "./store.js" */

const BACK_OFF_S = [0.5, 1, 2, 4, 8, 10];
/** @type {(keyof Api.Steps)[]} */
const COLUMNS = ["step", "loss", "seconds", "tokens", "at", "generation", "mfu", "grad_norm"];
const MOST_SHARE = 0.1; // of the time, at most, that the controller works for what one view asks again and again
const MOST_BYTES = 4; // a millisecond, that a view may ask for again and again in one of its requests
export const PLACES = "rank,node,pp,dp,tp"; // where the ranks are: they change with a generation
const NOW = "state,phase";
// What else a view shows of every rank.
/** @type {Record<string, string>} */
const MORE = {
  overview: "step,step_seconds,progress_age,operation",
  nodes: "step,step_seconds,progress_age,operation,mfu,memory_bytes",
  run: "part_seconds",
};
const MOST_STEPS = 50_000;

let line = new AbortController(); // of the stream of events

export function startLive() {
  follow();
  on("job", changeJob);
  whileShown([...Object.keys(MORE), "slow"], pollPlaces, () => 5000);
  whileShown([...Object.keys(MORE), "slow"], pollStates, () => ((state.ranks?.rank.length ?? 0) > 2048 ? 1000 : 500));
  whileShown(Object.keys(MORE), pollMore, () => ((state.ranks?.rank.length ?? 0) > 2048 ? 2000 : 500));
  document.addEventListener("visibilitychange", () => document.hidden && line.abort());
  whileShown(["nodes"], pollNodes, () => (state.nodes.length > 256 ? 5000 : 2000));
  whileShown(["overview", "slow", "nodes"], pollBlame, () => 10_000);
  get("/incidents").then(mergeIncidents, () => {});
}

async function follow() {
  for (let tries = 0; ; tries++) {
    try {
      await shown();
      line = new AbortController();
      await listen(`/events${from()}`, { status: takeStatus, steps: takeSteps }, () => {
        tries = 0;
        setConnection("live");
      }, line.signal);
    } catch (error) {
      if (line.signal.aborted) {
        tries = -1;
        continue; // another job was chosen, or the tab is hidden
      }
      console.info("events:", messageOf(error));
    }
    const pause = BACK_OFF_S[Math.min(tries, BACK_OFF_S.length - 1)] * (0.75 + Math.random() / 2);
    setConnection("lost", pause);
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
}

/** As soon as somebody can see the tab. */
function shown() {
  if (!document.hidden) return null;
  document.title = "Holdfast"; // the title of a hidden tab would grow old
  return new Promise((done) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      done(undefined);
    };
    document.addEventListener("visibilitychange", look);
  });
}

/** Where the stream of events resumes: after the newest step that is here. */
function from() {
  const { job, step } = state.steps;
  const parts = new URLSearchParams();
  const wanted = pinned();
  if (wanted) parts.set("job", wanted);
  if (job && step.length) parts.set("since", String(step.at(-1)));
  if (job && step.length) parts.set("since_job", job);
  return parts.size ? `?${parts}` : "";
}

/** The page is about another job now: nothing of the last one stays. */
function changeJob() {
  resetSteps(pinned());
  state.incidents.clear();
  Object.assign(parts, { places: null, now: null, more: null });
  Object.assign(state, { ranks: null, blame: null, blamed: null, heat: null });
  line.abort();
  get("/incidents").then(mergeIncidents, () => {});
  notify("incidents");
  notify("steps");
}

/** @param {string} name @param {number} pause */
function setConnection(name, pause = 0) {
  const changed = state.connection.state !== name;
  const since = changed ? now() : state.connection.since;
  state.connection = { state: name, since, retryAt: now() + pause };
  if (changed || name === "lost") notify("connection");
}

/** @param {Omit<Api.Status, "nodes" | "jobs"> & Partial<Pick<Api.Status, "nodes" | "jobs">>} status */
function takeStatus(status) {
  state.skew = status.now - Date.now() / 1000;
  const { nodes = {}, jobs = [] } = state.status ?? {};
  const before = state.status?.job;
  state.status = { nodes, jobs, ...status };
  if (status.job && !status.job.assignment) status.job.assignment = before?.assignment ?? [];
  if (status.job?.id !== state.steps.job) resetSteps(status.job?.id ?? null);
  if (status.incidents) mergeIncidents(status.incidents);
  notify("status");
}

/** @param {Api.Incident[]} incidents */
function mergeIncidents(incidents) {
  const job = pinned() ?? state.status?.job?.id ?? null;
  for (const incident of incidents) {
    // Of another job it is no answer to what happens to this one; of no job it may be: a node, the controller.
    if (!job || !incident.job || incident.job === job) state.incidents.set(incident.id, incident);
  }
  notify("incidents");
}

/** @param {string | null} job */
function resetSteps(job) {
  state.steps.job = job;
  for (const column of COLUMNS) state.steps[column] = [];
}

/** @param {Api.Steps & { job?: string | null }} rows */
function takeSteps(rows) {
  const { steps } = state;
  if (rows.job !== undefined && rows.job !== steps.job) resetSteps(rows.job);
  for (let i = 0; i < rows.step.length; i++) {
    // A step that is not after the last one: the job went back to a snapshot and does it again.
    while (steps.step.length && steps.step[steps.step.length - 1] >= rows.step[i]) for (const column of COLUMNS) steps[column].pop();
    for (const column of COLUMNS) /** @type {(number | null)[]} */ (steps[column]).push(rows[column][i]);
  }
  const surplus = steps.step.length - MOST_STEPS;
  if (surplus > 0) for (const column of COLUMNS) steps[column].splice(0, surplus);
  notify("steps");
}

/**
 * @typedef {Pick<Ranks, "rank" | "node" | "pp" | "dp" | "tp" | "nodes" | "sizes">} Places
 * @typedef {Pick<Ranks, "state" | "states" | "phase" | "phases">} States
 * @typedef {{ places: Places | null, now: States | null, more: Partial<Ranks> | null }} Parts
 */
/** @type {Parts} */
const parts = { places: null, now: null, more: null }; // of the ranks, as they came last

async function pollPlaces() {
  takeRanks("places", await getLarge(`/ranks?columns=${PLACES}`));
}

async function pollStates() {
  takeRanks("now", await getLarge(`/ranks?columns=${NOW}`));
}

async function pollMore() {
  takeRanks("more", await getLarge(`/ranks?columns=${MORE[route.view]}`));
}

/** The parts as one table, once those that have come are of the same ranks.
 * @template {keyof Parts} Name @param {Name} name @param {Parts[Name]} columns */
function takeRanks(name, columns) {
  if (parts[name] === columns && state.ranks) return; // nothing has changed
  parts[name] = columns;
  const { places, now: states, more } = parts;
  if (!places || !states) return;
  const many = places.rank.length;
  if (states.state.length !== many) return; // of another generation: its places come next
  const empty = { step: [], step_seconds: [], progress_age: [], operation: [], mfu: [], memory_bytes: [] };
  const length = more ? (more.step ?? Object.values(more.part_seconds ?? {})[0] ?? []).length : 0;
  state.ranks = {
    ...empty, operations: [], part_seconds: {}, ...(length === many ? more : {}), ...states, ...places,
  };
  notify("ranks");
}

async function pollNodes() {
  state.nodes = await get("/nodes?detail=false");
  notify("nodes");
}

async function pollBlame() {
  state.blame = await get("/blame/newest");
  notify("blame");
}

/** Calls `work` while one of `views` is shown: at once when it comes, again after a pause, and when the address changes
 * within it. What takes long or is large is asked for less often. A failure waits for the next turn.
 * @param {string[]} views @param {() => any} work @param {() => number} pause */
export function whileShown(views, work, pause) {
  let [timer, busy, asked] = [0, false, false];
  const turn = async () => {
    clearTimeout(timer);
    asked = busy;
    if (busy || !views.some(isShown)) return;
    busy = true;
    const [began, bytes] = [performance.now(), received];
    if (!document.hidden) await Promise.resolve(work()).catch((error) => console.info("view:", error.message));
    busy = false;
    timer = setTimeout(turn, asked ? 0 : Math.max(pause(), (performance.now() - began) / MOST_SHARE, (received - bytes) / MOST_BYTES));
  };
  on("route", turn);
  return turn;
}
