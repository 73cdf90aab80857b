"""Who stands out among its peers, in which work or on which link: those whose cost is worth working out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame_peers import Compared, compare
from holdfast.diagnostics.step_graph import Graph
from holdfast.diagnostics.step_replay import Measured
from holdfast.diagnostics.step_shape import OTHER, Meeting

Floats = npt.NDArray[np.float64]


class Slowness(StrEnum):
    """What kind of slow."""

    COMPUTE = "compute"
    LINK = "link"
    DATA = "data loading"
    GARBAGE = "garbage collection"
    HOST = "host interference"
    """Ready to run and kept from it: its work took more time, but no more of the processor's."""
    IMBALANCE = "imbalance"
    """One stage has more to do than another, on all its ranks: the plan's doing and nobody's fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on a rank is named."""

    ratio: float = 1.03
    """Over its peers."""
    chance: float = 0.01
    """That anybody at all is named in a job where only noise tells ranks apart."""
    z: float = 3.4
    """Standard errors at the least, however few there are to be named."""
    host: float = 0.05
    """Share of the step that a rank is kept from running beyond its peers."""
    garbage: float = 0.01
    """Share of the step in garbage collection beyond its peers."""
    link: float = 1.25
    """Of a transfer, whose time varies more, over its peers."""
    stage_link: float = 1.5
    """Of a transfer by the byte, over the same transfer of other stages: the only peers where a stage has one group."""
    imbalance: float = 1.1
    """Work of the busiest stage over the mean."""
    least: float = 0.002
    """Share of the step that work or a link takes beyond its peers: what takes next to nothing costs nobody."""
    between: float = 0.03
    """The same for what lies between spans. Only the clock is known of it, and so also what kept it from running."""
    candidates: int = 8
    """How many are tried at most."""
    replays: int = 16
    """Steps at most that are played again, evenly spread."""


class Samples:
    """One column's seconds of each role, step by step."""

    def __init__(self) -> None:
        self.wall: dict[str, list[Floats]] = {}
        self.cpu: dict[str, list[Floats]] = {}
        self.transfers: dict[str, list[Floats]] = {}
        self.off: list[Floats] = []
        self.is_timed = True
        """Whether the processor's time is known."""
        self.totals: list[Floats] = []

    def add(self, graph: Graph, seen: Measured, c: int, by_element: bool) -> None:
        column = graph.columns[c]
        cpu = column.cpu_spent()
        roles = column.shape.roles[:-1]
        for role in dict.fromkeys(roles):
            rows = [i for i, name in enumerate(roles) if name == role]
            for store, values in ((self.wall, column.spent[rows]), (self.cpu, cpu[rows])):
                store.setdefault(role, []).extend(values if by_element else [values.sum(axis=0)])
        self.wall.setdefault(OTHER, []).append(column.other)
        known = np.isfinite(cpu)
        self.off.append(np.where(known, np.clip(column.spent - cpu, 0, None), 0).sum(axis=0))
        self.is_timed &= bool(known.any())
        self.totals.append(column.own.sum(axis=0))
        moved: dict[str, list[Floats]] = {}
        for k, sync in enumerate(column.shape.syncs):
            if sync.how is Meeting.SEND:
                continue
            # Data that was there already says nothing about how long it took.
            took = np.where(seen.waited[c][k] | (sync.how is Meeting.COLLECTIVE), seen.transfers[c][k], np.nan)
            moved.setdefault(sync.key[0], []).append(took)
        for name, took_all in moved.items():
            self.transfers.setdefault(name, []).append(_lower_quartile(np.stack(took_all)))


def _lower_quartile(took: Floats) -> Floats:
    """Of each rank's transfers of one name in a step, (transfers, ranks). A slow link is slow for all that goes over
    it; what a busy host adds, until the receiver has its processor, comes on top of some and is many times as long."""
    ordered = np.sort(took, axis=0)  # those that are not known come last
    known = (~np.isnan(took)).sum(axis=0)
    found: Floats = np.take_along_axis(ordered, np.maximum(known - 1, 0)[None] // 4, axis=0)[0]
    return found


@dataclass(slots=True)
class Suspect:
    """A rank by its place in the graph. `works`: role to the share of its time that is too much."""

    kind: Slowness
    column: int
    lane: int
    ratio: float
    z: float
    self_s: float
    works: dict[str, float] = field(default_factory=dict)
    whole: float = 0.0
    """Share of all its own time, where it cannot be told of which work."""
    moves: list[Move] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Move:
    """A transfer that takes too long: its name and share, at which places of a column, and between which ranks."""

    column: int
    lanes: tuple[int, ...]
    name: str
    share: float
    ranks: tuple[int, ...]


def suspects(
    graph: Graph, samples: list[Samples], step_s: float, limits: Limits, garbage: Floats | None
) -> list[Suspect]:
    """The worst first, no more than `limits.candidates`. `graph` is any step of those that were sampled."""
    tests = sum(s.totals[0].size * (len(s.wall) + len(s.transfers)) for s in samples)
    z = max(limits.z, NormalDist().inv_cdf(1 - limits.chance / max(tests, 2)))
    found: list[Suspect] = []
    links: list[Suspect] = []
    for c, sample in enumerate(samples):
        found += _slow_workers(c, sample, step_s, limits, z)
        found += _kept_from_running(c, sample, step_s, limits, z, {s.lane for s in found if s.column == c})
        links += _slow_links(graph, c, sample, step_s, limits, z)
        if garbage is not None:
            found += _collectors(graph, c, garbage, step_s, limits)
    links += _slow_groups(graph, samples, step_s, limits, z)
    found += _same_end(graph, links)
    return sorted(found, key=lambda s: -s.self_s)[: limits.candidates]


def _slow_workers(c: int, sample: Samples, step_s: float, limits: Limits, z: float) -> list[Suspect]:
    """Ranks whose own work is slow, all slow works of one rank together."""
    by_lane: dict[int, list[tuple[str, float, float, float]]] = {}
    for role, walls in sample.wall.items():
        wall = np.stack(walls)
        cpus = sample.cpu.get(role)
        # The processor's time is the work itself; the clock's includes what kept it from running.
        cpu = np.stack(cpus) if cpus else wall
        is_known = role != OTHER and not role.startswith("load") and np.isfinite(cpu).all()
        seen = compare(cpu if is_known else wall)
        least = limits.between if role == OTHER else limits.least
        per_step = len(wall) / max(len(sample.totals), 1)
        mean = np.nanmedian(wall, axis=0) * per_step
        for lane in np.flatnonzero((seen.ratio >= limits.ratio) & (seen.z >= z)).tolist():
            ratio = float(seen.ratio[lane])
            excess = float(mean[lane]) * (1 - 1 / ratio)
            if excess >= least * step_s:
                by_lane.setdefault(lane, []).append((role, ratio, float(seen.z[lane]), excess))
    found = []
    for lane, works in by_lane.items():
        works.sort(key=lambda work: -work[3])
        role, ratio, errors, _ = works[0]
        kind = Slowness.DATA if role.startswith("load") else Slowness.COMPUTE
        shares = {name: 1 - 1 / r for name, r, _, _ in works}
        found.append(Suspect(kind, c, lane, ratio, errors, sum(work[3] for work in works), shares))
    return found


def _kept_from_running(
    c: int, sample: Samples, step_s: float, limits: Limits, z: float, slow: set[int]
) -> list[Suspect]:
    off = np.stack(sample.off)
    if len(off) < 3 or not sample.is_timed:
        return []
    seen = compare(off + 0.01 * step_s)  # next to nothing over next to nothing is no ratio
    wall = np.median(np.stack(sample.totals), axis=0)
    found = []
    for lane in np.flatnonzero((seen.excess >= limits.host * step_s) & (seen.z >= z + 1.5)):
        if int(lane) not in slow:
            excess, own = float(seen.excess[lane]), float(wall[lane])
            share = min(excess / own, 0.99)
            ratio = 1 / (1 - share)
            found.append(Suspect(Slowness.HOST, c, int(lane), ratio, float(seen.z[lane]), excess, whole=share))
    return found


def _slow_links(graph: Graph, c: int, sample: Samples, step_s: float, limits: Limits, z: float) -> list[Suspect]:
    """One for each message link or group whose transfers are slow, named after one of its ranks."""
    column = graph.columns[c]
    counts: dict[str, int] = {}
    groups: dict[str, int | None] = {}
    sources: dict[str, int] = {}
    for node in graph.nodes:
        for d, k in node.members:
            if d == c and node.how is not Meeting.SEND:
                name = column.shape.syncs[k].key[0]
                counts[name] = counts.get(name, 0) + 1
                groups[name] = node.axis
                if node.source is not None:
                    sources[name] = node.source[0]
    found = []
    for name, took in sample.transfers.items():
        axis = groups.get(name, -1)
        if axis is None:
            continue  # all ranks are in one group: there is none to compare it with
        seen: Compared = compare(np.stack(took))
        excess = seen.excess * counts.get(name, 1)
        slow = np.flatnonzero((seen.ratio >= limits.link) & (seen.z >= z + 1.5) & (excess >= limits.least * step_s))
        told: set[int] = set()
        for lane in slow[np.argsort(-seen.z[slow])].tolist():
            if lane in told:
                continue
            lanes = _group_of(graph, lane, axis)
            told |= set(lanes)
            ranks = [int(column.ranks[i]) for i in lanes]
            if name in sources:
                ranks.append(int(graph.columns[sources[name]].ranks[lane]))
            ratio = float(seen.ratio[lane])
            move = Move(c, lanes, name, 1 - 1 / ratio, tuple(ranks))
            found.append(Suspect(Slowness.LINK, c, lane, ratio, float(seen.z[lane]), float(excess[lane]), moves=[move]))
    return found


def _slow_groups(graph: Graph, samples: list[Samples], step_s: float, limits: Limits, z: float) -> list[Suspect]:
    """Groups that are all of their stage, whose collectives are slow next to those of the other stages, by the byte."""
    lanes = int(np.prod(graph.sizes))
    moved: dict[str, dict[int, list[int]]] = {}
    for node in graph.nodes:
        ((c, k), *others) = node.members
        is_all = node.axis is None or (node.axis >= 0 and graph.sizes[node.axis] == lanes)
        if node.how is Meeting.COLLECTIVE and not others and is_all and lanes > 1:
            sync = graph.columns[c].shape.syncs[k]
            moved.setdefault(sync.key[0], {}).setdefault(c, []).append(int(graph.columns[c].bytes[sync.span]))
    found = []
    for name, by_column in moved.items():
        columns = [c for c, sizes in by_column.items() if min(sizes) > 0]
        if len(columns) < 2:
            continue
        size = np.array([np.mean(by_column[c]) for c in columns])
        count = np.array([len(by_column[c]) for c in columns])
        took = np.stack([np.nanmedian(np.stack(samples[c].transfers[name]), axis=1) for c in columns], axis=1)
        seen = compare(took / size)
        excess = seen.excess * size * count
        for i in np.flatnonzero(
            (seen.ratio >= limits.stage_link) & (seen.z >= z + 1.5) & (excess >= limits.least * step_s)
        ).tolist():
            c, ratio = columns[i], float(seen.ratio[i])
            ranks = tuple(int(rank) for rank in graph.columns[c].ranks)
            move = Move(c, tuple(range(lanes)), name, 1 - 1 / ratio, ranks)
            found.append(Suspect(Slowness.LINK, c, 0, ratio, float(seen.z[i]), float(excess[i]), moves=[move]))
    return found


def _same_end(graph: Graph, links: list[Suspect]) -> list[Suspect]:
    """Slow links that share a rank are one: that rank's."""
    found: list[Suspect] = []
    places = {int(rank): (c, lane) for c, column in enumerate(graph.columns) for lane, rank in enumerate(column.ranks)}
    while links:
        votes: dict[int, int] = {}
        for link in links:
            for rank in link.moves[0].ranks:
                votes[rank] = votes.get(rank, 0) + 1
        most = max(votes.values())
        rank = min(r for r, count in votes.items() if count == most)
        if most < 2:
            return found + links
        mine = [link for link in links if rank in link.moves[0].ranks]
        links = [link for link in links if rank not in link.moves[0].ranks]
        worst = max(mine, key=lambda link: link.self_s)
        moves = [link.moves[0] for link in sorted(mine, key=lambda link: -link.self_s)]
        total = sum(link.self_s for link in mine)
        found.append(Suspect(Slowness.LINK, *places[rank], worst.ratio, worst.z, total, moves=moves))
    return found


def _group_of(graph: Graph, lane: int, axis: int) -> tuple[int, ...]:
    """The places of the group that a collective of `lane` along an axis is of."""
    if axis < 0:
        return (lane,)
    places = np.arange(int(np.prod(graph.sizes))).reshape(graph.sizes)
    at = np.unravel_index(lane, graph.sizes)
    line = places[tuple(slice(None) if i == axis else int(x) for i, x in enumerate(at))]
    return tuple(int(place) for place in line)


def _collectors(graph: Graph, c: int, garbage: Floats, step_s: float, limits: Limits) -> list[Suspect]:
    seconds = garbage[graph.columns[c].ranks]
    excess = seconds - np.median(seconds)
    return [
        Suspect(Slowness.GARBAGE, c, int(lane), float("nan"), limits.z, float(excess[lane]), whole=1.0)
        for lane in np.flatnonzero(excess >= limits.garbage * step_s)
    ]


def computes(role: str) -> bool:
    """Whether a role is forward or backward of some stage."""
    return role.partition(" ")[0] in ("forward", "backward", "backward_input", "backward_weight", "recompute")
