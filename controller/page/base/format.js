// Numbers as readable text. Unknown is a dash.

const DASH = "–";
/** @type {[number, string][]} */
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const plain = new Intl.NumberFormat("en-US");
/** @typedef {number | null | undefined} Figure not known: null, undefined or NaN */
/** @param {any} value @returns {value is number} */
export const known = (value) => typeof value === "number" && Number.isFinite(value);

/** Of a step, how many in a second; null where that is not known.
 * @param {Figure} many @param {Figure} took seconds */
export const perSecond = (many, took) => (known(many) && known(took) && took > 0 ? many / took : null);

/** @param {Figure} value */
export const count = (value) => (known(value) ? plain.format(value) : DASH);

/** @param {Figure} value */
export function short(value) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  for (const [limit, unit] of UNITS) {
    if (size >= limit) return `${digits(value / limit)} ${unit}`;
  }
  return digits(value);
}

/** @param {number} value */
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2);
}

/** @param {Figure} value */
export function loss(value) {
  if (!known(value)) return DASH;
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : value.toPrecision(4);
}

/** @param {Figure} value */
export function seconds(value) {
  if (!known(value)) return DASH;
  if (value < 1) return `${value < 0.01 ? (value * 1000).toFixed(1) : Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** "1 node", "2 nodes".
 * @param {number} n @param {string} one */
export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

/** @param {Figure} value */
export const percent = (value) => (known(value) ? `${(value * 100).toFixed(value >= 0.9995 || value < 0.1 ? 0 : 1)}%` : DASH);
/** @param {Figure} value */
export const bytes = (value) => (known(value) ? `${short(value)}B` : DASH);
/** @param {Figure} value */
export const byteRate = (value) => (known(value) ? `${short(value)}B/s` : DASH);
/** @param {Figure} value */
export const bitRate = (value) => (known(value) ? `${short(value)}b/s` : DASH);

/** @param {Figure} age */
export function ago(age) {
  if (!known(age)) return DASH;
  return age < 5 ? "now" : age < 90 ? `${Math.round(age)} s ago` : `${seconds(age).replace(/ \d+ (s|min)$/, "")} ago`;
}

/** @param {Figure} at */
export const clock = (at) => (known(at) ? new Date(at * 1000).toLocaleTimeString("en-GB") : DASH);

/** [0,1,2,3,8] -> "0–3, 8"
 * @param {ArrayLike<number>} numbers */
export function ranges(numbers) {
  /** @type {string[]} */
  const parts = [];
  for (let i = 0; i < numbers.length; i++) {
    const from = i;
    while (numbers[i + 1] === numbers[i] + 1) i++;
    parts.push(i > from ? `${numbers[from]}–${numbers[i]}` : `${numbers[i]}`);
  }
  return parts.join(", ") || DASH;
}
