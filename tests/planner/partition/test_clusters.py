"""Layers against every way to cut."""

from __future__ import annotations

import itertools
import random
from statistics import pvariance

import pytest

from holdfast.planner.partition.clusters import arriving_bytes, cluster, layers_of
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph


def best_of_all(flops: list[float], arriving: list[list[float]], layers: int, delta: float) -> tuple[float, ...] | None:
    """(largest bytes, sum, variance of FLOPs) of the best cut."""
    found = []
    count, total = len(flops), sum(flops)
    for inner in itertools.combinations(range(1, count), layers - 1):
        ends = [0, *inner, count]
        parts = list(itertools.pairwise(ends))
        work = [sum(flops[k:r]) for k, r in parts]
        if max(work) <= (1 + delta) * total / layers:
            taken = [arriving[k][r] for k, r in parts]
            found.append((max(taken), sum(taken), pvariance(work)))
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(100))
def test_equals_every_cut_tried(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 9)
    layers = rng.randint(1, count)
    flops = [float(rng.randint(0, 6)) for _ in range(count)]
    # Few values, so that there are ties to break.
    arriving = [[float(rng.randint(0, 4)) for _ in range(count + 1)] for _ in range(count + 1)]
    delta = rng.choice([0.0, 0.3, 1.0])
    expected = best_of_all(flops, arriving, layers, delta)
    if expected is None:
        with pytest.raises(ValueError, match="raise delta, or take fewer layers"):
            cluster(flops, arriving, layers, delta)
        return
    ends = cluster(flops, arriving, layers, delta)
    assert (ends[0], ends[-1], len(ends)) == (0, count, layers + 1)
    parts = list(itertools.pairwise(ends))
    work = [sum(flops[k:r]) for k, r in parts]
    taken = [arriving[k][r] for k, r in parts]
    assert max(work) <= (1 + delta) * sum(flops) / layers + 1e-9
    assert (max(taken), sum(taken)) == expected[:2]
    assert pvariance(work) == pytest.approx(expected[2], abs=1e-9)


def test_cuts_where_they_are_allowed() -> None:
    flops, nothing = [1.0] * 6, [[0.0] * 7 for _ in range(7)]
    assert cluster(flops, nothing, 3, 0.5) == [0, 2, 4, 6]
    assert cluster(flops, nothing, 2, 0.5, allowed=[2, 5]) == [0, 2, 6]
    with pytest.raises(ValueError, match="from 1 to 6"):
        cluster(flops, nothing, 7)


def test_bytes_that_arrive_count_once_and_without_parameters() -> None:
    graph = OperatorGraph(
        (
            Operator("x", Kind.INPUT, (), (2, 8)),
            Operator("w", Kind.PARAMETER, (), (8, 8)),
            Operator("a", Kind.MATMUL, ("x", "w"), (2, 8), flops=256),
            Operator("b", Kind.MATMUL, ("a", "w"), (2, 8), flops=256),
            Operator("c", Kind.FOLLOW, ("a", "b"), (2, 8), dims=((0, 1), (0, 1))),
        )
    )
    arriving = arriving_bytes(graph)
    assert arriving[3][4] == 64  # a
    assert arriving[3][5] == 64  # a, read twice
    assert arriving[4][5] == 128  # a and b
    assert arriving[0][5] == arriving[2][3] == 0


def test_a_graph_is_cut_where_the_least_arrives() -> None:
    """Four matrices of equal FLOPs, the second of which gives a quarter of what the others do."""
    widths = (8, 2, 8, 8)
    operators = [Operator("x", Kind.INPUT, (), (4, 8))]
    for n, width in enumerate(widths):
        into = operators[-1].shape[-1] if n else 8
        operators.append(Operator(f"w{n}", Kind.PARAMETER, (), (width, into)))
        source = f"y{n - 1}" if n else "x"
        operators.append(Operator(f"y{n}", Kind.MATMUL, (source, f"w{n}"), (4, width), flops=100))
    graph = OperatorGraph(tuple(operators))
    ends = layers_of(graph, 2)
    assert (ends[0], ends[-1]) == (0, len(operators))
    assert graph.index["y1"] < ends[1] <= graph.index["y2"]  # 4 x 2 elements cross, not 4 x 8
    with pytest.raises(ValueError, match="no FLOPs"):
        layers_of(OperatorGraph(tuple(operators[:2])), 1)
