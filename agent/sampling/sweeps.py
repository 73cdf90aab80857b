"""Sweeps over counter files, written by one thread and read by another without a lock.

What is done for each sample is in sweep.c, which is compiled at installation where there is a compiler. Where there is
none the same is done in Python and takes more of the processor.
"""

import ctypes
import os
import sys
import time
from array import array
from collections.abc import Callable
from ctypes import POINTER, c_int, c_uint64, c_void_p
from enum import IntEnum
from pathlib import Path

from holdfast.agent.sampling.growth import columns
from holdfast.agent.sampling.ticks import Ticks

_SIZE = 24  # of a read: 20 digits and the end of the line


class End(IntEnum):
    """Why a run of sweeps is over. The numbers are those of sweep.c."""

    DONE = 0
    ENDED = 1  # the ticks were
    TROUBLE = 2  # a file's text is not a number, or cannot be read: that sweep does not count


def _load() -> ctypes.CDLL | None:
    for path in Path(__file__).parent.glob("_sweep*.so"):
        try:
            library = ctypes.CDLL(str(path))
            library.holdfast_sweep.argtypes = [
                c_int, c_void_p, c_int, c_void_p, c_uint64, c_uint64, POINTER(c_uint64), c_uint64
            ]  # fmt: skip
            library.holdfast_swept.argtypes = [POINTER(c_uint64)]
            library.holdfast_swept.restype = c_uint64
            library.holdfast_grown.argtypes = [
                c_void_p, c_uint64, c_uint64, c_int, c_uint64, c_void_p, c_void_p, c_void_p
            ]  # fmt: skip
        except (OSError, AttributeError):
            continue  # made for another machine, or by another version
        return library
    return None


_library = _load() if sys.byteorder == "little" else None
COMPILED = _library is not None


class Sweeps:
    """Keeps the newest `capacity` sweeps. `run` is for one thread, `count` and `rows` for another."""

    def __init__(
        self, capacity: int, counters: int, clock_ns: Callable[[], int] = time.monotonic_ns, compiled: bool = COMPILED
    ) -> None:
        """`counters`: at most in a sweep. Another clock than the monotonic one is read by the loop in Python only."""
        self._library = _library if compiled and clock_ns is time.monotonic_ns else None
        self._clock = clock_ns
        self._room = capacity + 1  # one is always being written
        self.stride = 2 + counters
        """Words of a row: when the sweep began and ended (ns), and the counters' values."""
        self._words = array("Q", bytes(8 * self._room * self.stride))
        self._count = c_uint64(0)

    @property
    def count(self) -> int:
        """Sweeps until now, those no longer kept included."""
        if self._library is None:
            return self._count.value
        return int(self._library.holdfast_swept(self._count))

    def rows(self, first: int, end: int) -> "tuple[int, array[int]]":
        """Sweeps `first` to `end` (exclusive), one row after the other, and the number of the first still kept."""
        wanted = max(first, end - self._room + 1)
        a, b = (at % self._room * self.stride for at in (wanted, end))
        words = self._words[a:b] if a < b or wanted == end else self._words[a:] + self._words[:b]
        kept = min(end, max(wanted, self.count - self._room + 1))  # others were written over while they were copied
        return kept, words[(kept - wanted) * self.stride :]

    def columns(self, rows: "array[int]", since: int, last: "array[int]", scales: "array[int]") -> list[bytes]:
        """As growth.columns, of rows that were read here."""
        many, counters = len(rows) // self.stride, len(last)
        if self._library is not None:
            found, size = array("I", bytes(4 * many * (counters + 1))), 4 * many
            a, b, c, d = (part.buffer_info()[0] for part in (rows, last, scales, found))
            if not self._library.holdfast_grown(a, many, self.stride, counters, since, b, c, d):
                reported = found.tobytes()
                return [reported[i * size : (i + 1) * size] for i in range(counters + 1)]
        return columns(rows, self.stride, since, last, scales)

    def run(self, files: "array[int]", ticks: Ticks | None, most: int) -> End:
        """Up to `most` sweeps over the files, each at the next tick, or at once without any."""
        if self._library is None:
            return self._run(files, ticks, most)
        timer = -1 if ticks is None else ticks.fd
        where, many = files.buffer_info()
        rows, _ = self._words.buffer_info()
        return End(self._library.holdfast_sweep(timer, where, many, rows, self._room, self.stride, self._count, most))

    def _run(self, files: "array[int]", ticks: Ticks | None, most: int) -> End:
        for _ in range(most):
            if ticks is not None:
                try:
                    ticks.wait()
                except BlockingIOError:
                    return End.ENDED
            began = self._clock()
            try:
                values = array("Q", [int(os.pread(file, _SIZE, 0)) for file in files])
            except (OSError, ValueError, OverflowError):
                return End.TROUBLE
            at = self._count.value % self._room * self.stride
            self._words[at : at + 2 + len(values)] = array("Q", [began, self._clock()]) + values
            self._count.value += 1
        return End.DONE
