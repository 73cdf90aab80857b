"""The table of known GPUs: gpus.toml, which has a source for each line."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass, fields
from importlib import resources

from holdfast.planner.cluster.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one device can do. A processor of a host without GPUs counts as one too."""

    name: str
    flops: float
    """Peak FLOP/s in the precision of the run; dense bfloat16 of a known GPU."""
    memory_bytes: float
    memory_bytes_per_s: float
    link_bytes_per_s: float = 0.0
    """To its peers in the node, one direction; 0: not known."""
    cache_bytes: float = 0.0
    """On-chip buffer of the traffic formula."""
    reached: float = 1.0
    """Share of `flops` that large matrix products reach."""

    def __post_init__(self) -> None:
        for one in ("flops", "memory_bytes", "memory_bytes_per_s"):
            if not getattr(self, one) > 0:
                raise ClusterError(f"gpu {self.name}: {one} is {getattr(self, one)}, must be above 0")
        if not 0 < self.reached <= 1:
            raise ClusterError(f"gpu {self.name}: reached is {self.reached}, must be above 0 and at most 1")

    @property
    def speed(self) -> float:
        """FLOP/s of large matrix products."""
        return self.flops * self.reached


@functools.cache
def known() -> tuple[Gpu, ...]:
    """All of the table, in its order."""
    text = (resources.files(__package__) / "gpus.toml").read_text()
    columns = {one.name for one in fields(Gpu)}
    return tuple(
        Gpu(row["words"], **{key: float(value) for key, value in row.items() if key in columns})
        for row in tomllib.loads(text)["gpu"]
    )


def find(name: str) -> Gpu | None:
    """The GPU of this name, as a driver or a person writes it; None for one that the table lacks."""
    words = f" {name.replace('-', ' ').casefold()} "
    return next((one for one in known() if f" {one.name.casefold()} " in words), None)


def need(name: str) -> Gpu:
    """The same. ClusterError for one that the table lacks."""
    found = find(name)
    if found is None:
        raise ClusterError(
            f"GPU {name[:60]!r} is not known: write one of {', '.join(one.name for one in known())}, "
            "or its flops, memory_bytes and memory_bytes_per_s in a table [gpu]"
        )
    return found
