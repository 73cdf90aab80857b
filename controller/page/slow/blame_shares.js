// The account of every rank's own step, and what it is slow itself and brought on others. A table: the bars repeat what
// the numbers say.

import { all, byId, fill, make, segments, setText } from "../base/dom.js";
import { count, known, seconds } from "../base/format.js";
import { link, route } from "../base/router.js";
/** @import { Column } from "../base/api.js" */
/** @import { Blame, BlamedRanks, Share } from "../base/store.js" */

/** @typedef {Share | "rank"} Order */

const MOST = 100; // rows; the rest of 12,288 ranks is not worth reading
/** @type {[Share, string, string][]} */
const COLUMNS = [
  ["compute_s", "compute", "part-compute"],
  ["other_s", "input, host", "part-other"],
  ["transfer_s", "communication", "part-communication"],
  ["named_s", "waiting for slow ranks", "part-waiting"],
  ["plan_s", "waiting by plan", "part-plan"],
  ["jitter_s", "jitter", "part-jitter"],
];
/** @type {Order} */
let order = "self_s";
/** @type {Blame | null} */
let shown = null;

/** Places in the columns, the worst by `by` first. Of many only those that can be among the worst are sorted. Pure.
 * @param {BlamedRanks} ranks @param {Order} by @param {number} most */
export function ordered(ranks, by, most) {
  if (by === "rank") return [...Array(Math.min(most, ranks.rank.length)).keys()];
  const column = Float64Array.from(/** @type {Column} */ (ranks[by]), (value) => (known(value) ? value : -1));
  const least = column.length > most ? Float64Array.from(column).sort()[column.length - most] : -1;
  /** @type {number[]} */
  const places = [];
  for (let i = 0; i < column.length && places.length < 4 * most; i++) if (column[i] > least) places.push(i);
  for (let i = 0; i < column.length && places.length < most; i++) if (column[i] === least) places.push(i);
  return places.sort((a, b) => column[b] - column[a] || a - b).slice(0, most);
}

/** @param {Blame} blame */
export function showShares(blame) {
  shown = blame;
  const { ranks } = blame;
  const places = ordered(ranks, order, MOST);
  const chosen = ranks.rank.indexOf(Number(route.query.rank ?? NaN));
  if (chosen >= 0 && !places.includes(chosen)) places.unshift(chosen);
  const body = places.map((i) => {
    const bar = make("span", { class: "bar thin", "aria-hidden": "true" });
    for (const [column, , ink] of COLUMNS) {
      const piece = make("i", { class: ink });
      piece.style.flexGrow = String(Math.max(0, (1000 * (ranks[column][i] ?? 0)) / blame.step_s));
      bar.append(piece);
    }
    const ratio = ranks.self_ratio[i];
    const named = blame.culprits.some((c) => c.rank === ranks.rank[i] || c.peer === ranks.rank[i]);
    return make(
      "tr",
      { "data-selected": i === chosen, class: named ? "named" : null },
      make(
        "th",
        { scope: "row" },
        make("a", { class: "link", href: link("slow", null, { ...route.query, rank: ranks.rank[i] }) }, `rank ${ranks.rank[i]}`),
      ),
      make("td", { class: "wide" }, bar),
      ...COLUMNS.map(([column]) => make("td", { class: "num" }, seconds(ranks[column][i]))),
      make(
        "td",
        { class: "num" },
        known(ratio) ? `${ratio >= 1 ? "+" : "−"}${(Math.abs(ratio - 1) * 100).toFixed(1)}%` : "–",
      ),
      .../** @type {Share[]} */ (["self_s", "induced_s"]).map((column) => make("td", { class: "num" }, seconds(ranks[column][i]))),
    );
  });
  const heads = [
    "Rank",
    "",
    ...COLUMNS.map(([, name]) => name),
    "against peers",
    "slow itself",
    "induced wait",
  ];
  const head = make(
    "tr",
    {},
    ...heads.map((text, i) => make("th", { scope: "col", class: i > 1 ? "num" : null }, text)),
  );
  fill(byId("shares"), make("table", { class: "data full" }, make("thead", {}, head), make("tbody", {}, ...body)));
  const many = ranks.rank.length;
  setText(
    byId("shares-about"),
    many > places.length ? `the first ${count(places.length)} of ${count(many)}, per step` : "per step",
  );
}

export function startShares() {
  segments(all(".shares .segments")[0], ({ order: by }) => {
    order = /** @type {Order} */ (by);
    if (shown) showShares(shown);
  });
  byId("shares-legend").replaceChildren(
    ...COLUMNS.map(([, name, ink]) => make("span", {}, make("i", { class: ink }), name)),
  );
}
