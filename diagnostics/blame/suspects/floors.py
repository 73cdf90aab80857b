"""Ranks whose fastest steps are slow: what a rank does itself, in every step, is in these, too.

What a busy host adds comes on top of some steps, and is many times as long: the middle of a hundred steps of 0.1 s
wanders by more than a rank's own 5 ms. The fastest of every few steps has little of it. So stretches of steps are
compared by these, and a rank is named if it is behind its peers in more stretches than chance would have it, whatever
the noise is like: each rank is as likely to be the last of a stretch.
"""

from __future__ import annotations

from math import exp, lgamma, log, log1p
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.suspects.peers import medians_of_others, nanmedian

Floats = npt.NDArray[np.float64]

STRETCH, _STRETCHES = 5, 24
"""Fewest steps of a stretch, and most stretches."""
FEWEST_STRETCHES = 4
"""With fewer no rank is named, however many peers it has."""
_FASTEST = 0.1
"""The share of a stretch's steps that counts as its fastest: their slowest is compared."""
_BEHIND = 0.5
"""A stretch counts if the rank is behind by this share of what it must be behind in the middle."""


class Raised(NamedTuple):
    lane: int
    excess: float
    """Seconds beyond its peers."""
    chance: float


def raised(rows: Floats, least: float, chance: float) -> list[Raised]:
    """`rows` (steps, ranks), seconds. `least`: seconds from which a rank is named. `chance`: of naming any by noise."""
    beyond = _beyond(rows)
    count = int((~np.isnan(beyond).all(axis=0)).sum())
    if count < 2 or len(beyond) < FEWEST_STRETCHES:
        return []
    excess = nanmedian(beyond)
    found = []
    for lane in np.flatnonzero(np.nan_to_num(excess) >= least).tolist():
        behind = int((beyond[:, lane] >= _BEHIND * least).sum())
        by_chance = at_least(behind, len(beyond), 1.0 / count)
        if by_chance * count <= chance:
            found.append(Raised(lane, float(excess[lane]), by_chance))
    return found


def floors_beyond(rows: Floats) -> Floats:
    """(ranks,): seconds by which the fastest of `rows` are beyond the peers'; 0 where it is not known."""
    return np.nan_to_num(nanmedian(_beyond(rows)))


def _beyond(rows: Floats) -> Floats:
    """(stretches, ranks): the fastest of each stretch, beyond those of the peers."""
    stretches = max(min(len(rows) // STRETCH, _STRETCHES), 1)
    rows = np.where(np.isnan(rows), np.inf, rows)  # the fastest of those that are known
    floors = np.stack([np.quantile(part, _FASTEST, axis=0, method="lower") for part in np.array_split(rows, stretches)])
    floors[np.isinf(floors)] = np.nan
    return floors - medians_of_others(floors)


def at_least(hits: int, tries: int, share: float) -> float:
    """The chance that so many of these tries hit."""
    logs = [
        lgamma(tries + 1) - lgamma(n + 1) - lgamma(tries - n + 1) + n * log(share) + (tries - n) * log1p(-share)
        for n in range(hits, tries + 1)
    ]
    return min(sum(map(exp, logs)), 1.0)
