"""Every pair of choices in few cases."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(case: Mapping[str, Any]) -> set[Pair]:
    return set(itertools.combinations(sorted(case.items()), 2))


def cover(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Cases in which every value of every axis meets every value of every other one. Greedy, always alike."""
    missing: set[Pair] = set()
    for a, b in itertools.combinations(sorted(axes), 2):
        missing |= {((a, x), (b, y)) for x in axes[a] for y in axes[b]}
    cases = []
    while missing:
        case: dict[str, Any] = dict(min(missing, key=repr))
        for axis in axes:
            if axis not in case:
                case[axis] = max(axes[axis], key=lambda v: len(pairs_of(case | {axis: v}) & missing))
        missing -= pairs_of(case)
        cases.append(case)
    return cases
