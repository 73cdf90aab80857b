// Light, dark or as the system has it; and the colours of the style sheet for the canvases.

import { byId } from "./dom.js";
import { tell } from "./store.js";

const ORDER = ["auto", "light", "dark"];
const SIGN = { auto: "◐", light: "☀", dark: "☾" };
const NAME = { auto: "as the system", light: "light", dark: "dark" };
const system = matchMedia("(prefers-color-scheme: dark)");
let choice = localStorage.getItem("theme") ?? "auto";
let cache = new Map();

export function colour(name) {
  if (!cache.has(name)) cache.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
  return cache.get(name);
}

function apply() {
  const dark = choice === "dark" || (choice === "auto" && system.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  cache = new Map();
  const button = byId("theme");
  button.textContent = SIGN[choice];
  button.setAttribute("aria-label", `Theme: ${NAME[choice]}`);
  button.title = `Theme: ${NAME[choice]}`;
  tell("theme");
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

/** Mixes two #rrggbb colours. */
export function mix(from, to, share) {
  const part = (hex, at) => parseInt(hex.slice(at, at + 2), 16);
  const channels = [1, 3, 5].map((at) => Math.round(part(from, at) + (part(to, at) - part(from, at)) * share));
  return `rgb(${channels.join(" ")})`;
}
