// Light, dark or as the system has it; and the colours of the style sheet for the canvases.

import { byId } from "./dom.js";
import { notify } from "./store.js";

const ORDER = ["auto", "light", "dark"];
/** @type {Record<string, string>} */
const SIGN = { auto: "◐", light: "☀", dark: "☾" };
/** @type {Record<string, string>} */
const NAME = { auto: "as the system", light: "light", dark: "dark" };
const system = matchMedia("(prefers-color-scheme: dark)");
let choice = localStorage.getItem("theme") ?? "auto";
/** @type {Map<string, string>} */
let cache = new Map();

/** @param {string} name */
export function colour(name) {
  const known = cache.get(name);
  if (known !== undefined) return known;
  const found = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  cache.set(name, found);
  return found;
}

function apply() {
  const dark = choice === "dark" || (choice === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  cache = new Map();
  const button = byId("theme");
  button.textContent = SIGN[choice];
  button.setAttribute("aria-label", `Theme: ${NAME[choice]}`);
  button.title = `Theme: ${NAME[choice]}`;
  notify("theme");
}

export function startTheme() {
  if (!ORDER.includes(choice)) choice = "auto";
  byId("theme").addEventListener("click", () => {
    choice = ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length];
    localStorage.setItem("theme", choice);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

/** [red, green, blue] of a colour as #rgb, #rrggbb or rgb(...).
 * @param {string} css */
export function channels(css) {
  if (!css.startsWith("#")) return (css.match(/\d+/g) ?? []).slice(0, 3).map(Number);
  const digits = css.length === 4 ? Array.from(css.slice(1), (digit) => digit + digit) : (css.slice(1).match(/../g) ?? []);
  return digits.map((pair) => parseInt(pair, 16));
}

/** A colour as one pixel of an image, on the little-endian machines that browsers run on.
 * @param {string} css */
export function pixel(css) {
  const [red, green, blue] = channels(css);
  return (0xff000000 | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Dark or light text, whichever reads better on a colour.
 * @param {string} css */
export function inkOn(css) {
  const [red, green, blue] = channels(css);
  return 0.299 * red + 0.587 * green + 0.114 * blue > 130 ? "#0d1a24" : "#f4f8fb";
}

/** Mixes two colours.
 * @param {string} from @param {string} to @param {number} share */
export function mix(from, to, share) {
  const [first, last] = [channels(from), channels(to)];
  return `rgb(${first.map((value, i) => Math.round(value + (last[i] - value) * share)).join(" ")})`;
}
