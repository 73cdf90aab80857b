// What waits for a person: faults without a repair of their own, nodes that are out of service, alerts of the last hour,
// and what the health of the job says needs one. What it says needs none is not listed.

import { byId, fill, make, setText } from "../base/dom.js";
import { ago, count } from "../base/format.js";
import { newestFirst, STATE } from "../incidents/incidents.js";
import { healthShown, LEVEL } from "../base/health.js";
import { link, past, route } from "../base/router.js";
import { now, on, state } from "../base/store.js";
import { wasOpen } from "../past/then.js";

const MOST = 5;
const ALERT_S = 3600;
/** @type {Record<string, string>} */
const OUT = { lost: "agent-exit", faulty: "eviction" }; // runbook entry of a node without an incident of its own

/**
 * @typedef {{ runbook: boolean, text: string, kind: string, href: string | null, name: string | number, at?: number,
 *   cat?: string }} Need
 */

/** [{text, kind, href, cat, at}], the worst first. Pure. `health`: null where there is no job.
 * @param {Api.Incident[]} incidents @param {Record<string, string>} nodes @param {number} time
 * @param {Api.Health | Api.HealthsThen | null} health @returns {Need[]} */
export function needsOf(incidents, nodes, time, health) {
  const conditions = health ? [health, ...health.others] : [];
  const isBearable = conditions.some((one) => one.condition === "slow" && !one.needs_person);
  /** @param {Api.Incident} one */
  const wanted = (one) => {
    if (one.kind === "straggler" && isBearable) return false;
    return one.state === "open" || one.state === "failed" || (one.action === "alert" && time - one.opened < ALERT_S);
  };
  /** @type {Record<string, number>} */
  const order = { failed: 0, open: 1 };
  const rows = incidents.filter(wanted).sort((a, b) => (order[a.state] ?? 2) - (order[b.state] ?? 2) || b.opened - a.opened);
  /** @type {Need[]} */
  const found = rows.map((one) => ({
    runbook: true, text: one.summary, kind: one.kind, href: link("incidents", one.id), name: one.id, at: one.opened, cat: STATE[one.state],
  }));
  for (const [name, what] of Object.entries(nodes)) {
    if (!(what in OUT)) continue;
    const why = incidents.find((one) => one.culprit === name || one.findings.some((each) => each.subject === name));
    if (why && rows.includes(why)) continue; // it is there already
    found.push({ runbook: true, text: `${name} is ${what}`, kind: why?.kind ?? OUT[what], href: link("nodes", name), name, at: why?.opened, cat: "bad" });
  }
  const named = new Set(found.map(({ name }) => name));
  const others = conditions.filter((one) => one.needs_person && !named.has(one.target)).map((one) => ({
    runbook: false, text: `${one.sentence} ${one.action}`, kind: one.condition, href: null, name: "", at: one.since, cat: LEVEL[one.condition],
  }));
  return [...others, ...found];
}

/** @param {Need} need */
function row({ runbook, text, kind, href, name, at, cat }) {
  return make("li", { class: "need", "data-cat": cat },
    make("span", { class: "pill", "data-cat": cat }, make("b", {}, kind.replaceAll("-", " "))),
    make("span", { class: "links" },
      at ? make("time", { class: "muted" }, ago((past() ?? now()) - at)) : null,
      href ? make("a", { class: "link", href }, String(name)) : null,
      runbook ? make("a", { class: "link", href: link("runbook", kind) }, "runbook") : null),
    make("p", { title: text }, text));
}

function show() {
  if (route.view !== "overview" || !state.status) return;
  const at = past();
  const open = /** @type {const} */ ("open");
  const incidents = at === null ? newestFirst() : newestFirst().filter((one) => wasOpen(one, at)).map((one) => ({ ...one, state: open }));
  const found = needsOf(incidents, at === null ? state.status.nodes : (state.past?.doubtful ?? {}), at ?? now(), healthShown());
  setText(byId("needs-count"), found.length > MOST ? `the worst ${MOST} of ${count(found.length)}` : "");
  const rows = found.slice(0, MOST).map(row);
  fill(byId("needs"), rows.length ? make("ul", { class: "plain" }, ...rows) : make("p", { class: "muted" }, "Nothing."));
}

export function startNeeds() {
  on("status incidents route then", show);
}
