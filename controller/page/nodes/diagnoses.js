// Diagnoses: begins one of nodes that are named, after asking once more, and lists those of late with their verdicts.

import { get, post } from "../base/api.js";
import { all, byId, fill, make, segments, setText, sureButton } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { ago, count, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { verdictTable } from "./node_story.js";
import { route } from "../base/router.js";
import { now, on, state } from "../base/store.js";

const SUGGESTED = 20; // names, of maybe thousands
const KEPT = 8; // diagnoses whose verdicts are shown
/** @type {Map<string, Api.Verdict[]>} */
const verdicts = new Map(); // of diagnoses that have ended, by id
/** @type {Api.DiagnosisBrief[]} */
let diagnoses = [];
let suite = "quick";
const nodes = make("input", {
  id: "do-nodes",
  list: "do-names",
  placeholder: "node names; empty: all idle nodes",
  autocomplete: "off",
});

/** @param {string} text */
function say(text, bad = false) {
  const line = byId("do-answer");
  line.dataset.level = bad ? "bad" : "ok";
  setText(line, text);
}

/** Does it and says what came of it.
 * @param {string} what @param {() => Promise<string | void>} work */
const doing = (what, work) => async () => {
  say(`${what} …`);
  try {
    say((await work()) ?? `${what}: done`);
  } catch (error) {
    say(`${what}: ${messageOf(error)}`, true);
  }
};

const named = () => nodes.value.split(/[\s,]+/).filter(Boolean);
const listed = () => named().join(", ") || "…";

/** @param {boolean} busy */
async function diagnose(busy) {
  /** @type {Api.Begun} */
  const { id } = await post("/diagnose", { nodes: named(), suite, busy });
  poll().catch(() => {});
  return `diagnosis ${id} started`;
}

function build() {
  const names = make("datalist", { id: "do-names" });
  const suggest = () => {
    const [, before = "", word = ""] = /^(.*?)([^\s,]*)$/.exec(nodes.value) ?? [];
    const fitting = Object.keys(state.status?.nodes ?? {})
      .filter((name) => name.startsWith(word))
      .slice(0, SUGGESTED);
    names.replaceChildren(...fitting.map((name) => make("option", { value: before + name })));
  };
  nodes.addEventListener("input", suggest);
  nodes.addEventListener("focus", suggest);
  const suites = make(
    "div",
    { class: "segments", role: "radiogroup", "aria-label": "Suite" },
    ...[
      ["quick", "Quick, under 1 minute"],
      ["full", "Full, under 10 minutes"],
    ].map(([name, text], i) =>
      make(
        "button",
        {
          type: "button",
          role: "radio",
          "data-suite": name,
          "aria-checked": String(i === 0),
          tabindex: i ? "-1" : null,
        },
        text,
      ),
    ),
  );
  segments(suites, ({ suite: wanted }) => (suite = wanted));
  /** @param {string} label @param {() => string} really @param {() => Promise<string>} work */
  const button = (label, really, work) => sureButton(label, really, doing(label, work));
  byId("do").replaceChildren(
    make("div", { class: "do-row" }, make("label", { for: "do-nodes" }, "Nodes"), nodes, names),
    group(
      "Diagnose",
      "Measures the idle nodes, alone and in pairs, and reports the faulty ones.",
      suites,
      button(
        "Diagnose",
        () => `Really diagnose ${named().length ? listed() : "all idle nodes"}?`,
        () => diagnose(false),
      ),
      button(
        "Diagnose while training",
        () => "Really? It slows the job down",
        () => diagnose(true),
      ),
    ),
  );
}

/** @param {string} title @param {string} about @param {HTMLElement[]} what */
const group = (title, about, ...what) =>
  make(
    "fieldset",
    {},
    make("legend", {}, title),
    make("p", { class: "muted" }, about),
    make("div", { class: "do-row" }, ...what),
  );

async function poll() {
  diagnoses = await get("/diagnoses");
  const ended = diagnoses.filter((each) => each.state === "done").slice(0, KEPT);
  for (const { id } of ended)
    if (!verdicts.has(id)) verdicts.set(id, (await get(`/diagnoses/${encodeURIComponent(id)}`)).verdicts);
  show();
}

function show() {
  if (route.view !== "nodes") return;
  if (!diagnoses.length) return fill(byId("diagnoses"), make("p", { class: "muted" }, "None so far."));
  const open = new Set(all("#diagnoses details[open]").map((each) => each.dataset.id));
  fill(byId("diagnoses"), ...diagnoses.slice(0, 20).map((each) => card(each, open.has(each.id))));
}

/** @param {Api.DiagnosisBrief} each @param {boolean} open */
function card(each, open) {
  const head = make(
    "p",
    {},
    make("b", {}, each.id),
    ` ${each.suite}, ${each.why ? `${each.why}, ` : ""}${count(each.nodes.length)} nodes: `,
  );
  if (each.state === "running") {
    const whole = each.jobs_done + each.jobs_open;
    const bar = make("progress", { value: each.jobs_done, max: whole || 1, "aria-label": `diagnosis ${each.id}` });
    return make(
      "article",
      { class: "card" },
      head,
      make(
        "p",
        {},
        `${each.stage}, ${count(each.jobs_done)} of ${count(whole)} measurements, `,
        each.began ? `${seconds(now() - each.began)} so far` : "",
      ),
      bar,
    );
  }
  const failed = each.failed.length
    ? make("span", { class: "pill", "data-cat": "bad" }, `${each.failed.join(", ")} failed`)
    : make("span", { class: "pill", "data-cat": "ok" }, "no fault found");
  head.append(
    failed,
    make(
      "span",
      { class: "muted" },
      ` ${each.ended ? ago(now() - each.ended) : ""}${each.ended && each.began ? `, took ${seconds(each.ended - each.began)}` : ""}`,
    ),
  );
  const rows = (verdicts.get(each.id) ?? []).filter((v) => v.grade !== "pass");
  const many = verdicts.get(each.id)?.length ?? 0;
  const box = make(
    "details",
    { "data-id": each.id, open },
    make("summary", {}, `${count(rows.length)} of ${count(many)} verdicts are not a pass`),
  );
  if (rows.length) box.append(verdictTable(rows.slice(0, 200), true));
  return make("article", { class: "card" }, head, many ? box : null);
}

export function startDiagnoses() {
  build();
  whileShown(["nodes"], poll, () => 2000);
  on("route", show);
}
