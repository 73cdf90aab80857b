"""The rows that a trainer holds: places in one tensor, which grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from holdfast.trainer.embeddings.servers.keys import Keys

LEAST_ROWS = 256


class RowCache:
    """One thread changes what is held; others may read and write the rows of places that they were given, except while
    the tensor grows: `idle` is called first, and must return when nobody does."""

    def __init__(self, width: int, dtype: torch.dtype, idle: Callable[[], None], most: int = 0) -> None:
        """`most`: the most rows that are expected, so that none is allocated in vain; 0: not known."""
        self.rows = torch.zeros(LEAST_ROWS, width, dtype=dtype)
        """(places, width)."""
        self.peak = 0
        """The most rows that were held at once, those among them that have left but are not yet written back."""
        self._idle, self._most = idle, most
        self._place: dict[int, int] = {}
        self._free = list(range(LEAST_ROWS - 1, -1, -1))

    @property
    def keys(self) -> list[int]:
        """What is held, sorted."""
        return sorted(self._place)

    def insert(self, keys: Keys, rows: torch.Tensor) -> None:
        """Hold these, which are not held yet."""
        if len(keys) > len(self._free):
            self._grow(len(keys))
        taken = [self._free.pop() for _ in range(len(keys))]
        self._place.update(zip(keys.tolist(), taken, strict=True))
        self.rows[torch.tensor(taken, dtype=torch.int64)] = rows
        self.peak = max(self.peak, len(self.rows) - len(self._free))

    def places(self, keys: Keys) -> torch.Tensor:
        """(keys,), int64. KeyError for one that is not held."""
        return torch.tensor([self._place[key] for key in keys.tolist()], dtype=torch.int64)

    def drop(self, keys: Keys) -> list[int]:
        """Hold these no longer, if they are; their places, which are used again after `release`."""
        return [place for key in keys.tolist() if (place := self._place.pop(key, None)) is not None]

    def release(self, places: list[int]) -> None:
        self._free += places

    def _grow(self, more: int) -> None:
        self._idle()
        before = len(self.rows)
        after = max(min(2 * before, self._most or 2 * before), before + more)
        grown = torch.zeros(after, self.rows.shape[1], dtype=self.rows.dtype)
        grown[:before] = self.rows
        self.rows = grown
        self._free = [*range(after - 1, before - 1, -1), *self._free]


def spread(keys: Keys, rows: torch.Tensor, wanted: Keys) -> torch.Tensor:
    """(wanted, dim): the rows of those of the sorted `keys` that are in the sorted `wanted`, zeros for others."""
    found = torch.zeros(len(wanted), rows.shape[1], dtype=rows.dtype)
    _, ours, theirs = np.intersect1d(keys, wanted, assume_unique=True, return_indices=True)
    found[_indices(theirs)] = rows[_indices(ours)]
    return found


def _indices(at: npt.NDArray[np.intp]) -> torch.Tensor:
    return torch.from_numpy(at.astype(np.int64))
