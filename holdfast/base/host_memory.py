"""What the process does with memory that it no longer needs."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
_LARGEST_HELD = 32 << 20  # more glibc does not take
_NEVER = (1 << 31) - 1


def keep_freed(one_arena: bool = False) -> bool:
    """Have malloc keep what is freed for the next time, instead of returning it to the kernel; whether it will.

    Every step of training, and every MiB of an upload, takes and frees the same memory. If returned, its pages are
    fetched and cleared again in each, which on a virtual machine takes as long as a tenth of a step's computation.
    Without glibc nothing changes.

    `one_arena`: threads that start later take memory where the first one does. Otherwise each has an arena of its own,
    and what a thread has freed is of no use to others: a rank with ZeRO 1, whose gradients are summed by a thread,
    had 252 MB resident for a model of 13 MB, and has 179.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = [(_TRIM_THRESHOLD, _NEVER), (_MMAP_THRESHOLD, _LARGEST_HELD), *([(_ARENA_MAX, 1)] if one_arena else [])]
    return all([mallopt(name, value) for name, value in wanted])
