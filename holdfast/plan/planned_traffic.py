"""What a plan says that one step puts on each of its links: what a job's counted bytes are compared with. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

from holdfast.plan.planned_step import MOST_PARTS

MOST_BYTES = 1e18
"""On one link in one step: a NIC of 400 Gbit/s takes eight months for them."""


@dataclass(frozen=True, slots=True)
class PlannedTraffic:
    """Payload bytes of one step, each counted where it is sent. Groups are rings in the order of ranks.
    ValueError for what no step can send."""

    tensor: tuple[float, ...] = ()
    """By pipeline rank: from each of its ranks to the next of its tp group."""
    replicas: tuple[float, ...] = ()
    """By stage: from each rank that holds a part of it to the next one that holds the same part."""
    message: float = 0.0
    """From each rank of a stage to the same place in the next stage of its pipe, and as many back."""
    tied: float = 0.0
    """From each rank of the first stage to the same place in the last one, and as many back. Where the two differ in
    tp: from each rank of both to the next of them."""
    world: float = 0.0
    """From each rank to the next of all ranks."""
    messages: tuple[float, ...] = ()
    """By boundary between stages, where messages or tp differ: what one replica passes on, and as many back. Empty:
    each rank passes on `message` at every boundary."""
    split: bool = False
    """Of `messages`: each rank of a tp group has its part of them (sequence parallelism), and not all have all."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            for num_bytes in value if isinstance(value, tuple) else (value,):
                if not (isfinite(num_bytes) and 0 <= num_bytes <= MOST_BYTES):
                    raise ValueError(f"{one.name} of {num_bytes} bytes: must be from 0 to {MOST_BYTES:g}")
            if isinstance(value, tuple) and len(value) > MOST_PARTS:
                raise ValueError(f"{one.name} has {len(value)} entries: {MOST_PARTS} at most")
