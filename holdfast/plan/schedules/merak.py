"""1F1B with recompute as an action of its own, moved off the critical path step by step (Lai et al., TPDS 2023).

Four lists over the same placement, each faster than the one before by what it takes off the path: the baseline
recomputes when the gradient arrives; early recompute does so while waiting for it; then the last stage, which waits for
nothing, keeps its activations; then a forward of the last stage but one takes the slot of its first backward, so that
the last stage is not kept waiting for it.
"""

from __future__ import annotations

from holdfast.plan.plan import Action, Op, Order
from holdfast.plan.schedules.one_f_one_b import one_f_one_b


def baseline(ranks: int, micro_batches: int) -> list[Order]:
    """Recompute in the critical path: (N + D - 1)(2f + b)."""
    return [_recomputed(order, late=True) for order in one_f_one_b(ranks, micro_batches)]


def early_recompute(ranks: int, micro_batches: int) -> list[Order]:
    """What waits for its gradient is recomputed meanwhile: (D - 1)f less."""
    return [_recomputed(order) for order in one_f_one_b(ranks, micro_batches)]


def last_stage_kept(ranks: int, micro_batches: int) -> list[Order]:
    """Early, and the last stage does not recompute."""
    return [_recomputed(order) for order in one_f_one_b(ranks, micro_batches)[:-1]] + one_f_one_b(ranks, micro_batches)[
        -1:
    ]


def shifted(ranks: int, micro_batches: int) -> list[Order]:
    """Last stage kept, and the last but one does its third forward before its first backward.

    It then holds a micro-batch more. With fewer than 2 ranks or 3 micro-batches there is nothing to shift.
    """
    orders = one_f_one_b(ranks, micro_batches)
    if ranks >= 2 and micro_batches >= 3:
        stage = ranks - 2
        order = list(orders[stage])
        first = order.index(Action(Op.BACKWARD, stage, 0))
        third = order.index(Action(Op.FORWARD, stage, 2))
        order[first], order[third] = order[third], order[first]
        orders[stage] = tuple(order)
    return [*(_recomputed(order) for order in orders[:-1]), orders[-1]]


def _recomputed(order: Order, late: bool = False) -> Order:
    """With a recompute directly before each backward."""
    result: list[Action] = []
    for action in order:
        if action.op is Op.BACKWARD:
            result.append(Action(Op.RECOMPUTE, action.stage, action.micro_batch, late=late))
        result.append(action)
    return tuple(result)
