"""Plans of one layer a stage for the tests of schedules: small, pure, without a trainer."""

from __future__ import annotations

from holdfast.plan.plan import Layers, Mesh, Order, Plan
from holdfast.trainer.schedules.breadth_first import breadth_first
from holdfast.trainer.schedules.gpipe import gpipe
from holdfast.trainer.schedules.interleaved import interleaved
from holdfast.trainer.schedules.one_f_one_b import eager_one_f_one_b, one_f_one_b
from holdfast.trainer.schedules.transfers import add_transfers, post_ahead

SINGLE = {"gpipe": gpipe, "1f1b": one_f_one_b, "eager-1f1b": eager_one_f_one_b}
LOOPED = {"interleaved": interleaved, "bfs": breadth_first}
NAMES = (*SINGLE, *LOOPED)


def computations(name: str, ranks: int, chunks: int, count: int) -> list[Order]:
    return SINGLE[name](ranks, count) if name in SINGLE else LOOPED[name](ranks, chunks, count)


def plan_of(name: str, ranks: int, count: int, chunks: int = 2, ahead: int | None = None) -> Plan:
    """With transfers, posted so far ahead, unless `ahead` is None."""
    chunks = 1 if name in SINGLE else chunks
    orders = computations(name, ranks, chunks, count)
    rank_of = [stage % ranks for stage in range(ranks * chunks)]
    if ahead is not None:
        orders = [post_ahead(order, rank_of, ahead) for order in add_transfers(orders, rank_of)]
    stages = tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(rank_of))
    return Plan(name, Mesh.of(pp=ranks), stages, count, tuple(orders))
