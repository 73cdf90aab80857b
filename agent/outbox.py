"""What the agent has to say and whether it arrived: numbered, bounded, sent again after a break. Pure.

Frames and events are kept until the controller acknowledges them as durable; answers and log lines are worth nothing
to a controller that comes later and are not kept.
"""

import dataclasses
from collections import deque

from holdfast import messages as msg
from holdfast import types as t

_EVENTS = 10_000


class Outbox:
    def __init__(self, max_frames: int) -> None:
        self._frames: deque[t.Frame] = deque()
        self._events: deque[msg.Numbered] = deque()
        self._max_frames = max_frames
        self.frame_seq = self.event_seq = 0

    def frame(self, frame: t.Frame, connected: bool) -> t.Frame:
        """Number and keep a frame. Nobody looks at milliseconds that are long past: without a stream only the
        totals are kept. The oldest frame goes first, but its steps move on to the next: none is lost."""
        self.frame_seq += 1
        frame = dataclasses.replace(frame, seq=self.frame_seq)
        self._frames.append(frame if connected else _without_samples(frame))
        while len(self._frames) > self._max_frames:
            oldest = self._frames.popleft()
            if oldest.steps and self._frames:
                heir = self._frames[0]
                self._frames[0] = dataclasses.replace(heir, steps=oldest.steps + heir.steps)
        return frame

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
        while self._frames and self._frames[0].seq <= frames:
            self._frames.popleft()
        done = []
        while self._events and self._events[0].seq <= events:
            done.append(self._events.popleft().event)
        return done

    @property
    def has_events(self) -> bool:
        """Whether there is news that the controller has not yet acknowledged."""
        return bool(self._events)

    def unacknowledged(self) -> list[msg.AgentMessage]:
        """All that a new stream has to say first: events before frames, each in order."""
        return [*self._events, *self._frames]


def _without_samples(frame: t.Frame) -> t.Frame:
    nics = tuple(n._replace(tx=b"", rx=b"") for n in frame.nics)
    return dataclasses.replace(frame, offsets=b"", nics=nics)
