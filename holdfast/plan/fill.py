"""Work that may be done at any time between two computations, into the time in which ranks wait for each other. Pure.

Of a step's schedule nothing moves: what is put in ends before the rank's next computation would begin (the greedy fill
of PipeFisher; Osawa et al., MLSys 2023). What finds no room is done in the next step's bubbles, before that step's own:
it is *late*, always the same work in each step. Of one stage and kind, work is done in the order in which it comes up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, Action, Op, Order, Plan
from holdfast.plan.simulate import Duration, Timeline, simulate

MARGIN = 0.05
"""Share of its time by which a gap must be longer than what is put into it."""
_STEPS = 16
"""Steps after which what is late must have stopped growing."""


@dataclass(frozen=True, slots=True)
class Filler:
    """An action that a bubble may hold, and the ids of what must have ended before it."""

    action: Action
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Filled:
    """A step like all others in the long run."""

    plan: Plan
    """In which late actions are marked."""
    late: frozenset[str]
    """Ids of fillers that are those of the step before."""


def second_order(plan: Plan, rounds: Mapping[int, int] | None = None) -> list[list[Filler]]:
    """What K-FAC does on each pipeline rank besides preconditioning: for each micro-batch the factor of a stage's
    inputs behind its forward (an even turn), that of its gradients behind its backward (an odd one), then inversions.

    `rounds`: into how many actions the inversions of a stage are cut, by stage; one of each without it.
    """
    found: list[list[Filler]] = []
    for order in plan.orders:
        after: dict[tuple[int, int, int], tuple[str, ...]] = {}
        for action in order:
            if action.op is Op.FORWARD or action.op in LAST_BACKWARDS:
                for m in action.micro_batches:
                    # Behind the last of a micro-batch's parts.
                    key = action.pipe, action.stage, 2 * m + (action.op is not Op.FORWARD)
                    after[key] = (*after.pop(key, ()), action.id)
        fillers: list[Filler] = []
        factors: dict[tuple[int, int], list[str]] = {}
        for (pipe, stage, turn), ids in after.items():
            fillers.append(Filler(Action(Op.FACTOR, stage, turn=turn, pipe=pipe), ids))
            factors.setdefault((pipe, stage), []).append(fillers[-1].action.id)
        for (pipe, stage), of_stage in factors.items():
            for number in range(1 if rounds is None else rounds.get(stage, 0)):
                inversion = Action(Op.INVERT, stage, turn=number * plan.pipes + pipe, pipe=pipe)
                fillers.append(Filler(inversion, tuple(of_stage)))
        found.append(fillers)
    return found


def fill(plan: Plan, fillers: Sequence[Sequence[Filler]], duration: Duration) -> Filled:
    """The plan with each rank's `fillers` in its bubbles, first come first served, the late ones first.

    What finds no room in the next step either, because the bubbles hold less than there is, is done at a step's end:
    before the optimizer's steps, if the plan has them.
    """
    line = simulate(plan, duration)
    late: set[str] = set()
    orders = []
    for rank, (order, own) in enumerate(zip(plan.orders, fillers, strict=True)):
        gaps = _gaps(order, line, line.makespan)
        filled, carried = _settled(gaps, own, line, duration)
        late |= carried
        orders.append(_merged(order, [(at, replace(a, late=a.id in carried)) for at, a in filled]))
        assert sorted(a.id for a in orders[rank]) == sorted([*(a.id for a in order), *(one.action.id for one in own)])
    return Filled(replace(plan, orders=tuple(orders)), frozenset(late))


_Placed = list[tuple[int, Action]]
"""Fillers, each with the place in the rank's list before which it is done."""
_Gap = tuple[int, float, float]
"""Where a rank computes nothing: before which place in its list, from when, until when."""


def _gaps(order: Order, line: Timeline, makespan: float) -> list[_Gap]:
    found, clock = [], 0.0
    for place, action in enumerate(order):
        if action.op in COMPUTE:
            found.append((place, clock, line.start[action.id]))
            clock = line.end[action.id]
    end = next((place for place, action in enumerate(order) if action.op is Op.STEP), len(order))
    return [*found, (end, clock, makespan)]


@dataclass(frozen=True, slots=True)
class _Step:
    """What a rank does in a step of its own work, and of what the step before left."""

    placed: _Placed
    ended: list[Filler]
    """Of what was carried from the step before: what found no room again, and is done at the end."""
    left: list[Filler]
    """Of its own: what is carried to the next step."""


def _settled(
    gaps: Sequence[_Gap], own: Sequence[Filler], line: Timeline, duration: Duration
) -> tuple[_Placed, set[str]]:
    """What goes where when each step does what the one before it left over, and which those are.

    To be late is of use for what then finds room. Where that is not so for what others wait for (statistics), these
    have the bubbles for themselves, and the others are done at the end; if they still find none, nothing is late.
    """
    ids = {one.action.id for one in own}
    first = [one for one in own if ids.isdisjoint(one.after)]
    others = [one for one in own if not ids.isdisjoint(one.after)]
    end = gaps[-1][0]
    step = _in_the_long_run(gaps, own, line, duration)
    if step is not None and all(one in others for one in step.ended):
        late = {one.action.id for one in step.left}
        # At the end anyway: of its own step, unless it needs what is late.
        late -= {one.action.id for one in step.ended if late.isdisjoint(one.after)}
        return [*step.placed, *((end, one.action) for one in step.ended)], late
    step = _in_the_long_run(gaps, first, line, duration)
    if step is not None and not step.ended:
        late = {one.action.id for one in step.left}
        late |= {one.action.id for one in others if not late.isdisjoint(one.after)}
        return [*step.placed, *((end, one.action) for one in others)], late
    step = _step(gaps, (), own, line, duration)
    return [*step.placed, *((end, one.action) for one in step.left)], set()


def _in_the_long_run(gaps: Sequence[_Gap], own: Sequence[Filler], line: Timeline, duration: Duration) -> _Step | None:
    """A step that leaves what the one before it left. None: each leaves more."""
    carried: list[Filler] = []
    for _ in range(_STEPS):
        step = _step(gaps, carried, own, line, duration)
        if step.left == carried:
            return step
        carried = step.left
    return None


def _step(
    gaps: Sequence[_Gap], carried: Sequence[Filler], own: Sequence[Filler], line: Timeline, duration: Duration
) -> _Step:
    waiting = {one.action.id for one in carried}
    late, fresh, done = list(carried), list(own), set[str]()
    placed: _Placed = []
    for place, clock, end in gaps:
        while True:
            room = (end - clock) / (1 + MARGIN)
            one = next((one for one in late if waiting.isdisjoint(one.after) and duration(one.action) <= room), None)
            if one is not None:
                late.remove(one)
                waiting.discard(one.action.id)
            else:
                ready = (one for one in fresh if all(n in done or line.end.get(n, end) <= clock for n in one.after))
                one = next((one for one in ready if duration(one.action) <= room), None)
                if one is None:
                    break
                fresh.remove(one)
                done.add(one.action.id)
            clock += duration(one.action)
            placed.append((place, one.action))
    return _Step(placed, late, fresh)


def _merged(order: Order, placed: _Placed) -> Order:
    before: dict[int, list[Action]] = {}
    for place, action in placed:
        before.setdefault(place, []).append(action)
    result: list[Action] = []
    for place in range(len(order) + 1):
        result += before.get(place, [])
        result += order[place : place + 1]
    return tuple(result)
