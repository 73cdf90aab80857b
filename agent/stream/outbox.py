"""What the agent has to say and whether it arrived: numbered, bounded, sent again after a break. Pure.

Frames and events are kept until the controller acknowledges them as durable; answers and log lines are worth nothing
to a controller that comes later and are not kept.
"""

import dataclasses
from collections import deque
from dataclasses import dataclass

from holdfast.base import bounds
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class _Kept:
    frame: t.Frame
    events: int
    """The number of the last event before it."""


class Outbox:
    def __init__(self, max_frames: int) -> None:
        self._frames: deque[_Kept] = deque()
        self._events: deque[msg.Numbered] = deque()
        self._max_frames = max_frames
        self._steps = 0  # in all frames kept
        self.frame_seq = self.event_seq = 0
        self.lost_steps = 0
        """Steps that did not fit while no controller took them."""

    def frame(self, frame: t.Frame, connected: bool) -> t.Frame:
        """Number and keep a frame. Milliseconds that are long past are not used: without a stream only the
        totals are kept. The oldest frame goes first, but its steps move on to the next: none is lost."""
        self.frame_seq += 1
        frame = dataclasses.replace(frame, seq=self.frame_seq)
        self._frames.append(_Kept(frame if connected else _without_samples(frame), self.event_seq))
        self._steps += len(frame.steps)
        while len(self._frames) > self._max_frames:
            self._make_room()
        return frame

    def _make_room(self) -> None:
        """One frame less. Its steps go to the next one, up to a bound, so that no message gets too large to be sent;
        beyond another bound, so that no memory does, the oldest steps go."""
        while self._steps > bounds.MAX_KEPT_STEPS and len(self._frames) > 1:
            self._lose_oldest()
        for i in range(len(self._frames) - 1):
            giver, heir = self._frames[i].frame, self._frames[i + 1].frame
            if len(giver.steps) + len(heir.steps) <= bounds.MAX_FRAME_STEPS or not giver.steps:
                if giver.steps:
                    both = dataclasses.replace(heir, steps=giver.steps + heir.steps)
                    self._frames[i + 1] = dataclasses.replace(self._frames[i + 1], frame=both)
                del self._frames[i]
                return
        self._lose_oldest()  # each of them is full: more frames than steps are kept for

    def _lose_oldest(self) -> None:
        lost = len(self._frames.popleft().frame.steps)
        self._steps -= lost
        self.lost_steps += lost

    def event(self, event: t.Event) -> msg.Numbered:
        self.event_seq += 1
        numbered = msg.Numbered(self.event_seq, event)
        self._events.append(numbered)
        if len(self._events) > _EVENTS:
            self._drop_event()
        return numbered

    def _drop_event(self) -> None:
        """The oldest that is not an exit: what ended is needed to the last, a log line is not."""
        for i, numbered in enumerate(self._events):
            if not isinstance(numbered.event, t.WorkerExited):
                del self._events[i]
                return
        self._events.popleft()

    def acknowledged(self, frames: int, events: int) -> list[t.Event]:
        """Forget what is durable at the controller; the events among it."""
        while self._frames and self._frames[0].frame.seq <= frames:
            self._steps -= len(self._frames.popleft().frame.steps)
        done = []
        while self._events and self._events[0].seq <= events:
            done.append(self._events.popleft().event)
        return done

    @property
    def has_events(self) -> bool:
        """Whether there are events that the controller has not yet acknowledged."""
        return bool(self._events)

    def unacknowledged(self) -> list[msg.AgentMessage]:
        """All that a new stream has to send first, as it happened: a job that its last exit ends has all its steps."""
        events = deque(self._events)
        found: list[msg.AgentMessage] = []
        for kept in self._frames:
            while events and events[0].seq <= kept.events:
                found.append(events.popleft())
            found.append(kept.frame)
        return [*found, *events]


def _without_samples(frame: t.Frame) -> t.Frame:
    nics = tuple(n._replace(tx=b"", rx=b"") for n in frame.nics)
    return dataclasses.replace(frame, offsets=b"", nics=nics)
