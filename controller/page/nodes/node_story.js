// What is known of a node beyond this moment: what counted against it, what diagnostics said, how its steps went.

import { get, getLarge } from "../base/api.js";
import { level, ratioPalette, timeRamp } from "../drawing/colours.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { clock, count, known, percent, short } from "../base/format.js";
import { cell } from "../drawing/grid.js";
import { HeatMap } from "../drawing/heat_map.js";
import { newestFirst } from "../incidents/incidents.js";
import { whileShown } from "../base/live.js";
import { link, route } from "../base/router.js";
import { select } from "../base/select.js";
import { on, state } from "../base/store.js";

const GRADE = { pass: "ok", degraded: "warn", fail: "bad", unable: "idle" };
const WORST = ["fail", "degraded", "unable", "pass"];
let history = null; // {name, ...} as /api/v1/nodes/{name}/history
let steps = null; // as /api/v1/blame/heat
let map = null;

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
  if (history.error) return fill(byId("history"), make("p", { class: "muted" }, history.error));
  fill(byId("history"), ...standing(), ...past(name), ...verdicts());
}

function standing() {
  const parts = [];
  if (history.cordoned) parts.push("cordoned: it gets no work until an operator uncordons it");
  if (history.evicted)
    parts.push(`evicted ${history.evicted_at ? `at ${clock(history.evicted_at)}` : ""}: ${history.evicted}`);
  if (history.quarantined) parts.push("quarantined: not used even if no other node is available");
  return parts.map((text) => make("p", { class: "named" }, text));
}

function past(name) {
  const about = newestFirst().filter(
    (incident) =>
      incident.culprit === name || incident.findings.some((f) => f.subject === name || f.evidence?.node === name),
  );
  const rows = [
    ...history.node_failures.map(({ at, kind }) => [
      at,
      make("li", {}, `${clock(at)} node failure: ${kind.replaceAll("-", " ")}`),
    ]),
    ...about.map((i) => [
      i.opened,
      make(
        "li",
        {},
        `${clock(i.opened)} `,
        make("a", { class: "link", href: link("incidents", i.id) }, i.kind.replaceAll("-", " ")),
        ` ${i.summary}`,
      ),
    ]),
  ].sort((a, b) => b[0] - a[0]);
  return [
    make("h4", {}, "Faults"),
    rows.length
      ? make("ul", { class: "plain" }, ...rows.slice(0, 30).map(([, item]) => item))
      : make("p", { class: "muted" }, "None known."),
  ];
}

function verdicts() {
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
        "Not diagnosed yet. ",
        make("a", { class: "link", href: link("actions", null, { node: history.name }) }, "Diagnose it"),
      ),
    ];
  }
  return [title, verdictTable(rows)];
}

/** Verdicts as a table: what was measured, against what, and what to do. */
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

async function pollSteps() {
  let problem = "";
  try {
    steps = await getLarge("/blame/heat");
  } catch (error) {
    [steps, problem] = [null, error.message];
  }
  const some = steps?.steps.length > 0;
  byId("nodeheat-empty").hidden = some;
  setText(byId("nodeheat-empty"), some ? "" : problem || "No step of which all spans are here.");
  if (!some) return map.clear();
  showSteps();
}

function showSteps() {
  const { nodes, steps: numbers, by_step: ratio } = steps;
  const levels = new Uint8Array(nodes.length * numbers.length);
  let worst = [0, 0, 0];
  for (let s = 0; s < numbers.length; s++) {
    for (let n = 0; n < nodes.length; n++) {
      const value = cell(ratio, n, s);
      levels[n * numbers.length + s] = level(value);
      if (value > worst[0]) worst = [value, n, s];
    }
  }
  map.set({ columns: Array.from(numbers, String), rows: nodes, level: levels, palette: ratioPalette() });
  const text = `slowest: ${nodes[worst[1]]} in step ${count(numbers[worst[2]])}, ${worst[0].toFixed(2)} × its peers`;
  setText(byId("nodeheat-about"), `steps ${count(numbers[0])} to ${count(numbers[numbers.length - 1])}; ${text}`);
  byId("nodeheat").setAttribute(
    "aria-label",
    `Heat map of ${count(nodes.length)} nodes by ${numbers.length} steps; ${text}`,
  );
  byId("nodeheat-ramp").style.background = timeRamp();
  setText(byId("nodeheat-low"), "0.8 × peers");
  setText(byId("nodeheat-high"), "1.5 × and more");
}

function describe(column, row) {
  const value = cell(steps.by_step, row, column);
  const more = known(value) ? `${value.toFixed(3)} × (${value >= 1 ? "+" : "−"}${percent(Math.abs(value - 1))})` : "–";
  return [`${steps.nodes[row]}, step ${count(steps.steps[column])}`, [["own work against peers", more]]];
}

export function startNodeStory() {
  map = new HeatMap(byId("nodeheat"), byId("nodeheat-tip"), {
    describe,
    choose: (_, row) => select("node", steps.nodes[row]),
  });
  const turn = whileShown(["nodes"], poll, () => 5000);
  whileShown(["nodes"], pollSteps, () => 10_000);
  on("selected", () => {
    show();
    if (history?.name !== state.selected.node) turn();
  });
  on("incidents", show);
  on("theme", () => steps && showSteps());
}
