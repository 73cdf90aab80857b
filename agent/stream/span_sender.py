"""Carries the spans of all workers here to the controller: read, packed, kept within bounds while they cannot be sent.

What does not fit is dropped, the oldest first, and counted: the count goes with the next spans, and once per such
episode the agent says so.
"""

from collections import deque
from collections.abc import Callable, Iterable

from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.stream.clock import ClockOffset
from holdfast.base.errors import HoldfastError
from holdfast.wire import messages as msg
from holdfast.wire import span_rows

BUDGET = 16 << 20
"""Packed bytes that wait at most: about a minute of eight workers at 1,000 spans a second each."""
BACKLOG = 200
"""Messages on the stream ahead of us, beyond which spans wait: heartbeats come first."""
_MOST_LOST = 1 << 32
"""Of a probe whose counter jumps: no worker makes more between two looks."""


class SpanSender:
    def __init__(
        self,
        readers: Callable[[], Iterable[ProbeReader]],
        send: Callable[[msg.Spans], None],
        on_drop: Callable[[int], None],
        budget: int = BUDGET,
    ) -> None:
        """`on_drop` gets the number of lost spans when dropping begins."""
        self._readers, self._send, self._on_drop, self._budget = readers, send, on_drop, budget
        self._waiting: deque[msg.WorkerSpans] = deque()
        self._held = 0
        self._lost: dict[tuple[str, int, int], int] = {}
        self.clock = ClockOffset()
        self.dropped = 0
        """Spans dropped here so far, those that a worker overwrote before they were read not among them."""
        self._dropping = False

    def read(self) -> None:
        """Take what the workers have recorded since the last time."""
        for reader in self._readers():
            self.take(reader)

    def take(self, reader: ProbeReader) -> None:
        """The same of one worker, which may be gone."""
        try:
            rows, lost = reader.new_rows(), reader.lost_spans
            names = reader.names()
        except HoldfastError:
            return
        key = (reader.job, reader.generation, reader.rank)
        fresh = min(lost - self._lost.get(key, 0), _MOST_LOST)
        if not rows and not fresh:
            return
        self._lost[key] = lost
        while len(self._lost) > 1024:
            self._lost.pop(next(iter(self._lost)))
        at, size = span_rows.STEP_AT, span_rows.ROW.size
        steps = [int.from_bytes(row[at : at + 4], "little", signed=True) for row in (rows[:size], rows[-size:]) if row]
        first, last = (max(min(steps), -1), max(*steps, -1)) if steps else (-1, -1)
        packed = span_rows.pack(rows)
        count = len(rows) // size
        spans = msg.WorkerSpans(reader.rank, reader.generation, count, fresh, first, last, names, packed, reader.job)
        self._waiting.append(spans)
        self._held += len(packed)
        self._make_room()

    def _make_room(self) -> None:
        before = self.dropped
        while self._held > self._budget and len(self._waiting) > 1:
            oldest = self._waiting.popleft()
            self._held -= len(oldest.data)
            self.dropped += oldest.count
        if self.dropped > before and not self._dropping:
            self._dropping = True
            self._on_drop(self.dropped - before)

    def flush(self, backlog: int, now_ns: int) -> None:
        """Send what waits, unless the stream has enough to do already or the controller's clock is not known."""
        offset = self.clock.best(now_ns)
        if not self._waiting or backlog > BACKLOG or offset is None:
            return
        workers = tuple(self._waiting)
        self._waiting.clear()
        self._held = 0
        self._dropping = False
        self._send(msg.Spans(workers, offset.offset_ns, offset.error_ns, self.dropped))
