// The three answers of the overview: what is faulty, what is being done, where the time went.

import { get } from "./api.js";
import { byId, make, pairs, setText } from "./dom.js";
import { ago, clock, count, known, percent, seconds, short } from "./format.js";
import { culprit, isOpen, newestFirst } from "./incidents.js";
import { whileShown } from "./live.js";
import { link, route } from "./router.js";
import { now, on, state } from "./store.js";

const WORTH = 0.02; // of a step: a culprit that costs less is not worth a line at three in the morning
const TEXT = {
  productive: "saved steps",
  unsaved: "steps a fault could still lose",
  queued: "waiting for nodes, not in the goodput",
  starting: "starting",
  detect: "detecting faults",
  diagnose: "diagnosing",
  evict: "replacing nodes",
  restore: "restoring state",
  recompute: "repeating lost steps",
  checkpoint: "stalled by checkpoints",
  straggling: "steps slower than usual",
  other: "evaluation, compilation, other pauses",
};
let running = []; // diagnoses in progress

/** Replaces the children of a box only where that changes something: focus and selection stay. */
export function fill(box, ...parts) {
  const fresh = make("div", {}, ...parts);
  if (box.innerHTML !== fresh.innerHTML) box.replaceChildren(...fresh.childNodes);
}

function showFault() {
  const incident = newestFirst().find(isOpen);
  const parts = [];
  if (incident) {
    parts.push(
      make("p", { class: "big bad" }, culprit(incident), ` ${incident.kind.replaceAll("-", " ")}`),
      make("p", {}, incident.summary, " ", make("a", { class: "link", href: link("incidents", incident.id) }, "story")),
    );
  }
  const { blame } = state;
  const costly = (blame?.culprits ?? []).filter((c) => c.cost_s >= WORTH * blame.step_s);
  for (const each of costly.slice(0, 3)) {
    const name =
      each.rank < 0 ? "the plan itself" : each.peer >= 0 ? `link ${each.rank}–${each.peer}` : `rank ${each.rank}`;
    const target = each.rank < 0 ? link("blame") : link("blame", null, { rank: each.rank });
    if (!parts.length && !each.by_design)
      parts.push(make("p", { class: "big warn" }, make("a", { class: "link", href: target }, name), " is slow"));
    parts.push(make("p", each.by_design ? { class: "muted" } : {}, each.text));
  }
  const gone = Object.entries(state.status?.nodes ?? {}).filter(([, name]) =>
    ["suspect", "faulty", "lost", "cordoned"].includes(name),
  );
  if (gone.length) {
    const names = gone
      .slice(0, 4)
      .flatMap(([name, why]) => [make("a", { class: "link", href: link("nodes", name) }, name), ` ${why} `]);
    parts.push(
      make("p", {}, "Out of service: ", ...names, gone.length > 4 ? `and ${count(gone.length - 4)} more` : null),
    );
  }
  if (!parts.length) parts.push(make("p", { class: "big" }, "No rank"), make("p", { class: "muted" }, evenness()));
  fill(byId("fault"), ...parts);
}

function evenness() {
  const { blame } = state;
  if (!blame) return "No incident is open. No spans have been analysed yet.";
  const gain = 1 - blame.ideal_s / blame.step_s;
  return `No incident is open. With every rank as fast as its peers, a step would be ${percent(Math.max(0, gain))} shorter.`;
}

function showDoing() {
  const incident = newestFirst().find(isOpen);
  const parts = [];
  if (incident) {
    const phase = incident.phases.at(-1);
    parts.push(make("p", { class: "big" }, incident.action ?? "Deciding"));
    if (phase)
      parts.push(
        make(
          "p",
          {},
          `${phase.name} for ${seconds(Math.max(0, now() - phase.start))}; open for ${seconds(now() - incident.opened)}`,
        ),
      );
    if (incident.reason) parts.push(make("p", { class: "muted" }, incident.reason));
  }
  for (const each of running) {
    parts.push(
      make(
        "p",
        {},
        make("a", { class: "link", href: link("actions") }, `diagnosis ${each.id}`),
        ` of ${each.nodes.length} nodes: ${each.stage}, ${each.jobs_done} of ${each.jobs_done + each.jobs_open} done`,
      ),
    );
  }
  if (!parts.length) {
    const last = newestFirst()[0];
    parts.push(make("p", { class: "big" }, "Nothing"));
    if (last) {
      const took = known(last.recover_s) ? `, training again in ${seconds(last.recover_s)}` : "";
      parts.push(
        make(
          "p",
          { class: "muted" },
          "Last: ",
          make("a", { class: "link", href: link("incidents", last.id) }, last.kind.replaceAll("-", " ")),
          ` ${ago(now() - last.opened)}${took}`,
        ),
      );
    } else parts.push(make("p", { class: "muted" }, "No incident so far, no diagnosis runs."));
  }
  parts.push(...atRisk(state.status?.job));
  fill(byId("doing"), ...parts);
}

/** Said only where there is something to be said. */
const gpuHours = (hours) => (hours >= 0.01 ? ` (${short(hours)} GPU-hours)` : "");

function atRisk(job) {
  if (!job?.at_risk) return [];
  const rows = [
    ["a worker", job.at_risk.worker],
    ["a node", job.at_risk.node],
    ["the whole job", job.at_risk.job],
  ]
    .filter(([, cost]) => known(cost))
    .map(([what, cost]) => [what, `${seconds(cost)} again${gpuHours((cost * job.world_size) / 3600)}`]);
  return rows.length ? [make("h4", {}, "What a fault would cost now"), pairs(rows)] : [];
}

function showLedger() {
  const job = state.status?.job;
  const spent = job?.time;
  if (!spent || !(spent.wall > 0)) return fill(byId("ledger"), make("p", { class: "muted" }, "No job yet."));
  const rows = [
    ["productive", spent.productive, "ok"],
    ["unsaved", spent.unsaved, "ok-cell"],
    ["queued", spent.queued, "wait-cell"],
    ...Object.entries(spent.lost)
      .sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0))
      .map(([name, value], i) => [name, value, `shade-${i % 6}`]),
  ].filter(([, value]) => value > 0);
  const unknown = Object.keys(spent.lost).filter((name) => spent.lost[name] === null);
  const text = ([name, value]) => `${TEXT[name] ?? name} ${seconds(value)}, ${percent(value / spent.wall)}`;
  const bar = make("div", { class: "bar", role: "img", "aria-label": rows.map(text).join("; ") });
  for (const [name, value, ink] of rows) {
    const piece = make("i", { class: ink, title: text([name, value]) });
    piece.style.flexGrow = (1000 * value) / spent.wall; // shares below 1 in all would not fill the bar
    bar.append(piece);
  }
  const list = make("dl", { class: "pairs keyed" });
  for (const [name, value, ink] of rows) {
    list.append(
      make("dt", {}, make("i", { class: ink }), TEXT[name] ?? name),
      make("dd", {}, `${seconds(value)} · ${percent(value / spent.wall)}`),
    );
  }
  for (const name of unknown)
    list.append(make("dt", {}, make("i", {}), TEXT[name] ?? name), make("dd", { class: "muted" }, "unknown"));
  setText(
    byId("ledger-ratio"),
    `goodput ${percent(job.goodput)}${known(spent.last_hour) ? `, last hour ${percent(spent.last_hour)}` : ""}`,
  );
  fill(
    byId("ledger"),
    bar,
    list,
    make("p", { class: "muted" }, `of ${seconds(spent.wall)} since ${clock(job.submitted_at)}`),
  );
}

export function startGlance() {
  on("status incidents blame route", () => route.view === "overview" && showFault());
  on("status incidents route", () => route.view === "overview" && showDoing());
  on("status route", () => route.view === "overview" && showLedger());
  whileShown(
    ["overview"],
    async () => {
      running = (await get("/diagnoses")).filter((each) => each.state === "running");
      showDoing();
    },
    () => 5000,
  );
}
