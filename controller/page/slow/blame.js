// Blame of some steps: which ranks are slow and what it costs, what a step would take without, the critical path.

import { getLarge } from "../base/api.js";
import { criticalPath } from "./critical_path.js";
import { showShares, startShares } from "./blame_shares.js";
import { Sparkline } from "../drawing/sparkline.js";
import { byId, fill, make, setText } from "../base/dom.js";
import { messageOf } from "../base/errors.js";
import { count, known, percent, seconds } from "../base/format.js";
import { whileShown } from "../base/live.js";
import { link, replace, route } from "../base/router.js";
import { now, on, state, notify } from "../base/store.js";
import { timeOf } from "../past/then.js";
/** @import { Blame } from "../base/store.js" */

/** @type {Blame | null} */
let shown = null;
let problem = "";

/** The newest step of the time that is shown; null where that is now, or no step was done. */
export function stepThen() {
  const step = state.past?.step;
  return known(step) && step >= 0 ? String(step) : null;
}

async function poll() {
  const step = /^\d+$/.test(route.query.step ?? "") ? route.query.step : stepThen();
  try {
    shown = await getLarge(step === null ? "/blame" : `/blame?first=${step}&last=${step}`);
    state.blamed = shown;
    problem = "";
    notify("blamed");
  } catch (error) {
    [shown, problem] = [null, messageOf(error)];
  }
  show();
}

function show() {
  if (route.view !== "slow") return;
  byId("blame-step").value = route.query.step ?? "";
  if (!shown) {
    const hint = make("p", { class: "muted" }, problem || "Loading…");
    setText(byId("blame-about"), "");
    for (const id of ["culprits", "whatif", "path", "shares"])
      fill(byId(id), id === "culprits" ? hint.cloneNode(true) : make("p", { class: "muted quiet" }, "–"));
    return;
  }
  const steps =
    shown.first === shown.last ? `step ${count(shown.first)}` : `steps ${count(shown.first)} to ${count(shown.last)}`;
  const gone = shown.incomplete.length ? `, spans of ${count(shown.incomplete.length)} ranks incomplete` : "";
  setText(byId("blame-about"), `${steps}, ${shown.account.step} ${shown.account.unit} each${gone}`);
  fill(byId("culprits"), accountBar(shown), ...culpritList(shown));
  fill(byId("whatif"), ...whatIf(shown));
  fill(byId("path"), ...criticalPath(shown));
  showShares(shown);
}

/** @param {Api.Culprit} c */
export const nameOf = (c) => (c.rank < 0 ? "the plan" : c.peer >= 0 ? `ranks ${c.rank} – ${c.peer}` : `rank ${c.rank}`);

/** The step as one bar of its parts, with the line that `holdfast blame` prints.
 * @param {Blame} shown */
function accountBar({ account }) {
  const { text, unit, parts } = account;
  const bar = make("div", { class: "bar tall", role: "img", "aria-label": text });
  for (const part of parts) {
    const figure = part.figure ? `${part.figure} ${unit}` : "";
    const piece = make(
      "i",
      { class: `part-${part.kind}`, title: `${part.name} ${figure || "less than the last digit"}` },
      part.share > 0.06 ? part.figure : "",
    );
    piece.style.flexGrow = String(1000 * part.share);
    bar.append(piece);
  }
  const names = parts
    .filter((part) => part.figure)
    .map((part) => make("span", {}, make("i", { class: `part-${part.kind}` }), `${part.figure} ${unit} ${part.name}`));
  return make("div", { class: "account" }, make("p", { class: "big" }, text), bar, make("p", { class: "legend" }, ...names));
}

/** @param {Blame} shown */
function culpritList(shown) {
  if (!shown.culprits.length)
    return [
      make("p", { class: "big" }, "No rank is slow by itself"),
      make("p", { class: "muted" }, "What ranks differ by is noise; waiting follows from the plan."),
    ];
  const items = shown.culprits.map((c) => {
    const bar = meter(c.share);
    const more =
      c.rank < 0
        ? []
        : [
            make(
              "a",
              { class: "link", href: link("slow", null, { ...route.query, rank: c.rank, from: shown.last, to: shown.last }) },
              "timeline of the last step",
            ),
            make("a", { class: "link", href: link("overview", null, { mesh: "3d", rank: c.rank }) }, "in 3D"),
            ...(c.node ? [make("a", { class: "link", href: link("nodes", c.node) }, `test ${c.node}`)] : []),
          ];
    const chosen = String(c.rank) === route.query.rank;
    return make(
      "li",
      { class: "culprit", "data-selected": chosen, "aria-current": chosen ? "true" : null },
      make(
        "div",
        { class: "culprit-head" },
        make("b", {}, nameOf(c)),
        make("span", { class: "tag" }, c.kind),
        make(
          "span",
          { class: "num" },
          `costs ${c.cost} a step (${percent(c.share)})`,
        ),
      ),
      bar,
      make("p", {}, c.text),
      course(c),
      make("p", { class: "links" }, ...more),
    );
  });
  return [make("ol", { class: "plain" }, ...items)];
}

/** A bar that is full at a share of 1.
 * @param {number} share */
function meter(share) {
  const filling = make("i");
  filling.style.width = `${Math.min(100, 100 * share)}%`;
  return make("span", { class: "meter", "aria-hidden": "true" }, filling);
}

/** Since when it is slow, and how its cost went: from the controller's looks, of now only.
 * @param {Api.Culprit} c */
function course(c) {
  /** @param {Api.Culprit} one */
  const same = (one) => one.rank === c.rank && one.peer === c.peer && one.kind === c.kind;
  const seen = state.past ? null : state.blame?.culprits.find(same);
  if (!seen?.history || !known(seen.since)) return null;
  const line = new Sparkline();
  const { at, share } = seen.history;
  line.show(at, share, seen.since, at[at.length - 1]);
  const worst = share.reduce((most, one) => Math.max(most, one), 0);
  return make(
    "p",
    { class: "course" },
    `since ${timeOf(seen.since)} (${seconds(Math.max(0, now() - seen.since))}), ${percent(worst)} of the step at most`,
    line.element,
  );
}

/** A step now and without each culprit: less what the account says of it.
 * @param {Blame} shown */
function whatIf(shown) {
  const rows = [
    { name: "as it is", took: shown.step_s },
    ...shown.culprits.map((c) => ({ name: `${nameOf(c)} as fast as its peers`, took: c.what_if_s })),
  ];
  const body = rows.map(({ name, took }, i) => {
    const bar = meter(took / shown.step_s);
    const gain = shown.step_s / took - 1;
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, name),
      make("td", {}, bar),
      make("td", { class: "num" }, seconds(took)),
      make("td", { class: "num" }, i && gain >= 0.0005 ? `+${percent(gain)} tokens/s` : ""),
    );
  });
  return [make("table", { class: "data" }, make("tbody", {}, ...body))];
}

export function startBlame() {
  startShares();
  const turn = whileShown(["slow"], poll, () => 10_000);
  on("route", show);
  on("then", turn);
  on("blame", show);
  byId("blame-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const step = byId("blame-step").value.trim();
    shown = null;
    replace(null, { ...route.query, step: step || null });
    show();
    turn();
  });
}
