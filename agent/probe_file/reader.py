"""The agent's side of a probe file: samples for the heartbeat, finished steps, and faults to inject.

The file is the worker's, and any process of its user can write there: whatever the bytes say, what comes out of here
can be sent, and is within `holdfast.base.bounds`.
"""

import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from holdfast.agent.probe_file import layout, service_threads
from holdfast.agent.probe_file.file import ProbeFile
from holdfast.agent.probe_file.groups import read_groups
from holdfast.agent.probe_file.open_rows import read_open
from holdfast.agent.probe_file.past_rows import read_past
from holdfast.agent.probe_file.standing import exact_groups, open_operations, past_operations, pending_of
from holdfast.agent.probe_file.torch_record import TorchRecord, understand
from holdfast.base import bounds
from holdfast.base.errors import UsageError
from holdfast.wire import span_rows
from holdfast.wire.standing import StallFacts
from holdfast.wire.types import PHASES, Meters, PendingCollective, Phase, StepRecord, WorkerSample

_WORD = struct.Struct("<q")
_MOST_STEPS = 2 * layout.STEPS
"""Of one call: a file that is written as fast as it is read would otherwise never end."""
RETRIES = 8
"""Reads of a block that was being written, before the last good value stands in. One write takes under 0.1 us."""
MEDIAN_OVER = 21
"""Steps in the rolling median: short enough to follow a change, long enough to ignore an evaluation between."""
TICK_FRESH = 0.2
"""Seconds since a worker's liveness thread last ran, two of its periods, within which its process is not stopped."""

_MOST_FLOAT = 1e29
"""What a float of 32 bits holds, on the wire."""
STANDS = 0.5
"""Seconds without entering or leaving an operation after which a worker's sample says what it stands in."""


class Span(NamedTuple):
    """One timed segment of a worker."""

    kind: str
    stage: int
    micro_batch: int
    turn: int
    step: int
    """The step that it was part of."""
    start_ns: int
    end_ns: int
    num_bytes: int
    group: str
    """What kind of peers it was done with ("tp"); empty: alone."""
    seq: int
    """Number within the group, the same on all its members; -1: none."""
    cpu_ns: int
    """Processor time of the thread; 0: not measured."""


_Triple = tuple[int, int, int]
_Mesh = tuple[_Triple, _Triple]
_Step = tuple[int, int, int, float, float, int, int]  # as layout.STEP


_T = TypeVar("_T")


class _Block(Generic[_T]):
    """A sealed block of the file: read often, decoded again only when it has changed."""

    __slots__ = ("_end", "_raw", "_start", "_understand", "_value")

    def __init__(self, at: int, size: int, understand: Callable[[bytes], _T]) -> None:
        self._start, self._end, self._understand = at, at + layout.SEAL.size + size, understand
        self._raw = bytes(self._end - at)  # as long as it is not written
        self._value: _T | None = None

    def read(self, file: layout.Buffer, head: layout.Buffer | None = None) -> _T | None:
        """What it says, or said last when it is being written again and again; None before anything was written.

        `head`: a copy of the file's beginning, good for the first look.
        """
        for attempt in range(RETRIES):
            raw = (file if head is None or attempt else head)[self._start : self._end]
            if raw == self._raw:
                break
            if (payload := layout.unsealed(raw)) is not None:
                self._raw, self._value = raw, self._understand(payload)
                break
        return self._value


def _operation(payload: bytes) -> tuple[int, int, int, str]:
    since, changed, record, name = layout.OPERATION.unpack(payload)
    return since, changed, record, name.rstrip(b"\0").decode("utf-8", "replace")


def _mesh(payload: bytes) -> _Mesh:
    pp, dp, tp, all_pp, all_dp, all_tp = layout.MESH.unpack(payload)
    return (pp, dp, tp), (all_pp, all_dp, all_tp)


def _meters(payload: bytes) -> Meters:
    _, mfu, tokens_per_s, *parts, memory_bytes, grad_norm = layout.METERS.unpack(payload)
    return Meters(
        bounds.amount(mfu, _MOST_FLOAT),
        bounds.amount(tokens_per_s, _MOST_FLOAT),
        tuple(bounds.amount(part) for part in parts),
        bounds.whole(memory_bytes, 0, bounds.MAX_COUNT),
        bounds.amount(grad_norm, math.inf),
    )


def _median(values: Collection[float]) -> float:
    """As statistics.median, at a tenth of its time."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


class ProbeReader:
    """Reads one worker's probe file; costs some 20 us a sample, and the worker nothing.

    Raises Unavailable while there is no such file and ProtocolError when it is not a probe file of this version.
    """

    def __init__(self, path: str, job: str = "") -> None:
        """`job`: whose worker it is; the file does not say."""
        self.path, self.job = path, job
        self._map = ProbeFile(path)
        self.rank, self.generation = self._map.rank, self._map.generation
        self._next = 0
        self._recent: deque[float] = deque(maxlen=MEDIAN_OVER)
        self._median = math.nan
        self._stat: tuple[int, int] | None = None  # pid, descriptor of its /proc stat
        self.lost = 0
        """Steps overwritten before they were read: the reader was away for more than 2,048 steps."""
        self._metered = -1  # step of the last sample
        self._next_span = 0
        self.lost_spans = 0
        self._state = _Block(layout.AT_STATE, layout.STATE.size, layout.STATE.unpack)
        self._operation = _Block(layout.AT_OPERATION, layout.OPERATION.size, _operation)
        self._mesh = _Block(layout.AT_MESH, layout.MESH.size, _mesh)
        self._record_block = _Block(layout.AT_RECORD, layout.RECORD_BYTES, understand)
        self._services_block = _Block(layout.AT_SERVICES, layout.SERVICES.size, service_threads.understand)
        self._meters = _Block(layout.AT_METERS, layout.METERS.size, _meters)
        self._names: tuple[bytes, tuple[str, ...]] = (b"", ())
        self.events = (0, 0)
        """As of the last sample: events that the worker's timers recorded on its GPU, and those that have come."""

    @property
    def pid(self) -> int:
        """The worker's process id; 0 before it has attached."""
        return _pid(self._map.word(layout.WORD_PID))

    @property
    def tick_thread(self) -> int:
        """The kernel's id of the worker's liveness thread; 0 where it is not known."""
        return _pid(self._map.word(layout.WORD_TICK_THREAD))

    @property
    def handlers(self) -> int:
        """Signals for which the worker's script has a handler, a bit each from SIGHUP (1) on."""
        return self._map.word(layout.WORD_HANDLERS) & (1 << 63) - 1

    def services(self) -> frozenset[int]:
        """The threads that torch started while it made process groups, by the kernel's ids."""
        return self._services_block.read(self._map) or frozenset()

    def sample(self, now_ns: int) -> WorkerSample:
        """The worker's state at `now_ns` (CLOCK_MONOTONIC). `tokens` counts all this process has trained on."""
        head = self._map[0 : layout.AT_NAMES]  # in one copy: each is a system call
        state = self._state.read(self._map, head)
        if state is None:
            return WorkerSample(rank=self.rank, generation=self.generation, pid=self.pid, job=self.job)
        step, phase, progress, loss, tokens, _ = state
        operation, operation_age, still_age = "", math.nan, math.nan
        pending = standing = None
        last = self._operation.read(self._map, head)
        since, changed, record, name = last or (0, 0, 0, "")  # a script may stand before it begins any
        moved = max(changed, _word(head, layout.WORD_MOVED))
        still_age = _age(now_ns, moved)
        if since:
            operation, operation_age = name, _age(now_ns, since)
        if _age(now_ns, moved or progress) > STANDS:
            last_begun = layout.begun_from(_word(head, layout.WORD_BEGUN), record)
            pending, standing = self._standing(_pid(_word(head, layout.WORD_PID)), last_begun, moved)
            if not operation and pending.is_handed:
                operation, operation_age = pending.kind, still_age
        meters = None
        if step != self._metered:
            self._metered = step
            meters = self._meters.read(self._map, head)
        coordinate, sizes = self._mesh.read(self._map, head) or (None, None)
        if not bounds.is_place(coordinate, sizes):
            coordinate = sizes = None
        begun, done = _word(head, layout.WORD_EVENTS), _word(head, layout.WORD_EVENTS_DONE)
        if 0 <= done <= begun <= bounds.MAX_COUNT:  # else half of it is older than the other
            self.events = begun, done
        tick_age = _age(now_ns, _word(head, layout.WORD_TICK))
        return WorkerSample(
            rank=self.rank,
            generation=self.generation,
            pid=_pid(_word(head, layout.WORD_PID)),
            step=bounds.whole(step, -1, bounds.MAX_STEP),
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else Phase.START,
            operation=operation,
            operation_age=operation_age,
            progress_age=_age(now_ns, progress),
            tick_age=tick_age,
            # A process that ticks runs: the kernel need not be asked ten times a second.
            stopped=not tick_age < TICK_FRESH and self._stopped(),
            loss=loss,
            tokens=bounds.whole(tokens, 0, bounds.MAX_COUNT),
            median_step=self._median,
            coordinate=coordinate,
            sizes=sizes,
            meters=meters,
            still_age=still_age,
            pending=pending,
            standing=standing,
            job=self.job,
        )

    def new_steps(self) -> list[StepRecord]:
        """Steps finished since the last call, each exactly once, oldest first. Also right after the worker died."""
        found: list[StepRecord] = []
        is_counted, now_ns = bool(self._map.word(layout.WORD_COUNTED)), time.time_ns()
        for index, step, end_wall_ns, seconds, loss, tokens, generation in islice(self._records(), _MOST_STEPS):
            self._next = index + 1
            if not 0 <= step <= bounds.MAX_STEP or generation != self.generation:
                continue  # not what a probe writes
            seconds = 0.0 if math.isnan(seconds) else bounds.amount(seconds)
            tokens = bounds.whole(tokens, 0, bounds.MAX_TOKENS)
            self._recent.append(seconds)
            end_wall_ns = bounds.whole(end_wall_ns, 0, now_ns)
            what = step, end_wall_ns, seconds, loss, tokens, is_counted, self.job
            found.append(StepRecord(self.rank, self.generation, *what))
        if found:
            self._median = _median(self._recent)
        return found

    def new_spans(self) -> list[Span]:
        """Spans ended since the last call, oldest first."""
        names = self.names()
        found = []
        for row in span_rows.ROW.iter_unpack(self.new_rows()):
            _, start, end, num_bytes, step, cpu, kind, stage, turn, group, micro_batch, seq = row
            where = (names[kind] or "other", stage, micro_batch, turn, step)
            found.append(Span(*where, start, end, num_bytes, names[group], seq, cpu * 100))
        return found

    def new_rows(self) -> bytes:
        """The same as they are in the file, row by row. Those overwritten before they were read are counted only."""
        written = self._map.word(layout.WORD_SPANS)
        if not 0 <= written <= bounds.MAX_COUNT:
            return b""
        oldest = max(0, written - layout.SPANS + layout.SPANS // 8)  # some room for the writer
        if self._next_span < oldest:
            self.lost_spans += oldest - self._next_span
            self._next_span = oldest
        if (rows := layout.records(self._map, layout.AT_SPANS, layout.SPANS, self._next_span, written)) is not None:
            self._next_span = written
            return b"".join(rows)
        found = []
        for expected in range(self._next_span, written):
            at = layout.AT_SPANS + expected % layout.SPANS * layout.RECORD
            raw = layout.open_sealed(self._map, at, layout.SPAN.size)
            if raw is None or int.from_bytes(raw[:8], "little") != expected:  # lapped while we read
                self.lost_spans += 1
            else:
                found.append(raw)
        self._next_span = max(self._next_span, written)
        return b"".join(found)

    def names(self) -> tuple[str, ...]:
        """What the numbers of kinds and groups stand for; the first is empty."""
        count = min(max(self._map.word(layout.WORD_NAMES), 1), layout.NAMES)
        raw = self._map[layout.AT_NAMES : layout.AT_NAMES + count * layout.NAME]
        if raw != self._names[0]:
            pieces = (raw[i : i + layout.NAME] for i in range(0, len(raw), layout.NAME))
            self._names = raw, tuple(piece.rstrip(b"\0").decode("utf-8", "replace") for piece in pieces)
        return self._names[1]

    def inject(self, fault: str) -> None:
        """Ask the worker to break at its next step: "hang", or "hang/tp" for its next operation of that axis after it,
        or "slow/forward+10": from then on its forwards take 10% longer.

        Raises UsageError for a kind or a place that it does not know.
        """
        kind, _, place = fault.partition("/")
        if kind not in layout.INJECTIONS[1:]:
            raise UsageError(f"unknown fault {kind!r}: a worker knows {', '.join(layout.INJECTIONS[1:])}")
        work, _, percent = place.partition("+")
        works = [names[0] for names in layout.SLOWED]
        if kind == "slow" and work in works and percent.isdecimal():
            of_what = works.index(work) << 8 | int(percent) << 16
            self._map.put_word(layout.WORD_INJECT, layout.INJECTIONS.index(kind) | of_what)
            return
        if place not in layout.PLACES:
            raise UsageError(f"unknown place {place!r} of a fault: {', '.join(layout.PLACES[1:])}")
        self._map.put_word(layout.WORD_INJECT, layout.INJECTIONS.index(kind) | layout.PLACES.index(place) << 8)

    def request_checkpoint(self) -> None:
        """Ask the worker for a checkpoint of its job, as soon as all ranks agree on a step."""
        self._map.put_word(layout.WORD_REQUEST, 1)

    def close(self) -> None:
        """Leave the file where it is. Harmless to repeat."""
        if self._stat is not None:
            os.close(self._stat[1])
            self._stat = None
        self._map.close()

    def _standing(self, pid: int, begun: tuple[int, int, int], moved: int) -> tuple[PendingCollective, StallFacts]:
        """The main thread's operation, and those of all threads. `begun`: what the main thread began last."""
        record = self._record_block.read(self._map) or TorchRecord()
        groups = exact_groups(read_groups(self._map), record, moved)
        rows = read_open(self._map)
        found, is_complete = open_operations(rows or (), record, moved, len(groups))
        words = layout.WORD_UNSEEN, layout.WORD_NO_SLOT
        is_complete &= rows is not None and not any(self._map.word(word) for word in words)
        is_complete &= self._map.word(layout.WORD_MOVED) <= moved  # else the rows may be of another moment
        pending = pending_of(pid, rows or (), begun, groups)
        past = past_operations(read_past(self._map, len(groups)), record, moved, len(groups))
        return pending, StallFacts(operations=found[: bounds.MAX_OPERATIONS], is_complete=is_complete, past=past)

    def _records(self) -> Iterator[_Step]:
        """The unread records, while `_next` is moved on; those that the writer has counted all at once."""
        count = self._map.word(layout.WORD_STEPS)
        for raw in layout.records(self._map, layout.AT_STEPS, layout.STEPS, self._next, count) or ():
            yield layout.STEP.unpack(raw)
        while (record := self._record()) is not None:
            yield record

    def _record(self) -> _Step | None:
        """The next unread record; the oldest one left if the writer has lapped us; None when all are read."""
        for _ in range(RETRIES):
            at = layout.AT_STEPS + self._next % layout.STEPS * layout.RECORD
            if self._map.word((at >> 3) + 1) < self._next:  # its index; the cheap answer to most calls
                return None
            raw = layout.open_sealed(self._map, at, layout.STEP.size)
            if raw is None:
                continue
            index, *rest = layout.STEP.unpack(raw)
            if index < self._next:
                return None
            if index == self._next:
                return (index, *rest)
            # Lapped: the oldest record still there is about to be overwritten, so leave the writer some room.
            skipped = self._map.word(layout.WORD_STEPS) - layout.STEPS + layout.STEPS // 8 - self._next
            if not 0 < skipped <= index - self._next + layout.STEPS:
                return None  # the count does not go with the records: no probe wrote that
            self.lost += skipped
            self._next += skipped
        return None

    def _stopped(self) -> bool:
        """Whether the process is stopped (SIGSTOP or a debugger); False when there is none."""
        pid = self.pid
        try:
            if self._stat is None or self._stat[0] != pid:
                if self._stat is not None:
                    os.close(self._stat[1])
                    self._stat = None
                # The thread's own file: the process-wide one adds up the times of all threads at every read.
                self._stat = (pid, os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
            raw = os.pread(self._stat[1], 256, 0)
        except OSError:
            return False
        end = raw.rfind(b") ")  # the command name before it may hold anything, parentheses too
        return raw[end + 2 : end + 3] in (b"T", b"t")


def _word(head: bytes, index: int) -> int:
    number: int = _WORD.unpack_from(head, 8 * index)[0]
    return number


def _pid(word: int) -> int:
    return word if 0 < word <= bounds.MAX_PID else 0


def _age(now_ns: int, then_ns: int) -> float:
    return bounds.amount((now_ns - then_ns) * 1e-9) if then_ns else math.nan
