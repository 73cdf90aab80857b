"""What is predicted of a layout: seconds, bytes by kind, bytes by link. The interface of the cost model for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from holdfast.planner.cluster.cluster import Level


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where a step's seconds go on the rank that ends last. They add up to the step."""

    compute: float
    """Forward and backward, without what follows."""
    recompute: float
    """Forwards done again."""
    tensor: float
    """Collectives of tensor parallelism, inside layers."""
    bubble: float
    """Waiting for an adjacent stage, messages included."""
    replicas: float
    """Gathering parameters and reducing gradients, as far as no computation hides it."""
    optimizer: float
    """The update, and the sum of loss and norm over all ranks."""
    host: float = 0.0
    """Copies of activations or chunks between device and host that no computation hides, and updates there."""

    @property
    def total(self) -> float:
        return float(sum(getattr(self, one.name) for one in fields(self)))

    def document(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank at its fullest, by kind; the kinds are those of `holdfast memory`."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    gathered: float
    buffers: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, one.name) for one in fields(self)))

    def document(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Wire:
    """Bytes of one step over all ranks, payload alone, each counted where it is sent."""

    by_purpose: Mapping[str, float]
    """tensor, pipeline, replicas, world."""
    by_link: Mapping[Level, float]
    """By the level that they cross."""

    @property
    def total(self) -> float:
        return sum(self.by_purpose.values())


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one layout of a model on a cluster."""

    step_s: float
    breakdown: Breakdown
    memory: tuple[Memory, ...]
    """By pipeline rank."""
    host_bytes: float
    """In host memory, on the rank with the most: optimizer states, activations, chunks."""
    wire: Wire
    mfu: float
    """Model FLOPs over the peak of the job's devices, 0 to 1."""
    capacity: float
    """Bytes of a device."""
    moved_bytes: float = 0.0
    """Activations or chunks that a step copies to or from the host, on the rank with the most."""

    @property
    def fullest(self) -> Memory:
        return max(self.memory, key=lambda one: one.total)

    @property
    def fits(self) -> bool:
        return self.fullest.total <= self.capacity
