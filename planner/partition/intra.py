"""The operators of a stage over its devices: a graph becomes an integer program, its solution a layout. Pure.

Source: Zheng et al., Alpa, OSDI 2022, section 4.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from holdfast.planner.partition.ilp import Edge, Node, NoStrategy, Pair, Problem, Solution, solve
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.strategies import Devices, Obstacle, Strategy, followers, handing, strategies


@dataclass(frozen=True)
class Sharding:
    """A strategy for each operator of a graph, by name."""

    chosen: dict[str, Strategy]
    cost: float
    """Of one micro-batch, both ways, with its share of what is done once a step."""
    compute: float
    """The part of it that is no communication."""
    peak_bytes: float
    """The most on a device at a time, with one micro-batch on its way."""
    fixed_bytes: float
    """Of it, parameters with gradients and states."""
    is_optimal: bool
    refused: dict[str, int]
    """Why strategies were left out, each with how many."""

    @property
    def kept_bytes(self) -> float:
        """Of each micro-batch on its way."""
        return self.peak_bytes - self.fixed_bytes


@dataclass(frozen=True)
class Program:
    """The integer program of a graph, with the strategies that its numbers are of."""

    problem: Problem
    strategies: tuple[tuple[Strategy, ...], ...]
    refused: dict[str, int]


def shard(
    graph: OperatorGraph,
    devices: Devices,
    limit_bytes: float | None = None,
    obstacle: Obstacle | None = None,
    time_limit_s: float = 60.0,
) -> Sharding:
    """The cheapest way to lay a graph on a mesh.

    `limit_bytes`: memory of a device. `obstacle` leaves out what cannot be executed. NoStrategy, in one line, where
    nothing fits.
    """
    made = program(graph, devices, limit_bytes, obstacle)
    return sharding(graph, made, solve(made.problem, time_limit_s))


def program(
    graph: OperatorGraph, devices: Devices, limit_bytes: float | None = None, obstacle: Obstacle | None = None
) -> Program:
    """Nodes are the operators in their order. NoStrategy where an operator has no strategy."""
    refused: Counter[str] = Counter()
    found: list[list[Strategy]] = []
    nodes: list[Node] = []
    for one in graph.operators:
        leader = None
        if one.kind is Kind.FOLLOW:
            leader = graph.index[graph.leader(one)]
            own = followers(graph, one, found[leader], devices)
        else:
            own = []
            for strategy in strategies(graph, one, devices):
                reason = obstacle(one, strategy) if obstacle is not None else None
                if reason is None:
                    own.append(strategy)
                else:
                    refused[reason] += 1
            if not own:
                why = f": {refused.most_common(1)[0][0]}" if refused else ", as none divides its shape evenly"
                raise NoStrategy(f"operator {one.name} of shape {one.shape} has no strategy on this mesh{why}")
        found.append(own)
        costs = tuple(s.compute + s.communication for s in own)
        nodes.append(Node(costs, tuple(s.memory for s in own), leader, one.name))
    problem = Problem(tuple(nodes), tuple(_edges(graph, found, devices)), live(graph, devices), limit_bytes)
    return Program(problem, tuple(map(tuple, found)), dict(refused))


def live(graph: OperatorGraph, devices: Devices) -> tuple[tuple[int, ...], ...]:
    """By point in time, the places of operators whose results are held.

    In training there is one: the end of forward, when all that is not a view is kept for the way back (an upper bound:
    autograd keeps less of some operators). Without a way back, one for each operator: what is read later.
    Parameters are always there.
    """
    everything = range(len(graph.operators))
    if devices.is_training:
        return (tuple(everything),)
    always = [i for i in everything if graph.operators[i].kind is Kind.PARAMETER]
    last = [graph.last_uses[one.name] for one in graph.operators]
    points = []
    for now in everything:
        held = [i for i in range(now + 1) if graph.operators[i].kind is not Kind.PARAMETER and last[i] >= now]
        points.append(tuple(sorted({*always, *held})))
    return tuple(points)


def sharding(graph: OperatorGraph, made: Program, solution: Solution) -> Sharding:
    """What a solution of its program says of the graph."""
    chosen = {one.name: own[i] for one, own, i in zip(graph.operators, made.strategies, solution.choice, strict=True)}
    fixed = sum(chosen[one.name].memory for one in graph.operators if one.kind is Kind.PARAMETER)
    compute = sum(strategy.compute for strategy in chosen.values())
    peak = made.problem.peak(solution.choice)
    return Sharding(chosen, solution.cost, compute, peak, fixed, solution.is_optimal, made.refused)


def _edges(graph: OperatorGraph, found: list[list[Strategy]], devices: Devices) -> list[Edge]:
    edges = []
    for target, one in enumerate(graph.operators):
        for i, name in enumerate(one.inputs):
            source = graph.index[name]
            table = tuple(
                tuple(_handed(graph, graph.operators[source], devices, have, user, i) for user in found[target])
                for have in found[source]
            )
            if any(cost for row in table for cost in row):
                edges.append(Edge(source, target, table))
    return edges


def _handed(graph: OperatorGraph, source: Operator, devices: Devices, have: Strategy, user: Strategy, i: int) -> float:
    return handing(graph, source, devices, have, user.inputs[i], user)


def aliases(made: Program, one: int, other: int) -> tuple[Pair, ...]:
    """Of two operators that are one tensor, the pairs of strategies that lay it out in two ways."""
    return tuple(
        ((one, i), (other, j))
        for i, a in enumerate(made.strategies[one])
        for j, b in enumerate(made.strategies[other])
        if a.output != b.output
    )
