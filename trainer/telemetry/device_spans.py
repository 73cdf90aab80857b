"""Spans of a GPU's work: events in its stream at both ends, read when the GPU has passed them, without waiting for it.

An event says when relative to another one. So now and then, when the stream has run dry anyway, one is recorded
together with the host's clock: from it, all others get times that other ranks can be compared with.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.agent import probe

if TYPE_CHECKING:
    from holdfast.agent.probe_file.events import Recorded


class TimedEvent(Protocol):
    """As `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to that one."""


@dataclass(slots=True)
class _Pending:
    kind: str
    named: dict[str, Any]
    start: TimedEvent
    end: TimedEvent
    recorded: Recorded | None
    """What the agent is sent about the end."""


class DeviceSpans:
    """The spans of one stream, in order. Events come from a pool: making one takes longer than recording it."""

    def __init__(self, make: Callable[[], TimedEvent], clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._make, self._clock_ns = make, clock_ns
        self._pool: list[TimedEvent] = []
        self._pending: deque[_Pending] = deque()
        self._zero: TimedEvent | None = None
        self._zero_ns = 0

    def span(self, kind: str, **named: Any) -> _DeviceSpan:
        """As `probe.span`, of the work that the block hands to the GPU."""
        return _DeviceSpan(self, kind, named)

    def align(self) -> None:
        """The stream has just run dry, so an event in it is passed at once: take it and the host's clock together."""
        self.resolve()
        if self._pending or not probe.attached():
            return  # something is still on its way
        zero = self._take()
        zero.record()
        if self._zero is not None:
            self._pool.append(self._zero)
        self._zero, self._zero_ns = zero, self._clock_ns()

    def resolve(self) -> None:
        """Hand over the spans whose end the GPU has passed."""
        while self._pending and self._zero is not None and self._zero.query() and self._pending[0].end.query():
            done = self._pending.popleft()
            if done.recorded is not None:
                done.recorded.done = True
            start, end = (
                self._zero_ns + round(self._zero.elapsed_time(event) * 1e6) for event in (done.start, done.end)
            )
            probe.record(done.kind, start, end, **done.named)
            self._pool += (done.start, done.end)

    def _take(self) -> TimedEvent:
        return self._pool.pop() if self._pool else self._make()

    def begin(self) -> TimedEvent:
        event = self._take()
        event.record()
        return event

    def end(self, kind: str, named: dict[str, Any], start: TimedEvent) -> None:
        # Spans of a job that are not aligned are of no use, and must not pile up.
        if self._zero is None:
            self._pool.append(start)
            return
        end = self.begin()
        named = {**named, "step": probe.running_step()}
        self._pending.append(_Pending(kind, named, start, end, probe.recorded(end)))


class _DeviceSpan:
    __slots__ = ("kind", "named", "spans", "start")

    def __init__(self, spans: DeviceSpans, kind: str, named: dict[str, Any]) -> None:
        self.spans, self.kind, self.named = spans, kind, named
        self.start: TimedEvent | None = None

    def __enter__(self) -> None:
        if probe.attached():
            self.start = self.spans.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.start is not None:
            self.spans.end(self.kind, self.named, self.start)
