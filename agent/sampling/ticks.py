"""Ticks of a timer that the kernel keeps going by itself.

A thread that waits for them arms nothing each time it goes to sleep: of 42 us that waking up a hundred times a second
by `time.sleep` costs, that is 10.
"""

import ctypes
import os
import struct
import sys
from ctypes import c_int
from typing import Any

_CLOCK_MONOTONIC = 1
_SPEC = struct.Struct("@qqqq")  # struct itimerspec: seconds and nanoseconds of the interval, and of the first tick
_libc = ctypes.CDLL(None, use_errno=True)


class Ticks:
    """One thread waits, time and again; another may call everything else."""

    def __init__(self, interval_ns: int) -> None:
        """Raises OSError where the kernel has no such timer."""
        self.fd = _checked(_libc.timerfd_create(c_int(_CLOCK_MONOTONIC), c_int(os.O_CLOEXEC)))
        """A read of 8 bytes waits for the next tick, and fails with EAGAIN once `end` was called."""
        self.ended = False
        self.pace(interval_ns)

    def pace(self, interval_ns: int) -> None:
        """Tick so often from now on."""
        self._set(interval_ns, interval_ns)

    def wait(self) -> int:
        """Until the next tick; the number of ticks since the last call. BlockingIOError once `end` was called."""
        return int.from_bytes(os.read(self.fd, 8), sys.byteorder)

    def end(self) -> None:
        """Wake the thread that waits now, for good. The descriptor stays until `close`."""
        self.ended = True
        os.set_blocking(self.fd, False)  # first: a thread woken by the last tick must not wait for another
        self._set(1, 0)

    def close(self) -> None:
        """Call it when no thread waits any more."""
        os.close(self.fd)

    def _set(self, first_ns: int, then_ns: int) -> None:
        spec = _SPEC.pack(*divmod(then_ns, 10**9), *divmod(first_ns, 10**9))
        _checked(_libc.timerfd_settime(c_int(self.fd), c_int(0), spec, None))


def _checked(result: Any) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"timerfd: {os.strerror(ctypes.get_errno())}")
    return int(result)
