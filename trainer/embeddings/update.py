"""What a gradient does to rows of the tables: SGD, or row-wise Adagrad, whose state is a row's last column.

Row-wise Adagrad is what DLRM's tables are usually trained with: one number a row in place of one an element.

    s += mean over columns of g^2
    w -= lr g / (sqrt(s) + eps)

It is written with operations on single elements, in one order: a row's result does not depend on which others it is
updated with, and so not on the look-ahead, nor on the number of servers.
"""

from __future__ import annotations

import torch

EPS = 1e-10
"""Of the same value as in DLRM's own row-wise Adagrad."""


def update(rows: torch.Tensor, places: torch.Tensor, gradients: torch.Tensor, lr: float) -> None:
    """Change `rows[places]` in place; `gradients` (places, dim) are sums over all trainers, `places` are distinct.

    Rows of `dim` columns are those of SGD; with one column more, that is the state of row-wise Adagrad.
    """
    dim = gradients.shape[1]
    if rows.shape[1] == dim:
        rows[places] -= lr * gradients
        return
    found = rows[places]
    state = found[:, dim] + mean_square(gradients)
    found[:, :dim] -= lr * gradients / (state.sqrt() + EPS)[:, None]
    found[:, dim] = state
    rows[places] = found


def mean_square(gradients: torch.Tensor) -> torch.Tensor:
    """(rows,): the mean of squares of (rows, dim), added up in halves, whose order torch's own sum does not promise."""
    dim = gradients.shape[1]
    squares = gradients * gradients
    while (width := squares.shape[1]) > 1:
        half = width // 2
        summed = squares[:, :half] + squares[:, half : 2 * half]
        squares = torch.cat([summed, squares[:, 2 * half :]], dim=1)
    return squares[:, 0] / dim
