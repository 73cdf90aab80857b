"""The two factors of a matrix's curvature, what is made of them, and its use on a gradient (K-FAC; Martens and Grosse).

With a loss that is a mean over n rows, inputs a (n, in) and gradients g (n, out) of the outputs of y = a W^T:
A = a^T a / n and G = n g^T g, both averaged over steps. The preconditioned gradient of W is, with damping l,

    inverse: (G + l I)^-1 D (A + l I)^-1
    eigen:   QG [ (QG^T D QA) / (dG dA^T + l) ] QA^T      where A = QA diag(dA) QA^T, G alike; negative dA, dG are 0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SIDES = ("in", "out")


class Statistics:
    """Sums over one step's products with a matrix. Nothing is kept of them but the sums."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._rows = 0
        self._sums: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, of_output: Tensor) -> None:
        """One product: `x` (..., in), `of_output` (..., out), the gradient of what it gave."""
        sides = [side.flatten(0, -2).to(self._dtype) for side in (x, of_output)]
        self._rows += len(sides[0])
        if self._sums is None:
            self._sums = sides[0].t() @ sides[0], sides[1].t() @ sides[1]
        else:
            for total, side in zip(self._sums, sides, strict=True):
                total.addmm_(side.t(), side)

    def factors(self) -> tuple[Tensor, Tensor]:
        """A and G of all rows since the beginning."""
        assert self._sums is not None, "no product was seen"
        return self._sums[0] / self._rows, self._sums[1] * self._rows


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
        for side, fresh in zip(SIDES, statistics.factors(), strict=True):
            self.state[f"factor_{side}"].mul_(decay).add_(fresh, alpha=1 - decay)

    def invert(self, damping: float) -> None:
        """Make what the form needs of the factors, which stay as they are: damping is in no average."""
        for side in SIDES:
            factor = self.state[f"factor_{side}"]
            if self._form == "inverse":
                self.state[f"inverse_{side}"].copy_(damped_inverse(factor, damping))
            else:
                values, vectors = torch.linalg.eigh(factor)
                self.state[f"values_{side}"].copy_(values.clamp_(min=0))
                self.state[f"eigen_{side}"].copy_(vectors)

    def precondition(self, grad: Tensor, damping: float) -> Tensor:
        """A gradient (out, in), times the inverse curvature."""
        out, into = (self.state[f"{self._form}_{side}"] for side in ("out", "in"))
        if self._form == "inverse":
            return out @ grad @ into
        scale = torch.outer(self.state["values_out"], self.state["values_in"]) + damping
        result: Tensor = out @ (out.t() @ grad @ into / scale) @ into.t()
        return result


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
