"""How long the actions of a plan take, as the medians of one step's spans: what a prediction is made of. Pure.

Exactly: a computation takes the median over all spans of its kind and stage (and of as many micro-batches at once), on
all ranks and micro-batches of the step. So does handing a message over. A message then takes the median, by direction
and receiving stage, of the times from the end of its send to the end of its receive, over the messages for which the
receiver was waiting when they were sent: others had arrived unnoticed. Where no receiver of a stage was waiting, it is
the median over all stages of that direction, then of both; 0 without any. What the replicas of a stage do together
(gathering, sums) takes the shortest span of each such action: the last to come waits for no other. An optimizer's work
between computations takes the median of its kind and stage: statistics by side, inversions by what is inverted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from holdfast.base.errors import NotFound
from holdfast.diagnostics.timeline.step_actions import TOGETHER, Floats, StepActions
from holdfast.plan.plan import BACKWARDS, COMPUTE, SECOND_ORDER, SENDS, SPANS, Action, Op

WorkKey = tuple[Op, int, Fraction]
"""Op, stage, how many micro-batches at once."""
_ONE = Fraction(1)
TogetherKey = tuple[Op, int, int]
"""Op, stage, which time in the step; of an optimizer's work, what it is about."""


@dataclass(frozen=True, slots=True)
class ActionTimes:
    """Seconds. `messages` by what receives (a receive's op, its stage)."""

    work: dict[WorkKey, float]
    together: dict[TogetherKey, float]
    messages: dict[tuple[Op, int], float]
    samples: dict[WorkKey, int]
    """Spans behind each median; of a message's op, messages, and of what replicas do together all spans, as share 1."""
    pipes: int = 1

    def duration(self, action: Action) -> float:
        """For how long an action keeps its rank. Receives, the batch and the optimizer take no time here."""
        if action.op in TOGETHER | SECOND_ORDER:
            return self.together.get(_turn(action, self.pipes), 0.0)
        return self.work.get((action.op, action.stage, action.share), 0.0)

    def latency(self, source: Action) -> float:
        """How long the message of a computation, or of a send, is under way."""
        if source.op in BACKWARDS or source.op is Op.SEND_BACKWARD:
            return self.messages.get((Op.RECV_BACKWARD, source.stage - 1), 0.0)
        return self.messages.get((Op.RECV_FORWARD, source.stage + 1), 0.0)


def action_times(seen: StepActions) -> ActionTimes:
    """The medians of a step. NotFound where a computation of the plan has no span of its kind and stage in it."""
    took = seen.end - seen.start
    by_work: dict[WorkKey, list[int]] = defaultdict(list)
    by_turn: dict[TogetherKey, list[int]] = defaultdict(list)
    for row, (_, action) in enumerate(seen.rows):
        if action.op in COMPUTE | SENDS:
            by_work[action.op, action.stage, action.share].append(row)
        elif action.op in TOGETHER | SECOND_ORDER:
            by_turn[_turn(action, seen.plan.pipes)].append(row)
    samples: dict[WorkKey, int] = defaultdict(int)
    work = {}
    for key, rows in by_work.items():
        known = _known(took[rows])
        if not len(known) and key[0] in COMPUTE:
            raise NotFound(
                f"step {seen.step} has no span of {SPANS[key[0]]} on stage {key[1]}, so its time is unknown; "
                f"choose another step"
            )
        work[key] = float(np.median(known)) if len(known) else 0.0
        samples[key] += len(known)
    together = {}
    for turn, rows in by_turn.items():
        known = _known(took[rows])
        usual = np.median if turn[0] in SECOND_ORDER else np.min
        together[turn] = float(usual(known)) if len(known) else 0.0
        samples[turn[0], turn[1], _ONE] += len(known)
    messages = _messages(seen, samples)
    return ActionTimes(work, together, messages, dict(samples), seen.plan.pipes)


def _messages(seen: StepActions, samples: dict[WorkKey, int]) -> dict[tuple[Op, int], float]:
    found: dict[tuple[Op, int], list[Floats]] = defaultdict(list)
    for wire in seen.wires.values():
        for receive, send in wire.messages:
            if receive < 0:
                continue
            action = seen.rows[receive][1]
            waited = seen.start[receive] <= seen.end[send]
            # Clocks of two nodes differ by some tenths of a millisecond: no message takes less than nothing.
            under_way = np.maximum(seen.end[receive] - seen.end[send], 0.0)
            found[action.op, action.stage].append(_known(np.where(waited, under_way, np.nan)))
    known = {key: np.concatenate(parts) for key, parts in found.items()}
    for key, values in known.items():
        samples[*key, _ONE] = len(values)
    usual = _median(list(known.values()), 0.0)
    of_op = {op: _median([v for key, v in known.items() if key[0] is op], usual) for op, _ in known}
    return {key: _median([values], of_op[key[0]]) for key, values in known.items()}


def _median(values: list[Floats], otherwise: float) -> float:
    together = np.concatenate(values) if values else np.zeros(0)
    return float(np.median(together)) if len(together) else otherwise


def _known(values: Floats) -> Floats:
    found: Floats = values[~np.isnan(values)]
    return found


def _turn(action: Action, pipes: int) -> TogetherKey:
    return action.op, action.stage, action.turn % 2 if action.op is Op.FACTOR else action.turn // pipes
