"""How far counters went up from one sample to the next, in bytes: what a frame holds of them.

All in Python; sweep.c does the same for counters that only go up, a little each time.
"""

import sys
from array import array
from collections.abc import Sequence
from itertools import chain, repeat
from operator import mul, sub

UINT32_MAX = 2**32 - 1


def growth(last: int, value: int) -> int:
    """How far a counter went up from `last` to `value`, in its own unit.

    A counter that went down was reset (0: what it counted meanwhile is unknown), unless it stood in the top
    sixteenth of 32 or 64 bits and is now in the bottom sixteenth: then it wrapped.
    """
    if value >= last:
        return value - last
    for bits in (32, 64):
        top = 1 << bits
        if top - (top >> 4) <= last < top and value < top >> 4:
            return value + top - last
    return 0


def columns(rows: "array[int]", stride: int, since: int, last: "array[int]", scales: Sequence[int]) -> list[bytes]:
    """Columns of little-endian uint32 out of rows of `stride` words: when each began after `since` (ns), in us; then of
    each counter what it grew by, times its scale, from `last`, which becomes the newest value."""
    found = [_unsigned([(began - since) // 1000 for began in rows[::stride]])]
    for i, scale in enumerate(scales):
        values, before = rows[2 + i :: stride], last[i]
        if values:
            last[i] = values[-1]
        try:
            # No list between the steps: a counter that went down, or grew by too much, is the exception.
            grown = array("I", map(mul, map(sub, values, chain((before,), values)), repeat(scale)))
        except OverflowError:
            grown = _unsigned(list(map(mul, map(growth, chain((before,), values), values), repeat(scale))))
        found.append(grown)
    return [_little(column) for column in found]


def _unsigned(values: list[int]) -> "array[int]":
    """The values, each at least 0 and at most UINT32_MAX."""
    try:
        return array("I", values)
    except OverflowError:
        return array("I", [min(max(value, 0), UINT32_MAX) for value in values])


def _little(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
