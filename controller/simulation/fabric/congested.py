"""Where senders of a network are held back by a switch, and what their NICs count of it. Pure.

A transfer's bottleneck is a full link on which none is faster (Bertsekas and Gallager, Data Networks, 6.5.2). Behind a
NIC's own uplink nobody queues; before any other bottleneck a switch marks packets, and receivers answer with
notifications (CNPs): none when as much is offered as the link carries, one in 50 us when far more is. Between the two
it is the share that does not fit: our reading, as DCQCN's mean has no closed form.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from holdfast.planner.network.congestion import CNP_S, Dcqcn
from holdfast.planner.network.flows import SAME, Floats, Ints
from holdfast.planner.network.incast import Port, incast

_FULL = 1e-6
"""Links with less than this share to spare are full."""
_LOOK_S = 5e-4
"""The beginning of a burst, in which a switch pauses its senders until notifications have slowed them down."""


def overloads(paths: Ints, part: Floats, rate: Floats, most: Floats, capacity: Floats) -> Floats:
    """How many times of what it carries is offered to each link in the path of each message; 0 where a link is not the
    message's bottleneck, or there is none. Shape of `paths`: (messages, links), -1 is none.

    Of each message `part` is what it sends for a byte of its transfer, `rate` its transfer's bytes/s, and `most` what
    its NIC would send. The first link of a path is the sender's own: nothing queues in the network before it.
    """
    found = np.zeros(paths.shape)
    if not len(paths):
        return found
    there = paths >= 0
    link, message = paths[there], np.nonzero(there)[0]
    carries = np.bincount(link, weights=(part * rate)[message], minlength=len(capacity))
    fastest = np.zeros(len(capacity))
    np.maximum.at(fastest, link, rate[message])
    full = (carries >= capacity * (1 - _FULL)) & (capacity > 0)
    is_tight = full[link] & (rate[message] >= fastest[link] * (1 - SAME))
    offers = np.where(is_tight, most[message], (part * rate)[message])
    offered = np.bincount(link, weights=offers, minlength=len(capacity))
    times = np.divide(offered, capacity, out=np.zeros(len(capacity)), where=capacity > 0)
    found[there] = np.where(is_tight, times[link], 0.0)
    found[:, 0] = 0.0
    return found


def notifications_per_s(times: Floats) -> Floats:
    """CNPs of a message, with the worst overload on its way."""
    worst = times.max(axis=1, initial=0.0)
    return np.where(worst > 1, 1 - 1 / np.maximum(worst, 1.0), 0.0) / CNP_S


def pauses_per_burst(paths: Ints, times: Floats) -> Floats:
    """Pause frames that the sender's NIC gets when a burst begins: only from the switch it is connected to, when the
    queue is before that switch's uplink, or before the receiver's NIC at the same switch."""
    below = np.where(paths[:, 1] >= 0, times[:, 1], np.where((paths[:, 2:5] < 0).all(axis=1), times[:, 5], 0.0))
    senders = np.where(below > 1, np.maximum(2, np.round(below)), 0).astype(int)
    frames = {int(one): _pauses(int(one)) / one if one else 0.0 for one in np.unique(senders)}
    return np.array([frames[int(one)] for one in senders], dtype=float)


@lru_cache(maxsize=64)
def _pauses(senders: int) -> float:
    """Of so many NICs that begin at once into one as fast: fluid, with DCQCN at the senders."""
    return float(
        incast(lambda flows, line, _: Dcqcn(flows, line), Port(50e9), min(senders, 64), _LOOK_S, seed=1).pauses
    )
