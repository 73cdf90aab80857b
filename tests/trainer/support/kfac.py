"""DP-KFAC written a second time, from sums over single rows; and what forked ranks do in its tests."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from joining import joined
from torch import Tensor

from holdfast.plan.plan import Op
from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.feed import Inline
from holdfast.trainer.model import accumulate, layers
from holdfast.trainer.optim.matrices import rounds
from holdfast.trainer.run import loop
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

    def __init__(self, config: OptimConfig, shapes: Mapping[str, Sequence[int]], late: Sequence[str] = ()) -> None:
        """`late`: matrices whose inverses are used one step later, but for the first ones."""
        self.config, self.late = config, frozenset(late)
        self.into = {name: np.eye(shape[1]) for name, shape in shapes.items()}
        self.out = {name: np.eye(shape[0]) for name, shape in shapes.items()}
        self.momentum = {name: np.zeros(tuple(shape)) for name, shape in shapes.items()}
        self.ready: dict[str, Any] = {}
        self.for_next: dict[str, Any] = {}

    def step(
        self, applied: int, lr: float, rows: Mapping[str, Rows], weights: dict[str, Any], grads: Mapping[str, Any]
    ) -> None:
        """Change `weights` in place."""
        c = self.config
        found = {}
        self.ready |= self.for_next
        self.for_next = {}
        for name, grad in grads.items():
            n = len(rows[name])
            if applied % c.factor_every == 0:
                a = sum(np.outer(x, x) for x, _ in rows[name]) / n
                g = sum(np.outer(y, y) for _, y in rows[name]) * n
                self.into[name] = c.factor_decay * self.into[name] + (1 - c.factor_decay) * a
                self.out[name] = c.factor_decay * self.out[name] + (1 - c.factor_decay) * g
            if applied % c.invert_every == 0:
                used_in = self.for_next if applied and name in self.late else self.ready
                used_in[name] = self.into[name].copy(), self.out[name].copy()
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


def filled(folder: Path, argv: list[str]) -> dict[str, Any]:
    """A rank whose curvature is worked out in bubbles, and beside it one that does so in each step, always of the same
    weights: by step, matrices whose factors or inverses are not the same bits, or those of the step before if late."""
    torch.set_num_threads(1)
    with joined(argv) as rank:
        trainer, c = rank.trainer(), rank.config
        twin = loop.Trainer(replace(c, optim=replace(c.optim, kfac_fill=False)), rank.mesh, rank.corpus)
        order = trainer.plan.orders[rank.mesh.pp_rank]
        late = {(a.stage, a.turn) for a in order if a.late and a.op is Op.INVERT}
        rule: Any = trainer.optimizer.states._rule  # type: ignore[attr-defined]
        matrices = [rule._matrices[number] for number in rule._factors]
        turns = dict(zip(map(id, rule._matrices), rounds([m.stage for m in rule._matrices], rule.owners), strict=True))
        are_late = {one.name for one in matrices if (one.stage, turns[id(one)]) in late}
        wrong: list[list[str]] = []
        before: dict[str, Tensor] = {}
        for step in range(c.train.steps):
            with torch.no_grad():
                for one, other in zip(twin.slices, trainer.slices, strict=True):
                    one.parameter.copy_(other.parameter)
            trainer.step(step)
            twin.step(step)
            theirs = {name: tensor.clone() for name, tensor in twin.optimizer.owned().items()}
            used = trainer.optimizer.states.owned()  # as it is: nothing is settled
            wrong.append([])
            for name, tensor in used.items():
                matrix, _, key = name.partition("@")
                expected = before if matrix in are_late and step else theirs
                if not torch.equal(tensor, expected[name]) and not (key.startswith("factor") and matrix in are_late):
                    wrong[-1].append(name)
            before = theirs
        settled = trainer.optimizer.owned()
        wrong.append([name for name, tensor in settled.items() if not torch.equal(tensor, before[name])])
        return {"wrong": wrong, "late": sorted(are_late), "matrices": sorted(one.name for one in matrices)}


assert accumulate.multiply_all is layers.multiply_all, "both tests and layers must multiply with the same function"
