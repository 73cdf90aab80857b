"""One figure of a technique, and the technique that it is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    what: str
    """The figure, and the sizes that it is for."""
    expected: float
    """By the source's formula or table, never by the code under test."""
    measured: float
    tolerance: float = 1e-9
    """The largest difference that passes, in the unit of the figure."""

    @property
    def passes(self) -> bool:
        return abs(self.measured - self.expected) <= self.tolerance  # False for NaN


@dataclass(frozen=True, slots=True)
class Technique:
    id: str
    """As `holdfast rows` takes it."""
    name: str
    source: str
    when: str
    """When to choose it, in a sentence."""
    check: Callable[[], Iterator[Row]]
