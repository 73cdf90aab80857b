"""One strategy for each operator, at least cost within memory: Alpa's integer program, solved by HiGHS. Pure.

Source: Zheng et al., Alpa, OSDI 2022, section 4.2. Cost is sum s_v (c_v + d_v) + sum s_v R_vu s_u with s_v one-hot; the
products are linearised by e_vu with one entry for each pair of strategies. Once s is 0 or 1, e can be nothing else,
so that only s is declared whole: the program has far fewer whole variables, and the same optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Pair = tuple[tuple[int, int], tuple[int, int]]
"""Two (node, strategy)."""
MEMORY_TOLERANCE = 1e-6
"""By how much of the limit a solver's rounding may exceed it."""


class NoStrategy(ValueError):
    """No choice fits, or none was found in time. One line."""


@dataclass(frozen=True, slots=True)
class Node:
    """An operator: cost and memory of each of its strategies."""

    costs: tuple[float, ...]
    memory: tuple[float, ...] = ()
    """Empty: none."""
    follows: int | None = None
    """The node, before this one, whose choice is this one's too: strategy i of one is i of the other."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """What it costs to hand the result of one node, in its layout, to another, in its own."""

    source: int
    target: int
    costs: tuple[tuple[float, ...], ...]
    """By strategy of the source, then of the target."""


@dataclass(frozen=True, slots=True)
class Problem:
    """All of it. `live` has for each point in time the nodes that hold memory then."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    live: tuple[tuple[int, ...], ...] = ()
    limit: float | None = None
    """Most memory at any time."""
    forbidden: tuple[Pair, ...] = ()
    """Pairs of strategies that cannot both be: of two nodes that are one tensor (aliases), for example."""

    def cost(self, choice: Sequence[int]) -> float:
        """Of a strategy for each node."""
        total = sum(node.costs[i] for node, i in zip(self.nodes, choice, strict=True))
        return total + sum(edge.costs[choice[edge.source]][choice[edge.target]] for edge in self.edges)

    def peak(self, choice: Sequence[int]) -> float:
        """The most memory at any time."""
        held = [node.memory[i] if node.memory else 0.0 for node, i in zip(self.nodes, choice, strict=True)]
        return max((sum(held[v] for v in point) for point in self.live), default=0.0)

    def root(self, node: int) -> int:
        """The node that decides for another."""
        while (leader := self.nodes[node].follows) is not None:
            node = leader
        return node

    def is_allowed(self, choice: Sequence[int]) -> bool:
        """Whether followers follow, no forbidden pair is chosen and memory suffices."""
        if any(n.follows is not None and choice[v] != choice[n.follows] for v, n in enumerate(self.nodes)):
            return False
        if any(choice[v] == i and choice[u] == j for (v, i), (u, j) in self.forbidden):
            return False
        return self.limit is None or self.peak(choice) <= self.limit * (1 + MEMORY_TOLERANCE)


@dataclass(frozen=True, slots=True)
class Solution:
    """A strategy for each node; `bound` is what no choice can be below, so that cost == bound proves the optimum."""

    choice: tuple[int, ...]
    cost: float
    bound: float
    is_optimal: bool


def solve(problem: Problem, time_limit_s: float) -> Solution:
    """The cheapest choice. After `time_limit_s` the best one so far, with is_optimal false.

    NoStrategy, in one line, where none fits; it names the least memory that any choice needs. Needs scipy.
    """
    program = _Program(problem)
    found = program.minimise(program.costs(), problem.limit, time_limit_s)
    if found.x is None:
        raise NoStrategy(_why(problem, program, found.status, time_limit_s))
    choice = program.choice(found.x)
    bound = found.mip_dual_bound * program.scale if found.mip_dual_bound is not None else 0.0
    return Solution(choice, problem.cost(choice), bound, found.status == 0)


def _why(problem: Problem, program: _Program, status: int, time_limit_s: float) -> str:
    if status == 1:
        return f"no choice of strategies was found in {time_limit_s:g} s: give the solver more time"
    if problem.limit is not None:
        least = program.least_memory(time_limit_s)
        if least is not None and least > problem.limit:
            return (
                f"the strategies need {least:.4g} bytes at least, and {problem.limit:.4g} are there: use more devices"
            )
    return "no choice of strategies satisfies all pairs that forbid each other"


class _Program:
    """Columns: s of each node that decides, then e of each edge, then (last) the peak of memory."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.at: dict[int, int] = {}
        width = 0
        for v, node in enumerate(problem.nodes):
            if node.follows is None:
                self.at[v] = width
                width += len(node.costs)
            elif node.follows >= v or len(node.costs) != len(problem.nodes[node.follows].costs):
                raise ValueError(f"node {v} follows {node.follows}: an earlier one with as many strategies")
        self.whole = width
        self.own: dict[int, list[float]] = {v: [0.0] * len(problem.nodes[v].costs) for v in self.at}
        for v, node in enumerate(problem.nodes):
            self._add(problem.root(v), node.costs)
        self.edges: dict[tuple[int, int], tuple[int, list[list[float]]]] = {}
        for edge in problem.edges:
            a, b = problem.root(edge.source), problem.root(edge.target)
            if a == b:
                self._add(a, [row[i] for i, row in enumerate(edge.costs)])
                continue
            rows: Sequence[Sequence[float]] = edge.costs
            if a > b:
                a, b, rows = b, a, list(zip(*edge.costs, strict=True))
            if (a, b) not in self.edges:
                self.edges[a, b] = width, [[0.0] * len(rows[0]) for _ in rows]
                width += len(rows) * len(rows[0])
            for total, row in zip(self.edges[a, b][1], rows, strict=True):
                for j, cost in enumerate(row):
                    total[j] += cost
        self.peak = width
        self.width = width + 1
        most = max((abs(c) for costs in self.own.values() for c in costs), default=0.0)
        most = max([most, *(abs(c) for _, table in self.edges.values() for row in table for c in row)])
        self.scale = most / 1e6 if most > 0 else 1.0
        """A solver's tolerances are absolute: costs are counted so that the largest is a million."""

    def _add(self, node: int, costs: Sequence[float]) -> None:
        own = self.own[node]
        for i, cost in enumerate(costs):
            own[i] += cost

    def costs(self) -> list[float]:
        found = [0.0] * self.width
        for v, first in self.at.items():
            found[first : first + len(self.own[v])] = [c / self.scale for c in self.own[v]]
        for first, table in self.edges.values():
            flat = [c / self.scale for row in table for c in row]
            found[first : first + len(flat)] = flat
        return found

    def minimise(self, costs: Sequence[float], limit: float | None, time_limit_s: float) -> Any:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array

        rows: list[dict[int, float]] = []
        low: list[float] = []
        high: list[float] = []

        def add(row: dict[int, float], least: float, most: float) -> None:
            rows.append(row)
            low.append(least)
            high.append(most)

        for v, first in self.at.items():
            add({first + i: 1.0 for i in range(len(self.own[v]))}, 1, 1)
        for (a, b), (first, table) in self.edges.items():
            n, m = len(table), len(table[0])
            add({first + i: 1.0 for i in range(n * m)}, 1, 1)
            for i in range(n):
                add({**{first + i * m + j: 1.0 for j in range(m)}, self.at[a] + i: -1.0}, -np.inf, 0)
            for j in range(m):
                add({**{first + i * m + j: 1.0 for i in range(n)}, self.at[b] + j: -1.0}, -np.inf, 0)
        for (v, i), (u, j) in self.problem.forbidden:
            a, b = self.at[self.problem.root(v)] + i, self.at[self.problem.root(u)] + j
            add({a: 2.0} if a == b else {a: 1.0, b: 1.0}, -np.inf, 1)
        unit = self._unit()
        for point in self.problem.live:
            row: dict[int, float] = {self.peak: -1.0}
            for v in point:
                for i, held in enumerate(self.problem.nodes[v].memory):
                    column = self.at[self.problem.root(v)] + i
                    row[column] = row.get(column, 0.0) + held / unit
            add(row, -np.inf, 0)
        most = np.ones(self.width)
        most[self.peak] = np.inf if limit is None else limit / unit
        entries = [(r, c, x) for r, row in enumerate(rows) for c, x in row.items()]
        r, c, x = zip(*entries, strict=True)
        matrix = coo_array((x, (r, c)), shape=(len(rows), self.width)).tocsr()
        whole = np.zeros(self.width)
        whole[: self.whole] = 1
        return milp(
            np.array(costs),
            constraints=LinearConstraint(matrix, np.array(low), np.array(high)),
            bounds=Bounds(np.zeros(self.width), most),
            integrality=whole,
            options={"time_limit": time_limit_s, "mip_rel_gap": 0.0},
        )

    def _unit(self) -> float:
        """Memory in units of the largest piece, for the solver's tolerances."""
        return max((m for node in self.problem.nodes for m in node.memory), default=0.0) or 1.0

    def least_memory(self, time_limit_s: float) -> float | None:
        """The smallest peak that any choice has."""
        costs = [0.0] * self.width
        costs[self.peak] = 1.0
        found = self.minimise(costs, None, time_limit_s)
        return None if found.x is None else self.problem.peak(self.choice(found.x))

    def choice(self, x: Sequence[float]) -> tuple[int, ...]:
        """The strategy of each node, followers' too."""
        of = {v: max(range(len(self.own[v])), key=lambda i: x[first + i]) for v, first in self.at.items()}
        return tuple(of[self.problem.root(v)] for v in range(len(self.problem.nodes)))
