// How often a node's traffic repeats: by autocorrelation over a window of millisecond samples. Pure.

const SHORTEST = 20; // ms; shorter periods are packets, not steps
const CLEAR = 0.3; // correlation from which a period is believed

/** Milliseconds, or null where nothing repeats. `nic`: {t, tx, rx}, `span` in ms.
 * @param {Pick<Api.NicTraffic, "t" | "tx" | "rx">} nic @param {number} span */
export function periodOf(nic, span) {
  const series = new Float32Array(Math.ceil(span) + 1);
  const first = Math.max(0, (nic.t.at(-1) ?? 0) - span);
  for (let i = 0; i < nic.t.length; i++) {
    const at = Math.floor(nic.t[i] - first);
    if (at >= 0 && at < series.length) series[at] += nic.tx[i] + nic.rx[i];
  }
  const mean = series.reduce((sum, value) => sum + value, 0) / series.length;
  if (mean === 0) return null;
  for (let i = 0; i < series.length; i++) series[i] -= mean;
  const power = correlation(series, 0);
  if (power === 0) return null;
  let best = CLEAR;
  /** @type {number | null} */
  let found = null;
  let [before, here] = [correlation(series, SHORTEST - 1) / power, correlation(series, SHORTEST) / power];
  for (let lag = SHORTEST; lag < series.length / 2; lag++) {
    const after = correlation(series, lag + 1) / power;
    // The first clear peak: its multiples are as high, or nearly.
    if (here > before && here >= after && here > best * 1.1) [best, found] = [here, lag];
    [before, here] = [here, after];
  }
  return found;
}

/** Mean product of a series with itself, `lag` later.
 * @param {Float32Array} series @param {number} lag */
function correlation(series, lag) {
  let sum = 0;
  for (let i = lag; i < series.length; i++) sum += series[i] * series[i - lag];
  return sum / (series.length - lag);
}
