"""Which matrices DP-KFAC preconditions, and which rank owns each (arXiv 2206.15143). Pure, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holdfast.trainer.settings.config import OptimConfig

TABLES = ("embed.weight", "positions.weight")
"""Matrices through which nothing is multiplied, or not only: rows are looked up."""


def is_preconditioned(config: OptimConfig, name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter has factors: a matrix that activations are multiplied with, and not too large to invert.

    `name` is global. Tied embeddings are a table too.
    """
    if config.name != "dp-kfac" or len(shape) != 2 or name in TABLES:
        return False
    return max(shape) <= config.kfac_largest


INVERSION: Mapping[str, float] = {"inverse": 6.0, "eigen": 25.0}
"""By form, what to make of a factor of size d takes, in d^3 multiplications of a matrix product of this size: measured
with float32 on one core, d 64 to 512, where it was 4 to 8 and 16 to 25 (118 once, on a busy machine)."""


def cost(shape: Sequence[int], rows: int) -> float:
    """Of a matrix (out, in) in products: dA^3 + dG^3 to invert its factors, B (dA^2 + dG^2) to build them of B rows."""
    out, into = shape
    return float(into**3 + out**3 + rows * (into**2 + out**2))


def owners(costs: Sequence[float], ranks: int, way: str) -> list[int]:
    """By matrix, the rank that has its factors and inverts them.

    round-robin: matrix l goes to rank l mod P, as in the paper. cost: the dearest first, each to the rank with the
    least so far (longest processing time first; Graham 1969): no rank has more than the mean and one matrix.

    >>> owners([1, 1, 1, 3], 2, "cost")
    [1, 1, 1, 0]
    """
    if way == "round-robin":
        return [number % ranks for number in range(len(costs))]
    found, load = [0] * len(costs), [0.0] * ranks
    for number in sorted(range(len(costs)), key=lambda number: (-costs[number], number)):
        found[number] = min(range(ranks), key=lambda rank: (load[rank], rank))
        load[found[number]] += costs[number]
    return found


def rounds(stages: Sequence[int], owner_of: Sequence[int]) -> list[int]:
    """By matrix, the round in which it is inverted: its number among its owner's matrices of its stage, from 0.

    >>> rounds([0, 0, 0, 1], [0, 1, 0, 0])
    [0, 0, 1, 0]
    """
    before: Counter[tuple[int, int]] = Counter()
    found = []
    for of_owner in zip(stages, owner_of, strict=True):
        found.append(before[of_owner])
        before[of_owner] += 1
    return found
