// Where the time of the job went: its accounts as one bar, and as a list.

import { byId, fill, make, setText } from "../base/dom.js";
import { clock, known, percent, seconds } from "../base/format.js";
import { route } from "../base/router.js";
import { on, state } from "../base/store.js";

/** @type {Record<string, string | undefined>} */
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

function showLedger() {
  const job = state.status?.job;
  const spent = job?.time;
  if (!spent || !(spent.wall > 0)) return fill(byId("ledger"), make("p", { class: "muted" }, "No job yet."));
  const all = [
    { name: "productive", value: spent.productive, ink: "ok" },
    { name: "unsaved", value: spent.unsaved, ink: "ok-cell" },
    { name: "queued", value: spent.queued, ink: "wait-cell" },
    ...Object.entries(spent.lost)
      .sort((a, b) => (b[1] ?? 0) - (a[1] ?? 0))
      .map(([name, value], i) => ({ name, value: value ?? 0, ink: `shade-${i % 6}` })),
  ];
  const rows = all.filter(({ value }) => value > 0);
  const unknown = Object.keys(spent.lost).filter((name) => spent.lost[name] === null);
  /** @param {{ name: string, value: number }} row */
  const text = ({ name, value }) => `${TEXT[name] ?? name} ${seconds(value)}, ${percent(value / spent.wall)}`;
  const bar = make("div", { class: "bar", role: "img", "aria-label": rows.map(text).join("; ") });
  for (const { name, value, ink } of rows) {
    const piece = make("i", { class: ink, title: text({ name, value }) });
    piece.style.flexGrow = String((1000 * value) / spent.wall); // shares below 1 in all would not fill the bar
    bar.append(piece);
  }
  const list = make("dl", { class: "pairs keyed" });
  for (const { name, value, ink } of rows) {
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

export function startLedger() {
  on("status route", () => route.view === "run" && showLedger());
}
