"""The two factors of a matrix's curvature, what is made of them, and its use on a gradient (K-FAC; Martens and Grosse).

With a loss that is a mean over n rows, inputs a (n, in) and gradients g (n, out) of the outputs of y = a W^T:
A = a^T a / n and G = n g^T g, both averaged over steps. The preconditioned gradient of W is, with damping l,

    inverse: (G + l I)^-1 D (A + l I)^-1
    eigen:   QG [ (QG^T D QA) / (dG dA^T + l) ] QA^T      where A = QA diag(dA) QA^T, G alike; negative dA, dG are 0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

SIDES = ("in", "out")


class Statistics:
    """Sums over one step's products with a matrix. Nothing is kept of them but the sums."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._rows = dict.fromkeys(SIDES, 0)
        self._sums: dict[str, Tensor] = {}

    def __call__(self, x: Tensor, of_output: Tensor) -> None:
        """One product: `x` (..., in), `of_output` (..., out), the gradient of what it gave."""
        self.add("in", x)
        self.add("out", of_output)

    def add(self, side: str, rows: Tensor) -> None:
        """One side of a product."""
        rows = rows.flatten(0, -2).to(self._dtype)
        self._rows[side] += len(rows)
        if side in self._sums:
            self._sums[side].addmm_(rows.t(), rows)
        else:
            self._sums[side] = rows.t() @ rows

    def factors(self) -> dict[str, Tensor]:
        """A, of the side "in", and G, of "out", of all rows since the beginning."""
        assert len(self._sums) == len(SIDES), "no product was seen"
        assert self._rows["in"] == self._rows["out"], "of some products one side is missing"
        return {"in": self._sums["in"] / self._rows["in"], "out": self._sums["out"] * self._rows["out"]}


class LateStatistics(Statistics):
    """The same sums, of sides that are kept until somebody has time to add the next one. Sides are added in the order
    in which they came."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self._kept: dict[str, deque[Tensor]] = {side: deque() for side in SIDES}

    def keep(self, side: str, rows: Tensor) -> None:
        """For later. Without its graph."""
        self._kept[side].append(rows.detach())

    def add_next(self, side: str) -> None:
        """No-op where all have been added."""
        if self._kept[side]:
            self.add(side, self._kept[side].popleft())

    def factors(self) -> dict[str, Tensor]:
        for side in SIDES:
            while self._kept[side]:
                self.add_next(side)
        return super().factors()


class Factors:
    """Of one matrix (out, in), at its owner: averages that begin with I, and what was last made of them."""

    def __init__(self, shape: Sequence[int], form: str, like: Tensor) -> None:
        """`form`: inverse or eigen. `like`: of this dtype and on this device."""
        self._form = form
        sizes = dict(zip(SIDES, reversed(shape), strict=True))
        self.state = {f"factor_{side}": torch.eye(size).to(like) for side, size in sizes.items()}
        """By name, always the same tensors. What is made of factors is 0 until it has been."""
        for side, size in sizes.items():
            self.state[f"{form}_{side}"] = torch.zeros(size, size).to(like)
            if form == "eigen":
                self.state[f"values_{side}"] = torch.zeros(size).to(like)

    def absorb(self, statistics: Statistics, decay: float) -> None:
        """Factors become `decay` times what they were, and the rest of the step's."""
        for side, fresh in statistics.factors().items():
            _average(self.state[f"factor_{side}"], fresh, decay)

    def invert(self, damping: float) -> None:
        """Make what the form needs of the factors, which stay as they are: damping is in no average."""
        for side in SIDES:
            self.take(self._inverted(side, self.state[f"factor_{side}"], damping))

    def ahead(self, statistics: Statistics | None, decay: float, damping: float) -> dict[str, Tensor] | None:
        """What `absorb` and `invert` would make of the state, for `take`. None where factors are not finite."""
        found = {f"factor_{side}": self.state[f"factor_{side}"].clone() for side in SIDES}
        if statistics is not None:
            for side, fresh in statistics.factors().items():
                _average(found[f"factor_{side}"], fresh, decay)
        if not all(bool(factor.isfinite().all()) for factor in found.values()):
            return None
        for side in SIDES:
            found |= self._inverted(side, found[f"factor_{side}"], damping)
        return found

    def take(self, state: Mapping[str, Tensor]) -> None:
        """Have these from now on."""
        for name, tensor in state.items():
            self.state[name].copy_(tensor)

    def precondition(self, grad: Tensor, damping: float) -> Tensor:
        """A gradient (out, in), times the inverse curvature."""
        out, into = (self.state[f"{self._form}_{side}"] for side in ("out", "in"))
        if self._form == "inverse":
            return out @ grad @ into
        scale = torch.outer(self.state["values_out"], self.state["values_in"]) + damping
        result: Tensor = out @ (out.t() @ grad @ into / scale) @ into.t()
        return result

    def _inverted(self, side: str, factor: Tensor, damping: float) -> dict[str, Tensor]:
        if self._form == "inverse":
            return {f"inverse_{side}": damped_inverse(factor, damping)}
        values, vectors = torch.linalg.eigh(factor)
        return {f"values_{side}": values.clamp_(min=0), f"eigen_{side}": vectors}


def _average(factor: Tensor, fresh: Tensor, decay: float) -> None:
    factor.mul_(decay).add_(fresh, alpha=1 - decay)


def damped_inverse(factor: Tensor, damping: float) -> Tensor:
    """(factor + damping I)^-1 of a symmetric matrix without negative eigenvalues."""
    damped = factor + damping * torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    root, failed = torch.linalg.cholesky_ex(damped)
    if not failed:
        return torch.cholesky_inverse(root)
    # Damping is lost in the rounding of the largest eigenvalue: negative ones are rounding too.
    values, vectors = torch.linalg.eigh(factor)
    result: Tensor = vectors / (values.clamp_(min=0) + damping) @ vectors.t()
    return result
