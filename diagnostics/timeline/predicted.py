"""What a step should have been by its plan: `simulate` on the job's own plan, with times from measured spans. Pure.

Where a rank did its computations in another order than its list has (a message-driven schedule has no order), the
prediction is for the order that it took: lateness then says what was slow, and not what else could have been chosen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.base.errors import NotFound
from holdfast.diagnostics.timeline.action_times import ActionTimes
from holdfast.diagnostics.timeline.step_actions import TIMED, Floats, Ints, StepActions
from holdfast.plan.plan import COMPUTE, RECEIVES, Action, Order, Plan
from holdfast.plan.simulate import simulate


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of lines that did everything in one order. Seconds since the start of the step's first computation."""

    lines: Ints
    plan: Plan
    """With the order that was predicted."""
    is_own_order: bool
    """The order is the one that the ranks took, and not the plan's."""
    start: Floats
    """(actions,): rows as in `StepActions`."""
    end: Floats

    @property
    def length(self) -> float:
        """Until the end of the last computation, or of the last sum."""
        return float(self.end.max())


MOST_ACTIONS = 200_000
"""Of a plan that is simulated: about ten seconds."""
MOST_ORDERS = 16


def predict(seen: StepActions, times: ActionTimes, first: Collection[int] = ()) -> list[Prediction]:
    """One for all lines that follow the plan, and one for each other order, of at most so many: those of the ranks in
    `first` before others. NotFound where an order that was taken cannot be, since some of its spans are missing, and
    for a plan with too many actions.
    """
    if len(seen.rows) > MOST_ACTIONS:
        raise NotFound(f"the job's plan has {len(seen.rows):,} actions: at most {MOST_ACTIONS:,} are simulated")
    orders = sorted(_orders(seen), key=lambda one: not np.isin(seen.ranks[:, one[0]], list(first)).any())
    return [_predicted(seen, times, lines, plan) for lines, plan in orders[:MOST_ORDERS]]


def _predicted(seen: StepActions, times: ActionTimes, lines: Ints, plan: Plan) -> Prediction:
    try:
        found = simulate(plan, times.duration, times.latency)
    except ValueError as error:
        raise NotFound(f"step {seen.step} cannot be predicted, spans of its ranks are missing: {error}") from None
    ids = [action.id for _, action in seen.rows]
    start, end = (np.array([by_id[one] for one in ids]) for by_id in (found.start, found.end))
    first = start[seen.of(COMPUTE)].min()  # what was measured begins there as well
    timed = np.isin(np.arange(len(ids)), seen.of(TIMED))
    start, end = (np.where(timed, at - first, np.nan) for at in (start, end))
    return Prediction(lines, plan, plan is not seen.plan, start, end=np.where(timed, end, -np.inf))


def _orders(seen: StepActions) -> Iterator[tuple[Ints, Plan]]:
    """Lines by the order of their computations."""
    by_rank: dict[int, list[int]] = defaultdict(list)
    for row, (rank, action) in enumerate(seen.rows):
        if action.op in COMPUTE:
            by_rank[rank].append(row)
    takes = {rank: seen.start[rows] for rank, rows in by_rank.items()}
    own = np.zeros(seen.ranks.shape[1], np.bool_)
    for starts in takes.values():
        own |= (np.diff(starts, axis=0) < 0).any(axis=0)
    if not own.all():
        yield np.flatnonzero(~own), seen.plan
    orders: dict[bytes, tuple[list[int], dict[int, Ints]]] = {}
    for line in np.flatnonzero(own).tolist():
        taken = {rank: np.argsort(starts[:, line], kind="stable") for rank, starts in takes.items()}
        key = b"".join(order.tobytes() for order in taken.values())
        orders.setdefault(key, ([], taken))[0].append(line)
    for lines, taken in orders.values():
        moved = (_reordered(order, taken[rank]) for rank, order in enumerate(seen.plan.orders))
        yield np.array(lines), replace(seen.plan, orders=tuple(moved))


def _reordered(order: Order, taken: Ints) -> Order:
    """A list with its computations in the order taken, each with what follows it; receives are posted before all."""
    head: list[Action] = []
    turns: list[list[Action]] = []
    for action in order:
        if action.op in RECEIVES:
            head.append(action)
        elif action.op in COMPUTE:
            turns.append([action])
        else:
            (turns[-1] if turns else head).append(action)
    return (*head, *(action for number in taken.tolist() for action in turns[number]))
