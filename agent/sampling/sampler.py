"""Millisecond samples of NIC byte counters: one thread, files held open, rows handed over without a lock.

The thread sweeps over the counters (sweeps.py); `take` fetches what it kept since, so each sample lands in exactly one
frame: sums over frames equal the counters' growth. What is not needed for the next sweep waits for the frame.
"""

import errno
import math
import os
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from operator import sub

from holdfast.agent.collectors.files import GONE
from holdfast.agent.collectors.nic import BytePair
from holdfast.agent.sampling.sweeps import COMPILED, End, Sweeps
from holdfast.agent.sampling.ticks import Ticks
from holdfast.wire.types import NicSamples

MAX_SHARE = 0.25
"""A sweep may fill this share of the interval; counters that answer slower than that stretch the interval."""
JUDGE_EVERY = 256
"""Samples, at least, per judgement of the share; the quickest sweep counts, so that a busy host is no reason."""
REOPEN_AFTER = 1.0
"""Seconds between attempts to open the files of a NIC that went away."""
_NEVER = 1 << 62


class _Layout:
    """Which counters a row holds, in order, with their descriptors and scales, from sweep `first` on; and those just
    opened, with their values then."""

    __slots__ = ("files", "first", "live", "opened", "scales")

    def __init__(
        self, first: int, live: Sequence[int], files: "array[int]", scales: "array[int]", opened: dict[int, int]
    ) -> None:
        self.first, self.live, self.files, self.scales, self.opened = first, live, files, scales, opened


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
        compiled: bool = COMPILED,
    ) -> None:
        """`interval`: seconds between sweeps. `max_frame`: seconds of samples that are kept for `take`; the oldest go
        first, and what was counted until then is added to the oldest that stays. `notice` is called with one line when
        a NIC goes or returns, from the sampling thread, and when counters turn out to be slow."""
        if interval <= 0:
            raise ValueError(f"interval must be positive, not {interval}")
        self.pairs = tuple(pairs)
        self._interval = max(1, round(interval * 1e9))
        self._notice, self._clock, self._wall = notice, clock_ns, wall_ns
        capacity = max(16, math.ceil(max_frame / interval)) if self.pairs else 16
        self._layouts: deque[_Layout] = deque()  # those that `take` has not met yet, in order
        self._paths = [path for pair in self.pairs for path in (pair.tx_path, pair.rx_path)]
        self._scales = [pair.scale for pair in self.pairs for _ in range(2)]
        self._fds = [-1] * len(self._paths)
        self._sweeps = Sweeps(capacity, len(self._paths), clock_ns, compiled)
        self._taken = 0  # sweeps that `take` has gone through
        self._last = [0] * len(self._paths)  # values at the end of the last frame taken; only `take` touches it
        self._opened: dict[int, int] = {}
        self._away = [False] * len(self.pairs)
        self._refused = [False] * len(self.pairs)
        self._look_at = _NEVER  # when to look after the files before the next sweep
        self._judged, self._quickest = 0, _NEVER  # sweeps until the last judgement, and the quickest since
        self._ticks: Ticks | None = None
        self._thread: threading.Thread | None = None
        for nic in range(len(self.pairs)):
            self._open(nic)
        self._layout = self._list_live()  # what the next sweep reads
        self._met = self._layouts.popleft()  # what the last sweep that was taken read
        self._meet(self._met)
        self._mono_ns = self._wall_ns = 0  # where the frame that fills began
        self._begin(self._clock())

    @property
    def interval(self) -> float:
        """Seconds between sweeps now: what was asked for, or more where the counters answer slowly."""
        return self._interval / 1e9

    # --- the owner's side

    def start(self) -> None:
        """Start the thread. Without NICs there is nothing to sample and no thread."""
        if self.pairs and self._thread is None:
            self._ticks = Ticks(self._interval)
            self._thread = threading.Thread(target=self._run, args=(self._ticks,), name="sampler", daemon=True)
            self._thread.start()

    def take(self, now: float) -> tuple[bytes, tuple[NicSamples, ...], int, int]:
        """The samples since the last call as `(offsets, nics, wall_ns, mono_ns)`; a new frame begins at `now`.

        `now` is monotonic seconds. `wall_ns` and `mono_ns` are where the returned frame began: its offsets count
        from there. NICs that were never readable in the frame are left out.
        """
        mono_ns, wall_ns = self._mono_ns, self._wall_ns
        end = self._sweeps.count  # first: sweeps from here on belong to the frame that begins
        self._begin(round(now * 1e9))
        offsets, deltas, seen = self._numbers(end, mono_ns)
        self._judge()
        totals = [last * scale for last, scale in zip(self._last, self._scales, strict=True)]
        nics = tuple(
            NicSamples(
                name=pair.name,
                tx_total=totals[2 * nic],
                rx_total=totals[2 * nic + 1],
                tx=deltas[2 * nic],
                rx=deltas[2 * nic + 1],
            )
            for nic, pair in enumerate(self.pairs)
            if 2 * nic in seen
        )
        return offsets, nics, wall_ns, mono_ns

    def _begin(self, mono_ns: int) -> None:
        self._mono_ns = mono_ns
        self._wall_ns = self._wall() - (self._clock() - mono_ns)

    def _numbers(self, end: int, mono_ns: int) -> tuple[bytes, list[bytes], set[int]]:
        """Offsets of the sweeps until `end`, what each counter grew by in each, and which counters were read."""
        offsets = b""
        deltas = [b""] * len(self._last)
        seen = set(self._met.live)
        stride = self._sweeps.stride
        first, words = self._sweeps.rows(self._taken, end)
        self._taken = end
        at = first
        while at < end:
            while self._layouts and self._layouts[0].first <= at:  # also those of which no sweep is left
                self._met = self._layouts.popleft()
                self._meet(self._met)
                seen.update(self._met.live)
            until = min(end, self._layouts[0].first) if self._layouts else end
            rows = words[(at - first) * stride : (until - first) * stride]
            at = until
            self._quickest = min(self._quickest, *map(sub, rows[1::stride], rows[::stride]))
            live, last = self._met.live, array("Q", [self._last[counter] for counter in self._met.live])
            began, *grown = self._sweeps.columns(rows, mono_ns, last, self._met.scales)
            offsets += began
            for counter, value, column in zip(live, last, grown, strict=True):
                self._last[counter] = value
                deltas[counter] += column
            if len(live) < len(deltas):
                deltas = [column.ljust(len(offsets), b"\0") for column in deltas]  # those that were not read
        return offsets, deltas, seen

    def _meet(self, layout: _Layout) -> None:
        for counter, value in layout.opened.items():
            self._last[counter] = value

    def _judge(self) -> None:
        """Stretch the interval when even the quickest of many sweeps takes too large a share of it."""
        if self._taken - self._judged < JUDGE_EVERY:
            return
        needed = round(self._quickest / MAX_SHARE)
        if needed > self._interval:
            self._interval = needed
            if self._ticks is not None:
                self._ticks.pace(needed)
            self._notice(f"NIC counters answer slowly: sampling every {needed / 1e6:.1f} ms from now on")
        self._judged, self._quickest = self._taken, _NEVER

    def close(self) -> None:
        """End the thread and close all files. Idempotent."""
        if self._thread is not None and self._ticks is not None:
            self._ticks.end()
            self._thread.join()
            self._ticks.close()
            self._thread = self._ticks = None
        for nic in range(len(self.pairs)):
            self._close(nic)
        self._layout = self._list_live()

    # --- the sampling side

    def _run(self, ticks: Ticks) -> None:
        while not ticks.ended:
            if self._clock() >= self._look_at:
                self._look_after_files()
            until_look = (self._look_at - self._clock()) // self._interval + 1
            if self._sweeps.run(self._layout.files, ticks, max(1, until_look)) is not End.ENDED:
                self._look_at = 0  # a file reads as empty, or not at all, or it is time anyhow

    def sample(self) -> None:
        """One sweep over all counters, stamped with the time it began."""
        if self._clock() >= self._look_at:
            self._look_after_files()
        if self._sweeps.run(self._layout.files, None, 1) is End.TROUBLE:
            self._look_after_files()

    # --- files that come and go (sampling side, except in __init__ and close)

    def _open(self, nic: int) -> bool:
        try:
            for counter in (2 * nic, 2 * nic + 1):
                self._fds[counter] = os.open(self._paths[counter], os.O_RDONLY | os.O_CLOEXEC)
                self._opened[counter] = _read(self._fds[counter])
        except (OSError, ValueError) as error:
            self._give_up(nic, error)
            return False
        return True

    def _look_after_files(self) -> None:
        """Drop the NICs that cannot be read, and take up again those that can."""
        for nic in range(len(self.pairs)):
            if self._fds[2 * nic] >= 0:
                try:
                    for counter in (2 * nic, 2 * nic + 1):
                        _read(self._fds[counter])
                except (OSError, ValueError) as error:
                    self._give_up(nic, error)
            elif not self._refused[nic] and self._open(nic):
                self._away[nic] = False
                self._notice(f"counters of {self.pairs[nic].name} are readable again")
        self._layout = self._list_live()

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

    def _list_live(self) -> _Layout:
        live = [counter for counter, fd in enumerate(self._fds) if fd >= 0]
        opened = {counter: value for counter, value in self._opened.items() if counter in live}
        self._opened = {}
        files = array("i", [self._fds[counter] for counter in live])
        scales = array("Q", [self._scales[counter] for counter in live])
        layout = _Layout(self._sweeps.count, live, files, scales, opened)
        self._layouts.append(layout)
        returning = any(away and not refused for away, refused in zip(self._away, self._refused, strict=True))
        self._look_at = self._clock() + round(REOPEN_AFTER * 1e9) if returning else _NEVER
        return layout


def _read(fd: int) -> int:
    """A counter's value. OSError when it is away, ValueError when its text is not a number."""
    raw = os.pread(fd, 32, 0)
    if not raw.strip():  # what a file on its way out gives
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return int(raw)
