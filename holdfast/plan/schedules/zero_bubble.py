"""Little or no bubble: backward is halved, and weight gradients, which nothing waits for, fill gaps (Qi et al. 2023).

The lists equal torch's, which is the oracle in tests, and need no torch.
"""

from __future__ import annotations

from collections import Counter

from holdfast.plan.plan import Action, Op, Order
from holdfast.plan.schedules.interleaved import round_size, rounds

_F, _I, _W = Op.FORWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT
_Step = tuple[Op, int]
"""An op of the rank's stage on the way out (0) or back (1); its micro-batch is the next one there."""
_OUT: tuple[_Step, ...] = ((_I, 0), (_W, 0))
_BACK: tuple[_Step, ...] = ((_F, 1), (_I, 1), (_W, 1))


def zbv(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Two stages a rank, placed as a V, so that the rank that makes a loss has the first backward to do.

    No bubble but the first and last steps' where forward and both halves of backward take the same time.
    """
    # With fewer micro-batches the pipeline is never full: the list is that of a full one, with gaps.
    full = max(2 * ranks - 1, micro_batches)
    orders = []
    for rank in range(ranks):
        steps = _steps(rank, ranks, full)
        turn: Counter[_Step] = Counter()
        order = []
        for op, way in steps:
            action = Action(op, 2 * ranks - 1 - rank if way else rank, turn[op, way])
            turn[op, way] += 1
            if action.micro_batch < micro_batches:
                order.append(action)
        orders.append(tuple(order))
    return orders


def _steps(rank: int, ranks: int, count: int) -> list[_Step]:
    """A rank's ops in order, for micro-batches that fill the pipeline."""
    after = ranks - rank
    steps: list[_Step] = [(_F, 0)] * (2 * after - 1) + [(_F, 1), (_F, 0)] * rank
    steps += _BACK * after
    ahead = count - (2 * after - 1 + rank)  # forwards on the way out that are left
    steps += [(_F, 0), *_OUT, *_BACK] * ahead
    steps += [*_OUT, *_BACK] * (count - after - rank - ahead)
    steps += [(_I, 0), (_I, 1)] * rank  # the ranks before this one wait for these: weights come later
    steps += _OUT * after
    for way in (1, 0):
        steps += [(_W, way)] * (steps.count((_I, way)) - steps.count((_W, way)))
    return steps


def interleaved_zero_bubble(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """Rank r holds stages r, r + ranks, ..., and computes weight gradients r inputs' gradients late.

    ValueError unless the micro-batches fill whole rounds, each of about one micro-batch a rank.
    """
    size = round_size(ranks, micro_batches)
    total = chunks * micro_batches
    orders = []
    for rank in range(ranks):
        stages = [rank + ranks * chunk for chunk in range(chunks)]
        forwards = list(rounds(_F, stages, size, micro_batches))
        inputs = list(rounds(_I, stages[::-1], size, micro_batches))
        weights = [Action(_W, one.stage, one.micro_batch) for one in inputs]
        ahead = min((chunks - 1) * size + ranks - 1 - rank, total)
        order = forwards[:ahead]
        for i, one in enumerate(inputs):
            order += [
                *forwards[ahead + i : ahead + i + 1],
                one,
                *(weights[i - rank : i - rank + 1] if i >= rank else ()),
            ]
        orders.append((*order, *weights[max(total - rank, 0) :]))
    return orders
