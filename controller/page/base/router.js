// Which view is shown, in step with the address: #/overview?rank=5, #/slow?step=40, #/nodes/n2. Each panel names the
// views that it is part of; a view is the panels that name it. The overview shows the mesh flat or in three dimensions.

import { all, byId, setText } from "./dom.js";
import { notify } from "./store.js";

/** @type {Record<string, string>} */
export const VIEWS = {
  overview: "Overview",
  incidents: "Incidents",
  slow: "Slow",
  nodes: "Nodes",
  run: "Run",
  logs: "Logs",
  runbook: "Runbook",
};
/** @typedef {Record<string, string | undefined>} Query */
/** @type {{ view: string, id: string | null, query: Query }} */
export const route = { view: "overview", id: null, query: {} };
// Addresses that were sent around earlier.
/** @type {Record<string, string>} */
const OLD = { rank: "ranks", node: "nodes", incident: "incidents" };
/** @type {Record<string, (id: string | null) => { view: string, query: Query }>} */
const MOVED = {
  ranks: (id) => ({ view: "overview", query: id === null ? {} : { rank: id } }),
  mesh3d: () => ({ view: "overview", query: { mesh: "3d" } }),
  blame: () => ({ view: "slow", query: {} }),
  timeline: () => ({ view: "slow", query: {} }),
  job: () => ({ view: "run", query: {} }),
  actions: () => ({ view: "nodes", query: {} }),
};

/** "#/ranks/5?x=1" -> {view, id, query}; what cannot be read is the overview.
 * @param {string} hash @returns {typeof route} */
export function parse(hash) {
  const [, kind, value] = /^#(rank|node|incident)=(.+)$/.exec(hash) ?? [];
  const [path, search = ""] = (kind ? `${OLD[kind]}/${value}` : hash.replace(/^#\/?/, "")).split("?");
  const [view, part] = path.split("/");
  const id = part ? decode(part) : null;
  const query = Object.fromEntries(new URLSearchParams(search));
  if (Object.hasOwn(VIEWS, view)) return { view, id, query };
  const moved = Object.hasOwn(MOVED, view) ? MOVED[view](id) : { view: "overview", query: {} };
  return { view: moved.view, id: null, query: { ...query, ...moved.query } };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % in a name
  }
}

/** The id of the job that the address names; null where the page is about the newest. */
export const pinned = () => route.query.job ?? null;

/** The time that the views show, in Unix seconds; null: now. */
export function past() {
  const at = Number(route.query.at);
  return route.query.at && Number.isFinite(at) && at > 0 ? at : null;
}

/** What stays in the address from view to view. */
const kept = () => ({ job: pinned(), at: past() });

/** Shows another time in the view that is open; null: now.
 * @param {number | null} at */
export function travel(at) {
  const { at: _, ...others } = route.query;
  route.query = at === null ? others : { ...others, at: String(at) };
  history.replaceState(null, "", link(route.view, route.id, route.query));
  follow(false);
}

/** Whether a view is shown, or one of the overview's meshes: "mesh2d", "mesh3d".
 * @param {string} view */
export function isShown(view) {
  if (view !== "mesh2d" && view !== "mesh3d") return route.view === view;
  return route.view === "overview" && (route.query.mesh === "3d") === (view === "mesh3d");
}

/** The address of a view, for the same job and time. Parts of the query that are null are left out.
 * @param {string} view @param {string | number | null} id @param {Record<string, any>} query */
export function link(view, id = null, query = {}) {
  const known = Object.entries({ ...kept(), ...query }).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(known.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${id === null ? "" : `/${encodeURIComponent(id)}`}${search && `?${search}`}`;
}

/** Changes the address without a new entry in the browser's history: what is chosen within a view.
 * @param {string | number | null} id @param {Record<string, any>} query */
export function replace(id, query) {
  const stays = Object.fromEntries(Object.entries(kept()).filter(([, value]) => value !== null));
  Object.assign(route, { id, query: { ...stays, ...query } });
  history.replaceState(null, "", link(route.view, id, query));
}

/** @param {boolean} moved */
function follow(moved) {
  const [before, job] = [route.view, pinned()];
  Object.assign(route, parse(location.hash));
  document.body.dataset.view = route.view;
  for (const panel of all("[data-views]")) {
    panel.toggleAttribute("data-away", !panel.dataset.views.split(" ").some(isShown));
  }
  for (const each of all("#views a")) {
    each.href = link(each.dataset.view);
    if (each.dataset.view === route.view) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  setText(byId("view-title"), VIEWS[route.view]);
  if (moved && before !== route.view) {
    scrollTo(0, 0);
    byId("view-title").focus({ preventScroll: true }); // screen readers say which view this is; Tab goes on
  }
  if (pinned() !== job) notify("job");
  notify("route");
}

export function startRouter() {
  // A link to a place in the page would be taken for an address of a view.
  byId("skip").addEventListener("click", () => {
    all('[data-views]:not([data-away]) :is(a, button, input, [tabindex="0"])')[0]?.focus();
  });
  addEventListener("hashchange", () => follow(true));
  follow(false);
}
