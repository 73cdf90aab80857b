// The page's state, and its subscribers. Views read `state`; live.js and select.js write it, and each
// view what only it asks for.

/** @type {{
 *   status: Api.Status | null, ranks: any, nodes: Api.NodeBrief[], incidents: Map<string, Api.Incident>,
 *   steps: Api.Steps & { job: string | null }, blame: Api.BlameBrief | null, blamed: any, past: any, heat: any,
 *   selected: { rank: number | null, node: string | null, incident: string | null },
 *   connection: { state: string, since: number, retryAt: number }, skew: number }} */
export const state = {
  status: null, // as /api/v1/status, nodes and incidents merged in
  ranks: null, // as /api/v1/ranks, columns maybe Float64Array
  nodes: [], // as /api/v1/nodes?detail=false
  incidents: new Map(), // by id, oldest history included
  steps: { job: null, step: [], loss: [], seconds: [], tokens: [], at: [], generation: [], mfu: [], grad_norm: [] },
  blame: null, // as /api/v1/blame/newest
  blamed: null, // as /api/v1/blame, once it was opened
  past: null, // as /api/v1/job/then, while the address names a time; with `problem` where nothing is kept of it
  heat: null, // as /api/v1/blame/heat, while the view Slow is shown
  selected: { rank: null, node: null, incident: null },
  connection: { state: "connecting", since: 0, retryAt: 0 },
  skew: 0, // controller's clock minus the browser's, seconds
};

const listeners = new Map();

export function on(topic, listener) {
  for (const name of topic.split(" ")) {
    if (!listeners.has(name)) listeners.set(name, []);
    listeners.get(name).push(listener);
  }
}

export function notify(topic) {
  for (const listener of listeners.get(topic) ?? []) listener();
}

/** The controller's time now, in Unix seconds. */
export function now() {
  return Date.now() / 1000 + state.skew;
}
