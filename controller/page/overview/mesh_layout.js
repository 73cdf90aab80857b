// Where each rank is drawn. By mesh, rows are pipeline stages, columns data-parallel replicas, and in each cell stand its
// tensor-parallel ranks; by node or switch, each is a cell with its ranks. What is wide breaks into bands, as lines of text
// do. Pure: sizes in, positions out.

/** @import { Ranks } from "../base/store.js" */

/**
 * @typedef {{ by: string, pp: number, dp: number, tp: number, at: (i: number) => number[], label: (dp: number) => string }} Shape
 * @typedef {{ left: number, top: number }} Gutter
 * @typedef {{ rank: number, cell: number, row: number, band: number }} Gaps
 * @typedef {{ size: number, bands: number, perBand: number, across: number, down: number, w: number, h: number, gaps: Gaps }} Fit
 * @typedef {ReturnType<typeof layOut>} Layout
 */

const WIDEST = 190; // of one rank, in CSS pixels
const HIGHEST = 80;
const SHAPE = 1.7; // a rank may be this much wider than high before width is wasted

/** {pp, dp, tp, at, label, by}: rows, columns and places in a cell; a job that reported no mesh is drawn by node.
 * @param {Pick<Ranks, "rank" | "node" | "nodes" | "sizes" | "pp" | "dp" | "tp">} ranks
 * @param {string} by "mesh", "node" or "switch" @param {Map<string, string>} switches of each node @returns {Shape} */
export function shapeOf(ranks, by = "mesh", switches = new Map()) {
  const { sizes, rank } = ranks;
  const isMesh = sizes && sizes[0] * sizes[1] * sizes[2] === rank.length;
  if (by === "mesh" && isMesh) {
    return {
      by, pp: sizes[0], dp: sizes[1], tp: sizes[2], at: (i) => [ranks.pp[i], ranks.dp[i], ranks.tp[i]], label: (dp) => `dp ${dp}`,
    };
  }
  const names = ranks.nodes.map((name) => (by === "switch" ? switches.get(name) || "no switch" : name));
  const cells = new Map([...new Set(Array.from(ranks.node, (node) => names[node]))].map((name, column) => [name, { column, size: 0 }]));
  const place = Array.from(ranks.node, (node) => {
    const cell = /** @type {{ column: number, size: number }} */ (cells.get(names[node]));
    cell.size += 1;
    return [0, cell.column, cell.size - 1];
  });
  const columns = [...cells.keys()];
  const widest = Math.max(1, ...[...cells.values()].map(({ size }) => size));
  return {
    by: by === "switch" ? by : "node", pp: 1, dp: cells.size, tp: widest, at: (i) => place[i], label: (dp) => columns[dp] || `node ${dp}`,
  };
}

/** @param {Shape} shape @param {number} count @param {number} width @param {number} height @param {Gutter} gutter */
export function layOut(shape, count, width, height, gutter) {
  const best = arrange(shape, width - gutter.left - 8, height - gutter.top - 8);
  const { perBand, bands, across, down, w, h, gaps } = best;
  const cellW = across * w + gaps.cell;
  const cellH = down * h + gaps.row;
  const bandH = shape.pp * cellH + gaps.band;
  const left = gutter.left + Math.max(0, (width - gutter.left - 8 - perBand * cellW) >> 1);
  const top = gutter.top + Math.max(0, (height - gutter.top - 8 - bands * bandH) >> 1);
  const layout = {
    ...best, shape, cellW, cellH, bandH, left, top,
    x: new Float32Array(count), y: new Float32Array(count),
    columns: perBand * across, rows: bands * shape.pp * down,
    column: new Int32Array(count), row: new Int32Array(count), index: new Int32Array(perBand * across * bands * shape.pp * down).fill(-1),
    total: { width: perBand * cellW, height: bands * bandH },
  };
  for (let i = 0; i < count; i++) {
    const [pp, dp, tp] = shape.at(i);
    const [band, at, sx, sy] = [Math.floor(dp / perBand), dp % perBand, tp % across, Math.floor(tp / across)];
    layout.x[i] = left + at * cellW + sx * w;
    layout.y[i] = top + band * bandH + pp * cellH + sy * h;
    layout.column[i] = at * across + sx;
    layout.row[i] = (band * shape.pp + pp) * down + sy;
    layout.index[layout.row[i] * layout.columns + layout.column[i]] = i;
  }
  return layout;
}

/** The number of bands and the arrangement inside a cell that make the ranks largest.
 * @param {Shape} shape @param {number} width @param {number} height */
function arrange(shape, width, height) {
  /** @type {Fit | null} */
  let best = null;
  for (let bands = 1; bands <= Math.min(shape.dp, 64); bands++) {
    const perBand = Math.ceil(shape.dp / bands);
    if (Math.ceil(shape.dp / perBand) !== bands) continue;
    for (let across = 1; across <= shape.tp; across++) {
      if (shape.tp % across) continue;
      const down = shape.tp / across;
      const gaps = gapsFor(Math.min(width / (perBand * across), height / (bands * shape.pp * down)));
      // Whole pixels: fractions would make some columns wider than others, and the eye sees patterns.
      const w = whole((width / perBand - gaps.cell) / across, WIDEST);
      const h = whole(((height / bands - gaps.band) / shape.pp - gaps.row) / down, HIGHEST);
      const size = Math.min(w, h * SHAPE) + Math.min(w, h) / 1000;
      if (!best || size > best.size) best = { size, bands, perBand, across, down, w, h, gaps };
    }
  }
  return /** @type {Fit} */ (/** @type {unknown} */ (best)); // one band always fits
}

/** @param {number} size @returns {Gaps} */
function gapsFor(size) {
  if (size >= 24) return { rank: 3, cell: 14, row: 14, band: 28 };
  if (size >= 9) return { rank: 1, cell: 4, row: 6, band: 24 };
  if (size >= 6) return { rank: 1, cell: 1, row: 5, band: 22 };
  if (size >= 3.5) return { rank: 0, cell: 1, row: 6, band: 22 };
  return { rank: 0, cell: 0, row: 3, band: 20 };
}

/** @param {number} size @param {number} most */
const whole = (size, most) => Math.min(most, size >= 2 ? Math.floor(size) : Math.max(0.5, size));

/** The rank drawn at a point of the layout, or -1.
 * @param {Layout} layout @param {number} x @param {number} y */
export function hit(layout, x, y) {
  const { shape, left, top, cellW, cellH, bandH, across, down, w, h, perBand } = layout;
  const [dx, dy] = [x - left, y - top];
  if (dx < 0 || dy < 0) return -1;
  const band = Math.floor(dy / bandH);
  const inBand = dy - band * bandH;
  const [pp, at] = [Math.floor(inBand / cellH), Math.floor(dx / cellW)];
  const [sx, sy] = [Math.floor((dx - at * cellW) / w), Math.floor((inBand - pp * cellH) / h)];
  if (pp >= shape.pp || at >= perBand || sx >= across || sy >= down) return -1;
  return layout.index[((band * shape.pp + pp) * down + sy) * layout.columns + at * across + sx] ?? -1;
}

/** The rank next to this one on the screen; itself at the edge.
 * @param {Layout} layout @param {number} index @param {number} dx @param {number} dy */
export function neighbour(layout, index, dx, dy) {
  let [column, row] = [layout.column[index], layout.row[index]];
  for (;;) {
    column += dx;
    row += dy;
    if (column < 0 || row < 0 || column >= layout.columns || row >= layout.rows) return index;
    const found = layout.index[row * layout.columns + column];
    if (found >= 0) return found; // the last band may have holes
  }
}
