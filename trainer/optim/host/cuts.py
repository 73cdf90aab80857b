"""Which elements are updated together. Pure.

Vector loops of a CPU round their last few elements otherwise than the rest: a tensor that is cut anywhere changes by
other bits. Cut at multiples of `UNIT` from its start, only its own end is such a rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

UNIT = 64
"""Elements: a whole number of vectors of every processor, unrolled four times."""


@dataclass(frozen=True, slots=True)
class Part:
    """Elements `start` to `stop` of tensor `index`, which begin at `offset` in their bucket."""

    index: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """Elements side by side, counted over all tensors one behind the other."""

    start: int
    size: int
    parts: tuple[Part, ...]


def halves(bucket: int, total: int) -> list[int]:
    """Elements that are on the device at once, of `total`: two halves of `bucket`, one computed while the other is
    copied; or all of them where they fit.

    >>> halves(1000, 2001), halves(1000, 700), halves(1000, 0)
    ([500, 500], [700], [])
    """
    if total <= bucket:
        return [total] if total else []
    return [bucket - bucket // 2, bucket // 2]


def cut(sizes: Sequence[int], room: Sequence[int]) -> list[Bucket]:
    """Buckets of all elements of tensors of these `sizes`, in order. `room`: elements of a bucket, in turn.

    Raises ValueError for room in which not even `UNIT` elements fit, if they must.
    """
    found: list[Bucket] = []
    parts: list[Part] = []
    begun = held = 0

    def close() -> None:
        nonlocal begun, held
        found.append(Bucket(begun, held, tuple(parts)))
        begun, held = begun + held, 0
        parts.clear()

    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            free = room[len(found) % len(room)] - held
            left = size - start
            taken = left if left <= free else free // UNIT * UNIT
            if taken:
                parts.append(Part(index, start, start + taken, held))
                start, held = start + taken, held + taken
            elif held:
                close()
            else:
                raise ValueError(f"a bucket of {free} elements: {UNIT} or more")
    if held:
        close()
    return found
