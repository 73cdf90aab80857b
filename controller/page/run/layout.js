// The layout of the job: who sits where, and what leaves each place in a step, by its plan and as counted.

import { get } from "../base/api.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { bytes, count, known, ranges } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { link, route } from "../base/router.js";
import { on, state } from "../base/store.js";

const SHOWN = 16; // colours that the legend names
const KINDS = { node: "a node", switch: "the nodes of a switch", pod: "the nodes of a pod", nodes: "some nodes in a row" };
/** @type {Api.Layout | null} */
let layout = null;

/** Of a pipeline rank: pale, so that dark ink is readable on it, and neighbours differ by the golden angle. Pure.
 * @param {number} rank */
export const colourOf = (rank) => `hsl(${Math.round(((rank * 0.381966) % 1) * 360)} 65% 80%)`;

/** "ranks 0–3, pipeline rank 1; sends 20.0 MB of a step out of it, counted 20.8 MB". Pure. @param {Api.LayoutPlace} box */
export function boxText(box) {
  const ranks = box.ranks.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i));
  const stages = box.stages.map(([rank]) => rank);
  const counted = known(box.sent_measured) ? `, counted ${bytes(box.sent_measured)}` : "";
  return `ranks ${ranges(ranks)}, pipeline rank ${ranges(stages)}; sends ${bytes(box.sent)} of a step out of it${counted}`;
}

/** @param {Api.LayoutPlace} box @param {number} most @param {boolean} isNode @param {boolean} isOff */
function boxOf(box, most, isNode, isOff) {
  const stripes = make("span", { class: "stripes" });
  for (const [rank, share] of box.stages) {
    const piece = make("i", {});
    piece.style.flexGrow = String(1000 * share);
    piece.style.background = colourOf(rank);
    stripes.append(piece);
  }
  /** @param {number | null} value @param {string} kind */
  const bar = (value, kind) => {
    const line = make("i", { class: kind });
    line.style.width = `${known(value) && most ? Math.max(value > 0 ? 1 : 0, (100 * value) / most) : 0}%`;
    return line;
  };
  const [first, last] = [box.ranks[0]?.[0], box.ranks.at(-1)?.[1]];
  const label = first === last ? `${first}` : `${first}–${last}`;
  const title = `${box.name}: ${boxText(box)}`;
  const parts = [
    make("b", {}, label),
    make("small", {}, box.name),
    stripes,
    make("span", { class: "sent" }, bar(box.sent, "planned"), bar(box.sent_measured, "counted")),
  ];
  const attributes = { class: isOff ? "place off" : "place", title, "aria-label": title };
  return isNode
    ? make("a", { ...attributes, href: link("nodes", box.name) }, ...parts)
    : make("span", { ...attributes, role: "img" }, ...parts);
}

function show() {
  const job = state.status?.job;
  if (route.view !== "run") return;
  if (!layout || layout.job !== job?.id) {
    setText(byId("layout-about"), "");
    const why = "Of a job of the embedded trainer on several ranks, once it has reported its plan.";
    return fill(byId("layout"), make("p", { class: "muted" }, why));
  }
  const { boxes, kind, pp } = layout;
  const off = new Set((job.traffic?.off_plan ?? []).map(({ node }) => node));
  const most = Math.max(0, ...boxes.flatMap((box) => [box.sent, box.sent_measured ?? 0]));
  /** @type {HTMLElement[]} */
  const groups = [];
  let [inside, group] = ["", make("div", {})];
  for (const box of boxes) {
    if (!groups.length || box.inside !== inside) {
      inside = box.inside;
      group = make("div", { class: "places" });
      groups.push(make("div", { class: "inside" }, make("h5", {}, inside || "switch not known"), group));
    }
    group.append(boxOf(box, most, kind === "node", off.has(box.name)));
  }
  const legend = make("p", { class: "legend" });
  for (let rank = 0; rank < Math.min(pp, SHOWN); rank++) {
    const key = make("i", { class: "key" });
    key.style.background = colourOf(rank);
    legend.append(make("span", {}, key, String(rank)));
  }
  if (pp > SHOWN) legend.append(make("span", { class: "muted" }, `… of ${count(pp)}`));
  setText(byId("layout-about"), `each box is ${KINDS[kind]}, with its ranks`);
  const about =
    kind === "node"
      ? `Bars: bytes of a step that leave a node, the longest ${bytes(most)}; above by the plan, below as its NICs count them.`
      : `Bars: bytes of a step that leave a box by the plan, the longest ${bytes(most)}.`;
  fill(
    byId("layout"),
    make("div", { class: "groups" }, ...groups),
    make("p", { class: "muted" }, "Colours are pipeline ranks:"),
    legend,
    make("p", { class: "muted" }, about),
  );
}

export function startLayout() {
  on("status route", show);
  whileShown(
    ["run"],
    async () => {
      layout = await get("/job/layout");
      show();
    },
    () => 10_000,
  );
}
