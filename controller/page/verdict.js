// The first line of the page: is my job fine? One sentence, one sign, and the figures that go with it.

import { byId, make, setText } from "./dom.js";
import { clock, count, known, loss, percent, seconds, short } from "./format.js";
import { isOpen, newestFirst } from "./incidents.js";
import { route, VIEWS } from "./router.js";
import { announce } from "./select.js";
import { now, on, state } from "./store.js";

const LATE_STEPS = 8; // steps that should have ended by now, before silence is worth a warning
const LATE_S = 10;
let said = "";
const tiles = new Map();

/** {level, text, why}: pure in what the page knows. */
export function judge(status, incident, lastStepAt, time) {
  const { job } = status;
  const nodes = Object.entries(status.counts).filter(([, many]) => many > 0);
  const listed = nodes.map(([name, many]) => `${count(many)} ${name}`).join(", ");
  if (!job) return { level: "none", text: "No job yet", why: nodes.length ? `Nodes: ${listed}. Start one: holdfast run …` : "No node has joined yet." };
  const why = job.reason || "";
  switch (job.state) {
    case "finished": return { level: "done", text: "Finished", why: `${count(job.step + 1)} steps, ${count(job.restarts)} restarts` };
    case "failed": return { level: "bad", text: "Failed", why };
    case "stopped": return { level: "done", text: "Stopped", why };
    case "recovering": return { level: "busy", text: "Recovering", why: incident?.summary ?? why };
    case "pending": return { level: "busy", text: "Waiting for nodes", why };
    case "starting": return { level: "busy", text: "Starting", why };
  }
  if (incident) return { level: "bad", text: "Incident while training", why: incident.summary };
  if (job.pause) {
    const { life, text, place, usual_seconds: usual, limit_seconds: limit } = job.pause;
    const past = usual ? `; up to ${seconds(usual)} here before` : "";
    const end = known(limit) ? `; restart at ${seconds(limit)}` : "";
    return { level: life === "busy" ? "busy" : "warn", text: `Paused, ${life} for ${seconds(time - job.pause.since)}`, why: `${text}${place ? `, at ${place}` : ""}${past}${end}` };
  }
  const silent = known(lastStepAt) ? time - lastStepAt : 0;
  if (silent > Math.max(LATE_S, LATE_STEPS * (job.step_seconds ?? 0))) {
    return { level: "warn", text: `No step for ${seconds(silent)}`, why: "The workers run, but no step finished." };
  }
  const doubtful = (status.counts.suspect ?? 0) + (status.counts.faulty ?? 0) + (status.counts.lost ?? 0);
  if (doubtful) return { level: "warn", text: "Training, with suspect nodes", why: `Nodes: ${listed}` };
  const since = state.incidents.size ? `last incident ${clock(newestFirst()[0].opened)}` : "no incident";
  return { level: "ok", text: "Training normally", why: `Generation ${job.generation}, ${since}` };
}

function show() {
  const { status } = state;
  if (!status) return;
  const { job } = status;
  const incident = newestFirst().find(isOpen);
  const { level, text, why } = judge(status, incident, state.steps.at.at(-1), now());
  byId("verdict").dataset.level = level;
  setText(byId("verdict-text"), text);
  setText(byId("verdict-why"), why);
  byId("verdict-why").title = why;
  setText(byId("job-name"), job?.name ?? "no job");
  setText(byId("job-shape"), job ? `${count(job.world_size)} ranks on ${count(job.nnodes)} nodes` : "");
  document.title = `${job ? `${text} · step ${count(job.step)} · ${job.name}` : text} · ${VIEWS[route.view]} · Holdfast`;
  const spoken = text.replace(/ for .*/, "");
  if (spoken !== said) announce(`${job?.name ?? ""} ${text}. ${why}`);
  said = spoken;
  showTiles(status);
}

function atRisk(found) {
  if (!found || !known(found.worker)) return [];
  const worse = [["node", found.node], ["job", found.job]].filter(([, cost]) => known(cost));
  return [["A fault now", seconds(found.worker), worse.map(([what, cost]) => `${what}: ${seconds(cost)}`).join(", ")]];
}

function showTiles({ job, counts }) {
  const nodes = Object.values(counts).reduce((sum, many) => sum + many, 0);
  const well = (counts.healthy ?? 0) + (counts.spare ?? 0);
  const left = job?.max_steps && known(job.step_seconds) ? (job.max_steps - job.step - 1) * job.step_seconds : null;
  const rows = job
    ? [
        ["Step", job.step < 0 ? "–" : count(job.step), job.max_steps ? `of ${count(job.max_steps)}${left > 0 && job.state === "running" ? `, ${seconds(left)} left` : ""}` : ""],
        ["Loss", loss(job.loss), ""],
        ["Tokens/s", short(job.tokens_per_s), ""],
        ["Step time", seconds(job.step_seconds), "median"],
        ...(known(job.mfu) ? [["MFU", percent(job.mfu), "of the peak"]] : []),
        ["Goodput", percent(job.goodput), job.time?.queued > 0 ? "of the time outside of the queue" : "of wall time"],
        ...atRisk(job.at_risk),
        ["Generation", count(job.generation), `${count(job.restarts)} restart${job.restarts === 1 ? "" : "s"}`],
      ]
    : [];
  rows.push(["Healthy nodes", `${count(well)}`, `of ${count(nodes)}`]);
  for (const [name, value, more] of rows) {
    if (!tiles.has(name)) {
      const tile = { value: document.createTextNode(""), more: make("small") };
      tiles.set(name, { ...tile, element: make("div", {}, make("dt", {}, name), make("dd", {}, tile.value, tile.more)) });
      byId("tiles").append(tiles.get(name).element);
    }
    const tile = tiles.get(name);
    setText(tile.value, value);
    setText(tile.more, more);
  }
  for (const [name, tile] of tiles) tile.element.hidden = !rows.some(([wanted]) => wanted === name);
}

function showConnection() {
  const { state: name, since, retryAt } = state.connection;
  const sign = byId("connection");
  sign.dataset.state = name;
  setText(sign.lastElementChild, name === "live" ? "live" : name === "lost" ? "connection lost" : "connecting");
  // A blip while the page loads or the controller restarts is not yet worth a red bar.
  const lost = name === "lost" && now() - since > 1;
  byId("lost").hidden = !lost;
  document.body.toggleAttribute("data-stale", lost);
  if (!lost) return;
  const wait = Math.max(0, Math.ceil(retryAt - now()));
  setText(byId("lost"), `Connection to the controller lost. Figures are from ${clock(since)}. Trying again${wait ? ` in ${wait} s` : " now"}. Training does not depend on it.`);
}

export function startVerdict() {
  on("status incidents route", show);
  on("connection", showConnection);
  setInterval(() => {
    if (state.connection.state !== "lost") show();
    showConnection();
  }, 1000);
}
