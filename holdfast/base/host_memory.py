"""What the process does with memory that it no longer needs."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_HELD = 32 << 20  # more glibc does not take
_NEVER = (1 << 31) - 1


def keep_freed() -> bool:
    """Have malloc keep what is freed for the next time, instead of returning it to the kernel; whether it will.

    Every step of training, and every MiB of an upload, takes and frees the same memory. If returned, its pages are
    fetched and cleared again in each, which on a virtual machine takes as long as a tenth of a step's computation.
    Without glibc nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _NEVER)) and bool(mallopt(_MMAP_THRESHOLD, _LARGEST_HELD))
