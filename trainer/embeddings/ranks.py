"""Sums and gathers over trainers in a fixed order, so that results do not depend on which message came first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist


class Ranks:
    """One process group, which one thread uses. With one trainer nothing is sent."""

    def __init__(self, rank: int, size: int, group: dist.ProcessGroup | None) -> None:
        self.rank, self.size, self._group = rank, size, group

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of all trainers' parts of one shape, added up in the order of ranks.

        An all-reduce would send less, but the order in which gloo adds depends on where in the tensor an element lies:
        a row's sum would depend on which other rows are summed with it.
        """
        if self.size == 1 or not part.numel():
            return part
        parts = self._all(part.contiguous())
        total = parts[0].clone()
        for other in parts[1:]:
            total += other
        return total

    def gather(self, part: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """(sum of counts, dim): the rows of all trainers, in the order of ranks, of which each has `counts`."""
        most = max(counts)
        if self.size == 1 or not most:
            return part
        padded = torch.zeros(most, part.shape[1], dtype=part.dtype)
        padded[: len(part)] = part
        return torch.cat([rows[:count] for rows, count in zip(self._all(padded), counts, strict=True)])

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part, group=self._group)
        return parts
