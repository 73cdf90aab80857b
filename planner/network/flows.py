"""How long transfers take that share links: each gets the same part of its narrowest link (max-min fair). Flow level.

What congestion control reaches in the long run, without queues. A transfer may have several messages that go at one
pace, such as the edges of a ring: it takes the links of all of them, and is as fast as its slowest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.planner.network.errors import NetworkError

SAME = 1e-9
"""Shares that differ by less, relatively, are one bottleneck; so are ends that lie closer."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Transfers:
    """Transfer `owner[i]` takes `part[i]` of its rate on link `crossing[i]`; it may take one link several times.

    `size`: bytes of each transfer.
    """

    owner: Ints
    crossing: Ints
    part: Floats
    size: Floats

    @classmethod
    def of_paths(cls, paths: Ints, transfer: Ints, size: Floats, part: float = 1.0) -> Transfers:
        """From links of messages (`Clos.paths`; -1 is none) and the transfer that each message is a part of.

        `part`: what a message carries of its transfer's bytes, less than 1 where several connections share them.
        """
        there = paths >= 0
        owner = np.repeat(transfer, there.sum(axis=1))
        return cls(owner, paths[there], np.full(len(owner), part), size)

    def __add__(self, other: Transfers) -> Transfers:
        """Both at once; the other's transfers come after these."""
        return Transfers(
            np.concatenate([self.owner, other.owner + len(self.size)]),
            np.concatenate([self.crossing, other.crossing]),
            np.concatenate([self.part, other.part]),
            np.concatenate([self.size, other.size]),
        )


def fair_rates(transfers: Transfers, capacity: Floats, going: NDArray[np.bool_] | None = None) -> Floats:
    """Bytes/s of each transfer, by progressive filling: infinite where it crosses no link, 0 across a lost one."""
    count = len(transfers.size)
    rate = np.full(count, np.inf)
    active = np.ones(count, dtype=bool) if going is None else going.copy()
    rate[~active] = 0.0
    keep = active[transfers.owner]
    owner, crossing, part = transfers.owner[keep], transfers.crossing[keep], transfers.part[keep]
    left = capacity.astype(float).copy()
    while len(owner):
        users = np.bincount(crossing, weights=part, minlength=len(left))
        share = np.full(len(left), np.inf)
        np.divide(left, users, out=share, where=users > 0)
        narrowest = np.full(count, np.inf)
        np.minimum.at(narrowest, owner, share[crossing])
        # A link that is the narrowest of all its transfers limits them whatever becomes of others: all such at once.
        wider = share[crossing] > narrowest[owner] * (1 + SAME)
        tight = np.zeros(len(left), dtype=bool)
        tight[crossing] = True
        tight[crossing[wider]] = False
        frozen = np.zeros(count, dtype=bool)
        frozen[owner[tight[crossing]]] = True
        rate[frozen] = narrowest[frozen]
        over = frozen[owner]
        left -= np.bincount(crossing[over], weights=part[over] * narrowest[owner[over]], minlength=len(left))
        np.maximum(left, 0.0, out=left)
        owner, crossing, part = owner[~over], crossing[~over], part[~over]
    return rate


@dataclass(frozen=True, slots=True)
class Change:
    """From `at_s` on, these links have this share of their capacity."""

    at_s: float
    links: Ints
    share: float


def ends(transfers: Transfers, capacity: Floats, changes: Sequence[Change] = ()) -> Floats:
    """Seconds at which each transfer ends when all start at 0 and go as fast as is fair; infinite for what can't.

    Rates change where a transfer ends or a link changes. Transfers that end together, as those of a symmetric step do,
    cost one calculation.
    """
    left = transfers.size.astype(float).copy()
    end = np.zeros(len(left))
    going = left > 0
    now, factor = 0.0, np.ones(len(capacity))
    pending = sorted(changes, key=lambda change: change.at_s)
    if pending and pending[0].at_s < 0:
        raise NetworkError(f"a change {-pending[0].at_s:g} s before the transfers start: 0 s is the earliest")
    while going.any():
        rate = fair_rates(transfers, capacity * factor, going)
        takes = np.full(len(left), np.inf)
        np.divide(left, rate, out=takes, where=going & (rate > 0))
        takes[going & np.isinf(rate)] = 0.0
        first = takes[going].min()
        if pending and (not np.isfinite(first) or now + first >= pending[0].at_s):
            step = pending[0].at_s - now
            moved = np.where(going, np.where(np.isfinite(rate), rate, 0.0) * step, 0.0)
            left = np.maximum(left - moved, 0.0)
            now = pending[0].at_s
            while pending and pending[0].at_s <= now:
                change = pending.pop(0)
                factor[change.links] = change.share
        elif not np.isfinite(first):
            end[going] = np.inf
            break
        else:
            over = going & (takes <= first * (1 + SAME))
            moved = np.where(going, np.where(np.isfinite(rate), rate, 0.0) * first, 0.0)
            left = np.maximum(left - moved, 0.0)
            now += first
            left[over] = 0.0
        ended = going & (left <= transfers.size * SAME)
        end[ended] = now
        going &= ~ended
    return end


def bytes_by_link(transfers: Transfers, links: int) -> Floats:
    """Bytes that cross each link."""
    found: Floats = np.zeros(links)
    np.add.at(found, transfers.crossing, transfers.size[transfers.owner] * transfers.part)
    return found
