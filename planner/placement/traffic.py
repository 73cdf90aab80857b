"""What the ranks of a job send to each other in a step, added up between nodes. Pure.

Ranks count through tp first, then dp, then pp, and node i holds the i-th `per_node` of them. Groups of tp and dp are
rings in the order of ranks; adjacent stages of pp exchange activations and their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from holdfast.base.errors import UsageError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

AXES = ("pp", "dp", "tp")
"""As ranks count: the slowest first."""
USUAL = {"pp": 1.0, "dp": 4.0, "tp": 16.0}
"""What one link of a group carries compared with one of pp, where a job's bytes are not known: tp sums activations in
every layer, dp gradients once a step, pp hands on the activations of one layer."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The parallel sizes of a job, and the bytes that all its ranks send in a step, by axis. UsageError for a size
    below 1 or bytes below 0."""

    pp: int = 1
    dp: int = 1
    tp: int = 1
    pp_bytes: float = 0.0
    dp_bytes: float = 0.0
    tp_bytes: float = 0.0

    def __post_init__(self) -> None:
        for axis in AXES:
            if self.size(axis) < 1:
                raise UsageError(f"{axis} is {self.size(axis)}: must be 1 or more")
            if not 0 <= self.bytes(axis) < float("inf"):
                raise UsageError(f"{axis} sends {self.bytes(axis)} bytes: must be 0 or more")

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def has_bytes(self) -> bool:
        """Is it known what a step sends? Otherwise `USUAL` stands for it."""
        return any(self.bytes(axis) for axis in AXES)

    def size(self, axis: str) -> int:
        return int({"pp": self.pp, "dp": self.dp, "tp": self.tp}[axis])

    def bytes(self, axis: str) -> float:
        return float({"pp": self.pp_bytes, "dp": self.dp_bytes, "tp": self.tp_bytes}[axis])


@dataclass(frozen=True)
class Traffic:
    """Sums over both directions of what two nodes exchange in a step, each pair once (one < other)."""

    nodes: int
    one: Ints
    other: Ints
    amount: Floats
    """By pair of nodes, over all axes."""
    by_axis: dict[str, tuple[Ints, Ints, Floats]] = field(default_factory=dict)
    within: dict[str, float] = field(default_factory=dict)
    """By axis, what stays in nodes."""
    in_bytes: bool = True
    """False: amounts compare with each other, and are not bytes."""


@lru_cache(maxsize=64)
def traffic_of(shape: Shape, per_node: int) -> Traffic:
    """UsageError where the ranks do not fill whole nodes."""
    if per_node < 1 or shape.world % per_node:
        raise UsageError(f"{shape.world} ranks do not fill nodes of {per_node}")
    nodes = shape.world // per_node
    ranks = np.arange(shape.world, dtype=np.int64).reshape(shape.pp, shape.dp, shape.tp)
    by_axis, within = {}, {}
    for at, axis in enumerate(AXES):
        ones, others, amount = _links(ranks, at, axis, shape)
        pairs = _between(ones // per_node, others // per_node, amount, nodes)
        within[axis] = float(amount * len(ones)) - float(pairs[2].sum())
        by_axis[axis] = pairs
    joined = [np.concatenate([by_axis[axis][i] for axis in AXES]) for i in range(3)]
    one, other, amounts = _summed(joined[0].astype(np.int64), joined[1].astype(np.int64), joined[2], nodes)
    return Traffic(nodes, one, other, amounts, by_axis, within, shape.has_bytes)


def _links(ranks: Ints, at: int, axis: str, shape: Shape) -> tuple[Ints, Ints, float]:
    """The links of an axis' groups, from rank to rank, and what each carries."""
    size = ranks.shape[at]
    if size == 1:
        return ranks[:0].ravel(), ranks[:0].ravel(), 0.0
    following = np.roll(ranks, -1, axis=at)
    ones, others = ranks, following
    if axis == "pp":  # a line: the last stage hands nothing on
        ones, others = ranks[:-1], following[:-1]
        ones, others = np.concatenate([ones, others]), np.concatenate([others, ones])
    ones, others = ones.ravel(), others.ravel()
    return ones, others, shape.bytes(axis) / len(ones) if shape.has_bytes else USUAL[axis]


def _between(ones: Ints, others: Ints, amount: float, nodes: int) -> tuple[Ints, Ints, Floats]:
    leaves = ones != others
    return _summed(ones[leaves], others[leaves], np.full(int(leaves.sum()), amount), nodes)


def _summed(ones: Ints, others: Ints, amounts: Floats, nodes: int) -> tuple[Ints, Ints, Floats]:
    """Each pair once, without those that exchange nothing."""
    keys = np.minimum(ones, others) * nodes + np.maximum(ones, others)
    known, place = np.unique(keys, return_inverse=True)
    sums = np.bincount(place.ravel(), weights=amounts, minlength=len(known)).astype(np.float64)
    known, sums = known[sums > 0], sums[sums > 0]
    return known // nodes, known % nodes, sums
