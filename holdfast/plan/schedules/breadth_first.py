"""Several stages on each rank, all micro-batches through one before the next (Lamy-Poirier 2023).

The bubble of interleaved 1F1B, at the memory of GPipe: each stage is gathered once a pass however many
micro-batches there are, its gradients are reduced while the next one works, and messages hide.
"""

from __future__ import annotations

from holdfast.plan.plan import Action, Op, Order


def breadth_first(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Rank r holds stages r, r + ranks, ...; one list of forwards and backwards a rank."""
    orders = []
    for rank in range(ranks):
        stages = [rank + ranks * chunk for chunk in range(chunks)]
        forwards = [Action(Op.FORWARD, stage, m) for stage in stages for m in range(micro_batches)]
        # The mirror image of the forwards: the activations made last are used first.
        orders.append((*forwards, *(Action(Op.BACKWARD, a.stage, a.micro_batch) for a in reversed(forwards))))
    return orders
