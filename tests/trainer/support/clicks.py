"""Clicks to train on, and their training without servers, caches and other processes: what a run is compared with."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from holdfast.trainer.embeddings.criteo import Sample, batches
from holdfast.trainer.embeddings.model import Dlrm, descend, gradients
from holdfast.trainer.embeddings.plans import share
from holdfast.trainer.embeddings.servers.keys import as_keys, first_values
from holdfast.trainer.embeddings.settings import Run


def run_of(data: Path, **changed: object) -> Run:
    """A small run; what is not `changed` is the same in all."""
    settings: dict[str, object] = {
        "name": "a-test",
        "data": [str(data)],
        "steps": 20,
        "batch": 16,
        "lookahead": 2,
        "trainers": 2,
        "dim": 4,
        "dtype": "float64",
        "seed": 3,
        "lr": 0.5,
    }
    return Run(**{**settings, **changed})  # type: ignore[arg-type]


def data_of(run: Run) -> list[list[Sample]]:
    return list(itertools.islice(batches([Path(name) for name in run.data], run.batch), run.steps))


def expected_fetches(data: Sequence[Sequence[Sample]], window: int) -> int:
    """One for each row, and one more for each gap of the window or more between two of its uses."""
    uses: dict[int, list[int]] = defaultdict(list)
    for number, batch in enumerate(data):
        for key in {key for sample in batch for key in sample.keys}:
            uses[key].append(number)
    return sum(1 + sum(b - a >= window for a, b in itertools.pairwise(at)) for at in uses.values())


def train(run: Run, parts: int) -> tuple[dict[int, np.ndarray], Dlrm, float]:
    """Tables, model and last loss after plain synchronous training; gradients of `parts` shares are added up in order.

    With row-wise Adagrad a row has one column more: the sum over steps of its gradient's mean square.
    """
    table: dict[int, np.ndarray] = {}
    squares: dict[int, float] = defaultdict(float)
    model, loss = Dlrm(run.dim, torch.float64, run.seed), 0.0
    for batch in data_of(run):
        used = sorted({key for sample in batch for key in sample.keys})
        new = [key for key in used if key not in table]
        table.update(zip(new, first_values(as_keys(new), run.dim, run.seed, np.dtype(np.float64)), strict=True))
        flat, sums = None, {key: np.zeros(run.dim) for key in used}
        for part in range(parts):
            mine = [batch[number] for number in share(len(batch), parts, part)]
            keys = sorted({key for sample in mine for key in sample.keys})
            at = {key: number for number, key in enumerate(keys)}
            found, rows = gradients(
                model,
                torch.tensor([sample.numbers for sample in mine], dtype=torch.float64),
                torch.tensor([sample.label for sample in mine], dtype=torch.float64),
                torch.from_numpy(np.stack([table[key] for key in keys])),
                torch.tensor([[at[key] for key in sample.keys] for sample in mine]),
                len(batch),
            )
            flat = found if flat is None else flat + found
            for key, row in zip(keys, rows.numpy(), strict=True):
                sums[key] = sums[key] + row
        assert flat is not None
        for key in used:
            step = sums[key]
            if run.optimizer == "rowwise-adagrad":
                squares[key] += float(np.sum(step**2)) / run.dim
                step = step / (np.sqrt(squares[key]) + 1e-10)
            table[key] = table[key] - run.lr * step
        descend(model, flat, run.lr)
        loss = float(flat[-1])
    if run.optimizer == "rowwise-adagrad":
        table = {key: np.append(row, squares[key]) for key, row in table.items()}
    return table, model, loss
