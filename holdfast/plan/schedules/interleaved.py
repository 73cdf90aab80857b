"""1F1B with several stages on each rank (Narayanan et al. 2021): V stages divide the bubble by V.

A rank goes through its stages in rounds: so many micro-batches through the first, the same through the second,
and so on; backwards do the same from the last stage on.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.plan.plan import Action, Op, Order


def interleaved(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Rank r holds stages r, r + ranks, ...; one list of forwards and backwards a rank.

    ValueError unless the micro-batches fill whole rounds, each of about one micro-batch a rank.
    """
    size = round_size(ranks, micro_batches)
    total = chunks * micro_batches
    orders = []
    for rank in range(ranks):
        forwards = rounds(Op.FORWARD, [rank + ranks * chunk for chunk in range(chunks)], size, micro_batches)
        backwards = rounds(
            Op.BACKWARD, [rank + ranks * chunk for chunk in reversed(range(chunks))], size, micro_batches
        )
        ahead = min((chunks - 1) * size + 2 * (ranks - 1 - rank), total)
        order = [next(forwards) for _ in range(ahead)]
        for _ in range(total - ahead):
            order += [next(forwards), next(backwards)]
        orders.append((*order, *backwards))
    return orders


def round_size(ranks: int, micro_batches: int) -> int:
    """Micro-batches in a round. ValueError if they do not fill whole rounds."""
    rounds = max(1, micro_batches // ranks)
    if micro_batches % rounds:
        raise ValueError(f"{micro_batches} micro-batches do not fill {rounds} rounds evenly")
    return micro_batches // rounds


def rounds(op: Op, stages: list[int], size: int, micro_batches: int) -> Iterator[Action]:
    """An op of each stage and micro-batch: `size` micro-batches through each stage, then the next as many."""
    for first in range(0, micro_batches, size):
        for stage in stages:
            for m in range(first, first + size):
                yield Action(op, stage, m)
