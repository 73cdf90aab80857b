"""Passes for parameters and gradients that are sharded over replicas: gather, free, reduce.

A rank's list may hold several pipes' replicas of stages, each gathered and reduced for itself: `pipes` says how many
there are, so that actions have ids of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, Action, Op, Order, Plan, numbered
from holdfast.plan.simulate import Timeline

Replica = tuple[int, int]
"""(pipe, stage)."""


def add_unshard(order: Order, live: int, pipes: int = 1) -> Order:
    """Gather the next `live` stages that will compute, before they do; free those that are not among them.

    With 1, memory for one gathered stage and a gather at every change of stage; with 2 the next is gathered
    while one works; with all of the rank's stages, one gather a step.
    """
    if live < 1:
        raise ValueError(f"{live} stages cannot compute: 1 or more must be whole at a time")
    result: list[Action] = []
    whole: list[Replica] = []
    for i, action in enumerate(order):
        if action.op in COMPUTE:
            wanted = _upcoming(order, i, live)
            result += [_on(Op.RESHARD, one) for one in whole if one not in wanted]
            result += [_on(Op.UNSHARD, one) for one in wanted if one not in whole]
            whole = [*(one for one in whole if one in wanted), *(one for one in wanted if one not in whole)]
        result.append(action)
    return numbered([*result, *(_on(Op.RESHARD, one) for one in whole)], pipes)


def add_unshard_each(order: Order, pipes: int = 1) -> Order:
    """Gather a stage for each computation and free it behind it."""
    result: list[Action] = []
    for action in order:
        one = action.pipe, action.stage
        around = action.op in COMPUTE
        result += [_on(Op.UNSHARD, one), action, _on(Op.RESHARD, one)] if around else [action]
    return numbered(result, pipes)


def add_reduce(order: Order, every: int, pipes: int = 1) -> Order:
    """Reduce a stage's gradients over the replicas directly behind `every` backwards of its.

    With the number of micro-batches that is once a step, with 1 after each of them.
    """
    done: Counter[Replica] = Counter()
    result: list[Action] = []
    for action in order:
        result.append(action)
        if action.op in LAST_BACKWARDS:
            one = action.pipe, action.stage
            done[one] += 1
            if done[one] % every == 0:
                result.append(_on(Op.REDUCE_GRAD, one))
    return numbered(result, pipes)


def add_unshard_together(plan: Plan, orders: Sequence[Order]) -> list[Order]:
    """Gather all that a rank holds before it computes, over the replicas in all pipes, and free it at the end.

    Stage by stage: that is the order in which any rank first uses them, so all begin their gatherings in one order.
    """
    result = []
    for rank, order in enumerate(orders):
        held = [(pipe, s) for s in range(len(plan.stages)) for pipe, at in enumerate(plan.ranks_of(s)) if at == rank]
        gathers, frees = ([_on(op, one) for one in held] for op in (Op.UNSHARD, Op.RESHARD))
        result.append(numbered([*gathers, *order, *frees], plan.pipes))
    return result


def add_reduce_when_freed(order: Order, pipes: int = 1) -> Order:
    """Reduce a stage's gradients whenever it is about to be freed, so that they never outlive it.

    Behind its last backward at once: it may be freed much later, and nothing would be left to compute meanwhile.
    """
    lasts = {(a.pipe, a.stage): i for i, a in enumerate(order) if a.op in LAST_BACKWARDS}
    unreduced: set[Replica] = set()
    result: list[Action] = []
    for i, action in enumerate(order):
        one = action.pipe, action.stage
        if lasts.get(one) == i:
            unreduced.discard(one)
            result += [action, _on(Op.REDUCE_GRAD, one)]
            continue
        if action.op in LAST_BACKWARDS:
            unreduced.add(one)
        elif action.op is Op.RESHARD and one in unreduced:
            unreduced.remove(one)
            result.append(_on(Op.REDUCE_GRAD, one))
        result.append(action)
    return numbered(result, pipes)


def add_reduce_once(plan: Plan, early: Sequence[int] = ()) -> list[Order]:
    """Each rank's list with one reduction of each of its replicas, over those of the same stage in all pipes.

    Stages in `early` are reduced behind their last backward, in the order given: a rank that is ready for a later one
    first does it second. The others follow at the end, in the order of stages. So all ranks reduce in one order, and
    never wait for each other in a circle. Replicas of a pipe without micro-batches take part: their peers need them.
    """
    turn = [*early, *(stage for stage in range(len(plan.stages)) if stage not in early)]
    result = []
    for rank, order in enumerate(plan.orders):
        lasts = {(a.pipe, a.stage): i + 1 for i, a in enumerate(order) if a.op in LAST_BACKWARDS}
        at, inserted = 0, 0
        actions = list(order)
        for stage in turn:
            for pipe, place in enumerate(plan.ranks_of(stage)):
                if place == rank:
                    at = max(at, lasts.get((pipe, stage), 0) if stage in early else len(order))
                    actions.insert(at + inserted, _on(Op.REDUCE_GRAD, (pipe, stage)))
                    inserted += 1
        result.append(numbered(actions, plan.pipes))
    return result


def add_reduce_each(plan: Plan, line: Timeline) -> list[Order]:
    """Each rank's list with reductions of a stage whenever all pipes have new gradients, behind a micro-batch of each.

    In `line`, a simulated step; the last of a stage is behind all of its backwards. Each rank does it behind what it
    has computed by then. So all reduce in one order, and whoever waits for a reduction waits for nothing that comes
    later: no circle.
    """
    moments = sorted((at, stage) for stage in range(len(plan.stages)) for at in _all_new(plan, line, stage))
    result = []
    for rank, order in enumerate(plan.orders):
        held = [(at, (pipe, s)) for at, s in moments for pipe, place in enumerate(plan.ranks_of(s)) if place == rank]
        actions: list[Action] = []
        for action in order:
            while held and action.op in COMPUTE and line.end[action.id] > held[0][0]:
                actions.append(_on(Op.REDUCE_GRAD, held.pop(0)[1]))
            actions.append(action)
        result.append(numbered([*actions, *(_on(Op.REDUCE_GRAD, one) for _, one in held)], plan.pipes))
    return result


def _all_new(plan: Plan, line: Timeline, stage: int) -> list[float]:
    """When each replica of a stage that computes has gradients of a whole micro-batch since the time before."""
    ends: dict[int, list[float]] = {}
    for _, action in plan.actions():
        if action.op in LAST_BACKWARDS and action.stage == stage and action.part[0] == action.parts - 1:
            ends.setdefault(action.pipe, []).append(line.end[action.id])
    found: list[float] = []
    at = 0.0
    while all(each[-1] > at for each in ends.values()):
        at = max(next(end for end in each if end > at) for each in ends.values())
        found.append(at)
    return [*found[:-1], max(each[-1] for each in ends.values())]


def reduced_early(plan: Plan, line: Timeline, only_idle: bool) -> list[int]:
    """Stages by when the last of their replicas has all its gradients, in a simulated step.

    With `only_idle`, those behind whose last backward all ranks that hold them have nothing to compute for a while.
    """
    ready: dict[int, float] = dict.fromkeys(range(len(plan.stages)), 0.0)
    is_idle = dict.fromkeys(ready, True)
    for order in plan.orders:
        computed = [action for action in order if action.op in COMPUTE]
        gaps = [line.start[b.id] > line.end[a.id] for a, b in pairwise(computed)] + [False]
        lasts = {(a.pipe, a.stage): (a, gap) for a, gap in zip(computed, gaps, strict=True) if a.op in LAST_BACKWARDS}
        for action, gap in lasts.values():
            ready[action.stage] = max(ready[action.stage], line.end[action.id])
            is_idle[action.stage] &= gap
    return sorted((s for s in ready if is_idle[s] or not only_idle), key=lambda stage: (ready[stage], stage))


def _on(op: Op, replica: Replica) -> Action:
    """A whole-stage op of a replica."""
    pipe, stage = replica
    return Action(op, stage, pipe=pipe)


def _upcoming(order: Order, start: int, count: int) -> list[Replica]:
    """The next `count` stages to compute from a place in the list on, each once."""
    found: list[Replica] = []
    for action in order[start:]:
        one = action.pipe, action.stage
        if action.op in COMPUTE and one not in found:
            found.append(one)
            if len(found) == count:
                break
    return found
