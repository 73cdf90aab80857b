// All or some ranks on one clock: what is seen of it, what is under the pointer, what the keys do.

import { getLarge, save } from "../base/api.js";
import { byId, fill, fit, framed, make, pairs, placeTip, setText } from "../base/dom.js";
import { usePointer } from "../drawing/drag.js";
import { messageOf } from "../base/errors.js";
import { bytes, count, ranges, seconds } from "../base/format.js";
import { company, peerOf } from "../drawing/mesh_groups.js";
import { replace, route } from "../base/router.js";
import { announce, indexOf, select } from "../base/select.js";
import { on, state } from "../base/store.js";
import { stepThen } from "./blame.js";
import { pairStep, pairWith, placeOf, startPredicted } from "./predicted.js";
import { lanesOf, spanAt } from "./timeline_lanes.js";
import { CLASSES, drawTimeline, HEAD, laneHeight, LEFT, PAIR_CLASSES } from "./timeline_draw.js";
import { colour } from "../base/theme.js";
/** @import { Pair } from "../base/dom.js" */
/** @import { Lane, Scene, Spans } from "./timeline_lanes.js" */

const MANY = 16; // ranks beyond which a subset is chosen by default
const STEPS = 3; // shown by default
const TABLE = 200; // spans in the table
/** @type {HTMLCanvasElement} */
const canvas = byId("timeline");
/** @type {HTMLElement} */
const tip = byId("timeline-tip");
/** @type {Scene | null} */
let scene = null;
/** @type {string | null} */
let asked = null;
let arrows = true;
/** @type {number[]} */
export const timings = [];
const redraw = framed(draw);

async function load() {
  if (route.view !== "slow") return;
  showForm();
  const { from = stepThen(), to, ranks } = route.query;
  const many = state.ranks?.rank.length ?? 0;
  const wanted = ranks ?? (many > MANY ? worthSeeing().join(",") : "");
  /** @type {Record<string, any>} */
  const whole = /^\d+$/.test(from ?? "") ? { first: from, last: /^\d+$/.test(to ?? "") ? to : from } : { steps: STEPS };
  const query = new URLSearchParams({ ...whole, ...(wanted ? { ranks: wanted } : {}) }).toString();
  if (query === asked || (!state.ranks && !ranks)) return redraw();
  asked = query;
  say("Loading…");
  try {
    /** @type {Spans} */
    const data = await getLarge(`/spans?${query}`);
    if (query !== asked) return;
    const [lanes, end] = [lanesOf(data), endOf(data)];
    const lane = laneHeight(lanes.length, canvas.clientHeight);
    scene = { data, lanes, lane, end, view: all(end), hover: -1, chosen: -1 };
    say("");
    about(data);
    showTable();
    pairWith(data);
  } catch (error) {
    if (query !== asked) return;
    scene = null;
    pairWith(null);
    say(messageOf(error));
  }
  redraw();
}

/** The chosen rank or the culprit, those it works with, and a peer that is well, to compare with. */
function worthSeeing() {
  const named = (state.blamed ?? state.blame)?.culprits.map((c) => c.rank).filter((rank) => rank >= 0) ?? [];
  const at = Math.max(0, indexOf(state.selected.rank ?? named[0] ?? null));
  if (!state.ranks) return [];
  const peer = peerOf(state.ranks, at, named);
  return [...new Set([...company(state.ranks, at), ...(peer < 0 ? [] : [peer])])].sort((a, b) => a - b);
}

/** @param {string} text */
function say(text) {
  byId("timeline-empty").hidden = !text;
  setText(byId("timeline-empty"), text);
}

/** @param {Spans} data */
function endOf({ start, took }) {
  let end = 1;
  for (let i = 0; i < start.length; i++) end = Math.max(end, start[i] + took[i]);
  return end;
}

/** The view of all of it.
 * @param {number} end */
const all = (end) => ({ t0: -0.01 * end, t1: 1.01 * end, y: 0 });

/** @param {Spans} data */
function about(data) {
  const steps =
    data.first === data.last ? `step ${count(data.first)}` : `steps ${count(data.first)} to ${count(data.last)}`;
  const left = data.left_out > 0 ? `, ${count(data.left_out)} ranks left out` : "";
  const many = Math.max(state.ranks?.rank.length ?? 0, data.ranks.length);
  const some = many > data.ranks.length ? `${count(data.ranks.length)} of ${count(many)}` : count(many);
  const text = `${steps}, ${some} ranks, ${count(data.rank.length)} spans${left}`;
  setText(byId("timeline-about"), text);
  canvas.setAttribute("aria-label", `Timeline: ${text}. Ranks ${ranges(data.ranks)}`);
}

function draw() {
  const began = performance.now();
  const { context, width, height } = fit(canvas);
  context.clearRect(0, 0, width, height);
  if (!scene || width < 120) return;
  scene.lane = laneHeight(scene.lanes.length, height, Boolean(scene.paired));
  drawTimeline(context, scene, { width, height, arrows, selected: state.selected.rank });
  canvas.dataset.paired = scene.paired ? String(scene.paired.data.step) : "";
  timings.push(performance.now() - began);
  if (timings.length > 600) timings.shift();
}

/** @param {Scene} scene @param {number} x */
const timeAt = ({ view }, x) => view.t0 + ((x - LEFT) / (canvas.clientWidth - LEFT)) * (view.t1 - view.t0);
/** @param {Scene} scene @param {number} y */
const laneAt = ({ lanes, lane, view }, y) => lanes[Math.floor((y - HEAD + view.y) / lane)];

/** The innermost span at a point; -1 where there is none.
 * @param {Scene} scene @param {number} x @param {number} y */
function under(scene, x, y) {
  const lane = y > HEAD && x > LEFT ? laneAt(scene, y) : undefined;
  if (!lane) return -1;
  const near = ((scene.view.t1 - scene.view.t0) / canvas.clientWidth) * 1.5; // what is thinner than a pixel can be hit, too
  return spanAt(scene.data, lane, timeAt(scene, x), near);
}

/** @param {Spans} data @param {number} i @returns {[string, Pair[]]} */
function describe(data, i) {
  const rows = [
    ["took", seconds(data.took[i] / 1e6)],
    ...(data.waited[i] > 0
      ? [
          ["of it waiting", seconds(data.waited[i] / 1e6)],
          ["transfer", seconds((data.took[i] - data.waited[i]) / 1e6)],
        ]
      : []),
    ["step", count(data.step[i])],
    ["at", seconds(data.start[i] / 1e6)],
  ];
  if (data.stage[i] >= 0) rows.push(["stage", count(data.stage[i])]);
  if (data.micro_batch[i] >= 0) rows.push(["micro-batch", count(data.micro_batch[i])]);
  if (data.groups[data.group[i]]) rows.push(["group", data.groups[data.group[i]]]);
  if (data.bytes[i] > 0) rows.push(["bytes", bytes(data.bytes[i])]);
  return [`Rank ${data.rank[i]}: ${data.kinds[data.kind[i]]}`, rows];
}

/** @param {Scene} scene @param {number} i */
function pick(scene, i) {
  scene.chosen = i;
  const { data, view } = scene;
  pairStep(data, data.step[i]);
  if (state.selected.rank !== data.rank[i]) select("rank", data.rank[i]);
  const [begin, end] = [data.start[i], data.start[i] + data.took[i]];
  const span = view.t1 - view.t0;
  if (begin < view.t0 || end > view.t1) [view.t0, view.t1] = [begin - span * 0.3, begin + span * 0.7];
  const top = (scene.lanes.place.get(data.rank[i]) ?? 0) * scene.lane;
  if (top < view.y) view.y = top;
  else if (top + scene.lane > view.y + canvas.clientHeight - HEAD)
    view.y = top + scene.lane - (canvas.clientHeight - HEAD);
  const [title, rows] = describe(data, i);
  announce(`${title}: ${rows.map(([name, value]) => `${name} ${value}`).join(", ")}`);
  clamp(scene);
}

/** @param {Scene} scene */
function clamp(scene) {
  const { view, end, lanes } = scene;
  const span = Math.min(1.02 * end, Math.max(20, view.t1 - view.t0));
  view.t0 = Math.min(1.01 * end - span, Math.max(-0.01 * end, view.t0));
  view.t1 = view.t0 + span;
  view.y = Math.max(0, Math.min(view.y, lanes.length * scene.lane - (canvas.clientHeight - HEAD)));
  redraw();
}

/** @param {Scene} scene @param {number} factor @param {number} x */
function zoom(scene, factor, x = LEFT + (canvas.clientWidth - LEFT) / 2) {
  const { view } = scene;
  const at = timeAt(scene, x);
  view.t0 = at - (at - view.t0) / factor;
  view.t1 = at + (view.t1 - at) / factor;
  clamp(scene);
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!scene || event.ctrlKey || event.metaKey || event.altKey) return;
  const shown = scene;
  const { lanes, chosen, view, data } = shown;
  const pan = (view.t1 - view.t0) / 8;
  const lane = Math.max(0, lanes.place.get(chosen >= 0 ? data.rank[chosen] : (state.selected.rank ?? -1)) ?? 0);
  /** @param {Lane} other */
  const near = (other) => {
    const time = chosen >= 0 ? data.start[chosen] : view.t0;
    let i = other.from;
    while (i + 1 < other.to && data.start[i + 1] <= time) i++;
    return i;
  };
  /** @param {number} i */
  const within = (i) => Math.min(lanes[lane].to - 1, Math.max(lanes[lane].from, i));
  /** @type {Record<string, (() => void) | undefined>} */
  const acts = {
    ArrowRight: () => pick(shown, chosen < 0 ? lanes[lane].from : within(chosen + 1)),
    ArrowLeft: () => pick(shown, chosen < 0 ? lanes[lane].from : within(chosen - 1)),
    ArrowDown: () => pick(shown, near(lanes[Math.min(lanes.length - 1, lane + 1)])),
    ArrowUp: () => pick(shown, near(lanes[Math.max(0, lane - 1)])),
    Home: () => pick(shown, lanes[lane].from),
    End: () => pick(shown, lanes[lane].to - 1),
    "+": () => zoom(shown, 1.6),
    "=": () => zoom(shown, 1.6),
    "-": () => zoom(shown, 1 / 1.6),
    a: () => ((view.t0 -= pan), (view.t1 -= pan), clamp(shown)),
    d: () => ((view.t0 += pan), (view.t1 += pan), clamp(shown)),
    0: () => ((shown.view = all(shown.end)), redraw()),
  };
  const act = acts[event.key] ?? acts[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  tip.hidden = true;
  act();
}

function listen() {
  usePointer(canvas, {
    dragged: (dx, dy) => {
      if (!scene) return;
      const per = (scene.view.t1 - scene.view.t0) / (canvas.clientWidth - LEFT);
      scene.view = { t0: scene.view.t0 - dx * per, t1: scene.view.t1 - dx * per, y: scene.view.y - dy };
      clamp(scene);
    },
    pointed: (event, isDragging) => {
      if (!scene) return;
      scene.hover = isDragging ? -1 : under(scene, event.offsetX, event.offsetY);
      if (scene.hover < 0) tip.hidden = true;
      else {
        const [title, rows] = describe(scene.data, scene.hover);
        tip.replaceChildren(make("b", {}, title), pairs(rows));
        placeTip(tip, event.offsetX, event.offsetY);
      }
      redraw();
    },
    clicked: (event) => {
      const found = scene ? under(scene, event.offsetX, event.offsetY) : -1;
      if (scene && found >= 0) pick(scene, found);
    },
    left: () => {
      tip.hidden = true;
      if (scene) scene.hover = -1;
      redraw();
    },
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!scene) return;
      const most = scene.lanes.length * scene.lane - (canvas.clientHeight - HEAD);
      if (event.ctrlKey || event.metaKey) zoom(scene, Math.exp(-event.deltaY * 0.004), event.offsetX);
      else if (most > 0) {
        scene.view.y += event.deltaY;
        clamp(scene);
      } else return; // nothing to scroll here: the page scrolls
      event.preventDefault();
    },
    { passive: false },
  );
}

function showForm() {
  byId("timeline-from").value = route.query.from ?? "";
  byId("timeline-to").value = route.query.to ?? "";
  byId("timeline-ranks").value = route.query.ranks ?? "";
}

function showTable() {
  const box = byId("timeline-table");
  const lane = scene?.lanes[scene.lanes.place.get(state.selected.rank ?? -1) ?? 0];
  if (!box.open || !lane || !scene) return;
  const { data } = scene;
  /** @type {HTMLElement[]} */
  const body = [];
  for (let i = lane.from; i < Math.min(lane.to, lane.from + TABLE); i++) {
    const [, rows] = describe(data, i);
    body.push(
      make(
        "tr",
        {},
        make("th", { scope: "row" }, data.kinds[data.kind[i]]),
        make("td", {}, rows.map(([name, value]) => `${name} ${value}`).join(", ")),
      ),
    );
  }
  fill(
    box.lastElementChild,
    make("table", { class: "data" }, make("caption", {}, `Rank ${lane.rank}`), make("tbody", {}, ...body)),
  );
}

function legend() {
  byId("timeline-legend").replaceChildren(
    ...Object.entries(scene?.paired ? PAIR_CLASSES : CLASSES).map(([name, ink]) => {
      const swatch = make("i");
      swatch.style.background = colour(ink);
      return make("span", {}, swatch, name);
    }),
  );
}

export function startTimeline() {
  on("route", load);
  on("ranks", () => (asked === null ? load() : scene && about(scene.data)));
  on("theme", redraw);
  on("selected", () => {
    if (route.view !== "slow") return;
    showTable();
    redraw();
  });
  byId("timeline-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    /** @param {string} id @returns {string | null} */
    const value = (id) => byId(id).value.trim() || null;
    replace(null, {
      ...route.query,
      from: value("timeline-from"),
      to: value("timeline-to"),
      ranks: value("timeline-ranks"),
    });
    asked = null; // the newest steps are others by now
    load();
  });
  const button = byId("timeline-arrows");
  button.addEventListener("click", () => {
    arrows = !arrows;
    button.setAttribute("aria-pressed", String(arrows));
    redraw();
  });
  const saving = byId("timeline-save");
  saving.addEventListener("click", async () => {
    const steps = scene ? `?first=${scene.data.first}&last=${scene.data.last}` : "";
    try {
      await save(`/timeline${steps}`, "trace.json");
    } catch (error) {
      announce(messageOf(error));
      setText(saving, messageOf(error));
    }
  });
  byId("timeline-table").addEventListener("toggle", showTable);
  startPredicted(
    (paired) => {
      if (scene) Object.assign(scene, { paired, inks: undefined });
      legend();
      redraw();
    },
    () => scene?.data ?? null,
    (place) => {
      const found = scene ? placeOf(scene.data, place) : -1;
      if (scene && found >= 0) pick(scene, found);
    },
  );
  on("theme", legend);
  legend();
  canvas.addEventListener("keydown", onKey);
  listen();
  new ResizeObserver(redraw).observe(canvas);
}
