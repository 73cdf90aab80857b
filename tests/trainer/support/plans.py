"""Plans of one layer a stage for the tests of schedules: small, pure, without a trainer."""

from __future__ import annotations

from holdfast.plan.plan import Layers, Mesh, Order, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.transfers import add_transfers, post_ahead

NAMES = ("1f1b", "eager-1f1b", "gpipe", "interleaved", "bfs")
"""Those with whole backwards and one replica of a stage. For others see test_schedule_oracle.py and schedules/."""
SINGLE = tuple(name for name in NAMES if SCHEDULES[name].chunks == 1)


def computations(name: str, ranks: int, chunks: int, count: int) -> list[Order]:
    return SCHEDULES[name].build(ranks, chunks, count)


def plan_of(name: str, ranks: int, count: int, chunks: int = 2, ahead: int | None = None) -> Plan:
    """With transfers, posted so far ahead, unless `ahead` is None."""
    chunks = 1 if name in SINGLE else chunks
    orders = computations(name, ranks, chunks, count)
    rank_of = [SCHEDULES[name].placement.rank_of(stage, ranks) for stage in range(ranks * chunks)]
    if ahead is not None:
        orders = [post_ahead(order, rank_of, ahead) for order in add_transfers(orders, rank_of)]
    stages = tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(rank_of))
    return Plan(name, Mesh.of(pp=ranks), stages, count, tuple(orders))
