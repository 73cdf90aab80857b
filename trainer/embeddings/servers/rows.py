"""Where a server has its rows: `RowStore`, and the one in the server's own memory. Pure."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of

LEAST_ROWS = 1024


class RowStore(Protocol):
    """Rows of one server. One thread calls it at a time. HoldfastError when it cannot be reached."""

    def __len__(self) -> int: ...

    def read(self, keys: Keys) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """(keys, width) and (keys,): the rows, and which are there; those that are not have any content."""

    def write(self, keys: Keys, rows: Rows) -> None:
        """Set rows (keys, width), which may be there or not."""

    def keys(self) -> Keys:
        """All that are there, sorted."""


class MemoryRows:
    """Rows in one array, which grows."""

    def __init__(self, width: int, dtype: str) -> None:
        self._place: dict[int, int] = {}
        self._rows: Rows = np.empty((LEAST_ROWS, width), dtype_of(dtype))

    def __len__(self) -> int:
        return len(self._place)

    def read(self, keys: Keys) -> tuple[Rows, npt.NDArray[np.bool_]]:
        places = np.array([self._place.get(key, -1) for key in keys.tolist()], dtype=np.int64)
        return np.asarray(self._rows[places]), places >= 0

    def write(self, keys: Keys, rows: Rows) -> None:
        for key in keys.tolist():
            self._place.setdefault(key, len(self._place))
        if len(self._place) > len(self._rows):
            grown = np.empty((max(2 * len(self._rows), len(self._place)), self._rows.shape[1]), self._rows.dtype)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[[self._place[key] for key in keys.tolist()]] = rows

    def keys(self) -> Keys:
        return np.sort(np.fromiter(self._place, dtype=np.uint64, count=len(self._place)))
