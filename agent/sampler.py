"""Millisecond samples of NIC byte counters: one thread, files held open, two preallocated buffers.

The thread reads all counters of a sweep first and stores what they said, unread, in one short locked section, so
`take` may swap the buffers at any time and each sample lands in exactly one frame: sums over frames equal the
counters' growth. Text becomes numbers once a frame and column by column: a thread that wakes every millisecond
finds its caches cold, and each line of Python in it costs several times what it does in a loop.
"""

import errno
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from operator import sub

from holdfast.agent.collectors.files import GONE
from holdfast.agent.collectors.nic import BytePair
from holdfast.types import NicSamples

UINT32_MAX = 2**32 - 1
INTERVALS: Mapping[str, float] = {"rdma": 0.001, "ethernet": 0.001, "loopback": 0.001}
"""Seconds between samples by kind of NIC. On mlx5 each RDMA counter read may be a firmware query."""
MAX_SHARE = 0.25
"""A sweep may fill this share of the interval; counters that answer slower than that stretch the interval."""
JUDGE_EVERY = 256
"""Samples per judgement of the share; the quickest sweep of them counts, so that a busy host is no reason."""
REOPEN_AFTER = 1.0
"""Seconds between attempts to open the files of a NIC that went away."""


def growth(last: int, value: int) -> int:
    """How far a counter went up from `last` to `value`, in its own unit.

    A counter that went down was reset (0: nobody knows what it counted meanwhile), unless it stood in the top
    sixteenth of 32 or 64 bits and is now in the bottom sixteenth: then it wrapped.
    """
    if value >= last:
        return value - last
    for bits in (32, 64):
        top = 1 << bits
        if top - (top >> 4) <= last < top and value < top >> 4:
            return value + top - last
    return 0


def next_deadline(deadline: int, now: int, interval: int) -> int:
    """The first tick after `now` on the grid of `deadline` (all in ns): ticks missed are left out, not caught up."""
    if now < deadline + interval:
        return deadline + interval
    return deadline + ((now - deadline) // interval + 1) * interval


def interval_for(pairs: Iterable[BytePair], intervals: Mapping[str, float] = INTERVALS) -> float:
    """Seconds between sweeps for these NICs: the slowest kind among them rules, 1 s where nothing is known."""
    return max((intervals.get(pair.kind, 1.0) for pair in pairs), default=1.0)


_SIZE, _START = repeat(32), repeat(0)  # of every read of a counter


class _Buffer:
    """The samples of one frame: what each sweep read, and when."""

    def __init__(self, nics: int, capacity: int) -> None:
        self.offsets = array("I", bytes(4 * capacity))
        self.rows: list[list[bytes]] = [[]] * capacity
        self.count = 0
        self.mono_ns = 0
        self.wall_ns = 0
        self.seen = [False] * nics
        self.layouts: list[_Layout] = []


class _Layout:
    """Which counters the rows from `first` on hold, in order; those just opened, with their values."""

    __slots__ = ("first", "live", "opened")

    def __init__(self, first: int, live: Sequence[int], opened: Mapping[int, int]) -> None:
        self.first, self.live, self.opened = first, live, opened


class Sampler:
    """Samples until `close`. One owner calls `take` and `close`; `start` runs the thread.

    Tests (and hosts without threads to spare) may call `sample` themselves in place of `start`.
    """

    def __init__(
        self,
        pairs: Sequence[BytePair],
        interval: float = 0.001,
        max_frame: float = 11.0,
        notice: Callable[[str], None] = lambda text: None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """`interval`: seconds between sweeps. `max_frame`: seconds that a buffer holds; later samples are added
        to its last slot. `notice` is called from the sampling thread with one line when a NIC goes or returns."""
        if interval <= 0:
            raise ValueError(f"interval must be positive, not {interval}")
        self.pairs = tuple(pairs)
        self._interval = max(1, round(interval * 1e9))
        self._notice, self._clock, self._wall = notice, clock_ns, wall_ns
        self._capacity = max(16, math.ceil(max_frame / interval)) if self.pairs else 16
        counters = 2 * len(self.pairs)
        self._filling, self._spare = (_Buffer(len(self.pairs), self._capacity) for _ in range(2))
        self._lock = threading.Lock()
        self._paths = [path for pair in self.pairs for path in (pair.tx_path, pair.rx_path)]
        self._scales = [pair.scale for pair in self.pairs for _ in range(2)]
        self._fds = [-1] * counters
        self._last = [0] * counters  # values at the end of the last frame taken; only `take` touches it
        self._opened: dict[int, int] = {}
        self._suspect = False  # `take` met text that is no number
        self._away = [False] * len(self.pairs)
        self._refused = [False] * len(self.pairs)
        self._live: list[int] = []  # counters that are read, and their descriptors, in step
        self._live_fds: list[int] = []
        self._reopen_at = 0
        self._sweeps, self._quickest = 0, self._interval
        self._stop = threading.Lock()
        self._thread: threading.Thread | None = None
        start = self._clock()
        self._begin(self._filling, start)
        for nic in range(len(self.pairs)):
            self._open(nic)

    @property
    def interval(self) -> float:
        """Seconds between sweeps now: what was asked for, or more where the counters answer slowly."""
        return self._interval / 1e9

    # --- the owner's side

    def start(self) -> None:
        """Start the thread. Without NICs there is nothing to sample and no thread."""
        if self.pairs and self._thread is None:
            self._stop.acquire()
            self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
            self._thread.start()

    def take(self, now: float) -> tuple[bytes, tuple[NicSamples, ...], int, int]:
        """The samples since the last call as `(offsets, nics, wall_ns, mono_ns)`; a new frame begins at `now`.

        `now` is monotonic seconds. `wall_ns` and `mono_ns` are where the returned frame began: its offsets count
        from there. NICs that were never readable in the frame are left out.
        """
        with self._lock:
            frame, self._filling = self._filling, self._spare
            self._spare = frame
            self._begin(self._filling, round(now * 1e9))
        # Only this caller touches the spare buffer and the last values, so what follows needs no lock.
        kept, deltas = self._numbers(frame)
        totals = [last * scale for last, scale in zip(self._last, self._scales, strict=True)]
        nics = tuple(
            NicSamples(
                name=pair.name,
                tx_total=totals[2 * nic],
                rx_total=totals[2 * nic + 1],
                tx=_little(deltas[2 * nic]),
                rx=_little(deltas[2 * nic + 1]),
            )
            for nic, pair in enumerate(self.pairs)
            if frame.seen[nic]
        )
        return _little(kept), nics, frame.wall_ns, frame.mono_ns

    def _numbers(self, frame: _Buffer) -> "tuple[array[int], list[array[int]]]":
        """Offsets of the frame's samples, and what each counter grew by in each of them, in bytes."""
        kept = array("I")
        deltas = [array("I") for _ in self._last]
        ends = [layout.first for layout in frame.layouts[1:]] + [frame.count]
        for layout, end in zip(frame.layouts, ends, strict=True):
            for counter, value in layout.opened.items():
                self._last[counter] = value
            rows, offsets = frame.rows[layout.first : end], frame.offsets[layout.first : end]
            try:
                columns = [list(map(int, column)) for column in zip(*rows, strict=True)]
            except ValueError:
                good = [i for i, row in enumerate(rows) if all(map(_is_number, row))]
                offsets = array("I", [offsets[i] for i in good])
                columns = [list(map(int, column)) for column in zip(*(rows[i] for i in good), strict=True)]
                self._suspect = True
            kept += offsets
            if columns:
                for counter, values in zip(layout.live, columns, strict=True):
                    deltas[counter] += self._grown(counter, values)
            for column in deltas:  # those that were not read
                if len(column) < len(kept):
                    column.frombytes(bytes(4 * (len(kept) - len(column))))
        frame.rows[: frame.count] = [[]] * frame.count
        return kept, deltas

    def _grown(self, counter: int, values: list[int]) -> "array[int]":
        before = [self._last[counter], *values[:-1]]
        self._last[counter] = values[-1]
        grown = list(map(sub, values, before))
        if min(grown) < 0:
            grown = list(map(growth, before, values))
        scale = self._scales[counter]
        if scale != 1:
            grown = [delta * scale for delta in grown]
        if max(grown) > UINT32_MAX:
            grown = [min(delta, UINT32_MAX) for delta in grown]
        return array("I", grown)

    def close(self) -> None:
        """End the thread and close all files. Idempotent."""
        if self._thread is not None:
            self._stop.release()
            self._thread.join()
            self._thread = None
        for nic in range(len(self.pairs)):
            self._close(nic)
        self._list_live()

    # --- the sampling side

    def _run(self) -> None:
        wait = self._stop.acquire
        deadline = self._clock()
        while True:
            deadline = next_deadline(deadline, self._clock(), self._interval)
            if wait(timeout=max(0.0, (deadline - self._clock()) / 1e9)):
                self._stop.release()
                return
            self.sample()

    def sample(self) -> None:
        """One sweep over all counters, stamped with the time it began."""
        began = self._clock()
        try:
            row = list(map(os.pread, self._live_fds, _SIZE, _START))
        except OSError:
            self._drop_unreadable()
            return
        if b"" in row or self._suspect:  # a file on its way out reads as empty
            self._suspect = False
            self._drop_unreadable()
            return
        self._judge(self._clock() - began)
        with self._lock:
            buffer = self._filling
            slot = buffer.count
            if slot < self._capacity:
                buffer.count = slot + 1
            else:
                slot -= 1  # counters hold sums: the newest values alone tell as much
            offset = (began - buffer.mono_ns) // 1000
            buffer.offsets[slot] = 0 if offset < 0 else min(offset, UINT32_MAX)
            buffer.rows[slot] = row
        if began >= self._reopen_at and len(self._live) < len(self._fds):
            self._reopen_at = began + round(REOPEN_AFTER * 1e9)
            for nic in range(len(self.pairs)):
                if self._fds[2 * nic] < 0 and not self._refused[nic] and self._open(nic):
                    self._away[nic] = False
                    self._notice(f"counters of {self.pairs[nic].name} are back")

    def _judge(self, took: int) -> None:
        """Stretch the interval when even the quickest of many sweeps takes too large a share of it."""
        self._quickest = min(self._quickest, took)
        self._sweeps += 1
        if self._sweeps < JUDGE_EVERY:
            return
        needed = round(self._quickest / MAX_SHARE)
        if needed > self._interval:
            self._interval = needed
            self._notice(f"NIC counters answer slowly: sampling every {needed / 1e6:.1f} ms from now on")
        self._sweeps, self._quickest = 0, needed + self._interval

    def _begin(self, buffer: _Buffer, mono_ns: int) -> None:
        buffer.count = 0
        buffer.mono_ns = mono_ns
        buffer.wall_ns = self._wall() - (self._clock() - mono_ns)
        for nic in range(len(self.pairs)):
            buffer.seen[nic] = self._fds[2 * nic] >= 0
        buffer.layouts = [_Layout(0, self._live, {})]

    # --- files that come and go (sampling side, except in __init__ and close)

    def _open(self, nic: int) -> bool:
        try:
            for counter in (2 * nic, 2 * nic + 1):
                self._fds[counter] = os.open(self._paths[counter], os.O_RDONLY | os.O_CLOEXEC)
                self._opened[counter] = _read(self._fds[counter])
        except (OSError, ValueError) as error:
            self._give_up(nic, error)
            return False
        self._list_live()
        return True

    def _drop_unreadable(self) -> None:
        for nic in range(len(self.pairs)):
            if self._fds[2 * nic] < 0:
                continue
            try:
                for counter in (2 * nic, 2 * nic + 1):
                    _read(self._fds[counter])
            except (OSError, ValueError) as error:
                self._give_up(nic, error)
        self._reopen_at = self._clock() + round(REOPEN_AFTER * 1e9)
        self._list_live()

    def _give_up(self, nic: int, error: OSError | ValueError) -> None:
        """Gone may come back; a refusal (EINVAL, EACCES, "N/A (no PMA)") is for good. Said once."""
        self._close(nic)
        returns = isinstance(error, OSError) and error.errno in GONE | {errno.EMFILE, errno.ENFILE}
        if not self._away[nic]:
            self._notice(f"counters of {self.pairs[nic].name} cannot be read: {error}")
        self._away[nic] = True
        self._refused[nic] = not returns

    def _close(self, nic: int) -> None:
        for counter in (2 * nic, 2 * nic + 1):
            if self._fds[counter] >= 0:
                os.close(self._fds[counter])
                self._fds[counter] = -1

    def _list_live(self) -> None:
        live = [counter for counter, fd in enumerate(self._fds) if fd >= 0]
        opened = {counter: value for counter, value in self._opened.items() if counter in live}
        self._opened = {}
        with self._lock:
            self._live, self._live_fds = live, [self._fds[counter] for counter in live]
            buffer = self._filling
            for counter in live:
                buffer.seen[counter // 2] = True
            # A full buffer keeps its last slot for the newest row, which is now one of this layout.
            buffer.count = min(buffer.count, self._capacity - 1)
            buffer.layouts.append(_Layout(buffer.count, live, opened))


def _is_number(text: bytes) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def _read(fd: int) -> int:
    """A counter's value. OSError when it is away, ValueError when the file holds no number."""
    raw = os.pread(fd, 32, 0)
    if not raw.strip():  # what a file on its way out gives
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return int(raw)


def _little(values: "array[int]") -> bytes:
    """The values as little-endian uint32."""
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
