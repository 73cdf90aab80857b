// Keeps `state` as the controller has it: status and steps by events, ranks and nodes by asking, less often when the
// cluster is large or the tab is hidden. A broken connection is retried with back-off, and shown until it is back.

import { get, getLarge, listen } from "./api.js";
import { pinned, route } from "./router.js";
import { now, on, state, notify } from "./store.js";

const BACK_OFF_S = [0.5, 1, 2, 4, 8, 10];
const COLUMNS = ["step", "loss", "seconds", "tokens", "at", "generation"];
const MOST_SHARE = 0.1; // of the time, at most, that the controller works for what one view asks again and again
const MOST_STEPS = 50_000;

let line = new AbortController(); // of the stream of events

export function startLive() {
  follow();
  on("job", changeJob);
  repeat(pollRanks, () => (state.ranks?.rank.length > 2048 ? 1000 : 500));
  whileShown(["nodes"], pollNodes, () => (state.nodes.length > 256 ? 5000 : 2000));
  whileShown(["overview", "ranks", "mesh3d", "nodes"], pollBlame, () => 10_000);
  get("/incidents").then(mergeIncidents, () => {});
}

async function follow() {
  for (let tries = 0; ; tries++) {
    try {
      line = new AbortController();
      await listen(`/events${from()}`, { status: takeStatus, steps: takeSteps }, () => {
        tries = 0;
        setConnection("live");
      }, line.signal);
    } catch (error) {
      if (line.signal.aborted) {
        tries = -1;
        continue; // another job was chosen
      }
      console.info("events:", error.message);
    }
    const pause = BACK_OFF_S[Math.min(tries, BACK_OFF_S.length - 1)] * (0.75 + Math.random() / 2);
    setConnection("lost", pause);
    await new Promise((done) => setTimeout(done, pause * 1000));
  }
}

/** Where the stream of events resumes: after the newest step that is here. */
function from() {
  const { job, step } = state.steps;
  const parts = new URLSearchParams();
  if (pinned()) parts.set("job", pinned());
  if (job && step.length) parts.set("since", step.at(-1));
  if (job && step.length) parts.set("since_job", job);
  return parts.size ? `?${parts}` : "";
}

/** The page is about another job now: nothing of the last one stays. */
function changeJob() {
  resetSteps(pinned());
  state.incidents.clear();
  Object.assign(state, { ranks: null, blame: null, blamed: null });
  line.abort();
  get("/incidents").then(mergeIncidents, () => {});
  notify("incidents");
  notify("steps");
}

function setConnection(name, pause = 0) {
  const changed = state.connection.state !== name;
  const since = changed ? now() : state.connection.since;
  state.connection = { state: name, since, retryAt: now() + pause };
  if (changed || name === "lost") notify("connection");
}

function takeStatus(status) {
  state.skew = status.now - Date.now() / 1000;
  const { nodes = {}, jobs = [] } = state.status ?? {};
  state.status = { nodes, jobs, ...status };
  if (status.job?.id !== state.steps.job) resetSteps(status.job?.id ?? null);
  if (status.incidents) mergeIncidents(status.incidents);
  notify("status");
}

function mergeIncidents(incidents) {
  const job = pinned() ?? state.status?.job?.id ?? null;
  for (const incident of incidents) {
    // Of another job it is no answer to what happens to this one; of no job it may be: a node, the controller.
    if (!job || !incident.job || incident.job === job) state.incidents.set(incident.id, incident);
  }
  notify("incidents");
}

function resetSteps(job) {
  state.steps.job = job;
  for (const column of COLUMNS) state.steps[column] = [];
}

function takeSteps(rows) {
  const { steps } = state;
  if (rows.job !== undefined && rows.job !== steps.job) resetSteps(rows.job);
  for (let i = 0; i < rows.step.length; i++) {
    // A step that is not after the last one: the job went back to a snapshot and does it again.
    while (steps.step.length && steps.step.at(-1) >= rows.step[i]) for (const column of COLUMNS) steps[column].pop();
    for (const column of COLUMNS) steps[column].push(rows[column][i]);
  }
  const surplus = steps.step.length - MOST_STEPS;
  if (surplus > 0) for (const column of COLUMNS) steps[column].splice(0, surplus);
  notify("steps");
}

async function pollRanks() {
  state.ranks = await getLarge("/ranks");
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
 * within it. What takes long is asked for less often. A failure waits for the next turn. */
export function whileShown(views, work, pause) {
  let [timer, busy, asked] = [0, false, false];
  const turn = async () => {
    clearTimeout(timer);
    asked = busy;
    if (busy || !views.includes(route.view)) return;
    busy = true;
    const began = performance.now();
    if (!document.hidden) await Promise.resolve(work()).catch((error) => console.info("view:", error.message));
    busy = false;
    timer = setTimeout(turn, asked ? 0 : Math.max(pause(), (performance.now() - began) / MOST_SHARE));
  };
  on("route", turn);
  return turn;
}

/** Calls `work` again and again, never twice at once, not while the tab is hidden; a failure waits for the next turn. */
export async function repeat(work, pause) {
  for (;;) {
    if (!document.hidden) await work().catch(() => {});
    await new Promise((done) => setTimeout(done, document.hidden ? 1000 : pause()));
  }
}
