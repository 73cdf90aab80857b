// What stands beside the story of an incident: the culprit's last lines with the exception, the runbook's text, what was
// earlier, the timeline around it, and what can be done.

import { listen, post } from "../base/api.js";
import { byId, fill, make, setText, sureButton } from "../base/dom.js";
import { clock, known } from "../base/format.js";
import { link, pinned, route } from "../base/router.js";
import { announce } from "../base/select.js";
import { on, state } from "../base/store.js";
import { levelShown } from "../logs/log_lines.js";
import { timeOf } from "../past/then.js";
import { startAroundTimeline, timelinePart } from "./around_timeline.js";
import { chosen, loaded } from "./story.js";
import { entryOf } from "./runbook.js";

const LINES = 20; // of the culprit's log
let asked = "";
/** @typedef {Api.Incident | Api.WholeIncident} Incident */

/** @type {{ log: string[], entry: HTMLElement[] | null }} */
let found = { log: [], entry: null };
let stop = new AbortController();

/** The rank that an incident names; null where it names none. Pure.
 * @param {Incident} incident */
export function rankOf(incident) {
  const rank = /^rank(\d+)$/.exec(incident.culprit)?.[1] ?? incident.findings.map((one) => /^rank(\d+)$/.exec(one.subject)?.[1]).find(Boolean);
  return rank === undefined ? null : Number(rank);
}

async function load() {
  const incident = chosen();
  const key = route.view === "incidents" && incident ? `${incident.id} ${incident.kind}` : "";
  if (key === asked) return show();
  asked = key;
  stop.abort();
  found = { log: [], entry: null };
  show();
  if (!key || !incident) return;
  stop = new AbortController();
  const mine = stop;
  entryOf(incident.kind).then((entry) => mine === stop && ((found.entry = entry), show()), () => {});
  const log = await lastLines(incident, mine.signal);
  if (mine !== stop) return;
  found.log = log;
  show();
}

/** What the culprit printed up to the incident, in the life that it ended.
 * @param {Incident} incident @param {AbortSignal} signal */
async function lastLines(incident, signal) {
  const rank = rankOf(incident);
  if (rank === null || !incident.job) return [];
  const query = new URLSearchParams({ ranks: String(rank), follow: "false", rate: "5000" });
  if (incident.generation_from) query.set("generation", String(incident.generation_from));
  /** @type {string[]} */
  const lines = [];
  /** @param {{ at: number, text: string }} chunk */
  const take = (chunk) => {
    if (chunk.at <= incident.opened + 5) lines.push(...chunk.text.replace(/\n$/, "").split("\n"));
    lines.splice(0, Math.max(0, lines.length - LINES));
  };
  const mine = new AbortController();
  signal.addEventListener("abort", () => mine.abort());
  await listen(`/jobs/${encodeURIComponent(incident.job)}/logs?${query}`, { line: take, end: () => mine.abort() }, () => {}, mine.signal).catch(() => {});
  return lines;
}

function show() {
  const incident = route.view === "incidents" ? chosen() : null;
  byId("around").parentElement.hidden = !incident;
  if (!incident) return;
  fill(byId("around"), ...logPart(incident), ...timelinePart(incident, rankOf(incident), whole(incident)?.around ?? null, show), ...earlierPart(incident), ...runbookPart(incident));
  offer(incident);
}

/** @param {Incident} incident */
function logPart(incident) {
  const rank = rankOf(incident);
  if (rank === null) return [];
  /** @type {string} */
  const error = incident.findings.map((one) => one.evidence?.error).find(Boolean) ?? "";
  const lines = found.log.length ? found.log : error.trimEnd().split("\n").slice(-LINES);
  const all = link("logs", null, { rank, generation: incident.generation_from || null });
  if (!lines.some(Boolean)) return [make("h4", {}, `Log of rank ${rank}`), make("p", { class: "muted" }, "Nothing of it is kept. ", make("a", { class: "link", href: all }, "Logs"))];
  const shown = lines.map((text) => make("span", { "data-level": levelShown(text) }, text, "\n"));
  return [
    make("h4", {}, `Last lines of rank ${rank} `, make("a", { class: "link", href: all }, "all")),
    make("pre", { class: "log-tail", tabindex: "0" }, ...shown),
  ];
}

/** The incident's whole document, once it is here.
 * @param {Incident} incident */
const whole = (incident) => (loaded()?.id === incident.id ? loaded() : null);

/** @param {Incident} incident */
function earlierPart(incident) {
  const earlier = whole(incident)?.earlier;
  if (!earlier) return [];
  const rows = earlier.map((one) =>
    make("li", {}, make("time", { class: "muted" }, `${timeOf(one.opened)} `), make("a", { class: "link", href: link("incidents", one.id) }, one.id),
      ` ${one.kind.replaceAll("-", " ")} on ${one.culprit} `, make("span", { class: "muted" }, `same ${one.same.join(", ")}`)),
  );
  return [make("h4", {}, "Earlier"), rows.length ? make("ul", { class: "plain" }, ...rows) : make("p", { class: "muted" }, "None of this node, rank or traceback.")];
}

/** @param {Incident} incident */
function runbookPart(incident) {
  if (!found.entry) return [];
  return [make("h4", {}, "Runbook: ", incident.kind.replaceAll("-", " ")), ...found.entry];
}

/** Copy, and what can be done to the node; nothing that makes no sense.
 * @param {Incident} incident */
function offer(incident) {
  const box = byId("around-do");
  const node = incident.findings.map((one) => one.evidence?.node ?? one.subject).concat(nodeOf(incident)).find((name) => name in (state.status?.nodes ?? {}));
  const what = node ? state.status?.nodes[node] : "";
  const key = [incident.id, node, what].join();
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const copy = make("button", { class: "ghost", type: "button" }, "Copy as Markdown");
  copy.addEventListener("click", async () => {
    const current = chosen();
    if (!current) return;
    await navigator.clipboard.writeText(markdown(current)).then(() => setText(copy, "Copied"), (error) => setText(copy, error.message));
    announce(copy.innerText);
  });
  /** @param {string} label @param {string} really @param {string} path @param {any} body */
  const act = (label, really, path, body) =>
    sureButton(label, () => really, async () => {
      const said = await post(path, body).then(() => `${label}: requested`, (error) => error.message);
      setText(byId("around-said"), said);
      announce(said);
    });
  const busy = state.status?.job?.assignment.some((one) => one.node === node) ?? false;
  const buttons = node
    ? [
        act(`Test ${node}`, busy ? "Really? The job is slower meanwhile" : `Really test ${node}?`, "/diagnose", { nodes: [node], suite: "quick", busy }),
        act(what === "cordoned" ? `Uncordon ${node}` : `Cordon ${node}`, `Really?`, `/nodes/${encodeURIComponent(node)}/${what === "cordoned" ? "uncordon" : "cordon"}`, null),
      ]
    : [];
  box.replaceChildren(copy, ...buttons);
}

/** @param {Incident} incident */
function nodeOf(incident) {
  const rank = rankOf(incident);
  const part = state.status?.job?.assignment.find((one) => rank !== null && one.ranks.includes(rank));
  return part ? [part.node] : [];
}

/** The incident as text for a ticket.
 * @param {Incident} incident */
function markdown(incident) {
  const job = incident.job ? ` of job ${incident.job}` : "";
  const phases = incident.phases.map(({ name, start, end }) => `- ${clock(start)} ${name}${known(end) ? `, ${(end - start).toFixed(1)} s` : ""}`);
  const findings = incident.findings.map((one) => `- ${clock(one.at)} ${one.subject}, ${one.kind}: ${one.text}`);
  const earlier = (whole(incident)?.earlier ?? []).map((one) => `- ${one.id} ${one.kind} on ${one.culprit} (same ${one.same.join(", ")})`);
  /** @param {string} title @param {string[]} lines */
  const part = (title, lines) => (lines.length ? [`## ${title}`, "", ...lines, ""] : []);
  const address = `${location.origin}/#/incidents/${incident.id}${pinned() ? `?job=${pinned()}` : ""}`;
  return [
    `# ${incident.id}: ${incident.kind} on ${incident.culprit}${job}`, "", incident.summary, "",
    `${incident.state}, opened ${new Date(incident.opened * 1000).toISOString()}${incident.action ? `; ${incident.action}: ${incident.reason ?? ""}` : ""}`, "",
    ...part("Phases", phases), ...part("Findings", findings),
    ...part("Last lines", found.log.length ? ["```", ...found.log, "```"] : []),
    ...part("Earlier", earlier), address, "",
  ].join("\n");
}

export function startAround() {
  startAroundTimeline();
  on("incidents selected route story", load);
  on("status", () => {
    const incident = route.view === "incidents" ? chosen() : null;
    if (incident) offer(incident);
  });
}
