"""Alpa's integer program and its two dynamic programs against all choices of small random cases. Needs scipy."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import pvariance

from holdfast.trainer.rows.row import Row

CASES = 100
LIMIT_S = 60.0


def alpa() -> Iterator[Row]:
    """Two matrices over four devices that hold a quarter of them; optima; a pipeline of equal stages."""
    from holdfast.planner.partition.scored import simulated

    # 512 rows of width 1024, a byte each, beta 1: 2 (n-1)/n x + 0.01 of what comes out, and no other collective.
    one_sum = 2 * 3 / 4 * 512 * 1024 + 0.01
    for passes in ("forward", "forward and back"):
        cost, rules = _mlp(is_training=passes != "forward")
        yield Row(f"cost of an MLP 1024-4096-1024 on 512 rows, n 4, memory of 1/4, {passes}", one_sum, cost, 1e-6)
        is_megatron = rules == ["column", "column", "row"]
        yield Row(f"its matrices are cut by columns, then by rows, {passes}", 1, is_megatron)
    for what, is_best in (("integer programs", _program), ("layer clusterings", _clustering), ("pipelines", _pipeline)):
        yield Row(f"{what} of {CASES} that equal the best of all choices", CASES, sum(map(is_best, range(CASES))))
    d, n = 4, 8
    yield Row(f"simulated step, D {d}, N {n}, t 3", (n + d - 1) * 3, simulated([3.0] * d, n))


def _mlp(is_training: bool) -> tuple[float, list[str]]:
    from holdfast.planner.partition.axes import MeshAxis
    from holdfast.planner.partition.ilp import solve
    from holdfast.planner.partition.intra import program, sharding
    from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
    from holdfast.planner.partition.strategies import Devices

    rows, width, inner = 512, 1024, 4096
    graph = OperatorGraph(
        (
            Operator("x", Kind.INPUT, (), (rows, width), 1),
            Operator("up", Kind.PARAMETER, (), (inner, width), 1),
            Operator("down", Kind.PARAMETER, (), (width, inner), 1),
            Operator("h", Kind.MATMUL, ("x", "up"), (rows, inner), 1),
            Operator("f", Kind.FOLLOW, ("h",), (rows, inner), 1, dims=((0, 1),)),
            Operator("y", Kind.MATMUL, ("f", "down"), (rows, width), 1),
            Operator("out", Kind.OUTPUT, ("y",), (rows, width), 1, fixed=((), ())),
        )
    )
    made = program(graph, Devices((MeshAxis(4),), is_training=is_training))
    total = sum(max(made.problem.nodes[i].memory) for i in (1, 2))
    found = solve(replace(made.problem, live=((1, 2),), limit=total / 4), LIMIT_S)
    chosen = sharding(graph, made, found).chosen
    return found.cost, [chosen[name].rules[0] for name in ("h", "f", "y")]


def _program(seed: int) -> bool:
    """Up to 6 operators with up to 3 strategies, all pairs with costs, memory for some choices."""
    from holdfast.planner.partition.ilp import Edge, Node, NoStrategy, Problem, solve

    rng = random.Random(seed)
    sizes = [rng.randint(1, 3) for _ in range(rng.randint(2, 6))]
    own = [[rng.randint(0, 50) for _ in range(n)] for n in sizes]
    held = [[rng.randint(0, 9) for _ in range(n)] for n in sizes]
    between = {
        (a, b): [[rng.randint(0, 40) for _ in range(sizes[b])] for _ in range(sizes[a])]
        for a, b in itertools.combinations(range(len(sizes)), 2)
    }
    limit = rng.randint(4, 30)
    tried = [
        sum(own[v][i] for v, i in enumerate(c)) + sum(table[c[a]][c[b]] for (a, b), table in between.items())
        for c in itertools.product(*map(range, sizes))
        if sum(held[v][i] for v, i in enumerate(c)) <= limit
    ]
    nodes = tuple(Node(tuple(map(float, a)), tuple(map(float, b))) for a, b in zip(own, held, strict=True))
    edges = tuple(Edge(a, b, tuple(tuple(map(float, r)) for r in table)) for (a, b), table in between.items())
    try:
        found = solve(Problem(nodes, edges, (tuple(range(len(sizes))),), float(limit)), LIMIT_S)
    except NoStrategy:
        return not tried
    return bool(tried) and found.is_optimal and found.cost == min(tried)


def _clustering(seed: int) -> bool:
    """Up to 9 operators; the largest bytes, then their sum, then the variance of FLOPs."""
    from holdfast.planner.partition.clusters import cluster

    rng = random.Random(seed)
    count = rng.randint(1, 9)
    layers, delta = rng.randint(1, count), rng.choice([0.3, 1.0])
    flops = [rng.randint(0, 6) for _ in range(count)]
    arriving = [[rng.randint(0, 4) for _ in range(count + 1)] for _ in range(count + 1)]

    def worth(ends: Sequence[int]) -> tuple[float, float, float]:
        parts = list(itertools.pairwise(ends))
        taken = [arriving[k][r] for k, r in parts]
        return max(taken), sum(taken), round(pvariance([sum(flops[k:r]) for k, r in parts]), 9)

    cuts = ([0, *inner, count] for inner in itertools.combinations(range(1, count), layers - 1))
    most = (1 + delta) * sum(flops) / layers
    tried = [worth(ends) for ends in cuts if max(sum(flops[k:r]) for k, r in itertools.pairwise(ends)) <= most]
    try:
        return worth(cluster(flops, arriving, layers, delta)) == min(tried, default=None)
    except ValueError:
        return not tried


def _pipeline(seed: int) -> bool:
    """Up to 6 layers on 4 devices, each range and submesh with a time and the stages that memory lets come behind."""
    from holdfast.planner.partition.inter import NoPipeline, Option, Submesh, plan_pipeline, submeshes

    rng = random.Random(seed)
    layers, sizes, count = rng.randint(1, 6), submeshes(*rng.choice([(1, 4), (2, 2), (4, 1)])), rng.randint(1, 9)
    spans = list(itertools.product(itertools.combinations(range(layers + 1), 2), sizes))
    table = {key: Option(rng.randint(1, 30) / 4, rng.choice([-1, 0, 1, 9, 9])) for key in spans}

    def behind(first: int, left: int) -> Iterator[list[float]]:
        if first == layers and left == 0:
            yield []
        for stop in range(first + 1, layers + 1):
            for mesh in sizes:
                if (size := mesh[0] * mesh[1]) <= left:
                    one = table[(first, stop), mesh]
                    yield from (
                        [one.seconds, *rest] for rest in behind(stop, left - size) if len(rest) <= one.successors
                    )

    def options(first: int, stop: int, mesh: Submesh) -> Sequence[Option]:
        return (table[(first, stop), mesh],)

    tried = [sum(times) + (count - 1) * max(times) for times in behind(0, 4)]
    try:
        return plan_pipeline(layers, 4, sizes, count, options).seconds == min(tried, default=None)
    except NoPipeline:
        return not tried
