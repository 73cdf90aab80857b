"""The newest spans of each job, in memory as they came: decoded on request, for the steps asked for.

Also hands what comes to the span store, which writes it to disk.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from holdfast.base.bounds import MAX_NODES
from holdfast.base.errors import ProtocolError
from holdfast.diagnostics.steps import span_table
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.wire import messages as msg

Part = tuple[int, msg.WorkerSpans]
"""Clock offset of the node, ns, and what one of its workers said."""
_OVERHEAD = 400
"""Bytes that a part takes besides what is in it."""


def memory_of(part: Part) -> int:
    """Bytes that it takes in memory, about."""
    return len(part[1].data) + sum(len(name) for name in part[1].names) + 60 * len(part[1].names) + _OVERHEAD


class SpanSink(Protocol):
    """Where parts go for good."""

    def add(self, part: Part) -> None: ...


class SpanWindows:
    """A window for each job, which share the memory. The window of a job that is over is dropped for a newer one."""

    def __init__(self, budget_bytes: int, sink: SpanSink | None = None) -> None:
        """`sink`: gets each part as well."""
        self._budget = budget_bytes
        self._sink = sink
        self._windows: dict[str, SpanWindow] = {}
        self._over: set[str] = set()
        self.received = self.lost = 0
        self._dropped: dict[str, int] = {}
        self.clock_error_ns: dict[str, int] = {}

    def begin(self, job: str) -> None:
        """A job whose spans are kept from now on."""
        for over in [name for name in self._windows if name in self._over]:
            del self._windows[over]
        self._over &= self._windows.keys()
        self._windows[job] = SpanWindow(self._budget)
        for window in self._windows.values():
            window.budget = self._budget // len(self._windows)

    def end(self, job: str) -> None:
        """The job is over; its spans stay until another job begins."""
        self._over.add(job)

    def of(self, job: str) -> SpanWindow:
        """An empty one for a job whose spans are not in memory."""
        return self._windows.get(job) or SpanWindow(0)

    def add(self, node: str, spans: msg.Spans) -> None:
        """Each worker's part names its job."""
        self.clock_error_ns[node] = spans.error_ns
        for known in (self.clock_error_ns, self._dropped):
            while len(known) > MAX_NODES:
                known.pop(next(iter(known)))
        before = self._dropped.get(node, 0)
        self._dropped[node] = spans.dropped
        self.lost += max(0, spans.dropped - before) if spans.dropped >= before else spans.dropped
        for worker in spans.workers:
            self.received += worker.count
            self.lost += worker.lost
            window = self._windows.get(worker.job)
            if not worker.count or window is None:
                continue
            part = (spans.offset_ns, worker)
            window.add(part)
            if self._sink is not None:
                self._sink.add(part)


class SpanWindow:
    def __init__(self, budget_bytes: int) -> None:
        self.budget = budget_bytes
        self._parts: deque[Part] = deque()
        self._held = 0
        self._newest: dict[int, int] = {}  # rank -> newest step

    def add(self, part: Part) -> None:
        worker = part[1]
        self._newest[worker.rank] = worker.last
        self._parts.append(part)
        self._held += memory_of(part)
        while self._held > self.budget and len(self._parts) > 1:
            self._held -= memory_of(self._parts.popleft())

    @property
    def is_empty(self) -> bool:
        return not self._parts

    def whole_steps(self) -> tuple[int, int] | None:
        """The first and last step of which all ranks should have reported everything; None when there is none."""
        if not self._parts:
            return None
        newest = self._parts[-1][1].generation
        mine = [spans for _, spans in self._parts if spans.generation == newest]
        first: dict[int, int] = {}
        for spans in mine:
            first.setdefault(spans.rank, spans.first)
        # The last step of a part may go on in the next one, the first may have begun in one that is gone.
        low, high = max(first.values()) + 1, min(self._newest[rank] for rank in first) - 1
        return (low, high) if low <= high else None

    def first_within(self, first: int, last: int, most: int) -> int:
        """The first of the steps up to `last` that together hold `most` spans or fewer, about; `last` at the latest."""
        held = 0
        for _, spans in reversed(self._parts):
            if spans.last < first or spans.first > last:
                continue
            held += spans.count
            if held > most:
                return min(max(first, spans.last + 1), last)
        return first

    def parts_of(self, first: int, last: int) -> list[Part]:
        """Those that may hold spans of the steps `first` to `last`."""
        return [part for part in self._parts if part[1].first <= last and part[1].last >= first]


def decoded(parts: list[Part]) -> SpanTable:
    """All spans of the parts; takes a while, so call it in a thread. Malformed parts are left out."""
    try:
        return span_table.decode(parts)
    except ProtocolError:
        return span_table.concatenated([_or_nothing(part) for part in parts])


def _or_nothing(part: Part) -> SpanTable:
    try:
        return span_table.decode([part])
    except ProtocolError:
        return span_table.empty()
