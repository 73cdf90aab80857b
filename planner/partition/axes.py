"""What a collective costs on one axis of a device mesh (Alpa's cost model, with its constants). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Collective(StrEnum):
    """What the devices of an axis do together."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """Devices in a line: how many, and what a message costs between neighbours.

    `alpha` is per collective, `beta` per byte, both in any one unit of cost (seconds in a plan for `holdfast train`).
    `tie` scales Alpa's constants, which decide between equal costs: 1 where costs are counted in bytes, about 1e-9
    where they are seconds, or a constant would outweigh the time of a message.
    """

    size: int
    alpha: float = 0.0
    beta: float = 1.0
    tie: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or min(self.alpha, self.beta, self.tie) < 0:
            raise ValueError(f"mesh axis {self}: a size of 1 or more, and no cost below 0")

    def cost(self, collective: Collective, num_bytes: float) -> float:
        """Of one collective of `num_bytes`: of the whole tensor, before it is cut or after it is put together.

        Alpa (OSDI 2022), from its published code: with n devices and x bytes, all-gather a + b (n-1)/n x + 0.1,
        all-reduce a + 2 b (n-1)/n x + 0.01, reduce-scatter a + b (n-1)/n x + 0.001, all-to-all
        a + b (n-1)/n^2 x (n/2) + 0.001. One device alone sends nothing.
        """
        n = self.size
        if n == 1:
            return 0.0
        share = self.beta * (n - 1) / n * num_bytes
        match collective:
            case Collective.ALL_GATHER:
                return self.alpha + share + 0.1 * self.tie
            case Collective.ALL_REDUCE:
                return self.alpha + 2 * share + 0.01 * self.tie
            case Collective.REDUCE_SCATTER:
                return self.alpha + share + 0.001 * self.tie
            case Collective.ALL_TO_ALL:
                return self.alpha + share / n * (n / 2) + 0.001 * self.tie
