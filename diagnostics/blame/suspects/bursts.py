"""Ranks that take longer in some steps only, far longer: each tenth, say, or when something else runs. Medians do not
show it.

What keeps a rank from running comes in bursts as well, and any rank is as likely to have the next one. So a rank is
named only if it is unlikely to have so many of all by chance. Bursts of one rank that are close together are one. Of
several sizes, from which a burst counts, that one is taken which makes a rank stand out the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import BlameSuspect, Bursts, Limits, Slowness
from holdfast.diagnostics.blame.suspects.floors import at_least
from holdfast.diagnostics.blame.suspects.peers import medians_of_others, nanmedian
from holdfast.diagnostics.blame.suspects.places import computed_of, gap_of, works_of
from holdfast.diagnostics.blame.suspects.samples import BlameSamples
from holdfast.diagnostics.blame.suspects.threads import Threads
from holdfast.diagnostics.blame.text import work
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_FEWEST_STEPS = 24
_NOISE = 4.0
"""Usual deviations by which a burst is longer than the rank's other steps."""
_MAD = 1.4826
_MOST = 0.34
"""Share of all steps: what is in more of them is no burst."""
_APART, _WINDOWS = 8, 24
"""Bursts of a rank within so many steps, or such a part of all steps, are one: a host is disturbed for as long."""
_HALF = 0.3
"""Share of a rank's bursts that each half of the steps has: what came and went is not the rank's."""
_SIZES = (1, 2, 4)
"""Times the least size of a burst: what a host adds besides may be smaller than what the rank does itself."""
_EXPLAINS = 0.5


@dataclass(frozen=True, slots=True)
class Found:
    """A rank's bursts: its place among its peers, the steps by their place in the window, and the seconds in each."""

    lane: int
    steps: Ints
    seconds: Floats
    chance: float
    """That any rank has so many of all bursts where each is as likely to have the next one."""


def find(longer: Floats, step_s: float, limits: Limits) -> list[Found]:
    """`longer` (steps, ranks): seconds that a rank's own work took beyond its peers' in each step; NaN: not known."""
    steps, ranks = len(longer), int((~np.isnan(longer).all(axis=0)).sum())
    if steps < _FEWEST_STEPS or ranks < 2:
        return []
    usual = nanmedian(longer)
    with np.errstate(invalid="ignore"):
        noise = float(np.nanmedian(nanmedian(np.abs(longer - usual)) * _MAD))
        beyond = np.nan_to_num(longer - np.maximum(usual, 0.0))
    least = max(limits.burst * step_s, _NOISE * noise)
    apart = max(_APART, steps // _WINDOWS)
    best: dict[int, Found] = {}
    for size in _SIZES:
        long = np.where(beyond >= size * least, beyond, 0.0)
        counts = np.array([_separate(np.flatnonzero(column), apart) for column in long.T])
        for lane in np.flatnonzero(long.sum(axis=0) >= limits.bursts * step_s * steps).tolist():
            at = np.flatnonzero(long[:, lane])
            chance = at_least(int(counts[lane]), int(counts.sum()), 1.0 / ranks) * ranks * len(_SIZES)
            is_steady = min(part[:, lane].sum() for part in np.array_split(long, 2)) >= _HALF * long[:, lane].sum()
            if is_steady and len(at) <= _MOST * steps and chance <= limits.chance:
                found = Found(lane, at, long[at, lane], chance)
                best[lane] = min(best.get(lane, found), found, key=lambda one: one.chance)
    return list(best.values())


def _separate(at: npt.NDArray[np.intp], apart: int) -> int:
    """How many of a rank's bursts there are."""
    found, begun = 0, -apart
    for step in at.tolist():
        if step - begun >= apart:
            found, begun = found + 1, step
    return found


def bursty(
    whole: Sequence[Graph],
    samples: Sequence[BlameSamples],
    step_s: float,
    limits: Limits,
    garbage: Floats | None = None,
    threads: Threads | None = None,
) -> list[BlameSuspect]:
    """`step_s`: usual length of a step. Collections of garbage are reported apart from this."""
    if len(whole) < _FEWEST_STEPS:
        return []
    found = []
    for c, sample in enumerate(samples):
        ranks = whole[0].columns[c].ranks
        for one in find(_longer(sample, ranks, threads), step_s, limits):
            suspect = _placed(whole, c, one, threads)
            peers = garbage[ranks] if garbage is not None else np.zeros(len(ranks))
            if peers[one.lane] - np.median(peers) < _EXPLAINS * suspect.self_s:
                found.append(suspect)
    return found


def _longer(sample: BlameSamples, ranks: Ints, threads: Threads | None) -> Floats:
    """Beyond its peers, by all that is known: work, and work less what the host kept the rank from running. Where it is
    not known how much that was, processor time tells them apart."""
    wall = np.stack(sample.totals)
    most = np.full(wall.shape, np.inf)
    if sample.is_timed:
        worked = np.stack(sample.worked)
        most = worked - medians_of_others(worked)
    if threads is not None:
        undelayed = wall - threads.delayed[:, ranks]
        beyond = undelayed - medians_of_others(undelayed)
        most = np.where(np.isnan(beyond), most, beyond)
    found: Floats = np.minimum(wall - medians_of_others(wall), most)
    return found


def _placed(whole: Sequence[Graph], c: int, found: Found, threads: Threads | None) -> BlameSuspect:
    """Where in the step the bursts are, and whether the rank computed meanwhile."""
    took: dict[str, float] = {}
    computed: dict[str, float] = {}
    columns = [whole[step].columns[c] for step in found.steps.tolist()]
    for step, column in zip(found.steps.tolist(), columns, strict=True):
        for table, values in ((took, works_of(column)), (computed, computed_of(column))):
            for role, seconds in values.items():
                table[role] = table.get(role, 0.0) + _beyond(seconds, found.lane)
        if threads is not None:
            outside = threads.cpu[step, column.ranks] - sum(computed_of(column).values())
            computed[OTHER] = computed.get(OTHER, 0.0) + _beyond(outside, found.lane)
    role = max(took, key=lambda name: took[name])
    kind = Slowness.WAIT
    if role.startswith("load"):
        kind = Slowness.DATA
    elif role not in computed or computed[role] >= _EXPLAINS * took[role] or not any(computed.values()):
        kind = Slowness.COMPUTE
    mean = float(found.seconds.sum()) / len(whole)
    by_step = dict(zip((whole[step].step for step in found.steps.tolist()), found.seconds.tolist(), strict=True))
    z = NormalDist().inv_cdf(1 - min(max(found.chance, 1e-15), 0.5))
    return BlameSuspect(
        kind, c, found.lane, float("nan"), z, mean, what=work(role), peers=int(columns[0].present.sum()) - 1,
        where=gap_of(columns, found.lane) if role == OTHER else "",
        bursts=Bursts(role, by_step, len(whole)),
    )  # fmt: skip


def _beyond(values: Floats, lane: int) -> float:
    """0 where it is not known."""
    return float(np.nan_to_num(values - medians_of_others(values[None])[0])[lane])
