"""All forwards, then all backwards. Bubble (D-1)/(N+D-1), N micro-batches held (Huang et al. 2019)."""

from __future__ import annotations

from holdfast.plan.plan import Action, Op, Order


def gpipe(ranks: int, micro_batches: int) -> list[Order]:
    """One stage on each of `ranks` ranks; one list of forwards and backwards a rank."""
    return [
        tuple(Action(op, rank, m) for op in (Op.FORWARD, Op.BACKWARD) for m in range(micro_batches))
        for rank in range(ranks)
    ]
