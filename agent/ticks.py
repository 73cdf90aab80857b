"""Ticks of a timer that the kernel keeps going by itself.

A thread that waits for them arms nothing each time it goes to sleep: of 42 us that waking up a hundred times a second
by `time.sleep` costs, that is 10.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from ctypes import c_int
from itertools import repeat
from typing import Any

_CLOCK_MONOTONIC = 1
_SPEC = struct.Struct("@qqqq")  # struct itimerspec: seconds and nanoseconds of the interval, and of the first tick
_libc = ctypes.CDLL(None, use_errno=True)


class Ticks:
    """One thread iterates, time and again; another may call everything else."""

    def __init__(self, interval_ns: int) -> None:
        """Raises OSError where the kernel has no such timer."""
        self._fd = _checked(_libc.timerfd_create(c_int(_CLOCK_MONOTONIC), c_int(os.O_CLOEXEC)))
        self.ended = False
        self.pace(interval_ns)

    def pace(self, interval_ns: int) -> None:
        """Tick so often from now on."""
        self._set(interval_ns, interval_ns)

    def __iter__(self) -> Iterator[bytes]:
        """Each step waits for the next tick; those missed meanwhile come as one. No line of Python runs in it.

        BlockingIOError, at the latest after one more tick, once `interrupt` or `end` was called: this iterator is
        over then. An interruption that came before this call is forgotten, the end is not.
        """
        os.set_blocking(self._fd, True)
        if self.ended:  # read after the line above: `end` may be under way
            os.set_blocking(self._fd, False)
        return map(os.read, repeat(self._fd), repeat(8))

    def interrupt(self) -> None:
        """Get the thread that iterates out of it, within a tick."""
        os.set_blocking(self._fd, False)

    def end(self) -> None:
        """Get it out of it now, for good. The descriptor stays until `close`."""
        self.ended = True
        os.set_blocking(self._fd, False)  # first: who wakes by the last tick must not wait for another
        self._set(1, 0)

    def close(self) -> None:
        """For when nobody waits any more."""
        os.close(self._fd)

    def _set(self, first_ns: int, then_ns: int) -> None:
        spec = _SPEC.pack(*divmod(then_ns, 10**9), *divmod(first_ns, 10**9))
        _checked(_libc.timerfd_settime(c_int(self._fd), c_int(0), spec, None))


def _checked(result: Any) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"timerfd: {os.strerror(ctypes.get_errno())}")
    return int(result)
