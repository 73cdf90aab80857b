"""Sets of ranks as short text: `0-7`, `0-28/4`, `1,5,9-11`."""

import re
from collections.abc import Iterable

from holdfast.base.bounds import MAX_RANKS

_RUN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,9}))?)?")


def compact(ranks: Iterable[int]) -> str:
    """Ranks in ascending order; those at even distances become one run.

    >>> compact([0, 4, 8, 12, 3])
    '0,3-4,8,12'
    >>> compact(range(0, 32, 4))
    '0-28/4'
    """
    left = sorted(set(ranks))
    parts = []
    while left:
        length = _run(left)
        first, last, stride = left[0], left[length - 1], left[1] - left[0] if length > 1 else 1
        parts.append(str(first) if length == 1 else f"{first}-{last}" + (f"/{stride}" if stride > 1 else ""))
        left = left[length:]
    return ",".join(parts)


def expand(text: str) -> tuple[int, ...]:
    """The inverse of `compact`. ValueError for what is none, or holds more ranks than a job has."""
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"{text!r} is no set of ranks: write it like 0-7 or 0,4,8-28/4")
        first = int(match[1])
        run = range(first, int(match[2] or first) + 1, int(match[3] or 1))
        if first >= MAX_RANKS or len(ranks) + len(run) > MAX_RANKS:
            raise ValueError(f"{text[:80]!r} holds more than {MAX_RANKS} ranks")
        ranks += run
    return tuple(ranks)


def _run(ranks: list[int]) -> int:
    """How many of the first ranks are one run: adjacent ranks from two on, else at least four at one distance."""
    if len(ranks) < 2:
        return len(ranks)
    stride = ranks[1] - ranks[0]
    length = 2
    while length < len(ranks) and ranks[length] - ranks[length - 1] == stride:
        length += 1
    return length if stride == 1 or length > 3 else 1
