// Bytes that each NIC of the chosen node sends (up) and receives (down), by the millisecond.

import { get } from "../base/api.js";
import { byId, fit, framed, make, pairs, placeTip, setText } from "../base/dom.js";
import { bitRate, known, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { periodOf } from "./period.js";
import { route } from "../base/router.js";
import { on, state, notify } from "../base/store.js";
import { colour } from "../base/theme.js";

/** @typedef {Api.NicTraffic} Nic */

const WINDOW_S = 2;
const LEAST = 125; // bytes per ms, 1 Mb/s: the scale does not blow up a silence
const PAD = { left: 82, right: 12, top: 8, bottom: 22 };
const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
/** @type {HTMLCanvasElement} */
const canvas = byId("traffic");
/** @type {Api.Traffic | null} */
let data = null;
let held = false;
/** @type {{ x: number, y: number } | null} */
let pointer = null;
const redraw = framed(draw);

async function poll() {
  const node = state.selected.node;
  if (!node || held) return;
  /** @type {Api.Traffic} */
  const fresh = await get(`/nodes/${encodeURIComponent(node)}/traffic?seconds=${WINDOW_S}`);
  if (node !== state.selected.node || held) return;
  data = fresh;
  showPeriod(fresh);
  redraw();
}

/** What the eye should see in the stripes: that they come once in a step, or do not.
 * @param {Api.Traffic} shown */
function showPeriod({ nics }) {
  const found = nics.map((nic) => periodOf(nic, WINDOW_S * 1000)).find(known);
  const step = state.status?.job?.step_seconds;
  const beside = known(step) ? `, a step takes ${seconds(step)}` : "";
  setText(byId("traffic-period"), known(found) ? `repeats every ${seconds(found / 1000)}${beside}` : "");
}

function draw() {
  const { context, width: full, height: tall } = fit(canvas);
  context.clearRect(0, 0, full, tall);
  const { node } = state.selected;
  const nics = data?.node === node ? data.nics.filter((nic) => nic.t.length) : [];
  byId("traffic-empty").hidden = nics.length > 0;
  setText(byId("traffic-node"), node ?? "");
  setText(byId("traffic-empty"), node ? (data?.node === node ? "No samples from this node yet." : "") : "Select a node or a rank to see its traffic.");
  if (!nics.length || full < 120) return;
  const [width, lane] = [full - PAD.left - PAD.right, (tall - PAD.top - PAD.bottom) / nics.length];
  const end = Math.max(...nics.map((nic) => nic.t0 + nic.t[nic.t.length - 1]));
  const begin = end - WINDOW_S * 1000;
  const peak = niceRate(Math.max(LEAST, ...nics.map(peakOf)));
  nics.forEach((nic, row) => {
    const top = PAD.top + row * lane;
    drawLane(context, nic, { top, lane, width, begin, peak, full });
  });
  drawSteps(context, { width, tall, begin, end });
  drawTime(context, { width, tall, begin, end });
  showPointer(context, nics, { lane, width, begin, tall });
}

const WAYS = /** @type {const} */ ([{ column: "tx", sign: -1, name: "send" }, { column: "rx", sign: 1, name: "receive" }]);

/** Bytes per millisecond of a sample, whatever time it covers.
 * @param {Nic} nic @param {"tx" | "rx"} column @param {number} i */
function rate(nic, column, i) {
  const span = i > 0 ? nic.t[i] - nic.t[i - 1] : nic.t.length > 1 ? nic.t[1] - nic.t[0] : 1;
  return nic[column][i] / Math.max(span, 0.001);
}

/** @param {Nic} nic */
function peakOf(nic) {
  let most = 0;
  for (let i = 0; i < nic.t.length; i++) most = Math.max(most, rate(nic, "tx", i), rate(nic, "rx", i));
  return most;
}

/** @param {number} perMs */
function niceRate(perMs) {
  const bits = perMs * 8000;
  const power = 10 ** Math.floor(Math.log10(bits));
  return (([1, 2, 2.5, 4, 5, 8].find((f) => f * power >= bits) ?? 10) * power) / 8000;
}

/** @param {CanvasRenderingContext2D} context @param {Nic} nic
 * @param {{ top: number, lane: number, width: number, begin: number, peak: number, full: number }} place */
function drawLane(context, nic, { top, lane, width, begin, peak, full }) {
  const middle = top + lane / 2;
  const half = lane / 2 - Math.min(6, lane * 0.12);
  context.font = FONT;
  context.textBaseline = "middle";
  context.textAlign = "left";
  context.fillStyle = colour("text");
  context.fillText(nic.name, 12, middle - (lane > 34 ? 7 : 0), PAD.left - 18);
  if (lane > 34) {
    context.fillStyle = colour("muted");
    context.fillText(`${bitRate(peak * 8000)} full`, 12, middle + 8, PAD.left - 18);
  }
  for (const { column, sign, name } of WAYS) {
    const highest = new Float32Array(Math.ceil(width) + 1);
    for (let i = 0; i < nic.t.length; i++) {
      const x = Math.round(((nic.t0 + nic.t[i] - begin) / (WINDOW_S * 1000)) * width);
      if (x >= 0 && x <= width) highest[x] = Math.max(highest[x], rate(nic, column, i));
    }
    context.fillStyle = colour(name);
    for (let x = 0; x < highest.length; x++) {
      if (highest[x] > 0) context.fillRect(PAD.left + x, middle, 1, sign * Math.max(0.5, (highest[x] / peak) * half));
    }
  }
  context.fillStyle = colour("line-strong");
  context.fillRect(PAD.left, middle - 0.5, width, 1);
  context.fillStyle = colour("line");
  if (top > PAD.top) context.fillRect(0, Math.round(top), full, 1);
}

/** @typedef {{ width: number, tall: number, begin: number, end: number }} Span */

/** A line where each step ended, by the workers' own clock.
 * @param {CanvasRenderingContext2D} context @param {Span} place */
function drawSteps(context, { width, tall, begin, end }) {
  const { at } = state.steps;
  context.fillStyle = colour("accent");
  context.globalAlpha = 0.45;
  for (let i = at.length - 1; i >= 0; i--) {
    const ended = (at[i] ?? 0) * 1000;
    if (ended <= begin) break;
    if (ended > end) continue;
    context.fillRect(Math.round(PAD.left + ((ended - begin) / (end - begin)) * width), PAD.top, 1, tall - PAD.top - PAD.bottom);
  }
  context.globalAlpha = 1;
}

/** @param {CanvasRenderingContext2D} context @param {Span} place */
function drawTime(context, { width, tall, begin, end }) {
  context.fillStyle = colour("muted");
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let back = 0; back <= WINDOW_S; back += 0.5) {
    const x = PAD.left + ((end - back * 1000 - begin) / (WINDOW_S * 1000)) * width;
    context.fillText(back ? `−${back} s` : "now", Math.min(PAD.left + width - 12, x), tall - 10);
  }
}

/** @param {CanvasRenderingContext2D} context @param {Nic[]} nics
 * @param {{ lane: number, width: number, begin: number, tall: number }} place */
function showPointer(context, nics, { lane, width, begin, tall }) {
  const tip = byId("traffic-tip");
  tip.hidden = true;
  if (!pointer || pointer.x < PAD.left || pointer.x > PAD.left + width) return;
  const nic = nics[Math.floor((pointer.y - PAD.top) / lane)];
  if (!nic) return;
  context.fillStyle = colour("faint");
  context.fillRect(Math.round(pointer.x), PAD.top, 1, tall - PAD.top - PAD.bottom);
  const at = begin + ((pointer.x - PAD.left) / width) * WINDOW_S * 1000 - nic.t0;
  let i = nic.t.findIndex((t) => t >= at);
  if (i < 0) i = nic.t.length - 1;
  if (!known(nic.t[i])) return;
  const back = begin + WINDOW_S * 1000 - (nic.t0 + nic.t[i]);
  tip.replaceChildren(
    make("b", {}, nic.name),
    pairs([["send", bitRate(rate(nic, "tx", i) * 8000)], ["receive", bitRate(rate(nic, "rx", i) * 8000)], ["before now", `${Math.round(back)} ms`]]),
  );
  placeTip(tip, pointer.x, pointer.y);
}

export function startTraffic() {
  whileShown(["nodes"], poll, () => WINDOW_S * 1000);
  on("theme", redraw);
  on("selected", () => {
    if (data?.node !== state.selected.node) {
      data = null;
      hold(false);
      poll().catch(() => {});
    }
    redraw();
  });
  // Something to look at before anything is chosen; it does not go into the address.
  on("ranks route", () => {
    if (route.view !== "nodes" || state.selected.node || !state.ranks?.rank.length) return;
    state.selected.node = state.ranks.nodes[state.ranks.node[0]];
    notify("selected");
  });
  byId("traffic-hold").addEventListener("click", () => hold(!held));
  canvas.addEventListener("pointermove", (event) => {
    pointer = { x: event.offsetX, y: event.offsetY };
    redraw();
  });
  canvas.addEventListener("pointerleave", () => {
    pointer = null;
    redraw();
  });
  new ResizeObserver(redraw).observe(canvas);
}

/** @param {boolean} on */
function hold(on) {
  held = on;
  byId("traffic-hold").setAttribute("aria-pressed", String(on));
}
