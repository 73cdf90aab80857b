// Projects and draws the three-dimensional mesh. Small meshes are boxes with three visible faces; of thousands of ranks
// each is a square of pixels, written into an image, back to front.

import { colour, inkOn, mix, pixel } from "../base/theme.js";
/** @import { Blame, Numbers, Ranks } from "../base/store.js" */

/**
 * @typedef {Ranks & { sizes: number[] }} MeshRanks
 * @typedef {{ from: number, to: number, ink: string, width: number, arrow?: boolean, bowed?: boolean }} Line
 * @typedef {{ yaw: number, pitch: number, zoom: number }} Camera
 * @typedef {{ ranks: MeshRanks, place: Place, inks: string[], ink: Uint8Array, lines: Line[], chosen: number,
 *   marked: Set<number> | null, screen?: Screen, image?: ImageData }} Scene
 * @typedef {ReturnType<typeof place3d>} Place
 * @typedef {ReturnType<typeof blank>} Screen
 * @typedef {(x: number, y: number, z: number, out: number[]) => number[]} Project
 */

const BOXES = 700; // ranks beyond which they are squares
const EYE = 5; // distance of the eye, in sizes of the mesh
const MOST_VICTIMS = 12; // lines from one culprit
const FONT = "11px ui-sans-serif, system-ui, 'Liberation Sans', sans-serif";

/** Places of all ranks around the origin, in a mesh of about size 1: {x (dp), y (tp), z (pp), half: half a box}.
 * @param {MeshRanks} ranks */
export function place3d({ rank, pp, dp, tp, sizes }) {
  const extent = sizes.map((size) => (size - 1) ** 0.5);
  const whole = Math.hypot(...extent, 1);
  const pitch = sizes.map((size, axis) => (size > 1 ? extent[axis] / (size - 1) : 1) / whole);
  const place = {
    x: new Float32Array(rank.length),
    y: new Float32Array(rank.length),
    z: new Float32Array(rank.length),
    half: pitch.map((p) => Math.min(p * 0.3, 0.09)),
    extent: extent.map((e) => e / whole / 2),
  };
  for (let i = 0; i < rank.length; i++) {
    place.x[i] = (dp[i] - (sizes[1] - 1) / 2) * pitch[1];
    place.y[i] = (tp[i] - (sizes[2] - 1) / 2) * pitch[2];
    place.z[i] = (pp[i] - (sizes[0] - 1) / 2) * pitch[0];
  }
  return place;
}

export const AXES = /** @type {const} */ (["pp", "dp", "tp"]);

/** Whether all ranks have the same places in two answers.
 * @param {MeshRanks} ranks @param {MeshRanks | undefined} others */
export const sameMesh = (ranks, others) =>
  others?.rank.length === ranks.rank.length &&
  String(others.sizes) === String(ranks.sizes) &&
  AXES.every((axis) => same(ranks[axis], others[axis]));

/** @param {Numbers} some @param {Numbers} others */
function same(some, others) {
  for (let i = 0; i < some.length; i++) if (some[i] !== others[i]) return false;
  return true;
}

/** Lines from each culprit to the ranks that wait most for it, among the ranks that depend on it directly.
 * @param {MeshRanks} ranks @param {Blame} blame */
export function blameLines(ranks, blame) {
  /** @type {Line[]} */
  const lines = [];
  const reported = blame.ranks;
  for (const { rank: culprit } of blame.culprits.slice(0, 8)) {
    if (culprit < 0 || culprit >= ranks.rank.length) continue;
    /** @type {number[][]} */
    const near = [];
    for (let i = 0; i < reported.rank.length; i++) {
      const [rank, waited] = [reported.rank[i], reported.named_s[i]];
      if (waited > 0 && rank !== culprit && shares(ranks, culprit, rank)) near.push([rank, waited]);
    }
    for (const [rank, waited] of near.sort((a, b) => b[1] - a[1]).slice(0, MOST_VICTIMS)) {
      lines.push({
        from: culprit,
        to: rank,
        ink: "bad",
        width: 1 + Math.min(2.5, (25 * waited) / blame.step_s),
        arrow: true,
        bowed: true,
      });
    }
  }
  return lines;
}

/** Whether two ranks differ in one coordinate only: then one waits for the other directly.
 * @param {MeshRanks} ranks @param {number} a @param {number} b */
const shares = ({ pp, dp, tp }, a, b) => Number(pp[a] === pp[b]) + Number(dp[a] === dp[b]) + Number(tp[a] === tp[b]) === 2;

/** @param {Place} place @param {Camera} camera @param {number} width @param {number} height @returns {Project} */
function projector(place, { yaw, pitch, zoom }, width, height) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  /** @param {number} x @param {number} y @param {number} z */
  const turned = (x, y, z) => {
    const [u, w] = [x * cy + z * sy, -x * sy + z * cy];
    return [u, y * cp - w * sp, y * sp + w * cp];
  };
  // As large as the panel allows, however the mesh is turned: its corners decide.
  let [reachX, reachY] = [1e-6, 1e-6];
  for (let corner = 0; corner < 8; corner++) {
    /** @param {number} bit @param {number} axis */
    const sign = (bit, axis) => (corner & bit ? 1 : -1) * (place.extent[axis] + place.half[axis] * 3);
    const [u, v, depth] = turned(sign(1, 1), sign(2, 2), sign(4, 0));
    reachX = Math.max(reachX, Math.abs(u) / (EYE + depth));
    reachY = Math.max(reachY, Math.abs(v) / (EYE + depth));
  }
  const focus = Math.min((width / 2 - 40) / reachX, (height / 2 - 24) / reachY) * zoom;
  return (x, y, z, out) => {
    const [u, v, depth] = turned(x, y, z);
    const near = focus / (EYE + depth);
    out[0] = width / 2 + u * near;
    out[1] = height / 2 - v * near;
    out[2] = depth;
    out[3] = near;
    return out;
  };
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Camera} camera
 * @param {{ width: number, height: number, ratio: number, hover: number }} look */
export function drawMesh3d(context, scene, camera, { width, height, ratio, hover }) {
  const { place, ranks } = scene;
  const many = ranks.rank.length;
  const project = projector(place, camera, width, height);
  const screen = (scene.screen = scene.screen?.x.length === many ? scene.screen : blank(many));
  const out = [0, 0, 0, 0];
  for (let i = 0; i < many; i++) {
    project(place.x[i], place.y[i], place.z[i], out);
    screen.x[i] = out[0];
    screen.y[i] = out[1];
    screen.depth[i] = out[2];
    screen.near[i] = out[3];
  }
  backToFront(screen);
  if (many > BOXES) drawSquares(context, scene, screen, width, height, ratio); // puts an image: what is under it goes
  drawAxes(context, scene, project);
  if (many <= BOXES) drawBoxes(context, scene, screen, project, camera);
  for (const line of scene.lines) drawLine(context, screen, line);
  for (const { i, ink, wide } of [
    { i: hover, ink: "text", wide: 1.5 },
    { i: scene.chosen, ink: "accent", wide: 3 },
  ]) {
    if (i < 0 || i >= many) continue;
    const size = Math.max(6, Math.max(...place.half) * screen.near[i] * 1.35);
    context.strokeStyle = colour(ink);
    context.lineWidth = wide;
    context.beginPath();
    context.arc(screen.x[i], screen.y[i], size, 0, 7);
    context.stroke();
  }
}

/** Where so many ranks are drawn; made once, filled for each picture.
 * @param {number} many */
const blank = (many) => ({
  x: new Float32Array(many),
  y: new Float32Array(many),
  depth: new Float32Array(many),
  near: new Float32Array(many),
  bin: new Uint16Array(many),
  order: new Uint32Array(many),
});

/** Places by depth, the farthest first: in 1,024 bins, since the order within a bin does not show.
 * @param {Screen} screen */
function backToFront({ depth, bin, order }) {
  const bins = new Uint32Array(1025);
  for (let i = 0; i < depth.length; i++) {
    bin[i] = Math.min(1023, Math.max(0, Math.floor((1 - depth[i]) * 512)));
    bins[bin[i] + 1]++;
  }
  for (let b = 0; b < 1024; b++) bins[b + 1] += bins[b];
  for (let i = 0; i < depth.length; i++) order[bins[bin[i]]++] = i;
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Screen} screen @param {number} width
 * @param {number} height @param {number} ratio */
function drawSquares(context, scene, screen, width, height, ratio) {
  const { inks, ink, place, marked, lines } = scene;
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  const kept = scene.image?.width === wide && scene.image.height === high ? scene.image : null;
  const image = (scene.image = kept ?? new ImageData(wide, high));
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  const bright = Uint32Array.from(inks, (name) => pixel(colour(name)));
  const pale = Uint32Array.from(inks, (name) => pixel(mix(colour(name), colour("surface"), 0.45)));
  const bad = inks.indexOf("bad");
  const half = Math.min(...place.half);
  const dim = marked || lines.length;
  for (const i of screen.order) {
    const chosen = marked?.has(i);
    const strong = !dim || ink[i] === bad || chosen;
    // Who is named or of a chosen group is larger than the lines that go over it.
    const large = chosen || (strong && ink[i] === bad);
    const size = Math.max(large ? 2 * ratio : 1, (large ? 2 : 1) * half * screen.near[i] * ratio);
    const [x, y] = [screen.x[i] * ratio, screen.y[i] * ratio];
    const x0 = Math.max(0, Math.round(x - size));
    const x1 = Math.min(wide, Math.round(x + size));
    const end = Math.min(high, Math.round(y + size));
    const shade = strong ? bright[ink[i]] : pale[ink[i]];
    for (let row = Math.max(0, Math.round(y - size)); row < end; row++)
      for (let at = row * wide + x0; at < row * wide + x1; at++) pixels[at] = shade; // few: a call of fill costs more
  }
  context.putImageData(image, 0, 0);
}

// Faces of a box as signs of its half sizes: x, y and z face, each seen from its outside.
const FACES = [
  [
    [1, -1, -1],
    [1, 1, -1],
    [1, 1, 1],
    [1, -1, 1],
  ],
  [
    [-1, 1, -1],
    [1, 1, -1],
    [1, 1, 1],
    [-1, 1, 1],
  ],
  [
    [-1, -1, 1],
    [1, -1, 1],
    [1, 1, 1],
    [-1, 1, 1],
  ],
];
const SHADE = [0.16, 0, 0.3];

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Screen} screen @param {Project} project
 * @param {Camera} camera */
function drawBoxes(context, { place, inks, ink, ranks }, screen, project, { yaw, pitch }) {
  const [hz, hx, hy] = place.half;
  const facing = [Math.sin(yaw) > 0 ? 1 : -1, pitch > 0 ? -1 : 1, Math.cos(yaw) > 0 ? -1 : 1];
  const out = [0, 0, 0, 0];
  context.lineJoin = "round";
  for (const i of screen.order) {
    const base = colour(inks[ink[i]]);
    FACES.forEach((corners, axis) => {
      context.fillStyle = mix(base, "#0b1420", SHADE[axis]);
      context.beginPath();
      for (const corner of corners) {
        const signs = [...corner];
        signs[axis] = facing[axis];
        project(place.x[i] + signs[0] * hx, place.y[i] + signs[1] * hy, place.z[i] + signs[2] * hz, out);
        context.lineTo(out[0], out[1]);
      }
      context.closePath();
      context.fill();
    });
    if (ranks.rank.length <= 64) {
      context.font = `600 ${FONT}`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillStyle = inkOn(mix(base, "#0b1420", SHADE[2]));
      context.fillText(String(ranks.rank[i]), screen.x[i], screen.y[i]);
    }
  }
}

/** @param {CanvasRenderingContext2D} context @param {Scene} scene @param {Project} project */
function drawAxes(context, { place, ranks }, project) {
  const [z, x, y] = place.extent;
  const [hz, hx, hy] = place.half;
  const out = [0, 0, 0, 0];
  context.font = FONT;
  context.fillStyle = context.strokeStyle = colour("muted");
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "center";
  const corner = [-x - hx * 2.4, -y - hy * 2.4, -z - hz * 2.4];
  const ends = [
    { at: [x + hx * 2, corner[1], corner[2]], name: `dp ${ranks.sizes[1]}` },
    { at: [corner[0], y + hy * 2, corner[2]], name: `tp ${ranks.sizes[2]}` },
    { at: [corner[0], corner[1], z + hz * 2], name: `pp ${ranks.sizes[0]}` },
  ];
  for (const { at, name } of ends) {
    context.beginPath();
    project(corner[0], corner[1], corner[2], out);
    context.moveTo(out[0], out[1]);
    const [fx, fy] = out;
    project(at[0], at[1], at[2], out);
    context.lineTo(out[0], out[1]);
    context.stroke();
    const long = Math.hypot(out[0] - fx, out[1] - fy) || 1;
    context.fillText(name, out[0] + ((out[0] - fx) / long) * 18, out[1] + ((out[1] - fy) / long) * 12);
  }
}

/** @param {CanvasRenderingContext2D} context @param {Screen} screen @param {Line} line */
function drawLine(context, screen, { from, to, ink, width, arrow, bowed }) {
  const [x0, y0, x1, y1] = [screen.x[from], screen.y[from], screen.x[to], screen.y[to]];
  const long = Math.hypot(x1 - x0, y1 - y0);
  if (long < 4) return;
  context.strokeStyle = context.fillStyle = colour(ink);
  context.lineWidth = width;
  context.globalAlpha = bowed ? 0.75 : 0.9;
  const bow = bowed ? 0.16 : 0;
  const [mx, my] = [(x0 + x1) / 2 - (y1 - y0) * bow, (y0 + y1) / 2 + (x1 - x0) * bow];
  context.beginPath();
  context.moveTo(x0, y0);
  context.quadraticCurveTo(mx, my, x1, y1);
  context.stroke();
  if (arrow) {
    const angle = Math.atan2(y1 - my, x1 - mx);
    const [tx, ty] = [x1 - Math.cos(angle) * 10, y1 - Math.sin(angle) * 10];
    const size = 4 + width;
    context.beginPath();
    context.moveTo(tx + Math.cos(angle) * size, ty + Math.sin(angle) * size);
    context.lineTo(tx + Math.cos(angle + 2.5) * size, ty + Math.sin(angle + 2.5) * size);
    context.lineTo(tx + Math.cos(angle - 2.5) * size, ty + Math.sin(angle - 2.5) * size);
    context.fill();
  }
  context.globalAlpha = 1;
}

/** The frontmost rank near a point, or -1.
 * @param {Scene} scene @param {number} x @param {number} y */
export function hit3d({ screen, place }, x, y) {
  if (!screen) return -1;
  const half = Math.max(...place.half);
  let [found, nearest] = [-1, Infinity];
  for (let i = 0; i < screen.x.length; i++) {
    const reach = Math.max(4, half * screen.near[i]);
    if (Math.abs(screen.x[i] - x) <= reach && Math.abs(screen.y[i] - y) <= reach && screen.depth[i] < nearest)
      [found, nearest] = [i, screen.depth[i]];
  }
  return found;
}
