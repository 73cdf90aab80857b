// One incident as a story: what was seen, what was decided and why, what each phase took, and the evidence of it all.

import { get } from "../base/api.js";
import { byId, fill, make, pairs, setText } from "../base/dom.js";
import { bytes, clock, count, known, seconds } from "../base/format.js";
import { culprit, isOpen, LEVEL, newestFirst, outcome, phases, STATE, stepResumed } from "./incidents.js";
import { route } from "../base/router.js";
import { stackTree } from "./stack_tree.js";
import { notify, now, on, state } from "../base/store.js";
/** @import { Pair } from "../base/dom.js" */

/** @type {Record<string, string | undefined>} */

const MEANING = {
  suspect: "a fault is suspected, the culprit is not yet certain",
  diagnosing: "tests, to find the culprit",
  suspended: "the rest of the generation is stopped",
  ongoing: "training continues, slower",
  evicting: "the culprit is evicted, the rest of the generation is stopped",
  replenishing: "waiting for a replacement node",
  waiting: "waiting before the next attempt, for the last ones made no progress",
  starting: "processes start",
  restoring: "every rank restores its state",
  resuming: "until the first step is done",
};
/** @type {Api.WholeIncident | null} */
let whole = null; // with its stacks, as /api/v1/incidents/{id}
let drawn = "";

/** The incident that is open, as it came last with all its parts; null before. */
export const loaded = () => whole;

/** The incident that is open in the view; the newest where none was chosen. */
export function chosen() {
  const all = newestFirst();
  return (
    all.find((incident) => String(incident.id) === String(state.selected.incident ?? "")) ??
    (state.selected.incident === null ? all[0] : null)
  );
}

async function load() {
  const incident = chosen();
  if (route.view !== "incidents" || !incident || (whole?.id === incident.id && whole.state === incident.state)) return;
  whole = await get(`/incidents/${encodeURIComponent(incident.id)}`).catch(() => null);
  show();
  notify("story");
}

function show() {
  if (route.view !== "incidents") return;
  const incident = chosen();
  const box = byId("story");
  if (!incident) {
    setText(byId("story-title"), "Story");
    const missing =
      state.selected.incident === null ? "No incident so far." : `There is no incident ${state.selected.incident}.`;
    return fill(box, make("p", { class: "muted" }, missing));
  }
  const text = JSON.stringify([incident, whole?.id === incident.id && whole.stacks !== null]);
  if (text === drawn && box.children.length) return;
  drawn = text;
  setText(byId("story-title"), `Incident ${incident.id}`);
  box.replaceChildren(head(incident), phases(incident), ...chapters(incident), ...stacks(incident));
}

/** @param {Api.Incident} incident */
function head(incident) {
  /** @type {Pair[]} */
  const facts = [
    ["culprit", culprit(incident)],
    ["opened", clock(incident.opened)],
  ];
  if (known(incident.closed)) facts.push(["closed", clock(incident.closed)]);
  if (known(incident.generation_to))
    facts.push(["generation", `${count(incident.generation_from)} → ${count(incident.generation_to)}`]);
  if (known(incident.step_at_fault)) facts.push(["step at the fault", count(incident.step_at_fault)]);
  if (stepResumed(incident)) facts.push(["training resumed from", stepResumed(incident)]);
  if (known(incident.restored_bytes))
    facts.push(["state read", `${bytes(incident.restored_bytes)} from ${incident.source}`]);
  if (known(incident.restore_sent_bytes)) facts.push(["state sent between hosts", bytes(incident.restore_sent_bytes)]);
  return make(
    "div",
    { class: "detail-stack" },
    make(
      "p",
      { class: "big" },
      make("span", { class: "pill", "data-cat": STATE[incident.state] }, incident.state),
      ` ${incident.kind.replaceAll("-", " ")}`,
    ),
    make("p", {}, incident.summary),
    pairs(facts),
  );
}

/** What happened, in the order in which it happened.
 * @param {Api.Incident} incident */
function chapters(incident) {
  // What happened at the same instant: first it was seen, then decided, then done.
  const events = incident.findings.map((finding) => ({ at: finding.at, turn: 0, item: seen(finding) }));
  for (const phase of incident.phases) events.push({ at: phase.start, turn: 2, item: passed(phase) });
  if (incident.action) {
    const at = incident.phases.find((phase) => phase.name !== "suspect")?.start ?? incident.opened;
    const why = incident.reason ? `: ${incident.reason}` : "";
    events.push({
      at,
      turn: 1,
      item: make(
        "li",
        { class: "decision" },
        make("time", {}, clock(at)),
        make("b", {}, `Decided: ${incident.action}`),
        why,
      ),
    });
  }
  if (known(incident.closed)) {
    const failed = incident.state === "failed";
    events.push({
      at: incident.closed,
      turn: 3,
      item: make(
        "li",
        { class: failed ? "bad" : "good" },
        make("time", {}, clock(incident.closed)),
        make("b", {}, failed ? "Failed" : "Closed"),
        ` ${outcome(incident)}`,
      ),
    });
  } else if (isOpen(incident)) events.push({ at: Infinity, turn: 3, item: make("li", { class: "muted" }, "…") });
  events.sort((a, b) => a.at - b.at || a.turn - b.turn);
  return [make("h4", {}, "What happened"), make("ol", { class: "chapters" }, ...events.map(({ item }) => item))];
}

/** @param {Api.Phase} phase */
function passed(phase) {
  const took = (phase.end ?? now()) - phase.start;
  return make(
    "li",
    {},
    make("time", {}, clock(phase.start)),
    make("b", {}, phase.name),
    ` ${phase.end === null ? "since then" : seconds(took)}`,
    make("span", { class: "muted" }, MEANING[phase.name] ? ` ${MEANING[phase.name]}` : ""),
  );
}

/** @param {Api.Finding} finding */
function seen(finding) {
  const evidence = Object.entries(finding.evidence ?? {}).filter(([, value]) => value !== null && value !== "");
  const item = make(
    "li",
    { class: "finding", "data-cat": LEVEL[finding.severity] ?? "idle" },
    make("time", {}, clock(finding.at)),
    make("b", {}, `${finding.subject}: ${finding.kind.replaceAll("-", " ")}`),
    ` ${finding.text}`,
  );
  if (evidence.length)
    item.append(
      make(
        "pre",
        {},
        evidence
          .map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`)
          .join("\n"),
      ),
    );
  return item;
}

/** @param {Api.Incident} incident */
function stacks(incident) {
  if (whole?.id !== incident.id || !whole.stacks) return [];
  return [make("h4", {}, "Stacks of the workers"), stackTree(whole.stacks)];
}

export function startStory() {
  const turn = () => {
    show();
    load();
  };
  on("incidents selected route", turn);
  setInterval(() => {
    const incident = chosen();
    if (incident && isOpen(incident)) {
      drawn = "";
      show();
    }
  }, 1000);
}
