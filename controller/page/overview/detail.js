// What is selected: one rank, and the node it runs on.

import { get, post } from "../base/api.js";
import { category } from "../drawing/colours.js";
import { all, byId, framed, make, pairs, setText, sureButton } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { bytes, clock, count, known, percent, ranges, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { newestFirst } from "../incidents/incidents.js";
import { link } from "../base/router.js";
import { announce, indexOf, select } from "../base/select.js";
import { on, state } from "../base/store.js";
/** @import { Pair } from "../base/dom.js" */
/** @import { Ranks } from "../base/store.js" */

/** @type {Api.Node | null} */
let node = null; // as /api/v1/nodes/{name}
let drawn = "";

async function poll() {
  const name = state.selected.node;
  if (!name) return;
  const fresh = await get(`/nodes/${encodeURIComponent(name)}`).catch(() => null);
  if (name !== state.selected.node) return;
  node = fresh;
  show();
  showActions(name);
}

function show() {
  const { rank, node: name } = state.selected;
  const body = byId("detail");
  const parts = [];
  const i = indexOf(rank);
  if (rank !== null) parts.push(i < 0 || !state.ranks ? make("p", { class: "hint" }, `There is no rank ${rank} now.`) : rankPart(state.ranks, i));
  if (name) parts.push(node?.name === name ? nodePart(node) : make("p", { class: "hint" }, `${name}…`));
  if (!parts.length) parts.push(make("p", { class: "hint" }, "Choose a rank or a node."));
  setText(byId("detail-title"), rank !== null ? `Rank ${rank}` : (name ?? "Selection"));
  const text = parts.map((part) => part.outerHTML).join("");
  if (text === drawn) return; // keeps focus, and the reader's place
  drawn = text;
  const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.rank;
  body.replaceChildren(...parts);
  if (focused !== undefined) all(`#detail [data-rank="${focused}"]`)[0]?.focus();
  showActions(name);
}

/** @param {Ranks} ranks @param {number} i */
function rankPart(ranks, i) {
  const stateName = ranks.states[ranks.state[i]];
  /** @type {Pair[]} */
  const rows = [["state", make("span", { class: "pill", "data-cat": category(stateName) }, stateName)]];
  if (ranks.sizes) rows.push(["coordinate", `pp ${ranks.pp[i]}, dp ${ranks.dp[i]}, tp ${ranks.tp[i]}`]);
  rows.push(["phase", ranks.phases[ranks.phase[i]]], ["operation", ranks.operations[ranks.operation[i]] || "–"]);
  rows.push(["step", count(ranks.step[i])], ["step time", seconds(ranks.step_seconds[i])]);
  rows.push(["last progress", known(ranks.progress_age[i]) ? `${seconds(ranks.progress_age[i])} ago` : "–"]);
  if ((ranks.memory_bytes[i] ?? 0) > 0) rows.push(["memory", bytes(ranks.memory_bytes[i])]);
  if (known(ranks.mfu[i])) rows.push(["MFU", percent(ranks.mfu[i])]);
  const rank = ranks.rank[i];
  return make("div", { class: "detail-stack" }, pairs(rows), blamePart(rank), errorsOf([`rank${rank}`]), links([
    ["slow itself or waiting", link("slow", null, { rank })], ["in 3D", link("overview", null, { mesh: "3d", rank })],
  ]));
}

/** The last blame result of a rank, if there is one.
 * @param {number} rank */
function blamePart(rank) {
  const named = (state.blame?.culprits ?? state.blamed?.culprits ?? []).filter((c) => c.rank === rank || c.peer === rank);
  /** @type {HTMLElement[]} */
  const rows = named.map((c) => make("p", { class: "named" }, c.text));
  const ranks = state.blamed?.ranks;
  const at = ranks?.rank.indexOf(rank) ?? -1;
  if (ranks && at >= 0) {
    rows.push(pairs([["slow itself", seconds(ranks.self_s[at])], ["induced wait", seconds(ranks.induced_s[at])], ["waited for slow ranks", seconds(ranks.named_s[at])]]));
  }
  return rows.length ? make("div", {}, make("h3", {}, "Blame, per step"), ...rows) : null;
}

/** What detectors said of these subjects, newest first.
 * @param {string[]} subjects */
function errorsOf(subjects) {
  const found = newestFirst().flatMap((incident) => incident.findings.map((finding) => ({ finding, incident })))
    .filter(({ finding }) => subjects.includes(finding.subject)).slice(0, 5);
  if (!found.length) return null;
  const items = found.map(({ finding, incident }) => make("li", {}, `${clock(finding.at)} ${finding.text} `,
    make("a", { class: "link", href: link("incidents", incident.id) }, "incident")));
  return make("div", {}, make("h3", {}, "Findings"), make("ul", { class: "plain" }, ...items));
}

/** @param {string[][]} targets */
const links = (targets) => make("p", { class: "links" }, ...targets.map(([text, href]) => make("a", { class: "link", href }, text)));

/** @param {Api.Node} node */
function nodePart(node) {
  /** @type {Pair[]} */
  const rows = [["state", make("span", { class: "pill", "data-cat": category(node.state) }, node.state)]];
  if (node.reason) rows.push(["reason", node.reason]);
  if (node.hostname && node.hostname !== node.name) rows.push(["host", node.hostname]);
  if (node.switch) rows.push(["switch", node.switch]);
  if (node.pod.name) rows.push(["pod", `${node.pod.namespace}/${node.pod.name}`]);
  const { cpu_ratio: cpu, memory_used_bytes: used } = node.host;
  if (known(cpu)) rows.push(["cpu", `${percent(cpu)} of ${node.cpus}`]);
  if (known(used)) rows.push(["memory", `${bytes(used)} of ${bytes(node.memory_bytes)}`]);
  const box = make("div", {}, make("h3", {}, `Node ${node.name}`), pairs(rows));
  const parts = [box];
  if (node.ranks.length) parts.push(make("div", {}, make("h3", {}, `Ranks ${ranges(node.ranks)}`), rankButtons(node.ranks)));
  if (node.gpus.length) parts.push(make("div", {}, make("h3", {}, node.gpus[0].model || "GPUs"), ...node.gpus.map(gpuRow)));
  const errors = errorsOf([node.name]);
  if (errors) parts.push(errors);
  parts.push(links([["history and verdicts", link("nodes", node.name)]]));
  return make("div", { class: "detail-stack" }, ...parts);
}

/** @param {number[]} ranks */
function rankButtons(ranks) {
  const line = make("div", { class: "ranks-line" });
  for (const rank of ranks) {
    const i = indexOf(rank);
    const cat = i < 0 || !state.ranks ? "idle" : category(state.ranks.states[state.ranks.state[i]]);
    line.append(make("button", { type: "button", "data-rank": rank, "data-cat": cat, "aria-current": rank === state.selected.rank ? "true" : null }, String(rank)));
  }
  return line;
}

/** @param {Api.Gpu} gpu */
function gpuRow(gpu) {
  const { values } = gpu;
  const filling = make("i");
  const meter = make("span", { class: "meter" }, filling);
  const share = values.utilization_ratio;
  filling.style.width = known(share) ? `${Math.round(share * 100)}%` : "0";
  /** @param {number | null} value @param {string} unit */
  const cell = (value, unit) => make("span", { class: "num" }, known(value) ? `${Math.round(value)} ${unit}` : "–");
  return make("div", { class: "meter-row" }, make("span", { class: "muted" }, String(gpu.index)), meter,
    make("span", { class: "num" }, percent(share)), cell(values.temperature_celsius, "°C"), cell(values.power_watts, "W"));
}

/** @param {string | null} name */
function showActions(name) {
  const box = byId("detail-actions");
  const stateName = name ? state.status?.nodes[name] : null;
  if (!name || !stateName) {
    box.replaceChildren();
    return;
  }
  const busy = node?.name === name && node.ranks.length > 0;
  const verb = stateName === "cordoned" ? "uncordon" : "cordon";
  const key = [verb, name, busy].join();
  if (box.dataset.key === key && box.children.length) return;
  box.dataset.key = key;
  const at = `/nodes/${encodeURIComponent(name)}`;
  const title = verb === "cordon" ? "No work on this node from the next generation on" : "Use the node again";
  const evict = action("Evict", `Really evict ${name}? The job restarts`, () => post(`${at}/evict`), `${name} is being evicted`);
  evict.disabled = !busy;
  evict.title = busy ? "At once: the job restarts without the node" : "the node has no rank";
  box.replaceChildren(
    action(verb === "cordon" ? "Cordon" : "Uncordon", `Really ${verb} ${name}?`, () => post(`${at}/${verb}`), `${name} ${verb}ed`, title),
    evict,
    action("Test", busy ? "Really? The job is slower meanwhile" : `Really test ${name}?`,
      () => post("/diagnose", { nodes: [name], suite: "quick", busy }), `diagnosis of ${name} started`, "Diagnose it, under 1 minute"),
  );
}

/** @param {string} label @param {string} really @param {() => Promise<any>} work @param {string} done @param {string} title */
function action(label, really, work, done, title = "") {
  const button = sureButton(label, () => really, async () => {
    try {
      await work();
      announce(done);
      poll();
    } catch (error) {
      setText(button, messageOf(error));
    }
  }, { title });
  return button;
}

export function startDetail() {
  whileShown(["overview", "slow", "nodes"], poll, () => 2000);
  const refresh = framed(show); // several of these may come in one frame
  on("ranks blame blamed", refresh);
  on("selected", () => {
    if (node?.name !== state.selected.node) poll();
    refresh();
  });
  on("status", () => showActions(state.selected.node));
  byId("detail").addEventListener("click", (/** @type {MouseEvent & { target: HTMLElement }} */ event) => {
    const rank = /** @type {HTMLElement | null} */ (event.target.closest("[data-rank]"))?.dataset.rank;
    if (rank !== undefined) select("rank", Number(rank));
  });
  show();
}
