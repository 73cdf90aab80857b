"""DP-KFAC written a second time, from sums over single rows; and what forked ranks do in its tests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from joining import joined
from torch import Tensor

from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.feed import Inline
from holdfast.trainer.model import accumulate, layers
from holdfast.trainer.settings.config import OptimConfig

Rows = list[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]]
"""Input (in,) and gradient of the output (out,), row by row."""


class Alone:
    """The process group of one process."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


class PlainKfac:
    """Of some matrices in one process, by the formulas of arXiv 2206.15143. Arrays in, arrays out, float64."""

    def __init__(self, config: OptimConfig, shapes: Mapping[str, Sequence[int]]) -> None:
        self.config = config
        self.into = {name: np.eye(shape[1]) for name, shape in shapes.items()}
        self.out = {name: np.eye(shape[0]) for name, shape in shapes.items()}
        self.momentum = {name: np.zeros(tuple(shape)) for name, shape in shapes.items()}
        self.ready: dict[str, Any] = {}

    def step(
        self, applied: int, lr: float, rows: Mapping[str, Rows], weights: dict[str, Any], grads: Mapping[str, Any]
    ) -> None:
        """Change `weights` in place."""
        c = self.config
        found = {}
        for name, grad in grads.items():
            n = len(rows[name])
            if applied % c.factor_every == 0:
                a = sum(np.outer(x, x) for x, _ in rows[name]) / n
                g = sum(np.outer(y, y) for _, y in rows[name]) * n
                self.into[name] = c.factor_decay * self.into[name] + (1 - c.factor_decay) * a
                self.out[name] = c.factor_decay * self.out[name] + (1 - c.factor_decay) * g
            if applied % c.invert_every == 0:
                self.ready[name] = self.into[name].copy(), self.out[name].copy()
            into, out = self.ready[name]
            if c.kfac_form == "inverse":
                left = np.linalg.inv(out + c.damping * np.eye(len(out)))
                found[name] = left @ grad @ np.linalg.inv(into + c.damping * np.eye(len(into)))
            else:  # (G x A + l I) vec(V) = vec(D), solved as one system of equations
                whole = np.kron(out, into) + c.damping * np.eye(grad.size)
                found[name] = np.linalg.solve(whole, grad.flatten()).reshape(grad.shape)
        length = abs(sum(float((found[name] * grad).sum()) for name, grad in grads.items())) * lr**2
        nu = min(1.0, math.sqrt(c.kl_clip / length)) if c.kl_clip and length else 1.0
        for name, weight in weights.items():
            self.momentum[name] = c.momentum * self.momentum[name] + nu * found[name] + c.weight_decay * weight
            weight -= lr * self.momentum[name]


@contextmanager
def recorded(names: Mapping[int, str]) -> Iterator[dict[str, Rows]]:
    """Inputs and gradients of outputs of all products, by hooks of torch's on the outputs, by the parameter's name."""
    found: dict[str, Rows] = {name: [] for name in names.values()}

    def multiply_all(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        outputs = tuple(torch.nn.functional.linear(x, weight) for weight in weights)
        for weight, output in zip(weights, outputs, strict=True):
            if output.requires_grad:
                output.register_hook(partial(note, names[id(weight)], x))
        return outputs

    def note(name: str, x: Tensor, grad: Tensor) -> None:
        pairs = zip(x.detach().flatten(0, -2).numpy(), grad.flatten(0, -2).numpy(), strict=True)
        found[name] += [(a.copy(), g.copy()) for a, g in pairs]

    kept = layers.multiply_all, layers.multiply
    layers.multiply_all, layers.multiply = multiply_all, lambda x, weight: multiply_all(x, weight)[0]  # type: ignore
    try:
        yield found
    finally:
        layers.multiply_all, layers.multiply = kept


def alone(folder: Path, argv: list[str]) -> dict[str, Any]:
    """One process: how far matrices are from `PlainKfac`'s after each step, as a share of their change so far."""
    torch.set_num_threads(1)
    with joined(argv) as rank:
        trainer, twin = rank.trainer(), rank.trainer()
        limit = rank.config.optim.kfac_largest
        small = [s for s in twin.slices if s.parameter.dim() == 2 and max(s.parameter.shape) <= limit]
        matrices = {s.name: s for s in small if s.name not in ("embed.weight", "positions.weight")}
        plain = PlainKfac(rank.config.optim, {name: s.parameter.shape for name, s in matrices.items()})
        weights = {name: s.parameter.detach().numpy().copy() for name, s in matrices.items()}
        start = {name: weight.copy() for name, weight in weights.items()}
        names = {id(s.parameter): s.name for s in twin.slices}
        worst = []
        for step in range(rank.config.train.steps):
            with recorded(names) as rows, torch.no_grad():
                for one, other in zip(twin.slices, trainer.slices, strict=True):
                    one.parameter.copy_(other.parameter)
                with torch.enable_grad():
                    twin.gradients(step)
            grads = {name: s.parameter.grad.numpy().copy() for name, s in matrices.items()}  # type: ignore[union-attr]
            twin.optimizer.drop()
            trainer.step(step)
            lr = rank.config.optim.lr * min(1.0, (step + 1) / rank.config.optim.warmup_steps)
            plain.step(step, lr, rows, weights, grads)
            here = {s.name: s.parameter.detach().numpy() for s in trainer.slices}
            apart = [
                np.linalg.norm(here[n] - weight) / np.linalg.norm(weight - start[n]) for n, weight in weights.items()
            ]
            worst.append(float(max(apart)))
        return {"worst": worst, "matrices": sorted(matrices)}


def alike(folder: Path, argv: list[str]) -> dict[str, Any]:
    """All replicas read the first one's micro-batches: losses, weights after all steps, who owns what, and what was
    sent, in elements by collective."""
    torch.set_num_threads(1)
    with joined(argv) as rank:
        trainer, local, c = rank.trainer(), rank.layout.local_micro_batches, rank.config
        same = Batches(rank.corpus.tokens, c.data.seq_len, c.train.seed, local, c.train.micro_batch_size)
        trainer.feed = Inline(same, range(local))
        with counted() as sent:
            losses = [trainer.step(step).loss for step in range(rank.config.train.steps)]
        return {
            "losses": losses,
            "weights": {s.name: s.shard.detach().flatten().tolist() for s in trainer.slices},
            "owned": {name: tensor.numel() for name, tensor in trainer.optimizer.owned().items()},
            "shapes": {s.name: list(s.shard.shape) for s in trainer.slices},
            "sent": sent,
            "rank": int(os.environ["RANK"]),
        }


@contextmanager
def counted() -> Iterator[dict[str, list[int]]]:
    """Elements of each tensor that is handed to a collective, by its name."""
    sent: dict[str, list[int]] = {"broadcast": [], "all_reduce": []}
    kept = {name: getattr(dist, name) for name in sent}

    def counting(name: str) -> Any:
        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            sent[name].append(tensor.numel())
            return kept[name](tensor, *args, **kwargs)

        return call

    for name in sent:
        setattr(dist, name, counting(name))
    try:
        yield sent
    finally:
        for name, call in kept.items():
            setattr(dist, name, call)


assert accumulate.multiply_all is layers.multiply_all, "both tests and layers must multiply with the same function"
