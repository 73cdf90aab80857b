"""Which action came later than its prediction, on which rank, and where the delay began. Pure.

An action is *late* by the difference of its measured and its predicted end. Most lateness is passed on: an action that
needs the result is late as well. So each action also has a delay of its own: the time from when it could have begun
(its rank was free and what it needs was there, as measured) to its end, less the duration that was predicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from holdfast.diagnostics.timeline.action_times import ActionTimes
from holdfast.diagnostics.timeline.predicted import Prediction
from holdfast.diagnostics.timeline.step_actions import TIMED, TOGETHER, Floats, Ints, StepActions
from holdfast.plan.plan import RECEIVES, SENDS, Op


class Cause(StrEnum):
    """What the greater part of an action's own delay is."""

    LONGER = "longer"
    """It took longer than predicted."""
    MESSAGE = "message"
    """Its message was longer under way."""
    IDLE = "idle"
    """All was there, and the rank did or awaited something else."""


@dataclass(frozen=True, slots=True)
class Late:
    """Of one rank. Rows as in `StepActions`, -1: none of its spans is there. Seconds, below 0: earlier."""

    rank: int
    row: int
    """The computation or sum with the largest lateness..."""
    late_s: float
    own_row: int
    """... and the one with the largest delay of its own."""
    own_s: float
    cause: Cause
    part_s: float
    """How much of that delay is of this cause: the largest part."""
    peer: int
    """The rank that sent the late message; -1: another cause."""


def lateness(seen: StepActions, times: ActionTimes, predicted: Prediction) -> list[Late]:
    """Of each rank of the prediction's lines."""
    lines = predicted.lines
    start, end = seen.start[:, lines], seen.end[:, lines]
    ready, messages = _ready(seen, times, predicted, start, end)
    took = np.array([times.duration(action) for _, action in seen.rows])
    late = end - predicted.end[:, None]
    own = end - ready - took[:, None]
    found = []
    for rank in range(len(seen.plan.orders)):
        mine = [row for row in seen.of(TIMED) if seen.rows[row][0] == rank]
        shown = np.array([row for row in mine if seen.rows[row][1].op not in SENDS])
        timed = np.array(mine)
        worst, most = shown[_largest(late[shown])], timed[_largest(own[timed])]
        for column, line in enumerate(lines.tolist()):
            name, row, own_row = int(seen.ranks[rank, line]), int(worst[column]), int(most[column])
            values = float(late[row, column]), float(own[own_row, column])
            if np.isnan(values).any():
                found.append(Late(name, -1, 0.0, -1, 0.0, Cause.LONGER, 0.0, -1))
                continue
            cause, part, send = _cause(own_row, column, (start, end, ready, took), messages)
            peer = int(seen.ranks[seen.rows[send][0], line]) if send >= 0 else -1
            found.append(Late(name, row, values[0], own_row, values[1], cause, part, peer))
    return found


def _largest(values: Floats) -> Ints:
    """(rows, lines): of each line the row with the largest number; one with NaN where there is none."""
    found: Ints = np.where(np.isnan(values), -np.inf, values).argmax(axis=0)
    return found


Messages = dict[int, list[tuple[Floats, int]]]
"""By row: of each message by how much it was awaited beyond when it was due, by line, and the row of its send."""


def _ready(
    seen: StepActions, times: ActionTimes, predicted: Prediction, start: Floats, end: Floats
) -> tuple[Floats, Messages]:
    """(actions, lines): when each timed action could have begun, by what was measured of those before it."""
    ready = np.full(start.shape, np.nan)
    messages: Messages = {}
    free_at: dict[int, Floats] = {}
    for order in predicted.plan.orders:
        free = np.zeros(start.shape[1])
        for action in order:
            row = seen.place[action.id]
            if action.op in RECEIVES:
                free_at[row] = free
            elif action.op is Op.UNSHARD:
                # Begun here, and awaited where it is needed: its span is that wait, and may come much later.
                ready[row] = start[row]
            elif action.op in TIMED:
                ready[row] = free
                free = np.fmax(free, end[row])
    for row, wire in seen.wires.items():
        for need in wire.local:
            ready[row] = np.fmax(ready[row], end[need])
        for receive, send in wire.messages:
            posted = free_at[receive] if receive >= 0 else np.zeros(start.shape[1])
            due = np.fmax(end[send], posted) + times.latency(seen.rows[send][1])
            ready[row] = np.fmax(ready[row], due)
            if receive >= 0:
                # A receive that began after its message was due says nothing of when that came.
                late = end[receive] - np.fmax(due, start[receive])
                messages.setdefault(row, []).append((late, send))
    for rows in _done_together(seen):
        came = _last_to_come(seen, rows)[predicted.lines]
        for row in rows:
            ready[row] = np.fmax(ready[row], came)
    return ready, messages


def _done_together(seen: StepActions) -> Iterable[list[int]]:
    """Rows of what replicas do together: a sum is one of all pipes, a gathering of one."""
    found: dict[tuple[Op, int, int], list[int]] = {}
    for row in seen.of(TOGETHER):
        action = seen.rows[row][1]
        turn = action.turn // seen.plan.pipes if action.op is Op.REDUCE_GRAD else -1 - row
        found.setdefault((action.op, action.stage, turn), []).append(row)
    return found.values()


def _last_to_come(seen: StepActions, rows: list[int]) -> Floats:
    """(all lines,): when the last of those that do these rows together began."""
    began: Floats = np.fmax.reduce(seen.start[rows], axis=0)
    if "dp" not in seen.axes:
        return began
    folded = np.where(np.isnan(began), -np.inf, began).reshape(seen.sizes)
    last = folded.max(axis=seen.axes.index("dp"), keepdims=True)
    return np.broadcast_to(last, seen.sizes).reshape(-1)


def _cause(
    row: int, column: int, parts: tuple[Floats, Floats, Floats, Floats], messages: Messages
) -> tuple[Cause, float, int]:
    """What most of the delay of an action is, how much of it that is, and the row of the send if it is a message's."""
    start, end, ready, took = parts
    began_late = float(start[row, column] - ready[row, column])
    longer = float(end[row, column] - start[row, column] - took[row])
    late, send = max(
        ((float(beyond[column]), send) for beyond, send in messages.get(row, ())),
        default=(0.0, -1),
    )
    by_message = min(late, began_late) if late > 0 else 0.0
    idle = began_late - by_message
    if by_message > max(longer, idle):
        return Cause.MESSAGE, by_message, send
    return (Cause.LONGER, longer, -1) if longer >= idle else (Cause.IDLE, idle, -1)
