"""Passes for parameters and gradients that are sharded over replicas: gather, free, reduce."""

from __future__ import annotations

from collections import Counter

from holdfast.plan.plan import COMPUTE, Action, Op, Order, numbered

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


def add_unshard_each(order: Order) -> Order:
    """Gather a stage for each computation and free it behind it."""
    result: list[Action] = []
    for action in order:
        s = action.stage
        around = action.op in COMPUTE
        result += [Action(Op.UNSHARD, s), action, Action(Op.RESHARD, s)] if around else [action]
    return numbered(result)


def add_reduce(order: Order, every: int) -> Order:
    """Reduce a stage's gradients over the replicas directly behind `every` backwards of its.

    With the number of micro-batches that is once a step, with 1 after each of them.
    """
    done: Counter[int] = Counter()
    result: list[Action] = []
    for action in order:
        result.append(action)
        if action.op in _LAST_BACKWARDS:
            done[action.stage] += 1
            if done[action.stage] % every == 0:
                result.append(Action(Op.REDUCE_GRAD, action.stage))
    return numbered(result)


def add_reduce_when_freed(order: Order) -> Order:
    """Reduce a stage's gradients whenever it is about to be freed, so that they never outlive it."""
    unreduced: set[int] = set()
    result: list[Action] = []
    for action in order:
        if action.op in _LAST_BACKWARDS:
            unreduced.add(action.stage)
        elif action.op is Op.RESHARD and action.stage in unreduced:
            unreduced.remove(action.stage)
            result.append(Action(Op.REDUCE_GRAD, action.stage))
        result.append(action)
    return numbered(result)


def _upcoming(order: Order, start: int, count: int) -> list[int]:
    """The next `count` stages to compute from a place in the list on, each once."""
    found: list[int] = []
    for action in order[start:]:
        if action.op in COMPUTE and action.stage not in found:
            found.append(action.stage)
            if len(found) == count:
                break
    return found
