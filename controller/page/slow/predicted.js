// A step beside what the job's plan predicts for it: requests it, and shows its numbers and which ranks were late.

import { getLarge } from "../base/api.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { count, percent, seconds } from "../base/format.js";
import { announce } from "../base/select.js";
/** @import { Packed } from "../base/api.js" */
/** @import { Spans } from "./timeline_lanes.js" */

/**
 * @typedef {Packed<Api.Predicted>} Prediction
 * @typedef {{ data: Prediction, shift: number, lanes: Map<number, { from: number, to: number }> }} Paired by rank the
 *   place of its predicted spans in the columns; `shift`: microseconds from the timeline's zero to the prediction's
 */

/** Letters of a plan's actions by kind of span. @type {Record<string, string | undefined>} */
const OPS = {
  forward: "F", backward: "B", backward_input: "I", backward_weight: "W", recompute: "R", reduce_grad: "REDUCE_GRAD",
  send_forward: "SEND_F", send_backward: "SEND_B", unshard: "UNSHARD", factor: "FACTOR", invert: "INVERT",
  precondition: "PRECOND", fetch: "FETCH", evict: "EVICT",
};
const ROWS = 64; // ranks in the table: the worst first, of more

let isOn = false;
/** @type {string | null} */
let asked = null;
/** @type {number | null} */
let step = null; // that was chosen, of those that the timeline shows
/** @type {(paired: Paired | null) => void} */
let show = () => {};
/** @type {(place: { rank: number, step: number, id: string }) => void} */
let goTo = () => {};

/** The spans that the timeline shows are these. @param {Spans | null} data */
export function pairWith(data) {
  const button = byId("timeline-predicted");
  button.hidden = !data?.planned;
  if (!data?.planned || !isOn) return clear();
  if (step === null || step < data.first || step > data.last) step = data.last;
  load(data, step);
}

/** Another of the steps that are shown was chosen. @param {Spans} data @param {number} chosen */
export function pairStep(data, chosen) {
  if (!isOn || chosen === step) return;
  step = chosen;
  load(data, chosen);
}

function clear() {
  asked = null;
  byId("predicted").hidden = true;
  show(null);
}

/** @param {Spans} data @param {number} of */
async function load(data, of) {
  const base = byId("predicted-times").value.trim();
  const query = new URLSearchParams({
    step: String(of),
    ranks: compact(data.ranks),
    ...(/^\d+$/.test(base) ? { times_of: base } : {}),
  });
  const mine = (asked = `${query}/${data.zero}`);
  byId("predicted").hidden = false;
  try {
    /** @type {Prediction} */
    const found = await getLarge(`/spans/predicted?${query}`);
    if (mine !== asked) return;
    describe(found);
    show(paired(found, data));
  } catch (error) {
    if (mine !== asked) return;
    setText(byId("predicted-text"), messageOf(error));
    setText(byId("predicted-numbers"), "");
    fill(byId("predicted-ranks"));
    show(null);
  }
}

/** "0-3,8", as the controller reads it. @param {Iterable<number>} ranks */
function compact(ranks) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const rank of ranks) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const text = runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
  return text.length > 400 ? "" : text; // the address has no room: all
}

/** @param {Prediction} data @param {Spans} spans @returns {Paired} */
function paired(data, spans) {
  /** @type {{ from: number, to: number }[]} */
  const places = [];
  for (let i = 0; i < data.lane.length; i++) {
    const place = (places[data.lane[i]] ??= { from: i, to: i });
    place.to = i + 1;
  }
  const lanes = new Map(data.ranks.map((row) => [row.rank, places[row.lane] ?? { from: 0, to: 0 }]));
  return { data, shift: Math.round((data.zero - spans.zero) * 1e6), lanes };
}

/** @param {number | null | undefined} value */
const signed = (value) => (value === null || value === undefined ? "–" : `${value < 0 ? "−" : "+"}${(Math.abs(value) * 1e3).toFixed(1)} ms`);

/** @param {Prediction} found */
function describe(found) {
  const gap = found.measured_s - found.predicted_s;
  const times = found.times_of === found.step ? "its own times" : `the times of step ${count(found.times_of)}`;
  const order = found.own_order ? ", in the order that ranks took" : "";
  setText(
    byId("predicted-numbers"),
    `Step ${count(found.step)}, ${found.schedule}, with ${times}${order}: pipeline ${seconds(found.measured_s)} measured, ` +
      `${seconds(found.predicted_s)} predicted (${signed(gap)}); bubble ${percent(found.measured_bubble)} measured, ` +
      `${percent(found.predicted_bubble)} predicted.`,
  );
  setText(byId("predicted-text"), found.text);
  const rows = [...found.ranks].sort((a, b) => (b.own_s ?? -1) - (a.own_s ?? -1));
  const head = ["Rank", "Latest", "Which", "Own delay", "Which"].map((text) => make("th", { scope: "col" }, text));
  const body = rows.slice(0, ROWS).map((row) => {
    const at = make("button", { type: "button", class: "link" }, `rank ${row.rank}`);
    at.addEventListener("click", () => goTo({ rank: row.rank, step: found.step, id: row.own_id }));
    return make("tr", {}, make("th", { scope: "row" }, at), make("td", { class: "num" }, signed(row.late_s)),
      make("td", {}, row.late), make("td", { class: "num" }, signed(row.own_s)), make("td", {}, row.text));
  });
  const left = rows.length > ROWS ? `; the worst ${ROWS} of ${count(rows.length)}` : "";
  fill(
    byId("predicted-ranks"),
    make("table", { class: "data" }, make("caption", {}, `Ranks against the prediction, the largest delay first${left}`),
      make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)),
  );
  const used = found.times.map((one) =>
    make("tr", {}, make("th", { scope: "row" }, `${one.kind}, stage ${one.stage}`), make("td", { class: "num" }, seconds(one.seconds)),
      make("td", { class: "num" }, count(one.samples))));
  const named = ["Kind and stage", "Time", "Spans"].map((text) => make("th", { scope: "col" }, text));
  fill(
    byId("predicted-used").lastElementChild,
    make("table", { class: "data" }, make("caption", {}, `Times of step ${count(found.times_of)}`),
      make("thead", {}, make("tr", {}, ...named)), make("tbody", {}, ...used)),
  );
}

/** The place of an action's span in the timeline; -1: it is not there.
 * @param {Spans} data @param {{ rank: number, step: number, id: string }} place */
export function placeOf(data, { rank, step: of, id }) {
  const wanted = id.split("~")[0];
  for (let i = 0; i < data.rank.length; i++) {
    if (data.rank[i] !== rank || data.step[i] !== of) continue;
    const op = OPS[data.kinds[data.kind[i]]];
    if (op && wanted === `${data.stage[i]}${op}${data.micro_batch[i] < 0 ? "" : data.micro_batch[i]}`) return i;
  }
  return -1;
}

/** `shown` is called with what is to be drawn, or null; `current` gives the spans that the timeline shows; `picked` is
 * called for the action that a row of the table names.
 * @param {(paired: Paired | null) => void} shown @param {() => Spans | null} current
 * @param {(place: { rank: number, step: number, id: string }) => void} picked */
export function startPredicted(shown, current, picked) {
  [show, goTo] = [shown, picked];
  const button = byId("timeline-predicted");
  button.addEventListener("click", () => {
    isOn = !isOn;
    button.setAttribute("aria-pressed", String(isOn));
    announce(isOn ? "Prediction shown" : "Prediction hidden");
    pairWith(current());
  });
  byId("predicted-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    pairWith(current());
  });
}
