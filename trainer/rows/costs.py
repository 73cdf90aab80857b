"""The planner's costs against closed forms of their sources. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

GB = 1e9
ZERO = ((0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9))
"""Rajbhandari et al. 2020, figure 1: GB of one rank, 7.5 B parameters over 64 replicas."""


def comet() -> Iterator[Row]:
    yield from _compute()
    yield from _collectives()
    yield from _memory()
    yield from _step()


def _compute() -> Iterator[Row]:
    from holdfast.planner.cost.compute import Engine, hybrid, traffic

    engine = Engine(flops=100.0, bytes_per_s=10.0, cache_bytes=0.0)
    yield Row("roofline, intensity without end: seconds of 1000 at 100/s", 10.0, engine.seconds(1000.0, 0.0))
    yield Row("roofline, intensity 5 of 10: half the speed", 20.0, engine.seconds(1000.0, 200.0))
    yield Row("traffic, everything fits: u + v + w", 448.0, traffic(8, 4, 16, 2, 1000))
    yield Row("traffic, u in two pieces: 2 v + u + w", 576.0, traffic(8, 4, 16, 2, 50))
    yield Row("hybrid memory, nothing expanded", 10.0, hybrid(10.0, 1.0, 0.0))
    yield Row("hybrid memory, half of 10 and of 1: harmonic mean", 1 / (0.5 / 10 + 0.5 / 1), hybrid(10.0, 1.0, 0.5))


def _collectives() -> Iterator[Row]:
    from holdfast.planner.cluster.cluster import Hop
    from holdfast.planner.cost.collectives import Collective, Ring, hierarchical

    near, far, size = Hop(3e-6, 1 / 300e9), Hop(8e-6, 1 / 25e9), 1e9
    # Reduce-scatter and all-gather over 8 in a node; of an eighth over 4 nodes in 2 log2 4 exchanges.
    inside = 2 * (7 * 3e-6 + size * 7 / 8 / 300e9)
    across = 2 * (2 * 8e-6 + size / 8 * 3 / 4 / 25e9)
    found = hierarchical(Collective.ALL_REDUCE, size, (Ring(8, near), Ring(4, far)))
    yield Row("all-reduce of 1 GB, 4 nodes of 8, ms", 1e3 * (inside + across), 1e3 * found)
    found = hierarchical(Collective.ALL_GATHER, size, (Ring(4, far),))
    yield Row("all-gather of 1 GB over 4, ms", 1e3 * (3 * 8e-6 + size * 3 / 4 / 25e9), 1e3 * found)


def _memory() -> Iterator[Row]:
    from holdfast.planner.cost.layers import Precision
    from holdfast.planner.cost.memory import model_states

    for zero, expected in ZERO:
        found = sum(model_states(7.5e9, 64, zero, Precision(2, 2, 12))) / GB
        yield Row(f"states of ZeRO stage {zero}, 7.5 B over 64, GB", expected, found, 0.05)


def _step() -> Iterator[Row]:
    from holdfast.planner.cost.layout import Layout
    from holdfast.planner.cost.schedule import StageTimes, run

    for ranks, micro_batches in ((4, 8), (8, 32), (16, 256)):
        times = [StageTimes((1.0, 0.0, 0.0, 0.0), (2.0, 0.0, 0.0, 0.0))] * ranks
        found = run(Layout(pp=ranks, micro_batches=micro_batches), times, 0.0)
        expected = 3.0 * (micro_batches + ranks - 1)
        yield Row(f"1F1B, pp={ranks}, {micro_batches} micro-batches", expected, max(one.end for one in found))
