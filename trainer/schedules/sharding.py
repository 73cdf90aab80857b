"""Passes for parameters and gradients that are sharded over replicas: gather, free, reduce."""

from __future__ import annotations

from collections import Counter

from holdfast.plan import COMPUTE, Action, Op, Order, numbered

_LAST_BACKWARDS = (Op.BACKWARD, Op.BACKWARD_WEIGHT)


def add_unshard(order: Order, live: int) -> Order:
    """Gather the next `live` stages that will compute, before they do; free those that are not among them.

    With 1, memory for one gathered stage and a gather at every change of stage; with 2 the next is gathered
    while one works; with all of the rank's stages, one gather a step.
    """
    if live < 1:
        raise ValueError(f"{live} stages cannot compute: 1 or more must be whole at a time")
    result: list[Action] = []
    whole: list[int] = []
    for i, action in enumerate(order):
        if action.op in COMPUTE:
            wanted = _upcoming(order, i, live)
            result += [Action(Op.RESHARD, stage) for stage in whole if stage not in wanted]
            result += [Action(Op.UNSHARD, stage) for stage in wanted if stage not in whole]
            whole = [*(stage for stage in whole if stage in wanted), *(s for s in wanted if s not in whole)]
        result.append(action)
    return numbered([*result, *(Action(Op.RESHARD, stage) for stage in whole)])


def add_reduce(order: Order, micro_batches: int) -> Order:
    """Reduce a stage's gradients over the replicas directly behind its last backward."""
    done: Counter[int] = Counter()
    result: list[Action] = []
    for action in order:
        result.append(action)
        if action.op in _LAST_BACKWARDS:
            done[action.stage] += 1
            if done[action.stage] == micro_batches:
                result.append(Action(Op.REDUCE_GRAD, action.stage))
    return tuple(result)


def _upcoming(order: Order, start: int, count: int) -> list[int]:
    """The next `count` stages to compute from a place in the list on, each once."""
    found: list[int] = []
    for action in order[start:]:
        if action.op in COMPUTE and action.stage not in found:
            found.append(action.stage)
            if len(found) == count:
                break
    return found
