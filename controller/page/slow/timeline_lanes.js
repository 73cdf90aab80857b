// Where spans lie: which rank's lane, how deep in others, which one at an instant. Pure.

/** Where each rank's spans begin in the columns, and how deep each span lies in others. Sorted by rank, then start. */
export function lanesOf(data) {
  const [first, depth] = [new Map(), new Uint8Array(data.rank.length)];
  const lanes = Array.from(data.ranks, (rank) => ({ rank, from: 0, to: 0 }));
  lanes.forEach((lane, i) => first.set(lane.rank, i));
  let open = [];
  for (let i = 0; i < data.rank.length; i++) {
    const lane = lanes[first.get(data.rank[i])];
    if (i === 0 || data.rank[i] !== data.rank[i - 1]) {
      lane.from = i;
      open = [];
    }
    lane.to = i + 1;
    while (open.length && open.at(-1) <= data.start[i]) open.pop();
    depth[i] = Math.min(3, open.length);
    open.push(data.start[i] + data.took[i]);
  }
  return Object.assign(lanes, { depth, place: first });
}

/** The innermost span of a lane at a time, or within `near` of it; -1 where there is none. */
export function spanAt({ start, took }, lane, time, near) {
  let found = -1;
  for (let i = lane.from; i < lane.to && start[i] <= time + near; i++) if (start[i] + took[i] >= time - near) found = i;
  return found;
}
