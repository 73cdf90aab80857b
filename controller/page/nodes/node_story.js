// What is known of a node beyond this moment: what counted against it, what diagnostics said.

import { get } from "../base/api.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { clock, known, short } from "../base/format.js";
import { newestFirst } from "../incidents/incidents.js";
import { whileShown } from "../base/live.js";
import { link, route } from "../base/router.js";
import { on, state } from "../base/store.js";

/** @type {Record<string, string>} */
const GRADE = { pass: "ok", degraded: "warn", fail: "bad", unable: "idle" };
const WORST = ["fail", "degraded", "unable", "pass"];
/** @type {{ name: string, error: string } | Api.NodeHistory & { name: string, error?: undefined } | null} */
let history = null; // as /api/v1/nodes/{name}/history

async function poll() {
  const name = state.selected.node;
  if (!name) return;
  const fresh = await get(`/nodes/${encodeURIComponent(name)}/history`).catch((error) => ({ error: error.message }));
  if (name !== state.selected.node) return;
  history = { name, ...fresh };
  show();
}

function show() {
  if (route.view !== "nodes") return;
  const name = state.selected.node;
  setText(byId("history-title"), name ? `History and verdicts of ${name}` : "History and verdicts");
  if (!name) return fill(byId("history"), make("p", { class: "muted" }, "Choose a node in the list."));
  if (history?.name !== name) return fill(byId("history"), make("p", { class: "muted" }, "…"));
  if (history.error !== undefined) return fill(byId("history"), make("p", { class: "muted" }, history.error));
  fill(byId("history"), ...standing(history), ...past(name, history), ...verdicts(history));
}

/** @param {Api.NodeHistory} history */
function standing(history) {
  /** @type {string[]} */
  const parts = [];
  if (history.cordoned) parts.push("cordoned: it gets no work until an operator uncordons it");
  if (history.evicted)
    parts.push(`evicted ${history.evicted_at ? `at ${clock(history.evicted_at)}` : ""}: ${history.evicted}`);
  if (history.quarantined) parts.push("quarantined: not used even if no other node is available");
  return parts.map((text) => make("p", { class: "named" }, text));
}

/** @param {string} name @param {Api.NodeHistory} history */
function past(name, history) {
  const about = newestFirst().filter(
    (incident) =>
      incident.culprit === name || incident.findings.some((f) => f.subject === name || f.evidence?.node === name),
  );
  const rows = [
    ...history.node_failures.map(({ at, kind }) => ({
      at,
      item: make("li", {}, `${clock(at)} node failure: ${kind.replaceAll("-", " ")}`),
    })),
    ...about.map((i) => ({
      at: i.opened,
      item: make(
        "li",
        {},
        `${clock(i.opened)} `,
        make("a", { class: "link", href: link("incidents", i.id) }, i.kind.replaceAll("-", " ")),
        ` ${i.summary}`,
      ),
    })),
  ].sort((a, b) => b.at - a.at);
  return [
    make("h4", {}, "Faults"),
    rows.length
      ? make("ul", { class: "plain" }, ...rows.slice(0, 30).map(({ item }) => item))
      : make("p", { class: "muted" }, "None known."),
  ];
}

/** @param {Api.NodeHistory} history */
function verdicts(history) {
  /** @type {Api.Verdict[]} */
  const rows = [...history.verdicts].sort(
    (a, b) => WORST.indexOf(a.grade) - WORST.indexOf(b.grade) || a.check.localeCompare(b.check),
  );
  const title = make("h4", {}, "Diagnostics, the newest of each figure");
  if (!rows.length) {
    return [
      title,
      make(
        "p",
        { class: "muted" },
        "Not diagnosed yet.",
      ),
    ];
  }
  return [title, verdictTable(rows)];
}

/** Verdicts as a table: what was measured, against what, and what to do.
 * @param {Api.Verdict[]} rows @param {boolean} withNode */
export function verdictTable(rows, withNode = false) {
  const heads = [...(withNode ? ["Node"] : []), "Test", "Verdict", "Measured", "Against", "What it says"];
  const body = rows.map((v) => {
    const figure = known(v.value) ? `${short(v.value)}${v.unit}` : "–";
    const bar = known(v.baseline)
      ? `${short(v.baseline)}${v.unit} (${v.against})`
      : known(v.bar)
        ? `${short(v.bar)}${v.unit} (bar)`
        : v.against;
    return make(
      "tr",
      {},
      withNode ? make("td", {}, make("a", { class: "link", href: link("nodes", v.node) }, v.node)) : null,
      make("th", { scope: "row" }, [v.check, v.metric, v.component].filter(Boolean).join(" ")),
      make("td", {}, make("span", { class: "pill", "data-cat": GRADE[v.grade] }, v.grade)),
      make("td", { class: "num" }, figure),
      make("td", { class: "num" }, bar),
      make("td", {}, v.text, v.action && v.grade !== "pass" ? make("p", { class: "muted" }, v.action) : null),
    );
  });
  const head = make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)));
  return make("table", { class: "data full" }, make("thead", {}, head), make("tbody", {}, ...body));
}

export function startNodeStory() {
  const turn = whileShown(["nodes"], poll, () => 5000);
  on("selected", () => {
    show();
    if (history?.name !== state.selected.node) turn();
  });
  on("incidents", show);
}
