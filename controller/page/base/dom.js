// Building elements. Text always goes in as text, never as markup: log lines and names come from outside.

/** The element of index.html with this id. Its kind is what that file says: any is given, so that callers need no cast.
 * @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** Elements of index.html, as `byId`.
 * @param {string} selector @returns {any[]} */
export const all = (selector) => [...document.querySelectorAll(selector)];

/** @typedef {Node | string | null | undefined} Part of an element */

/** make("span", {class: "x", onclick: f}, child, "text"); of what is null or false nothing is made.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, any>} attributes @param {Part[]} children
 * @returns {HTMLElementTagNameMap[K]} */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children) if (child !== null && child !== undefined) element.append(child);
  return element;
}

/** Sets text only where it differs, so that nothing is laid out or read aloud for nothing.
 * @param {Node} element @param {string | null} text */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children of a box only where that changes something: focus and selection stay.
 * @param {Element} box @param {Part[]} parts */
export function fill(box, ...parts) {
  const fresh = make("div", {}, ...parts);
  if (box.innerHTML !== fresh.innerHTML) box.replaceChildren(...fresh.childNodes);
}

/** @typedef {(string | HTMLElement)[]} Pair a name and a value */

/** @param {Pair[]} rows */
export function pairs(rows) {
  const list = make("dl", { class: "pairs" });
  for (const [name, value] of rows) list.append(make("dt", {}, name), make("dd", {}, value));
  return list;
}

/** @type {Record<string, number | undefined>} */
const MOVES = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** A row of buttons of which one is on: arrow keys move, as in any radio group.
 * @param {HTMLElement} group @param {(dataset: Record<string, string>) => void} choose */
export function segments(group, choose) {
  /** @type {HTMLElement[]} */
  const buttons = Array.from(group.querySelectorAll("[role=radio]"));
  /** @param {HTMLElement} button */
  const pick = (button) => {
    check(group, (dataset) => dataset === button.dataset);
    choose(/** @type {Record<string, string>} */ (button.dataset));
  };
  for (const button of buttons) button.addEventListener("click", () => pick(button));
  group.addEventListener("keydown", (event) => {
    const by = MOVES[event.key];
    if (!by) return;
    event.preventDefault();
    const next = buttons[(buttons.findIndex((each) => each === document.activeElement) + by + buttons.length) % buttons.length];
    next.focus();
    pick(next);
  });
}

/** Shows as chosen what the address says: the button of a group whose data `isChosen`.
 * @param {HTMLElement} group @param {(dataset: DOMStringMap) => boolean} isChosen */
export function check(group, isChosen) {
  /** @type {NodeListOf<HTMLElement>} */
  const buttons = group.querySelectorAll("[role=radio]");
  for (const each of buttons) {
    each.setAttribute("aria-checked", String(isChosen(each.dataset)));
    each.tabIndex = isChosen(each.dataset) ? 0 : -1;
  }
}

/** Sizes a canvas for the screen's pixels and gives its context, width and height in CSS pixels.
 * @param {HTMLCanvasElement} canvas */
export function fit(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return { context, width, height, ratio };
}

/** Calls `draw` once in the next frame, however often it is asked.
 * @param {() => void} draw */
export function framed(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

/** Puts a floating box near a point and keeps it inside its parent.
 * @param {HTMLElement} tip @param {number} x @param {number} y */
export function placeTip(tip, x, y) {
  tip.hidden = false;
  const box = /** @type {HTMLElement} */ (tip.parentElement);
  const left = x + 16 + tip.offsetWidth > box.clientWidth ? x - tip.offsetWidth - 12 : x + 16;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, box.clientHeight - tip.offsetHeight - 4))}px`;
}

/** A button that asks once more before it does something: the second click within four seconds counts.
 * @param {string} label @param {() => string} really @param {() => any} work @param {Record<string, any>} attributes */
export function sureButton(label, really, work, attributes = {}) {
  const button = make("button", { class: "ghost", type: "button", ...attributes }, label);
  let timer = 0;
  const calm = () => {
    button.classList.remove("danger");
    setText(button, label);
  };
  button.addEventListener("click", async () => {
    clearTimeout(timer);
    if (!button.classList.contains("danger")) {
      button.classList.add("danger");
      setText(button, really());
      timer = setTimeout(calm, 4000);
      return;
    }
    calm();
    await work();
  });
  return button;
}
