// The first panel of the page: the health of the job, as the controller judged it. Nothing is judged here.

import { post } from "./api.js";
import { byId, fill, make, setText, sureButton } from "./dom.js";
import { messageOf } from "./errors.js";
import { count, known, seconds } from "./format.js";
import { link, route, VIEWS } from "./router.js";
import { announce } from "./select.js";
import { on, state } from "./store.js";

/** The colour and the sign of each condition.
 * @type {Record<string, string | undefined>} */
export const LEVEL = {
  failed: "bad", "no progress": "bad", slow: "warn", "at risk": "warn", recovering: "busy", starting: "busy",
  "waiting for nodes": "wait", paused: "wait", well: "ok", stopped: "ended", finished: "ended",
};
const NO_JOB = "Start one: holdfast run script.py";
let said = "";
let offered = ""; // the remedy that the button is for

/** The health of the job at the time that is shown; null where nothing is known. */
export function healthShown() {
  return (state.past ? state.past.health : state.status?.job?.health) ?? null;
}

/** The ranks that the conditions of the job name as culprits. */
export function culpritRanks() {
  const health = healthShown();
  return health ? [health, ...health.others].map((one) => one.rank).filter(known) : [];
}

function show() {
  const { status } = state;
  if (!status) return;
  const { job } = status;
  const health = healthShown();
  const sentence = state.past?.problem ?? health?.sentence ?? "No job yet.";
  byId("health").dataset.level = LEVEL[health?.condition ?? ""] ?? "none";
  byId("health").dataset.condition = health?.condition ?? "";
  setText(byId("health-sentence"), sentence);
  fill(byId("health-action"), ...withCode(state.past ? "" : (health?.action ?? NO_JOB)));
  setText(byId("health-doing"), health ? doing(health) : "");
  setText(byId("job-name"), job?.name ?? "no job");
  setText(byId("job-shape"), job ? `${count(job.world_size)} ranks on ${count(job.nnodes)} nodes` : "");
  fill(byId("health-others"), ...(health?.others ?? []).map(other));
  const basis = (state.past ? null : job?.health?.basis) ?? [];
  byId("health-basis").hidden = !basis.length;
  fill(byId("health-basis-list"), ...basis.map((text) => make("li", {}, text)));
  offer(state.past ? null : (job?.health ?? null));
  const condition = health?.condition ?? "no job";
  const ofLife = job?.step_of_life ?? null;
  const step = ofLife === null ? count(job?.step ?? null) : `${count(ofLife)} of this life`;
  document.title = `${condition}${job ? ` · step ${step} · ${job.name}` : ""} · ${VIEWS[route.view]} · Holdfast`;
  // Its figures change with every step: it is read aloud when the condition or the culprit does.
  const key = [job?.id, condition, health?.target, health?.rank].join();
  if (key !== said) announce(`${job?.name ?? ""}: ${sentence} ${health?.action ?? ""}`);
  said = key;
}

/** "Try `this`." as text with the command set off.
 * @param {string} text */
const withCode = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

/** @param {Api.Health | Api.HealthsThen} health */
function doing({ doing: what, usual_s: usual }) {
  const takes = known(usual) ? `usually takes ${seconds(usual)}` : "";
  return what && takes ? `${what} (${takes})` : what || takes;
}

/** @param {Api.Condition | Api.HealthThen} one */
function other(one) {
  const pill = make("span", { class: "pill", "data-cat": LEVEL[one.condition] }, one.condition);
  return make("li", {}, pill, " ", one.sentence);
}

/** The one button that fits the action: a link, or a command that asks once more where it costs the job something.
 * @param {Api.Health | null} health */
function offer(health) {
  const { remedy = "", target = "" } = health ?? {};
  const key = [remedy, target, link("overview")].join();
  if (key === offered) return;
  offered = key;
  fill(byId("health-button"));
  const button = BUTTONS[remedy]?.(target);
  if (button) byId("health-button").append(button);
}

/** @param {string} text @param {string} href */
const to = (text, href) => make("a", { class: "primary", href }, text);

/** `sureButton`, with what came of it beneath the action.
 * @param {string} text @param {string} really @param {() => Promise<string>} work */
const ask = (text, really, work) =>
  sureButton(text, () => really, async () => {
    try {
      announceDone(await work());
    } catch (error) {
      announceDone(messageOf(error));
    }
  }, { class: "primary" });

/** @param {string} text */
function announceDone(text) {
  setText(byId("health-answer"), text);
  announce(text);
}

/** @type {Record<string, ((target: string) => HTMLElement) | undefined>} */
const BUTTONS = {
  incident: (id) => to(`Open incident ${id}`, link("incidents", id)),
  nodes: () => to("Nodes", link("nodes")),
  blame: () => to("Slow ranks", link("slow")),
  stacks: () => to("Stacks", link("incidents", null, { show: "stacks" })),
  diagnose: (node) =>
    ask(`Diagnose ${node}`, `Really? The job is slower meanwhile`, async () => {
      const { id } = await post("/diagnose", { nodes: [node], suite: "quick", busy: true });
      return `diagnosis ${id} of ${node} started: see Nodes`;
    }),
  checkpoint: () =>
    ask("Checkpoint now", "Really checkpoint?", async () => {
      await post("/job/checkpoint");
      return "a checkpoint of the next step is requested";
    }),
};

export function startHealth() {
  on("status route then", show);
  on("job", () => setText(byId("health-answer"), ""));
}
