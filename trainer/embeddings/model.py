"""A model of clicks after DLRM (Naumov et al., arXiv 1906.00091), without its tables."""

from __future__ import annotations

import torch
from torch import nn

from holdfast.trainer.embeddings.criteo import CATEGORIES, NUMBERS

WIDTH = 64
"""Of the hidden layers."""


class Dlrm(nn.Module):
    """Bottom MLP over the numbers, dot products of all pairs of its output and the rows, top MLP."""

    def __init__(self, dim: int, dtype: torch.dtype, seed: int) -> None:
        super().__init__()
        # All trainers, and a run without servers, begin with the same parameters.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.bottom = nn.Sequential(nn.Linear(NUMBERS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, dim), nn.ReLU())
            vectors = CATEGORIES + 1
            pairs = vectors * (vectors - 1) // 2
            self.top = nn.Sequential(nn.Linear(dim + pairs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.to(dtype)
        self.register_buffer("_pairs", torch.tril_indices(vectors, vectors, -1), persistent=False)

    def forward(self, numbers: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """(samples,): logits, of numbers (samples, NUMBERS) and rows (samples, CATEGORIES, dim)."""
        dense = self.bottom(numbers)
        vectors = torch.cat([dense[:, None], rows], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        pairs: torch.Tensor = self._pairs  # type: ignore[assignment]  # a buffer, which nn.Module types as either
        dots = products[:, pairs[0], pairs[1]]
        logits: torch.Tensor = self.top(torch.cat([dense, dots], dim=1))
        return logits.squeeze(1)


def gradients(
    model: Dlrm, numbers: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a part's share in the mean loss of `size` samples.

    `rows` (distinct, dim), of which sample i uses `places[i]` (samples, CATEGORIES). The first result is flat: all
    parameters in order, and last the loss itself. The second is of the shape of `rows`.
    """
    leaf = rows.detach().requires_grad_()
    model.zero_grad(set_to_none=False)
    logits = model(numbers, nn.functional.embedding(places, leaf))
    loss = nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / size
    found = torch.autograd.grad(loss, [*model.parameters(), leaf])
    return torch.cat([*(one.reshape(-1) for one in found[:-1]), loss.detach().reshape(1)]), found[-1]


@torch.no_grad()
def descend(model: Dlrm, flat: torch.Tensor, lr: float) -> None:
    """One step of SGD with gradients as `gradients` lays them out."""
    at = 0
    for parameter in model.parameters():
        parameter.sub_(lr * flat[at : at + parameter.numel()].view_as(parameter))
        at += parameter.numel()
