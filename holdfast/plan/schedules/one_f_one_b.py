"""Forwards to fill the pipeline, then one forward and one backward in turn, then the backwards that are left.

The bubble is that of GPipe, (D-1)/(N+D-1). What differs is how far a rank runs ahead of its backwards: that is
the number of micro-batches whose activations it holds, and the time that a message may take unnoticed.
"""

from __future__ import annotations

from holdfast.plan.plan import Action, Op, Order


def one_f_one_b(ranks: int, micro_batches: int) -> list[Order]:
    """The least memory: rank r of D holds D - r micro-batches. Each message is waited for, twice a micro-batch."""
    return [_alternating(rank, micro_batches, ranks - rank) for rank in range(ranks)]


def eager_one_f_one_b(ranks: int, micro_batches: int) -> list[Order]:
    """Rank r of D holds 2(D - r) - 1 micro-batches, and messages hide under computation (Zhuang et al. 2023)."""
    return [_alternating(rank, micro_batches, 2 * (ranks - rank) - 1) for rank in range(ranks)]


def _alternating(stage: int, micro_batches: int, held: int) -> Order:
    """Forward runs ahead of backward by `held` micro-batches, the one under way included."""
    ahead = min(held, micro_batches) - 1
    order = [Action(Op.FORWARD, stage, m) for m in range(ahead)]
    for m in range(micro_batches):
        if m + ahead < micro_batches:
            order.append(Action(Op.FORWARD, stage, m + ahead))
        order.append(Action(Op.BACKWARD, stage, m))
    return tuple(order)
