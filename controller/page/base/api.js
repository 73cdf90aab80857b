// Talking to the controller. The token, where one is needed, is asked for once and kept for this tab only; it travels
// in a header, which EventSource cannot send, so events are read from an ordinary streamed answer.

import { byId, make } from "./dom.js";
import { pinned } from "./router.js";

/**
 * @typedef {(number | null)[] | Float64Array} Column
 * @typedef {(number | null)[][] | { width: number, flat: Float64Array }} Table
 */
/**
 * @template T
 * @typedef {T extends number[] ? T | Float64Array : T extends (number | null)[] ? Column
 *   : T extends (number | null)[][] ? Table : T extends any[] ? T
 *   : T extends Record<string, any> ? { [K in keyof T]: Packed<T[K]> } : T} Packed an answer as `getLarge` gives it
 */

const KEY = "holdfast-token";
const OF_A_JOB = /^\/(?:job\/(plan|hour|day|then|stop|restart|stacks|checkpoint|logs)|(ranks|steps|blame|spans|timeline))\b/;
const SILENCE_MS = 25_000; // the controller says something every 10 s
/** @type {Promise<void> | null} */
let asking = null;

/** @param {string} path @param {RequestInit} options @returns {Promise<Response>} */
async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
    const answer = await fetch(path, { ...options, headers, cache: "no-store" });
    if (answer.status !== 401) return answer;
    if (!asking && sessionStorage.getItem(KEY) !== token) continue; // another request has asked in the meantime
    asking ??= askToken(token !== null).finally(() => (asking = null));
    await asking;
  }
}

/** @param {boolean} wrong @returns {Promise<void>} */
function askToken(wrong) {
  const dialog = byId("token-dialog");
  if (wrong) byId("token-why").textContent = "The controller did not accept this token.";
  byId("token-input").value = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.oncancel = (/** @type {Event} */ event) => event.preventDefault();
    dialog.onclose = () => {
      sessionStorage.setItem(KEY, byId("token-input").value.trim());
      done();
    };
  });
}

/** @param {Response} answer @returns {Promise<any>} */
async function read(answer) {
  const body = await answer.json().catch(() => ({ error: `the controller answered ${answer.status}` }));
  if (!answer.ok) throw new Error(body.error ?? `the controller answered ${answer.status}`);
  return body;
}

/** The full path: what is asked of the newest job is asked of the one that the page is about.
 * @param {string} path */
function address(path) {
  const job = pinned();
  if (!job || !OF_A_JOB.test(path)) return `/api/v1${path}`;
  return `/api/v1/jobs/${encodeURIComponent(job)}${path.replace(/^\/job\//, "/")}`;
}

/** Bytes of answers so far, as they were sent. */
export let received = 0;
const KEPT = 24; // answers that are remembered for the case that they have not changed
/** @type {Map<string, { tag: string, value: any }>} by path */
const kept = new Map();

/** What `path` gives, read by `parse`; the very same object where the controller says that nothing has changed.
 * @param {string} path @param {(answer: Response) => Promise<any>} parse @returns {Promise<any>} */
async function conditional(path, parse) {
  const full = address(path);
  const known = kept.get(full);
  const answer = await request(full, known ? { headers: { "If-None-Match": known.tag } } : {});
  received += Number(answer.headers.get("content-length") ?? 0);
  if (answer.status === 304 && known) return known.value;
  if (!answer.ok) return read(answer);
  const value = await parse(answer);
  const tag = answer.headers.get("etag");
  kept.delete(full);
  if (tag) kept.set(full, { tag, value });
  const [oldest] = kept.keys();
  if (kept.size > KEPT) kept.delete(oldest);
  return value;
}

/** @param {string} path */
export const get = (path) => conditional(path, read);

const SMALL = 1 << 16; // bytes that are read faster here than sent to a worker
/** @type {Map<number, { done: (value: any) => void, fail: (why: Error) => void }>} */
const waiting = new Map(); // by number of the question
/** @type {Worker | null} */
let parser = null;
let asked = 0;

/** As `get`, for what may be megabytes: long columns of numbers may come as Float64Array, NaN for what is not known.
 * @param {string} path */
export const getLarge = (path) => conditional(path, parseLarge);

/** @param {Response} answer */
async function parseLarge(answer) {
  const buffer = await answer.arrayBuffer();
  if (buffer.byteLength < SMALL) return JSON.parse(new TextDecoder().decode(buffer));
  if (!parser) {
    parser = new Worker("/static/base/parse_worker.js", { type: "module" });
    parser.onmessage = ({ data: { id, value, error } }) => {
      const question = waiting.get(id);
      waiting.delete(id);
      if (error) question?.fail(new Error(error));
      else question?.done(value);
    };
  }
  const id = asked++;
  const worker = parser;
  return new Promise((done, fail) => {
    waiting.set(id, { done, fail });
    worker.postMessage({ id, buffer }, [buffer]);
  });
}

/** @param {string} path @param {any} body */
export async function post(path, body = null) {
  const sent = body === null ? {} : { body: JSON.stringify(body), headers: { "Content-Type": "application/json" } };
  return read(await request(address(path), { method: "POST", ...sent }));
}

/** Lets the browser save an answer as a file: a plain link could not carry the token.
 * @param {string} path @param {string} name */
export async function save(path, name) {
  const answer = await request(address(path));
  if (!answer.ok) await read(answer);
  const file = URL.createObjectURL(await answer.blob());
  make("a", { href: file, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(file), 60_000);
}

/** @typedef {Record<string, (data: any) => void>} Handlers by the name of the event */

/** Reads server-sent events until the connection breaks or `signal` aborts; throws then. `heard`: called at input.
 * @param {string} path @param {Handlers} handlers @param {() => void} heard @param {AbortSignal} signal */
export async function listen(path, handlers, heard, signal) {
  const abort = new AbortController();
  signal.addEventListener("abort", () => abort.abort());
  let watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
  try {
    const answer = await request(`/api/v1${path}`, { signal: abort.signal });
    if (!answer.ok) await read(answer);
    if (!answer.body) throw new Error("the controller answered with nothing");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the controller ended the stream");
      clearTimeout(watchdog);
      watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
      heard();
      const messages = (rest + value).split("\n\n");
      rest = messages.pop() ?? "";
      for (const message of messages) dispatch(message, handlers);
    }
  } finally {
    clearTimeout(watchdog);
    abort.abort();
  }
}

/** @param {string} message @param {Handlers} handlers */
function dispatch(message, handlers) {
  /** @type {Record<string, string>} */
  const fields = { event: "message", data: "" };
  for (const line of message.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  handlers[fields.event]?.(JSON.parse(fields.data));
}
