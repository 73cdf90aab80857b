// The critical path of a step in the order of time: a hop for each stay at a rank, from the step's begin to its end.

import { make } from "../base/dom.js";
import { count, percent, seconds } from "../base/format.js";
import { link, route } from "../base/router.js";
/** @import { Blame, Stay } from "../base/store.js" */

const MOST = 60; // hops in the list
const WORTH = 0.002; // of the path: shorter hops are not listed
const SHADES = 6;
const NAMED = 3; // works of a hop that are named

/** @typedef {Omit<Stay, "rank">} Work */
/** @typedef {{ rank: number, start: number, seconds: number, works: Work[] }} Hop */

/** [{rank, start, seconds, works: [{what, peer, seconds}]}] of a course: works longest first. Pure.
 * @param {Stay[]} course */
export function hopsOf(course) {
  /** @type {Hop[]} */
  const hops = [];
  let at = 0;
  for (const part of course) {
    if (hops.at(-1)?.rank !== part.rank) hops.push({ rank: part.rank, start: at, seconds: 0, works: [] });
    const hop = hops[hops.length - 1];
    hop.seconds += part.seconds;
    at += part.seconds;
    const same = hop.works.find((work) => work.what === part.what && work.peer === part.peer);
    if (same) same.seconds += part.seconds;
    else hop.works.push({ what: part.what, peer: part.peer, seconds: part.seconds });
  }
  for (const hop of hops) hop.works.sort((a, b) => b.seconds - a.seconds);
  return hops;
}

/** Elements of the panel.
 * @param {Pick<Blame, "course">} blame */
export function criticalPath({ course }) {
  const hops = hopsOf(course);
  const whole = hops.reduce((sum, hop) => sum + hop.seconds, 0);
  if (!(whole > 0)) return [make("p", { class: "muted" }, "–")];
  const shades = shadesOf(hops);
  const bar = make("div", { class: "bar tall", role: "img", "aria-label": `${count(hops.length)} hops, in the list below` });
  for (const hop of hops) {
    const wide = hop.seconds / whole;
    const piece = make(
      "i",
      { class: `shade-${shades.get(hop.rank)}`, title: `rank ${hop.rank}: ${works(hop)}` },
      wide > 0.06 ? `rank ${hop.rank}` : "",
    );
    piece.style.flexGrow = String(1000 * wide);
    bar.append(piece);
  }
  const listed = hops.filter((hop) => hop.seconds >= WORTH * whole).slice(0, MOST);
  const items = listed.map((hop) =>
    make(
      "li",
      {},
      make("span", { class: "muted num" }, `${seconds(hop.start)} `),
      make("a", { class: "link", href: link("slow", null, { ...route.query, rank: hop.rank }) }, `rank ${hop.rank}`),
      ` ${works(hop)} `,
      make("span", { class: "muted" }, `${seconds(hop.seconds)}, ${percent(hop.seconds / whole)}`),
    ),
  );
  const rest = hops.length - listed.length;
  return [
    bar,
    make("ol", { class: "plain columns" }, ...items),
    rest > 0 ? make("p", { class: "muted" }, `and ${count(rest)} other hops`) : null,
  ];
}

/** The ranks with the longest stays have a shade of their own.
 * @param {Hop[]} hops */
function shadesOf(hops) {
  const stays = new Map();
  for (const { rank, seconds: took } of hops) stays.set(rank, (stays.get(rank) ?? 0) + took);
  const order = [...stays].sort((a, b) => b[1] - a[1]).map(([rank]) => rank);
  return new Map(order.map((rank, i) => [rank, i % SHADES]));
}

/** @param {Hop} hop */
function works({ works: all }) {
  const named = all.slice(0, NAMED).map(({ what, peer }) => `${said(what)}${peer >= 0 ? ` with rank ${peer}` : ""}`);
  return named.join(", ") + (all.length > NAMED ? " and more" : "");
}

/** "forward 1" as text.
 * @param {string} what */
const said = (what) => what.replace(/^(\w+) (\d+)$/, "$1 of stage $2");
