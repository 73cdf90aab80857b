"""The order of a job's nodes in which its traffic costs least: exactly for few nodes, by exchanges for many. Pure.

A quadratic assignment: positions exchange bytes, nodes are more or less far from each other. An order that is given
stays as it is where no other one is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np

from holdfast.planner.placement.packing import packed
from holdfast.planner.placement.sites import Sites
from holdfast.planner.placement.traffic import Ints, Shape, Traffic, traffic_of

EXACT = 50_000
"""Orders that are all looked at: 8 nodes have 40,320."""
WORK = 1_000_000
"""Links that a search by exchanges looks at, some 50 ms: of 64 nodes all exchanges ten times over; of thousands,
the first of an order that fills switches anyway."""
_GAIN = 1e-9
"""Share of the cost that a better order has to save: less is rounding."""


def cost(traffic: Traffic, sites: Sites, order: Sequence[int]) -> float:
    """Bytes of a step times what each costs on its way. `order`: the number of the node at each position."""
    at = np.asarray(order, dtype=np.int64)
    return float(traffic.amount @ sites.cost(at[traffic.one], at[traffic.other]))


def slow_bytes(traffic: Traffic, sites: Sites, order: Sequence[int]) -> float:
    """Bytes of a step that go over ways that a diagnosis found slow."""
    at = np.asarray(order, dtype=np.int64)
    return float(traffic.amount @ sites.is_slow(at[traffic.one], at[traffic.other]))


@lru_cache(maxsize=64)
def arranged(
    shape: Shape,
    per_node: int,
    sites: Sites,
    start: tuple[int, ...],
    open_at: tuple[int, ...],
    spares: tuple[int, ...] = (),
    exact: int = EXACT,
) -> tuple[int, ...]:
    """The best order found; `start` itself where no other is better, and never a worse one.

    `start`: the number of the node at each position; `open_at`: positions that may get another node, of those at open
    positions and of `spares`. Up to `exact` orders, all are looked at. The same arguments give the same order.
    """
    traffic = traffic_of(shape, per_node)
    if not open_at or not len(traffic.amount):
        return start
    best, least = start, cost(traffic, sites, start)
    many = math.perm(len(open_at) + len(spares), len(open_at))
    if many <= exact:
        found = [_all(traffic, sites, start, open_at, spares)]
    else:
        begins = [start]
        if len(open_at) == len(start):
            begins += packed(shape, per_node, sites, (*start, *spares))
        found = [_exchanged(traffic, sites, one, open_at, (*start, *spares)) for one in begins]
    for one in found:
        much = cost(traffic, sites, one)
        if much < least - _GAIN * least:
            best, least = one, much
    return best


def _all(
    traffic: Traffic, sites: Sites, start: tuple[int, ...], open_at: tuple[int, ...], spares: tuple[int, ...]
) -> tuple[int, ...]:
    nodes = np.array([*(start[i] for i in open_at), *spares], dtype=np.int64)
    rows = np.repeat(np.array([start], dtype=np.int64), math.perm(len(nodes), len(open_at)), axis=0)
    rows[:, list(open_at)] = nodes[_permutations(len(nodes), len(open_at))]
    known = np.arange(len(sites.all), dtype=np.int64)
    costs = sites.cost(known[:, None], known[None, :])
    totals = np.zeros(len(rows))
    for one, other, amount in zip(traffic.one, traffic.other, traffic.amount, strict=True):
        totals += amount * costs[rows[:, one], rows[:, other]]
    least = totals.min()
    first = int(np.argmax(totals <= least + _GAIN * least))  # not one that is less by rounding alone
    return tuple(rows[first].tolist())


@lru_cache(maxsize=16)
def _permutations(count: int, length: int) -> Ints:
    return np.array(list(permutations(range(count), length)), dtype=np.int64)


def _exchanged(
    traffic: Traffic, sites: Sites, begin: tuple[int, ...], open_at: tuple[int, ...], nodes: tuple[int, ...]
) -> tuple[int, ...]:
    """Exchange two nodes, or one for a spare, as long as that makes the order better: for each position the best."""
    order = np.array(begin, dtype=np.int64)
    ends = np.concatenate([traffic.one, traffic.other])
    others = np.concatenate([traffic.other, traffic.one])
    amounts = np.concatenate([traffic.amount, traffic.amount])
    by_end = np.argsort(ends, kind="stable")
    first = np.searchsorted(ends[by_end], np.arange(len(order) + 1))
    free, looked_at, is_better = np.array(open_at, dtype=np.int64), 0, True
    least = _GAIN * cost(traffic, sites, begin)
    while is_better:
        is_better = False
        for p in open_at:
            mine = by_end[first[p] : first[p + 1]]
            looked_at += 4 * len(ends) + len(nodes) * len(mine)
            if looked_at > WORK:
                return tuple(order.tolist())
            near, weights = others[mine], amounts[mine]
            now = np.bincount(ends, amounts * sites.cost(order[ends], order[others]), len(order))
            # Both ends of a link between p and q move, and it stays as long as it is.
            there = sites.cost(order[free][:, None], order[near][None, :]) @ weights
            back = np.bincount(ends, amounts * sites.cost(np.full(1, order[p]), order[others]), len(order))[free]
            kept = np.bincount(near, 2 * weights * sites.cost(np.full(1, order[p]), order[near]), len(order))[free]
            gains = now[p] + now[free] - there - back - kept
            spares = np.setdiff1d(np.array(nodes, dtype=np.int64), order)
            gains_of_spares = now[p] - sites.cost(spares[:, None], order[near][None, :]) @ weights
            at, of_spare = int(np.argmax(gains)), int(np.argmax(gains_of_spares)) if len(spares) else -1
            if of_spare >= 0 and gains_of_spares[of_spare] > max(gains[at], least):
                order[p] = spares[of_spare]
            elif gains[at] > least:
                q = free[at]
                order[p], order[q] = order[q], order[p]
            else:
                continue
            is_better = True
    return tuple(order.tolist())
