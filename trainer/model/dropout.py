"""Dropout whose mask depends on seed, step, micro-batch and place in the model, never on the layout."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.model.sequence_parallel import own_positions
from holdfast.trainer.model.tensor_parallel import hash_of


@dataclass(slots=True)
class Moment:
    """Where training is; the stages of a rank share one. Only dropout reads it."""

    seed: int
    step: int = 0
    first_micro_batch: int = 0
    """Global number of this replica's first micro-batch."""


class Dropout:
    """Drops activations by a mask that any rank of any layout draws alike. Not a module: it has no parameters, and most
    models have a rate of 0."""

    def __init__(self, rate: float, site: str, moment: Moment, split: dist.ProcessGroup | None = None) -> None:
        """`split`: the group over which the sequence of what comes in is divided, None when it is whole."""
        self.rate, self.site, self.moment, self.split = rate, site, moment, split

    def __call__(self, x: Tensor, micro_batch: int) -> Tensor:
        if not self.rate:
            return x
        moment = self.moment
        seed = hash_of(moment.seed, "dropout", moment.step, moment.first_micro_batch + micro_batch, self.site)
        generator = torch.Generator(x.device).manual_seed(seed)
        # Always the whole mask, of which a rank then takes its positions: the same in every layout.
        batch, length, width = x.shape
        ranks = 1 if self.split is None else self.split.size()
        kept = torch.rand((batch, length * ranks, width), generator=generator, device=x.device) >= self.rate
        if self.split is not None:
            kept = own_positions(kept, self.split)
        return x * kept.to(x.dtype) / (1 - self.rate)
