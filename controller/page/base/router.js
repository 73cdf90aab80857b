// Which view is shown, in step with the address: #/overview, #/ranks/5, #/blame?step=40, #/nodes/n2. Each panel names
// the views that it is part of; a view is the panels that name it.

import { byId, setText } from "./dom.js";
import { notify } from "./store.js";

export const VIEWS = {
  overview: "Overview",
  job: "Job",
  ranks: "Ranks",
  blame: "Blame",
  timeline: "Timeline",
  nodes: "Nodes",
  incidents: "Incidents",
  mesh3d: "3D mesh",
  actions: "Actions",
  runbook: "Runbook",
};
export const route = { view: "overview", id: null, query: {} };
const OLD = { rank: "ranks", node: "nodes", incident: "incidents" };

/** "#/ranks/5?x=1" -> {view, id, query}; what cannot be read is the overview. */
export function parse(hash) {
  const [, kind, value] = /^#(rank|node|incident)=(.+)$/.exec(hash) ?? [];
  if (kind) return { view: OLD[kind], id: decode(value), query: {} };
  const [path, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const [view, id] = path.split("/");
  return {
    view: Object.hasOwn(VIEWS, view) ? view : "overview",
    id: id ? decode(id) : null,
    query: Object.fromEntries(new URLSearchParams(search)),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a lone % in a name
  }
}

/** The id of the job that the address names; null where the page is about the newest. */
export const pinned = () => route.query.job ?? null;

/** The address of a view, for the same job. Parts of the query that are null are left out. */
export function link(view, id = null, query = {}) {
  const known = Object.entries({ job: pinned(), ...query }).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(known).toString();
  return `#/${view}${id === null ? "" : `/${encodeURIComponent(id)}`}${search && `?${search}`}`;
}

/** Changes the address without a new entry in the browser's history: what is chosen within a view. */
export function replace(id, query) {
  Object.assign(route, { id, query: { ...(pinned() ? { job: pinned() } : {}), ...query } });
  history.replaceState(null, "", link(route.view, id, query));
}

function follow(moved) {
  const [before, job] = [route.view, pinned()];
  Object.assign(route, parse(location.hash));
  document.body.dataset.view = route.view;
  for (const panel of document.querySelectorAll("[data-views]")) {
    panel.toggleAttribute("data-away", !panel.dataset.views.split(" ").includes(route.view));
  }
  for (const each of document.querySelectorAll("#views a")) {
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
    document.querySelector(`[data-views~="${route.view}"] :is(a, button, input, [tabindex="0"])`)?.focus();
  });
  addEventListener("hashchange", () => follow(true));
  follow(false);
}
