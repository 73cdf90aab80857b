"""Stages against every way to cut and to lay out, and places of submeshes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import pytest

from holdfast.planner.partition.inter import (
    NoPipeline,
    Option,
    Options,
    Submesh,
    pipeline_time,
    place,
    plan_pipeline,
    submeshes,
    successors,
)


def every(
    layers: int, left: int, sizes: Sequence[Submesh], options: Options, first: int = 0
) -> Iterator[tuple[Option, ...]]:
    """Every pipeline that fits: the option of each stage."""
    if first == layers:
        if left == 0:
            yield ()
        return
    for stop in range(first + 1, layers + 1):
        for mesh in sizes:
            if mesh[0] * mesh[1] <= left:
                for option in options(first, stop, mesh):
                    for rest in every(layers, left - mesh[0] * mesh[1], sizes, options, stop):
                        if option.successors >= len(rest):
                            yield (option, *rest)


@pytest.mark.parametrize("seed", range(100))
def test_equals_every_pipeline_tried(seed: int) -> None:
    rng = random.Random(seed)
    layers, (nodes, per_node) = rng.randint(1, 6), rng.choice([(1, 4), (2, 2), (4, 1), (1, 3), (3, 1)])
    sizes, count = submeshes(nodes, per_node), rng.randint(1, 9)
    table = {
        (i, k, mesh): [
            Option(rng.randint(1, 30) / 4, rng.choice([-1, 0, 1, 2, 9, 9, 9])) for _ in range(rng.randint(0, 2))
        ]
        for i in range(layers)
        for k in range(i + 1, layers + 1)
        for mesh in sizes
    }

    def options(first: int, stop: int, mesh: Submesh) -> Sequence[Option]:
        return table[first, stop, mesh]

    tried = [
        pipeline_time([one.seconds for one in made], count) for made in every(layers, nodes * per_node, sizes, options)
    ]
    if not tried:
        with pytest.raises(NoPipeline, match="allow smaller submeshes or more memory"):
            plan_pipeline(layers, nodes * per_node, sizes, count, options)
        return
    found = plan_pipeline(layers, nodes * per_node, sizes, count, options)
    assert found.seconds == min(tried)
    assert [one.first for one in found.stages] == [0, *(one.stop for one in found.stages[:-1])]
    assert found.stages[-1].stop == layers
    assert sum(n * m for n, m in (one.submesh for one in found.stages)) == nodes * per_node
    assert pipeline_time([one.option.seconds for one in found.stages], count) == found.seconds
    for behind, one in enumerate(reversed(found.stages)):
        assert one.option in table[one.first, one.stop, one.submesh]
        assert one.option.successors >= behind


def test_what_a_pipeline_takes() -> None:
    """The first micro-batch through all stages, each further one behind the slowest."""
    assert pipeline_time([1.0, 3.0, 2.0], 5) == 1 + 3 + 2 + 4 * 3
    assert pipeline_time([2.0], 1) == 2


def test_times_that_differ_by_rounding_are_all_looked_at() -> None:
    """Two stages of one device, a layer each: the second option of the last stage is the faster one by 1e-7."""
    seconds = {(0, 1): [2.0], (1, 2): [2.0 + 3e-7, 2.0 + 2e-7], (0, 2): [9.0]}

    def options(first: int, stop: int, mesh: Submesh) -> Sequence[Option]:
        return [Option(one) for one in seconds[first, stop]]

    found = plan_pipeline(2, 2, [(1, 1)], 3, options)
    assert [one.option.seconds for one in found.stages] == [2.0, 2.0 + 2e-7]
    for layers, devices, count in ((0, 2, 3), (2, 0, 3), (2, 2, 0)):
        with pytest.raises(ValueError, match="1 or more of each"):
            plan_pipeline(layers, devices, [(1, 1)], count, options)


def test_memory_limits_what_may_come_behind() -> None:
    # 100 bytes, 20 while it computes, 30 always, 10 kept for each micro-batch: 5 of them fit, one is its own.
    assert successors(100, 20, 30, 10) == 4
    assert successors(49, 20, 30, 10) == -1
    assert successors(100, 20, 30, 0) > 1000
    assert successors(49, 20, 30, 0) == -1


def test_the_submeshes_of_a_cluster() -> None:
    assert submeshes(3, 4) == [(1, 1), (1, 2), (1, 4), (2, 4), (3, 4)]
    assert submeshes(2, 6) == [(1, 1), (1, 2), (1, 4), (1, 6), (2, 6)]
    with pytest.raises(ValueError, match="1 or more of both"):
        submeshes(0, 4)


def test_the_largest_submesh_is_placed_first() -> None:
    """So that two devices of one stage never lie in two nodes."""
    assert place([(1, 1), (1, 2), (1, 1)], 2) == [(2,), (0, 1), (3,)]
    assert place([(1, 2), (2, 4), (1, 2)], 4) == [(8, 9), tuple(range(8)), (10, 11)]
    with pytest.raises(ValueError, match="would lie across nodes"):
        place([(1, 2), (1, 2)], 3)


def test_32_layers_on_64_devices_take_seconds() -> None:
    def options(first: int, stop: int, mesh: Submesh) -> Sequence[Option]:
        return [Option((stop - first) / mesh[1] * (1 + 0.05 * mesh[1]), 64)]

    began = time.process_time()
    found = plan_pipeline(32, 64, submeshes(8, 8)[:4], 64, options)
    assert sum(one.stop - one.first for one in found.stages) == 32
    assert time.process_time() - began < 60
