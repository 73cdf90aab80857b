"""Every pair of choices in few cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Pair = tuple[tuple[str, Any], tuple[str, Any]]


def pairs_of(case: Mapping[str, Any]) -> set[Pair]:
    return set(itertools.combinations(sorted(case.items()), 2))


def wanted(axes: Mapping[str, Sequence[Any]], possible: Callable[[Mapping[str, Any]], bool]) -> set[Pair]:
    """Every pair of values of two axes that can be."""
    return {
        ((a, x), (b, y))
        for a, b in itertools.combinations(sorted(axes), 2)
        for x in axes[a]
        for y in axes[b]
        if possible({a: x, b: y})
    }


def cover(
    axes: Mapping[str, Sequence[Any]],
    possible: Callable[[Mapping[str, Any]], bool] = lambda case: True,
    matters: Callable[[Pair], bool] = lambda pair: True,
) -> list[dict[str, Any]]:
    """Cases in which every value of every axis meets every value of every other one. Greedy, always alike.

    `possible` says of some of an axis' values each whether a case can have them all, `matters` of a pair whether it has
    to be met.
    """
    missing = {pair for pair in wanted(axes, possible) if matters(pair)}
    cases = []
    while missing:
        case: dict[str, Any] = dict(min(missing, key=repr))
        for axis in axes:
            if axis not in case:
                values = [value for value in axes[axis] if possible(case | {axis: value})]
                case[axis] = max(values, key=lambda v: len(pairs_of(case | {axis: v}) & missing))
        missing -= pairs_of(case)
        cases.append(case)
    return cases
