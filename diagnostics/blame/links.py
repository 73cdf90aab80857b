"""Links and groups whose transfers take longer than those of others.

A slow link is slow for all that goes over it, so the operations of a group are looked at one by one and all together.
A rank that is kept from running sees late that its data are there: what its own work is kept, too, is not the link's.
Which of its links it is, its ranks show: those at both ends lose more time than the others, in a ring as in an exchange
of all with all. Where all lose the same, as in an all-reduce around a ring, it remains the group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import BlameSuspect, Limits, Slowness, SlowTransfer
from holdfast.diagnostics.blame.suspects.peers import compare, nanmedian
from holdfast.diagnostics.blame.suspects.samples import BlameSamples
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.shape import Meeting

Floats = npt.NDArray[np.float64]

_STRICTER = 1.0
"""Standard errors more than for work: what a transfer takes longer is not spread as a normal noise is."""
_WORTH = 3.0
"""Standard errors of one rank from which on its group is looked at closely."""
_EXPLAINS = 0.5
"""What own work is kept from running is as good an explanation of a transfer from this share of its excess on."""
_MOST = 16
"""Groups of a column that are looked at closely: those that lost most time."""
_CLEAR = 0.5
"""A rank that lost less than this share of what another one lost did not lose it for the same reason."""


@dataclass(slots=True)
class _Way:
    """What the ranks of a column move between the same ranks: one kind of message, or the operations of a group."""

    column: int
    group: str
    axis: int | None
    source: int = -1
    """Of messages: the column that sends them."""
    is_own: bool = True
    """No other column takes part."""
    counts: dict[str, int] = field(default_factory=dict)
    """In a step, by name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Bytes in a step; 0: not known."""
    took: dict[tuple[str, ...], Floats] = field(default_factory=dict)
    """Seconds in each step, (steps, ranks): of each name, and of all together. NaN where a step has none."""
    kept: Floats = field(default_factory=lambda: np.zeros(0))
    """(ranks,): seconds in a step for which a rank's own work is kept from running."""

    @property
    def together(self) -> Floats:
        return self.took[tuple(self.counts)]

    def num_bytes(self, names: Iterable[str]) -> int:
        """Of all of them; 0 where it is not known of one."""
        sizes = [self.sizes[name] for name in names]
        return sum(sizes) if all(sizes) else 0


@dataclass(frozen=True, slots=True)
class _Standing:
    """How far ranks, taken together, stand out."""

    ratio: float
    z: float
    excess: float
    """Seconds in a step."""
    names: tuple[str, ...]
    peers: int
    """The ranks it was compared with."""
    kept: float = 0.0
    """Seconds in a step for which own work is kept from running beyond that of the others."""

    def is_slow(self, ratio: float, z: float, step_s: float, limits: Limits) -> bool:
        """By so much at the least, with so many standard errors, and worth naming."""
        if self.ratio < ratio or self.z < z:
            return False
        if self.z >= limits.doubtless:
            return self.excess >= limits.least * step_s
        return self.excess >= limits.moved * step_s and self.kept < _EXPLAINS * self.excess


def slow_links(
    graph: Graph, samples: list[BlameSamples], step_s: float, limits: Limits, z: float
) -> list[BlameSuspect]:
    """One for each link, group or rank whose transfers are slow."""
    found: list[BlameSuspect] = []
    lanes = int(np.prod(graph.sizes))
    of_stages: dict[str, list[_Way]] = {}
    for way in _ways(graph, samples):
        is_whole = way.axis is None or (way.axis >= 0 and graph.sizes[way.axis] == lanes)
        if is_whole and way.is_own and lanes > 1:
            of_stages.setdefault(way.group, []).append(way)
        if way.axis is not None and not (is_whole and lanes == 2):
            found += _within_stage(graph, way, step_s, limits, z + _STRICTER)
    for ways in of_stages.values():
        found += _between_stages(graph, ways, step_s, limits, z + _STRICTER)
    return _same_end(graph, found)


def _ways(graph: Graph, samples: list[BlameSamples]) -> list[_Way]:
    found: dict[tuple[int, str, str], _Way] = {}
    for node in graph.nodes:
        for c, k in node.members if node.how is not Meeting.SEND else ():
            column = graph.columns[c]
            sync = column.shape.syncs[k]
            name = sync.key[0]
            key = (c, sync.group, name if node.how is Meeting.RECEIVE else "")
            way = found.setdefault(key, _Way(c, sync.group, node.axis))
            way.is_own &= len(node.members) == 1
            if node.source is not None:
                way.source = node.source[0]
            way.counts[name] = way.counts.get(name, 0) + 1
            way.sizes[name] = way.sizes.get(name, 0) + int(column.bytes[sync.span])
    kept = [np.nan_to_num(nanmedian(np.stack(sample.off))) for sample in samples]
    for way in found.values():
        way.kept = kept[way.column]
        for name, count in list(way.counts.items()):
            took = np.stack(samples[way.column].transfers[name]) * count
            if 2 * len(_known(took)) >= len(took):
                way.took[name,] = took
            else:  # as a checkpoint's, now and then: the steps that have it are too few for all together
                del way.counts[name], way.sizes[name]
        if len(way.counts) > 1:
            way.took[tuple(way.counts)] = np.sum(list(way.took.values()), axis=0)
    return [way for way in found.values() if way.counts]


def _known(took: Floats) -> Floats:
    """The steps of which anything is known."""
    known: Floats = took[~np.isnan(took).all(axis=1)]
    return known


def _within_stage(graph: Graph, way: _Way, step_s: float, limits: Limits, z: float) -> list[BlameSuspect]:
    """Next to other groups and links of the same stage."""
    assert way.axis is not None
    lost: dict[tuple[int, ...], float] = {}
    known = {names: _known(took) for names, took in way.took.items()}
    for took in known.values():
        seen = compare(took)
        least = limits.least * step_s
        for lane in np.flatnonzero((seen.ratio >= limits.link) & (seen.z >= _WORTH) & (seen.excess >= least)).tolist():
            members = _group_of(graph, lane, way.axis)
            lost[members] = max(lost.get(members, 0.0), float(seen.excess[lane]))
    found = []
    for members in sorted(lost, key=lambda group: -lost[group])[:_MOST]:
        excess = _excess(way.together, members)
        first = sorted(members, key=lambda lane: -excess[lane])
        choices = {(lane,) for lane in members} | {tuple(first[:2]), members}
        standings = [
            _pending(took, lanes, names, way.kept)
            for names, took in known.items()
            for lanes in choices
            if len(lanes) < took.shape[1]
        ]
        passed = [standing for standing in standings if standing.is_slow(limits.link, z, step_s, limits)]
        if passed:
            found.append(_accused(graph, way, members, passed))
    return found


def _pending(took: Floats, lanes: Sequence[int], names: tuple[str, ...], kept: Floats) -> _Standing:
    """Of some ranks of a column, by their geometric mean, among those that are left."""
    with np.errstate(divide="ignore"):
        mine = np.exp(np.log(took[:, list(lanes)]).mean(axis=1))
    seen = compare(np.column_stack([mine, np.delete(took, list(lanes), axis=1)]))
    more = float(kept[list(lanes)].mean() - np.median(np.delete(kept, list(lanes))))
    ratio, z, excess = float(seen.ratio[0]), float(seen.z[0]), float(seen.excess[0])
    return _Standing(ratio, z, excess, names, took.shape[1] - len(lanes), more)


def _excess(took: Floats, members: Sequence[int]) -> dict[int, float]:
    """Seconds that each member takes beyond the ranks outside; beyond the least of them where they are all."""
    middle = np.nan_to_num(nanmedian(took))
    rest = np.delete(middle, list(members))
    usual = float(np.median(rest)) if len(rest) else float(middle.min())
    return {lane: float(middle[lane]) - usual for lane in members}


def _between_stages(graph: Graph, ways: list[_Way], step_s: float, limits: Limits, z: float) -> list[BlameSuspect]:
    """A stage's only group next to those of the other stages. What more bytes explain is no fault, and neither is
    what takes as long however many they are: it must be slow by the byte and as it is."""
    passed: dict[int, list[_Standing]] = {}
    for names in dict.fromkeys(names for way in ways for names in way.took):
        peers = [way for way in ways if names in way.took]
        sizes = np.array([way.num_bytes(names) for way in peers], float)
        if len(peers) < 2 or not sizes.all():
            continue
        took = np.stack([way.took[names].mean(axis=1) for way in peers], axis=1)
        took = took[np.isfinite(took).all(axis=1)]
        if not len(took):
            continue
        alike, by_byte = compare(took), compare(took / sizes)
        for i, way in enumerate(peers):
            seen = alike if alike.ratio[i] <= by_byte.ratio[i] else by_byte
            excess = float(np.median(took[:, i])) * (1 - 1 / float(seen.ratio[i]))
            standing = _Standing(float(seen.ratio[i]), float(seen.z[i]), excess, names, len(peers) - 1)
            if standing.is_slow(limits.stage_link, z, step_s, limits):
                passed.setdefault(way.column, []).append(standing)
    found = []
    for way in ways:
        if way.column in passed:
            members = tuple(range(len(graph.columns[way.column].ranks)))
            found.append(_accused(graph, way, members, passed[way.column]))
    return found


def _accused(graph: Graph, way: _Way, members: tuple[int, ...], passed: list[_Standing]) -> BlameSuspect:
    """A slow link, or where it is unknown which, a rank's links or a group's."""
    # An operation by its own name, if one stands out alone.
    best = max(passed, key=lambda s: (len(s.names) == 1, s.z))
    names = list(dict.fromkeys(name for s in passed for name in s.names))
    excess = _excess(way.together, members)
    ends = _ends(excess)
    ranks = [int(graph.columns[way.column].ranks[lane]) for lane in ends]
    if way.source >= 0:
        ranks.append(int(graph.columns[way.source].ranks[ends[0]]))
    moves = []
    for name in names:
        took = np.nan_to_num(nanmedian(way.took[name,]))
        usual = float(np.median(np.delete(took, members))) if len(members) < len(took) else took.mean() / best.ratio
        shares = [1 - usual / took[lane] if took[lane] > usual else 0.0 for lane in members]
        moves.append(SlowTransfer(way.column, members, name, tuple(map(float, shares)), tuple(ranks)))
    what = " and ".join(best.names)
    return BlameSuspect(
        Slowness.LINK, way.column, ends[0], best.ratio, best.z, best.excess, moves=moves, what=what, peers=best.peers
    )


def _ends(excess: dict[int, float]) -> list[int]:
    """Which of a group's ranks the slow link is between, those that lost most time first: two, one, or all of them."""
    order = sorted(excess, key=lambda lane: -excess[lane])
    if len(order) <= 2:
        return order
    first, second, third = (max(excess[lane], 0.0) for lane in order[:3])
    if second < _CLEAR * first:
        return order[:1]
    return order[:2] if third < _CLEAR * second else order


def _same_end(graph: Graph, links: list[BlameSuspect]) -> list[BlameSuspect]:
    """Slow links that share a rank are one: that rank's."""
    found: list[BlameSuspect] = []
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
        mine = sorted((link for link in links if rank in link.moves[0].ranks), key=lambda link: -link.self_s)
        links = [link for link in links if rank not in link.moves[0].ranks]
        moves = [move for link in mine for move in link.moves]
        c, lane = places[rank]
        worst = mine[0]
        found.append(
            BlameSuspect(
                Slowness.LINK, c, lane, worst.ratio, worst.z, sum(link.self_s for link in mine), moves=moves,
                what=worst.what, peers=worst.peers,
            )
        )  # fmt: skip
    return found


def _group_of(graph: Graph, lane: int, axis: int) -> tuple[int, ...]:
    """The places of the group that a collective of `lane` along an axis is of."""
    if axis < 0:
        return (lane,)
    places = np.arange(int(np.prod(graph.sizes))).reshape(graph.sizes)
    at = np.unravel_index(lane, graph.sizes)
    line = places[tuple(slice(None) if i == axis else int(x) for i, x in enumerate(at))]
    return tuple(int(place) for place in line)
