"""What is ready runs: no order is fixed, and a limit says how many micro-batches are under way (AxoNN).

The lists that a plan needs are those of a run in which no message takes any time. What a rank does first of what is
ready is decided when it is (`trainer/pipeline/message_driven.py`).
"""

from __future__ import annotations

from holdfast.plan.dynamic import simulate_ready
from holdfast.plan.plan import Layers, Mesh, Order, Plan
from holdfast.plan.schedules.one_f_one_b import one_f_one_b
from holdfast.plan.simulate import durations


def axonn(ranks: int, micro_batches: int, limit: int = 0) -> list[Order]:
    """The lists where messages take no time and a backward twice as long as a forward.

    `limit`: micro-batches under way, 0 for two a rank. With one a rank a message that is late starves the ranks behind
    it; with two the time of messages hides as under eager 1F1B.
    """
    stages = tuple(Layers(stage, stage + 1, stage) for stage in range(ranks))
    plan = Plan("axonn", Mesh.of(pp=ranks), stages, micro_batches, tuple(one_f_one_b(ranks, micro_batches)))
    return list(simulate_ready(plan, durations(1, 2), limit or default_limit(ranks)).plan.orders)


def default_limit(ranks: int) -> int:
    """Micro-batches under way where `parallel.in_flight` says nothing."""
    return 2 * ranks
