"""The waits of threads that can't move, and the reason in which they end. Pure.

Nodes are threads and operations. Each that can't move waits for others that can't, until a wait ends in a rank that is
gone, a process that waits for itself, or different operations under one number, or runs in a cycle.
"""

from collections.abc import Iterable

from holdfast.diagnostics.hang.can_move import CanMove, Wait
from holdfast.diagnostics.hang.operations import Lack, Place, SharedOperation

Node = Place | SharedOperation


class WaitGraph:
    """All nodes that the main threads of dead ranks wait for."""

    def __init__(self, closed: CanMove, dead: Iterable[int]) -> None:
        self._closed = closed
        self.after: dict[Node, list[Node]] = {}
        """The nodes for which each node waits."""
        self._before: dict[Node, list[Node]] = {}
        self._collect((rank, 0) for rank in dead)
        self.ends: list[Node] = [node for node in self.after if self._is_end(node)]
        """Nodes in which waits end, in the order in which they were found."""
        self.cycles: list[list[Node]] = []
        """Sets of nodes that wait for each other only."""
        self.level: dict[Node, int] = {}
        """Steps to the nearest end or cycle."""
        self._measure(self.ends)
        self._find_cycles()

    def _collect(self, starts: Iterable[Node]) -> None:
        left = list(starts)
        self._before = {node: [] for node in left}
        while left:
            node = left.pop()
            self.after[node] = self._waits_for(node)
            for other in self.after[node]:
                if other not in self._before:
                    self._before[other] = []
                    left.append(other)
                self._before[other].append(node)

    def _waits_for(self, node: Node) -> list[Node]:
        ranks = self._closed.ranks
        found: list[Node] = []
        if isinstance(node, SharedOperation):
            for member, lack in node.blocked.items():
                if lack is Lack.STILL:
                    waits = ranks[member].waits
                    alive = [index for index, wait in enumerate(waits) if wait is not Wait.GONE]
                    found += [(member, index) for index in alive or [0]]
            return found
        rank, index = node
        process = ranks[rank]
        if process.waits[index] is Wait.RANKS:
            return [one.shared for one in process.operations if one.index == index and one.shared is not None]
        if process.waits[index] is Wait.OWN:
            found += [(rank, other) for other, wait in enumerate(process.waits) if wait is Wait.RANKS]
            found += [one.shared for one in process.operations if one.index < 0 and one.shared is not None]
        return found

    def _is_end(self, node: Node) -> bool:
        if isinstance(node, SharedOperation):
            return any(lack is not Lack.STILL for lack in node.blocked.values())
        return not self.after[node]

    def _measure(self, starts: Iterable[Node]) -> None:
        """Levels of all nodes that lead to these."""
        left = list(starts)
        self.level.update((node, 0) for node in left)
        for node in left:  # grows
            for other in self._before[node]:
                if other not in self.level:
                    self.level[other] = self.level[node] + 1
                    left.append(other)

    def _find_cycles(self) -> None:
        for node in self.after:
            while node not in self.level:
                reached = _reach(node, self.after, None)
                back = _reach(node, self._before, reached)
                outside = next((other for other in reached if other not in back), None)
                if outside is None:
                    self.cycles.append(list(reached))
                    self._measure(reached)
                else:
                    node = outside  # what it waits for does not wait for it: the cycle is further on


def _reach(start: Node, edges: dict[Node, list[Node]], within: dict[Node, None] | None) -> dict[Node, None]:
    """In the order found, as the keys."""
    found = {start: None}
    left = [start]
    while left:
        for other in edges[left.pop()]:
            if other not in found and (within is None or other in within):
                found[other] = None
                left.append(other)
    return found
