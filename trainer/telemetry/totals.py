"""What all ranks find out about a step together: its loss, its gradients' norm, whose share was not finite, and votes.

One collective of a few numbers, or a few numbers more in one of gradients. They stay on the device until they are read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.telemetry import spans

_PIECES = 3  # of 24 bits each, in which float32 holds the 53 of a float64


@dataclass(frozen=True, slots=True)
class Totals:
    """What all ranks know after a step's backward."""

    loss: float
    norm: float
    """Of the gradients of all parameters together, before clipping."""
    bad_ranks: list[int]
    """Ranks whose own loss or gradients were not finite."""
    votes: tuple[int, ...] = ()
    """How many ranks said yes to each question that all were asked."""

    @property
    def is_finite(self) -> bool:
        return not self.bad_ranks and math.isfinite(self.loss) and math.isfinite(self.norm)


class StepSums:
    """Totals on the device: loss, squared norm, for each rank whether its share was not finite, and votes."""

    def __init__(self, numbers: Tensor, votes: int = 0) -> None:
        self.numbers, self._last = numbers, len(numbers) - votes
        self.norm = numbers[1].sqrt()

    def bad(self) -> Tensor:
        """1.0 if the step must not be applied, else 0.0; float32, of no dimension."""
        return (~torch.isfinite(self.numbers).all() | (self.numbers[2 : self._last] > 0).any()).float()

    def read(self) -> Totals:
        """Wait for the device. The only such place of a step."""
        numbers = self.numbers.tolist()
        loss, squares, flags = numbers[0], numbers[1], numbers[2 : self._last]
        norm = math.sqrt(squares) if squares >= 0 else math.nan
        votes = tuple(map(int, numbers[self._last :]))
        return Totals(loss, norm, [rank for rank, bad in enumerate(flags) if bad], votes)


@dataclass(frozen=True, slots=True)
class Pending:
    """Totals on their way."""

    numbers: Tensor
    votes: int
    work: dist.Work | None

    def wait(self, squares: Tensor | None = None) -> StepSums:
        """`squares`: the whole squared norm, when each rank finds the same by itself and none was sent."""
        if self.work is not None:
            with spans.operation("world:all_reduce", self.numbers.nbytes):
                self.work.wait()
        if squares is not None:
            self.numbers[1] = squares
        return StepSums(self.numbers, self.votes)


def start_sum(loss: Tensor, squares: Tensor | None, votes: Sequence[bool] = ()) -> Pending:
    """Add up each rank's share of the loss and of the squared norm, in one collective, and its votes with them.

    The numbers add in float64 in a fixed order, so a layout always gives the same bits. Called by all ranks together;
    without `squares` before gradients are complete.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    shares = torch.zeros(2 + world + len(votes), dtype=torch.float64, device=loss.device)
    shares[0] = loss
    if squares is not None:
        shares[1] = squares
    shares[2 + rank] = ~torch.isfinite(shares[:2]).all()
    if any(votes):
        shares[2 + world :] = torch.tensor(votes, dtype=torch.float64)
    return Pending(shares, len(votes), dist.all_reduce(shares, async_op=True) if world > 1 else None)


def riding(loss: Tensor, votes: Sequence[bool] = ()) -> Tensor:
    """What `start_sum` would send, for a sum in float32 that is exact: each rank writes into places of its own, where
    all others have zeros. float64 takes three of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    numbers = torch.zeros(_PIECES * world + len(votes), device=loss.device)
    rest = loss
    for place in range(_PIECES * rank, _PIECES * (rank + 1)):
        numbers[place] = rest
        rest = rest - numbers[place].double()
    if any(votes):
        numbers[_PIECES * world :] = torch.tensor(votes, dtype=torch.float32)
    return numbers


def arrived(sums: Tensor) -> Pending:
    """From the sums of what all ranks gave as `riding`."""
    world = dist.get_world_size()
    numbers = sums.double()
    votes = numbers[_PIECES * world :]
    shares = numbers[: _PIECES * world].view(world, _PIECES).sum(1)
    known = [shares.sum().view(1), shares.new_zeros(1), (~torch.isfinite(shares)).double(), votes]
    return Pending(torch.cat(known), len(votes), None)
