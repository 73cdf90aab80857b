"""What a plan says that one step takes: what a running job is compared with. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite

MOST_PARTS = 1 << 16
"""Stages, or pipeline ranks: no plan has more."""
MOST_SECONDS = 1e9


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """Seconds. Of a stage: of one micro-batch, on one of its ranks. Of a pipeline rank: of a whole step, whether
    other work hides it or not. ValueError for what no step can take."""

    step: float
    forward: tuple[float, ...] = ()
    """By stage, without collectives of tensor parallelism."""
    backward: tuple[float, ...] = ()
    """By stage, what is recomputed included."""
    tensor: tuple[float, ...] = ()
    """By stage, collectives of tensor parallelism, both ways."""
    message: float = 0.0
    """From the end of a stage to the next one's begin."""
    replicas: tuple[float, ...] = ()
    """By pipeline rank, gathering parameters and reducing gradients."""
    optimizer: tuple[float, ...] = ()
    """By pipeline rank, the update, and the sum of loss and norm over all ranks."""

    def __post_init__(self) -> None:
        if not 0 < self.step <= MOST_SECONDS:
            raise ValueError(f"a step of {self.step} s: must be above 0, {MOST_SECONDS:g} at most")
        for one in fields(self):
            value = getattr(self, one.name)
            for seconds in value if isinstance(value, tuple) else (value,):
                if not (isfinite(seconds) and 0 <= seconds <= MOST_SECONDS):
                    raise ValueError(f"{one.name} of {seconds} s: must be from 0 to {MOST_SECONDS:g}")
            if isinstance(value, tuple) and len(value) > MOST_PARTS:
                raise ValueError(f"{one.name} has {len(value)} entries: {MOST_PARTS} at most")
        if not len(self.forward) == len(self.backward) == len(self.tensor):
            raise ValueError("forward, backward and tensor differ in their number of stages")
        if len(self.replicas) != len(self.optimizer):
            raise ValueError("replicas and optimizer differ in their number of pipeline ranks")
