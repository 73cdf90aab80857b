"""The order of a job's nodes in which its traffic costs least: exactly for few nodes, by exchanges for many. Pure.

A quadratic assignment: positions exchange bytes, nodes are more or less far from each other. An order that is given
stays as it is where no other one is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np
import numpy.typing as npt

from holdfast.planner.placement.packing import packed
from holdfast.planner.placement.sites import Sites
from holdfast.planner.placement.traffic import Floats, Ints, Shape, Traffic, traffic_of

EXACT = 50_000
"""Orders that are all looked at: 8 nodes have 40,320. More than 8 positions are never open then, so there are no more
than 28 links between them, and a million sums at most, however many nodes the job has."""
WORK = 1_000_000
"""Links that a search by exchanges looks at, some 50 ms: of 64 nodes all exchanges ten times over; of thousands,
the first of an order that fills switches anyway."""
_Price = Callable[[Ints, Ints], npt.NDArray[np.float64] | npt.NDArray[np.bool_]]
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
    """Looks at open positions only, and at links that touch them: what the others exchange costs the same always."""
    nodes = np.array([*(start[i] for i in open_at), *spares], dtype=np.int64)
    rows = _permutations(len(nodes), len(open_at))
    column = np.full(len(start), -1, dtype=np.int64)
    column[list(open_at)] = np.arange(len(open_at))
    ones, others = column[traffic.one], column[traffic.other]
    kept, alone = np.array(start, dtype=np.int64), np.zeros((len(open_at), len(nodes)))
    for ends, far, there in ((ones, others, traffic.other), (others, ones, traffic.one)):
        half = (ends >= 0) & (far < 0)
        costs = sites.cost(kept[there[half]][:, None], nodes[None, :])
        np.add.at(alone, ends[half], traffic.amount[half][:, None] * costs)
    totals = np.zeros(len(rows))
    for i, costs in enumerate(alone):
        totals += costs[rows[:, i]]
    both = np.flatnonzero((ones >= 0) & (others >= 0))
    if len(both):
        costs = sites.cost(nodes[:, None], nodes[None, :])
        for link in both:
            totals += traffic.amount[link] * costs[rows[:, ones[link]], rows[:, others[link]]]
    least = totals.min()
    first = int(np.argmax(totals <= least + _GAIN * least))  # not one that is less by rounding alone
    kept[list(open_at)] = nodes[rows[first]]
    return tuple(kept.tolist())


@lru_cache(maxsize=16)
def _permutations(count: int, length: int) -> Ints:
    return np.array(list(permutations(range(count), length)), dtype=np.int64)


class _Links:
    """What positions exchange, each link from both its ends."""

    def __init__(self, traffic: Traffic) -> None:
        self.ends = np.concatenate([traffic.one, traffic.other])
        self.others = np.concatenate([traffic.other, traffic.one])
        self.amounts = np.concatenate([traffic.amount, traffic.amount])
        self._by_end = np.argsort(self.ends, kind="stable")
        self._first = np.searchsorted(self.ends[self._by_end], np.arange(traffic.nodes + 1))

    def of(self, p: int) -> tuple[Ints, Floats]:
        """The positions that p exchanges bytes with, and how many."""
        mine = self._by_end[self._first[p] : self._first[p + 1]]
        return self.others[mine], self.amounts[mine]

    def now(self, price: _Price, order: Ints) -> Floats:
        """Of each position, what its links cost."""
        costs = self.amounts * price(order[self.ends], order[self.others])
        return np.bincount(self.ends, costs, len(order)).astype(np.float64)

    def saved(self, price: _Price, order: Ints, p: int, free: Ints) -> Floats:
        """What it saves that p changes nodes with each of the positions `free`."""
        now, own = self.now(price, order), np.full(1, order[p])
        near, weights = self.of(p)
        # Both ends of a link between p and q move, and it stays as long as it is.
        there = price(order[free][:, None], order[near][None, :]) @ weights
        back = np.bincount(self.ends, self.amounts * price(own, order[self.others]), len(order))[free]
        kept = np.bincount(near, 2 * weights * price(own, order[near]), len(order))[free]
        found: Floats = now[p] + now[free] - there - back - kept
        return found


def _exchanged(
    traffic: Traffic, sites: Sites, begin: tuple[int, ...], open_at: tuple[int, ...], nodes: tuple[int, ...]
) -> tuple[int, ...]:
    """Exchange two nodes, or one for a spare, as long as that makes the order better: for each position the best."""
    order, links = np.array(begin, dtype=np.int64), _Links(traffic)
    free, looked_at, is_better = np.array(open_at, dtype=np.int64), 0, True
    least = _GAIN * cost(traffic, sites, begin)
    while is_better:
        is_better = False
        for p in open_at:
            near, weights = links.of(p)
            looked_at += 4 * len(links.ends) + len(nodes) * len(near)
            if looked_at > WORK:
                return tuple(order.tolist())
            gains = links.saved(sites.cost, order, p, free)
            spares = np.setdiff1d(np.array(nodes, dtype=np.int64), order)
            mine = float(weights @ sites.cost(np.full(1, order[p]), order[near]))
            gains_of_spares = mine - sites.cost(spares[:, None], order[near][None, :]) @ weights
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


@lru_cache(maxsize=64)
def avoided(
    shape: Shape, per_node: int, sites: Sites, start: tuple[int, ...], is_kept: tuple[bool, ...]
) -> tuple[int, ...]:
    """`start` with as few exchanges as take the traffic off slow ways, and `start` itself where none goes over them.

    One exchange after the other of two nodes that takes off most, of those that lower the cost; of equal ones, those
    that move fewer nodes of positions that `is_kept`, and then the cheapest. It ends where no single one helps.
    """
    traffic = traffic_of(shape, per_node)
    order, links, looked_at = np.array(start, dtype=np.int64), _Links(traffic), 0
    every, moves = np.arange(len(order), dtype=np.int64), np.array(is_kept, dtype=np.int64)
    least, least_slow = (_GAIN * much(traffic, sites, start) for much in (cost, slow_bytes))
    waits = links.now(sites.is_slow, order)
    while waits.any():
        p = int(np.argmax(waits))
        near, _ = links.of(p)
        best, pair = (0.0, 0, 0.0), (p, p)
        # Only its ends can leave a slow way.
        for end in (p, *near[sites.is_slow(np.full(1, order[p]), order[near])].tolist()):
            looked_at += 2 * (4 * len(links.ends) + len(order) * len(links.of(end)[0]))
            if looked_at > WORK:
                return tuple(order.tolist())
            fewer = links.saved(sites.is_slow, order, end, every)
            gains = links.saved(sites.cost, order, end, every)
            helps = np.flatnonzero((fewer > least_slow) & (gains > least))
            if len(helps):
                most = helps[fewer[helps] >= fewer[helps].max() - least_slow]
                q = int(most[np.lexsort((-gains[most], moves[most]))[0]])
                found = (float(fewer[q]), -int(moves[end] + moves[q]), float(gains[q]))
                best, pair = max((best, pair), (found, (end, q)))
        if pair == (p, p):
            waits[p] = 0.0
            continue
        one, other = pair
        order[one], order[other] = order[other], order[one]
        waits = links.now(sites.is_slow, order)
    return tuple(order.tolist())
