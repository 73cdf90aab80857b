// The timeline of the steps around an incident: the culprit, and a few ranks that it works with. A click opens it in Slow.

import { getLarge } from "../base/api.js";
import { byId, fit, framed, make } from "../base/dom.js";
import { count, ranges } from "../base/format.js";
import { PLACES } from "../base/live.js";
import { link } from "../base/router.js";
import { on, state } from "../base/store.js";
import { company, peerOf } from "../drawing/mesh_groups.js";
import { drawTimeline, HEAD } from "../slow/timeline_draw.js";
import { lanesOf } from "../slow/timeline_lanes.js";
/** @import { Mesh } from "../drawing/mesh_groups.js" */
/** @import { Scene, Spans } from "../slow/timeline_lanes.js" */

const MOST = 6; // ranks
const LANE = 26; // CSS pixels
const canvas = make("canvas", { class: "around-timeline", role: "img" });
/** @type {Scene & { rank: number | null } | null} */
let scene = null;
let key = "";
const redraw = framed(draw);

/** The culprit, its nearest company and a peer that does the same work; without a culprit the first ranks.
 * @param {number | null} rank @returns {Promise<number[]>} */
async function worthSeeing(rank) {
  /** @type {Mesh | null} */
  const ranks = state.ranks ?? (await getLarge(`/ranks?columns=${PLACES}`).catch(() => null)); // this view follows no ranks
  if (!ranks) return rank === null ? [] : [rank];
  const at = Math.max(0, ranks.rank.indexOf(rank ?? 0));
  const peer = peerOf(ranks, at, []);
  const others = company(ranks, at).filter((each) => each !== rank && each !== peer);
  return [rank, peer, ...others].filter((each) => each !== null).filter((each) => each >= 0).slice(0, MOST).sort((a, b) => a - b);
}

function draw() {
  const { context, width, height } = fit(canvas);
  context.clearRect(0, 0, width, height);
  if (scene && width > 120) drawTimeline(context, scene, { width, height, arrows: false, selected: scene.rank });
}

/** @param {Api.Incident} incident @param {number | null} rank @param {Api.StepsAround} around @param {() => void} ready */
async function load(incident, rank, around, ready) {
  const mine = key;
  const ranks = await worthSeeing(rank);
  const query = new URLSearchParams(Object.entries(around).map(([name, value]) => [name, String(value)]));
  if (ranks.length) query.set("ranks", ranks.join());
  /** @type {Spans | null} */
  const data = await getLarge(`/jobs/${encodeURIComponent(incident.job ?? "")}/spans?${query}`).catch(() => null); // nothing is kept of it
  if (mine !== key || !data?.rank.length) return;
  let end = 1;
  for (let i = 0; i < data.start.length; i++) end = Math.max(end, data.start[i] + data.took[i]);
  scene = { data, end, rank, lane: LANE, lanes: lanesOf(data), view: { t0: -0.01 * end, t1: 1.01 * end, y: 0 }, hover: -1, chosen: -1 };
  canvas.style.height = `${HEAD + scene.lanes.length * LANE + 4}px`;
  canvas.setAttribute("aria-label", `Timeline of steps ${count(data.first)} to ${count(data.last)}, ranks ${ranges(data.ranks)}`);
  ready();
  redraw();
}

/** Elements for the panel; `around` as the incident's document has it, `ready` is called when there is more to show.
 * @param {Api.Incident} incident @param {number | null} rank @param {Api.StepsAround | null} around @param {() => void} ready */
export function timelinePart(incident, rank, around, ready) {
  const wanted = around ? `${incident.id} ${incident.job} ${around.first}` : "";
  if (key !== wanted) {
    [key, scene] = [wanted, null];
    if (around) load(incident, rank, around, ready);
  }
  if (!around) return [];
  const { first, last } = around;
  const href = link("slow", null, { from: first, to: last, rank });
  const text = `Timeline of steps ${count(first)} to ${count(last)}`;
  return [
    make("h4", {}, "Around it ", make("a", { class: "link", href }, text)),
    ...(scene ? [make("a", { href, "aria-label": text }, canvas)] : []),
  ];
}

export function startAroundTimeline() {
  new ResizeObserver(redraw).observe(canvas);
  on("theme", redraw);
  new ResizeObserver(redraw).observe(byId("around"));
}
