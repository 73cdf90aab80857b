// Incidents, newest first: what happened, how long each phase took, what the detectors said.

import { all, byId, make, setText } from "../base/dom.js";
import { ago, clock, count, known, seconds } from "../base/format.js";
import { link, past, route } from "../base/router.js";
import { subjectLink } from "../base/select.js";
import { now, on, state } from "../base/store.js";
import { thenOrNow } from "../past/then.js";

const SHADES = 6;
/** @type {Record<string, string | undefined>} */
export const LEVEL = { critical: "bad", warning: "warn", info: "busy" };
/** @type {Record<string, string>} */
export const STATE = { open: "bad", recovering: "busy", closed: "ok", failed: "bad" };
/** @type {Map<Api.Incident["id"], { card: HTMLElement, text: string }>} */
const cards = new Map(); // a card is rebuilt only when its incident changed

/** @param {Pick<Api.Incident, "state">} incident */
export const isOpen = (incident) => incident.state === "open" || incident.state === "recovering";
export const newestFirst = () => [...state.incidents.values()].sort((a, b) => b.opened - a.opened);

function show() {
  const incidents = thenOrNow(newestFirst());
  const box = byId("incidents");
  setText(byId("incidents-count"), incidents.length ? count(incidents.length) : "");
  if (!incidents.length) {
    box.replaceChildren(make("p", { class: "quiet" }, past() === null ? "No incident so far." : "No incident until then."));
    return;
  }
  const wanted = incidents.slice(0, 100).map((incident) => {
    const text = JSON.stringify(incident);
    const known = cards.get(incident.id);
    if (known?.text === text) return known.card;
    const card = build(incident);
    if (known?.card.querySelector("details")?.open) card.querySelector("details")?.setAttribute("open", "");
    cards.set(incident.id, { card, text });
    return card;
  });
  if (wanted.length !== box.children.length || wanted.some((card, i) => box.children[i] !== card)) box.replaceChildren(...wanted);
  mark();
}

/** @param {Api.Incident} incident */
function build(incident) {
  const head = make("div", { class: "incident-head" },
    make("span", { class: "pill", "data-cat": STATE[incident.state] }, incident.state),
    make("b", {}, incident.kind.replaceAll("-", " ")),
    culprit(incident),
    make("time", { datetime: new Date(incident.opened * 1000).toISOString() }, clock(incident.opened)));
  const card = make("article", { class: "incident", "aria-label": `${incident.kind}, ${incident.culprit}, ${incident.state}` },
    head, make("p", { class: "summary" }, incident.summary), phases(incident));
  card.dataset.id = String(incident.id);
  if (incident.action) card.append(make("p", {}, incident.reason ? `${incident.action}: ${incident.reason}` : incident.action));
  if (incident.hint) card.append(make("p", {}, incident.hint));
  head.insertBefore(make("a", { class: "link", href: link("incidents", incident.id) }, "story"), head.lastChild);
  const facts = outcome(incident);
  if (facts) card.append(make("p", {}, facts));
  if (incident.findings.length) card.append(findings(incident));
  return card;
}

/** @param {Api.Incident} incident */
export function culprit(incident) {
  const href = subjectLink(incident.culprit);
  return href ? make("a", { class: "link", href }, incident.culprit) : make("span", {}, incident.culprit);
}

/** @param {Api.Incident} incident */
export function phases(incident) {
  const bar = make("div", { class: "phases", role: "img" });
  /** @type {string[]} */
  const spoken = [];
  incident.phases.forEach((phase, i) => {
    const piece = make("span", { class: `shade-${i % SHADES}`, "data-open": phase.end === null });
    Object.assign(piece.dataset, { name: phase.name, start: phase.start, end: phase.end ?? "" });
    bar.append(piece);
    spoken.push(phase.name);
  });
  bar.setAttribute("aria-label", `Phases: ${spoken.join(", ")}`);
  time(bar);
  return bar;
}

/** Widths and labels of the phases; those that last grow.
 * @param {HTMLElement} bar */
function time(bar) {
  for (const piece of /** @type {HTMLCollectionOf<HTMLElement>} */ (bar.children)) {
    const { name, start, end } = piece.dataset;
    const lasted = Math.max(0.001, (end ? Number(end) : now()) - Number(start));
    piece.style.flexGrow = lasted.toFixed(3);
    piece.style.flexBasis = "0";
    setText(piece, `${name} ${seconds(lasted)}`);
    piece.title = piece.textContent;
  }
}

/** The step that training went on with: unknown of a program that numbers none; "" where it has not gone on.
 * @param {Api.Incident} incident */
export function stepResumed(incident) {
  if (known(incident.step_resumed)) return count(incident.step_resumed);
  return incident.state === "closed" && known(incident.generation_to) && (incident.step_at_fault ?? 0) >= 0 ? "unknown" : "";
}

/** @param {Api.Incident} incident */
export function outcome(incident) {
  const parts = [];
  if (known(incident.detect_s)) parts.push(`detected in ${seconds(incident.detect_s)}`);
  // A watched incident stopped no training: what came back is the watcher.
  const back = incident.action === "watch" ? "back" : "training again";
  if (known(incident.recover_s)) parts.push(`${back} in ${seconds(incident.recover_s)}`);
  const resumed = stepResumed(incident);
  if (resumed) parts.push(`step ${count(incident.step_at_fault)} → ${resumed}`);
  if (incident.source) {
    const took = known(incident.restore_s) ? ` in ${seconds(incident.restore_s)}` : "";
    parts.push(`state from ${incident.source}${took}`);
  }
  return parts.join(" · ");
}

/** @param {Api.Incident} incident */
export function findings(incident) {
  const { length } = incident.findings;
  const box = make("details", {}, make("summary", {}, `${length} finding${length === 1 ? "" : "s"}`));
  if (isOpen(incident)) box.setAttribute("open", "");
  for (const finding of incident.findings) {
    const item = make("div", { class: "finding", "data-cat": LEVEL[finding.severity] ?? "idle" },
      make("div", {}, `${clock(finding.at)} ${finding.subject}: ${finding.text}`));
    const evidence = Object.entries(finding.evidence ?? {});
    if (evidence.length) item.append(make("pre", {}, evidence.map(([key, value]) => `${key}: ${plain(value)}`).join("\n")));
    box.append(item);
  }
  return box;
}

/** @param {unknown} value */
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function mark() {
  for (const [id, { card }] of cards) {
    const chosen = String(id) === String(state.selected.incident ?? "");
    if (chosen === card.hasAttribute("data-selected")) continue;
    card.toggleAttribute("data-selected", chosen);
    if (chosen && route.view !== "incidents") card.querySelector("details")?.setAttribute("open", "");
    if (chosen) card.scrollIntoView({ block: "nearest" });
  }
}

function tick() {
  for (const piece of all(".phases span[data-open]")) time(piece.parentElement);
  for (const [id, { card }] of cards) {
    const incident = state.incidents.get(id);
    if (!incident) continue; // of the job that the page was about before
    const when = now() - incident.opened < 3600 ? ago(now() - incident.opened) : clock(incident.opened);
    setText(/** @type {HTMLElement} */ (card.querySelector("time")), when);
  }
}

export function startIncidents() {
  on("incidents then", show);
  on("selected", mark);
  setInterval(tick, 250);
  show();
}
