"""Collectives message by message, in simulated time: what closed forms are held to. Shares no code with them.

Each rank sends one message at a time and receives one at a time. A message keeps both ports busy for its bytes, and
arrives a latency later.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

Wire = Callable[[int, int], tuple[float, float]]
"""(alpha, beta) between two ranks."""


@dataclass
class Network:
    """Messages by name, each after others."""

    wire: Wire
    messages: list[tuple[Hashable, int, int, float, list[Hashable]]] = field(default_factory=list)

    def send(self, name: Hashable, source: int, target: int, num_bytes: float, after: list[Hashable]) -> None:
        self.messages.append((name, source, target, num_bytes, after))

    def run(self) -> dict[Hashable, float]:
        """When each message has arrived. Among those that could go, the one given first goes first."""
        users: dict[Hashable, list[int]] = defaultdict(list)
        missing, arrived = {}, {}
        names = {name for name, *_ in self.messages}
        for i, (_, _, _, _, after) in enumerate(self.messages):
            missing[i] = len({name for name in after if name in names})
            for name in set(after):
                users[name].append(i)
        out: dict[int, float] = defaultdict(float)
        into: dict[int, float] = defaultdict(float)
        ready = [(0.0, i) for i, count in missing.items() if count == 0]
        at = {i: 0.0 for _, i in ready}
        heapq.heapify(ready)
        while ready:
            when, i = heapq.heappop(ready)
            name, source, target, num_bytes, _ = self.messages[i]
            free = max(at[i], out[source], into[target])
            if free > when:
                heapq.heappush(ready, (free, i))
                continue
            alpha, beta = self.wire(source, target)
            out[source] = into[target] = free + num_bytes * beta
            arrived[name] = free + num_bytes * beta + alpha
            for user in users[name]:
                missing[user] -= 1
                at[user] = max(at.get(user, 0.0), arrived[name])
                if missing[user] == 0:
                    heapq.heappush(ready, (at[user], user))
        assert len(arrived) == len(self.messages), "a message waits for itself"
        return arrived


def rings(
    network: Network, label: str, ranks: list[int], piece: float, turns: int, first: list[Hashable]
) -> list[Hashable]:
    """Pieces go around a ring, `turns` times from each rank to the next. Returns the last messages."""
    n = len(ranks)
    for turn in range(turns):
        for i, rank in enumerate(ranks):
            after = first if turn == 0 else [(label, turn - 1, (i - 1) % n)]
            network.send((label, turn, i), rank, ranks[(i + 1) % n], piece, after)
    return [(label, turns - 1, i) for i in range(n)]


def all_gather(
    network: Network, ranks: list[int], num_bytes: float, label: str = "g", first: list[Hashable] | None = None
) -> list[Hashable]:
    return rings(network, label, ranks, num_bytes / len(ranks), len(ranks) - 1, first or [])


def all_reduce(
    network: Network, ranks: list[int], num_bytes: float, label: str = "r", first: list[Hashable] | None = None
) -> list[Hashable]:
    return rings(network, label, ranks, num_bytes / len(ranks), 2 * (len(ranks) - 1), first or [])


def hierarchical_all_reduce(network: Network, nodes: list[list[int]], num_bytes: float, is_ring: bool) -> None:
    """Reduce-scatter in each node, all-reduce among devices of one place, all-gather in each node."""
    inner = len(nodes[0])
    halves = [all_gather(network, ranks, num_bytes, f"scatter{i}") for i, ranks in enumerate(nodes)]
    done = [name for half in halves for name in half]
    across: list[Hashable] = []
    for place in range(inner):
        ranks = [node[place] for node in nodes]
        reduce = all_reduce if is_ring else halving
        across += reduce(network, ranks, num_bytes / inner, f"across{place}", done)
    for i, ranks in enumerate(nodes):
        all_gather(network, ranks, num_bytes, f"gather{i}", across)


def all_to_all(network: Network, ranks: list[int], num_bytes: float) -> None:
    """In turn k everyone sends to the k-th behind it, when it has sent and received the one before."""
    n = len(ranks)
    for turn in range(1, n):
        for i in range(n):
            after = [] if turn == 1 else [(turn - 1, i), (turn - 1, (i - turn + 1) % n)]
            network.send((turn, i), ranks[i], ranks[(i + turn) % n], num_bytes / n, after)


def broadcast(network: Network, ranks: list[int], num_bytes: float, pieces: int = 400) -> None:
    """Pieces down a chain."""
    for piece in range(pieces):
        for i in range(len(ranks) - 1):
            network.send((piece, i), ranks[i], ranks[i + 1], num_bytes / pieces, [(piece, i - 1)] if i else [])


def halving(
    network: Network, ranks: list[int], num_bytes: float, label: str = "h", first: list[Hashable] | None = None
) -> list[Hashable]:
    """All-reduce by exchanges with ranks ever further away, of ever smaller halves, and back again. Ranks that are more
    than a power of two hand what they have to another one first, and get the result last."""
    n = len(ranks)
    power = 1 << (n.bit_length() - 1)
    before: dict[int, list[Hashable]] = {r: list(first or []) for r in range(power)}
    for extra in range(power, n):
        network.send((label, "in", extra), ranks[extra], ranks[extra - power], num_bytes, list(first or []))
        before[extra - power] = [(label, "in", extra)]
    halves = [(1 << i, num_bytes / (2 << i)) for i in range(power.bit_length() - 1)]
    for turn, (distance, size) in enumerate(halves + halves[::-1]):
        now: dict[int, list[Hashable]] = {}
        for r in range(power):
            # The other end is ready when it has done what came before.
            network.send((label, turn, r), ranks[r], ranks[r ^ distance], size, before[r] + before[r ^ distance])
            now[r] = [(label, turn, r), (label, turn, r ^ distance)]
        before = now
    last = [name for names in before.values() for name in names]
    for extra in range(power, n):
        network.send((label, "out", extra), ranks[extra - power], ranks[extra], num_bytes, before[extra - power])
        last.append((label, "out", extra))
    return last
