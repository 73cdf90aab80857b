// The 24 hours of the job as a lane above every view: goodput, condition, generations, checkpoints, incidents. A point
// of it sets the time that the views show.

import { get } from "../base/api.js";
import { byId, fit, framed, pairs, make, placeTip, setText } from "../base/dom.js";
import { count, known, percent, seconds } from "../base/format.js";
import { LEVEL } from "../base/health.js";
import { whileShown } from "../base/live.js";
import { past, travel, VIEWS } from "../base/router.js";
import { announce } from "../base/select.js";
import { now, on, state } from "../base/store.js";
import { colour } from "../base/theme.js";
import { timeOf, wasOpen } from "./then.js";

/** @typedef {Api.Day & { isOver: boolean }} Day isOver: it ends before now */

const DAY_S = 86400;
const LEAST_S = 300; // that the lane shows of a young job
const TICKS_S = [60, 300, 900, 1800, 3600, 7200, 14400, 28800];
const TICK = 70; // pixels between two of them, at least
/** @type {Record<string, number | undefined>} */
const STEP_S = { ArrowLeft: -300, ArrowRight: 300, PageUp: -3600, PageDown: 3600 }; // on a lane of a day
const AXIS = 12; // pixels beneath, for the hours
const MARKS = 7; // pixels above, for incidents
// The worse, the higher the band: conditions differ by more than their colour.
/** @type {Record<string, number>} */
const BAND = { bad: 1, busy: 0.75, warn: 0.6, wait: 0.45, ended: 0.3, ok: 0.2, none: 0.1 };
/** @type {HTMLCanvasElement} */
const canvas = byId("lane");
/** @type {HTMLElement} */
const tip = byId("lane-tip");
/** @type {Day | null} */
let day = null; // as /api/v1/job/day
const redraw = framed(draw);

/** Until when the lane goes: now, or half a day after a time that is further back. Pure.
 * @param {number | null} at @param {number} time */
export const laneEnd = (at, time) => (at === null || at > time - DAY_S ? time : Math.min(time, at + DAY_S / 2));

/** From when it goes: a young job fills it. Pure.
 * @param {Pick<Api.Day, "since" | "until" | "at" | "incidents">} day */
export function laneStart({ since, until, at, incidents }) {
  const first = Math.min(at[0] ?? until, ...incidents.map((one) => one.opened));
  return Math.max(since, Math.min(first, until - LEAST_S));
}

/** Place of the row that holds at a time; -1 where nothing is kept of it. Pure.
 * @param {Pick<Api.Day, "at" | "end">} day @param {number} time */
export function rowAt({ at, end }, time) {
  let [low, high] = [0, at.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at[middle] <= time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time <= end[low - 1] ? low - 1 : -1;
}

async function poll() {
  const until = laneEnd(past(), now());
  /** @type {Api.Day} */
  const fresh = await get(until < now() - 1 ? `/job/day?until=${until}` : "/job/day");
  day = { ...fresh, since: laneStart(fresh), isOver: until < now() - 1 };
  redraw();
  speak();
}

/** @param {Day} day @param {number} time @param {number} width */
const xOf = ({ since, until }, time, width) => ((time - since) / (until - since)) * width;
/** @param {Day} day @param {number} x */
const timeAt = ({ since, until }, x) => since + (Math.min(Math.max(x / canvas.clientWidth, 0), 1)) * (until - since);

function draw() {
  const { context, width, height } = fit(canvas);
  context.clearRect(0, 0, width, height);
  if (!day || width < 50) return;
  const floor = height - AXIS;
  const full = floor - MARKS;
  for (let i = 0; i < day.at.length; i++) {
    const x = Math.round(xOf(day, day.at[i], width)); // whole pixels: rows that touch leave no seam
    const wide = Math.max(Math.round(xOf(day, day.end[i], width)) - x, 1);
    const level = LEVEL[day.condition[i]] ?? "none";
    const goodput = day.goodput[i];
    if (known(goodput)) {
      context.fillStyle = colour("line");
      context.fillRect(x, floor - full * goodput, wide, full * goodput);
    }
    context.fillStyle = colour(CELL_OF[level]);
    context.fillRect(x, floor - full * BAND[level], wide, full * BAND[level]);
  }
  ticks(context, day, width, height, floor);
  context.fillStyle = colour("muted");
  for (const { at } of day.checkpoints) context.fillRect(Math.round(xOf(day, at, width)), floor - 3, 1, 3);
  for (const { at } of day.generations.slice(1)) {
    context.fillStyle = colour("text");
    context.fillRect(Math.round(xOf(day, at, width)), MARKS, 1, full);
  }
  for (const incident of day.incidents) triangle(context, xOf(day, Math.max(incident.opened, day.since), width), incident);
  const at = past();
  if (at !== null && at >= day.since && at <= day.until) {
    context.fillStyle = colour("accent");
    context.fillRect(Math.round(xOf(day, at, width)) - 1, 0, 3, floor);
  }
}

/** @type {Record<string, string>} */
const CELL_OF = { bad: "bad", warn: "warn", busy: "busy-cell", wait: "wait-cell", ok: "ok-cell", ended: "idle", none: "idle" };

/** Filled while it is open, else its outline.
 * @param {CanvasRenderingContext2D} context @param {number} at @param {Api.IncidentThen} incident */
function triangle(context, at, incident) {
  const x = Math.min(Math.max(at, 5), canvas.clientWidth - 5);
  context.beginPath();
  context.moveTo(x - 4, 0);
  context.lineTo(x + 4, 0);
  context.lineTo(x, MARKS);
  context.closePath();
  context.fillStyle = context.strokeStyle = colour(incident.action === "alert" ? "warn" : "bad");
  context.lineWidth = 1;
  if (known(incident.closed)) context.stroke();
  else context.fill();
}

/** @param {CanvasRenderingContext2D} context @param {Day} day @param {number} width @param {number} height
 * @param {number} floor */
function ticks(context, day, width, height, floor) {
  context.fillStyle = colour("line-strong");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("muted");
  context.font = "10px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";
  context.textBaseline = "bottom";
  const step = TICKS_S.find((each) => (each / (day.until - day.since)) * width >= TICK) ?? DAY_S;
  const midnight = new Date(day.since * 1000).setHours(0, 0, 0, 0) / 1000;
  for (let time = midnight + Math.ceil((day.since - midnight) / step) * step; time < day.until; time += step) {
    const x = xOf(day, time, width);
    if (x > width - 28) break;
    context.fillRect(Math.round(x), floor, 1, 4);
    context.fillText(new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }), x + 3, height + 1);
  }
}

/** What was at a time, in rows of a name and a value.
 * @param {Day} day @param {number} time */
function facts(day, time) {
  const i = rowAt(day, time);
  const open = day.incidents.filter((one) => wasOpen(one, time));
  const rows = [["condition", i < 0 ? "nothing kept" : day.condition[i]]];
  if (i >= 0) rows.push(["step", day.step[i] < 0 ? "–" : count(day.step[i])], ["goodput", percent(day.goodput[i])]);
  for (const one of open.slice(-3)) rows.push([one.id, `${one.kind.replaceAll("-", " ")}, ${one.culprit}`]);
  return rows;
}

/** @param {number} x */
function hint(x) {
  if (!day) return;
  const time = timeAt(day, x);
  tip.replaceChildren(make("b", {}, timeOf(time)), pairs(facts(day, time)));
  placeTip(tip, x, 4);
}

/** The slider's value, for who does not see the lane. */
function speak() {
  if (!day) return;
  const at = past() ?? day.until;
  canvas.setAttribute("aria-valuemin", String(Math.round(day.since)));
  canvas.setAttribute("aria-valuemax", String(Math.round(day.until)));
  canvas.setAttribute("aria-valuenow", String(Math.round(Math.min(Math.max(at, day.since), day.until))));
  const told = facts(day, at).map(([name, value]) => `${name} ${value}`).join(", ");
  canvas.setAttribute("aria-valuetext", past() === null ? `now: ${told}` : `${timeOf(at)}: ${told}`);
  const span = day.until - day.since;
  const long = span > DAY_S - 60 ? "24 h" : seconds(span);
  setText(byId("lane-about"), day.isOver ? `${long} to ${timeOf(day.until)}` : long);
}

/** @param {number | null} time */
function go(time) {
  travel(time === null || time >= now() - 1 ? null : Math.round(Math.max(time, 0)));
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!day) return;
  const at = past() ?? now();
  /** @type {number | null} */
  let to;
  const by = STEP_S[event.key];
  if (by) to = at + by * Math.max((day.until - day.since) / DAY_S, 1 / 300);
  else if (event.key === "Home") to = day.since;
  else if (event.key === "End" || event.key === "Escape") to = null;
  else return;
  event.preventDefault();
  go(to);
  announce(to === null ? "now" : timeOf(to));
}

export function startDayLane() {
  const ask = whileShown(Object.keys(VIEWS), poll, () => 60_000);
  on("then", () => {
    redraw();
    speak();
    // A time outside of the day that is here: its own day comes at once.
    if (day && state.past && (state.past.at < day.since || state.past.at > day.until)) ask();
  });
  on("theme", redraw);
  on("job", () => {
    day = null;
    redraw();
    ask();
  });
  byId("lane-before").addEventListener("click", () => go((past() ?? now()) - DAY_S));
  canvas.addEventListener("pointermove", (event) => {
    hint(event.offsetX);
    if (day && event.buttons & 1) go(timeAt(day, event.offsetX));
  });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (day) go(timeAt(day, event.offsetX));
  });
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
  canvas.addEventListener("keydown", onKey);
  new ResizeObserver(redraw).observe(canvas);
}
