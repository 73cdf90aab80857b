// The job: where a step's time goes in each rank, and what was started.

import { get } from "../base/api.js";
import { byId, fill, make, pairs } from "../base/dom.js";
import { bytes, clock, count, many, known, percent, ranges, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { link, route } from "../base/router.js";
import { on, state } from "../base/store.js";
/** @import { Ranks } from "../base/store.js" */

/** @type {Record<string, string | undefined>} */

const MEANING = {
  compute: "the GPU computes",
  communication: "exposed communication",
  bubble: "waiting for an adjacent stage",
  data: "waiting for data",
  optimizer: "the optimizer",
};
/** @type {Record<string, string | undefined>} */
const LEVELS = {
  node: "in nodes",
  switch: "under a switch",
  pod: "between switches of a pod",
  core: "between pods",
  nics: "between types of NIC",
};
/** @type {Api.Plan | null} */
let plan = null;

/** [{part, mean, highest, rank}] of the last step of all ranks, the longest first. Pure.
 * @param {Pick<Ranks, "rank" | "part_seconds">} ranks */
export function partsOf(ranks) {
  const rows = [];
  for (const [part, column] of Object.entries(ranks.part_seconds)) {
    let [sum, many, highest, at] = [0, 0, 0, -1];
    for (let i = 0; i < column.length; i++) {
      const value = column[i];
      if (!known(value)) continue;
      sum += value;
      many++;
      if (at < 0 || value > highest) [highest, at] = [value, i];
    }
    if (many) rows.push({ part, mean: sum / many, highest, rank: ranks.rank[at] });
  }
  return rows.sort((a, b) => b.mean - a.mean);
}

function showParts() {
  if (route.view !== "run" || !state.ranks) return;
  const rows = partsOf(state.ranks);
  if (!rows.length) {
    fill(
      byId("parts"),
      make(
        "p",
        { class: "muted" },
        "This program does not report the parts of its steps; see Ranks and Blame, which need spans only.",
      ),
    );
    return;
  }
  const whole = rows.reduce((sum, row) => sum + row.mean, 0);
  const bar = make("div", {
    class: "bar tall",
    role: "img",
    "aria-label": rows.map((row) => `${row.part} ${percent(row.mean / whole)}`).join(", "),
  });
  rows.forEach((row, i) => {
    const piece = make(
      "i",
      { class: `shade-${i % 6}`, title: `${row.part} ${seconds(row.mean)}` },
      row.mean / whole > 0.08 ? row.part : "",
    );
    piece.style.flexGrow = String((1000 * row.mean) / whole);
    bar.append(piece);
  });
  const body = rows.map((row, i) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, make("i", { class: `key shade-${i % 6}` }), row.part),
      make("td", { class: "num" }, seconds(row.mean)),
      make("td", { class: "num" }, percent(row.mean / whole)),
      make(
        "td",
        { class: "num" },
        `${seconds(row.highest)} `,
        make("a", { class: "link", href: link("overview", null, { rank: row.rank }) }, `rank ${row.rank}`),
      ),
      make("td", { class: "muted" }, MEANING[row.part] ?? ""),
    ),
  );
  const head = make(
    "tr",
    {},
    ...["Part", "Mean", "Share", "Most", ""].map((text, i) =>
      make("th", { scope: "col", class: i && i < 4 ? "num" : null }, text),
    ),
  );
  fill(byId("parts"), bar, make("table", { class: "data" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

/** "1.42 s, planned 1.30 s (+9%)". Pure. @param {Pick<Api.Job, "step_seconds" | "planned">} job */
export function stepText({ step_seconds: took, planned }) {
  if (!planned) return seconds(took);
  const more = known(planned.ratio) ? Math.round(100 * (planned.ratio - 1)) : null;
  const beside = more === null ? "" : ` (${more < 0 ? "−" : "+"}${Math.abs(more)}%)`;
  return `${seconds(took)}, planned ${seconds(planned.step_seconds)}${beside}`;
}

function showFacts() {
  const job = state.status?.job;
  if (route.view !== "run") return;
  if (!job) return fill(byId("facts"), make("p", { class: "muted" }, "No job yet. Start one: holdfast run …"));
  const { program } = job;
  const rows = [
    ["program", `${program.module ? "-m " : ""}${program.target} ${program.args.join(" ")}`.trim()],
    ["state", job.reason ? `${job.state}: ${job.reason}` : job.state],
    ["id", job.id],
    ["submitted", clock(job.submitted_at)],
    ["size", `${count(job.world_size)} ranks, ${count(job.nnodes)} nodes of ${count(job.nproc_per_node)}`],
  ];
  if (job.sizes) rows.push(["mesh", `pp ${job.sizes[0]} × dp ${job.sizes[1]} × tp ${job.sizes[2]}`]);
  if (plan)
    rows.push(
      ["schedule", `${plan.schedule}, ${count(plan.micro_batches)} micro-batches`],
      ["stages", plan.stages.map((s, i) => `${i}: layers ${s.first}–${s.stop - 1}`).join("; ")],
    );
  if (known(job.step_seconds) || job.planned) rows.push(["step", stepText(job)]);
  if (job.planned && known(job.planned.slower_since)) {
    const { slower_since: since, where } = job.planned;
    rows.push(["slower than planned", `since ${clock(since)}${where ? `: ${where}` : ""}`]);
  }
  for (const { text, since } of job.traffic?.off_plan ?? []) rows.push(["off its plan", `since ${clock(since)}: ${text}`]);
  if (known(job.mfu)) rows.push(["MFU", percent(job.mfu)]);
  rows.push(["generation", `${count(job.generation)}, ${many(job.restarts, "restart")}`]);
  if (known(job.exit_code)) rows.push(["exit code", String(job.exit_code)]);
  const shown = job.assignment.slice(0, 64);
  const where = shown.map(({ node, ranks }) =>
    make("li", {}, make("a", { class: "link", href: link("nodes", node) }, node), ` ranks ${ranges(ranks)}`),
  );
  const more = job.assignment.length - shown.length;
  fill(
    byId("facts"),
    pairs(rows),
    make("h4", {}, "Where it runs"),
    make("ul", { class: "plain columns" }, ...where),
    more > 0 ? make("p", { class: "muted" }, `and ${count(more)} more nodes`) : null,
    ...orderOf(job.placement),
  );
}

/** How far a step's traffic goes with this order of nodes: a table, and what its figures are.
 * @param {Api.Order | null | undefined} placement */
function orderOf(placement) {
  if (!placement) return [];
  const much = placement.in_bytes ? bytes : percent;
  const rows = placement.levels.map((one) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, LEVELS[one.level] ?? one.level),
      ...[one.tp, one.dp, one.pp, one.total, one.naive].map((value) => make("td", { class: "num" }, much(value))),
    ),
  );
  if (placement.slow || placement.naive_slow)
    rows.push(
      make(
        "tr",
        {},
        make("th", { scope: "row" }, "over slow links"),
        ...["", "", "", much(placement.slow), much(placement.naive_slow)].map((text) => make("td", { class: "num" }, text)),
      ),
    );
  const head = ["Traffic of a step", "tp", "dp", "pp", "All", "By name"].map((text, i) =>
    make("th", { scope: "col", class: i ? "num" : null }, text),
  );
  const what = placement.in_bytes ? "Predicted bytes of all ranks." : "Shares in usual proportions: bytes are not known.";
  return [
    make("h4", {}, "How far it sends"),
    make(
      "table",
      { class: "data", id: "order" },
      make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows),
    ),
    make("p", { class: "muted" }, `${what} By name: with the same nodes in the order of their names.`),
  ];
}

export function startJob() {
  on("ranks route", showParts);
  on("status route", showFacts);
  whileShown(
    ["run"],
    async () => {
      plan = await get("/job/plan");
      showFacts();
    },
    () => 30_000,
  );
}
