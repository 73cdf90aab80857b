"""Seconds of computations on one device by COMET's roofline (Kadiyala et al.): traffic, hybrid memory. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.planner.cluster.gpus import Gpu


@dataclass(frozen=True, slots=True)
class Engine:
    """What computes: a speed, and a memory."""

    flops: float
    """FLOP/s that large products reach."""
    bytes_per_s: float
    """Of its memory, hybrid where some of it lies elsewhere."""
    cache_bytes: float

    @classmethod
    def of(cls, gpu: Gpu, expanded: float = 0.0, expanded_bytes_per_s: float = math.inf) -> Engine:
        """A GPU of whose traffic the share `expanded` goes to slower memory."""
        return cls(gpu.speed, hybrid(gpu.memory_bytes_per_s, expanded_bytes_per_s, expanded), gpu.cache_bytes)

    def seconds(self, flops: float, traffic: float) -> float:
        """Of work with this traffic: flops / min(peak, intensity x bandwidth)."""
        return max(flops / self.flops, traffic / self.bytes_per_s)


def hybrid(local_bytes_per_s: float, expanded_bytes_per_s: float, expanded: float) -> float:
    """Bandwidth of memory of which the share `expanded` of all traffic goes to the slower part: the harmonic mean."""
    if not 0 <= expanded <= 1:
        raise ValueError(f"{expanded} is no share: from 0 to 1")
    return 1 / ((1 - expanded) / local_bytes_per_s + expanded / expanded_bytes_per_s)


def traffic(m: float, k: float, n: float, item: float, cache_bytes: float) -> float:
    """Bytes to and from memory of an (m, k) times (k, n) product, through a buffer of `cache_bytes`.

    Where both operands and the result fit, each goes once. Otherwise one operand stays in pieces that fit, and the
    other is read once for each piece; the better of the two ways counts.
    """
    u, v, w = m * k * item, k * n * item, m * n * item
    if u + v + w <= cache_bytes:
        return u + v + w
    if cache_bytes <= 0:  # nothing is known of a buffer: each operand once
        return u + v + w
    return min(math.ceil(u / cache_bytes) * v + u, math.ceil(v / cache_bytes) * u + v) + w


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product (m, k) x (k, n), `times` over."""

    m: float
    k: float
    n: float
    times: float = 1.0

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n * self.times

    def forward(self, engine: Engine, item: float) -> float:
        """Seconds."""
        each = engine.seconds(self.flops / self.times, traffic(self.m, self.k, self.n, item, engine.cache_bytes))
        return self.times * each

    def backward(self, engine: Engine, item: float) -> tuple[float, float]:
        """Seconds of the gradients of the input, (m, n) x (n, k), and of the weights, (k, m) x (m, n)."""
        m, k, n = self.m, self.k, self.n
        each = self.flops / self.times
        of_input = engine.seconds(each, traffic(m, n, k, item, engine.cache_bytes))
        of_weights = engine.seconds(each, traffic(k, m, n, item, engine.cache_bytes))
        return self.times * of_input, self.times * of_weights
