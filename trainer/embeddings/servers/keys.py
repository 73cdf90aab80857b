"""Which row of the tables is meant, which server holds it, and its value before training. Pure.

A key is one unsigned integer of 64 bits: the table's number above `VALUE_BITS`, the category's value below. Servers and
first values follow from the key alone, so that no process needs a list of all rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
"""Keys in one dimension."""
Rows = npt.NDArray[Any]
"""(rows, width), float32 or float64: `dim` numbers, and behind them what the optimizer keeps of a row."""

VALUE_BITS = 33
MISSING = 1 << 32
"""The value of a category that a sample leaves empty: above all values of 32 bits."""
_STEP = 0x9E3779B97F4A7C15
_ITEM: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "float64": np.dtype(np.float64)}
DTYPES = tuple(_ITEM)


def key(table: int, value: int) -> int:
    """The key of a category's value; `MISSING` is one."""
    return table << VALUE_BITS | value


def dtype_of(name: str) -> np.dtype[Any]:
    """numpy's type of `float32` or `float64`. KeyError for another name."""
    return _ITEM[name]


def as_keys(keys: Any) -> Keys:
    """Keys of any collection in its order."""
    return np.fromiter(keys, dtype=np.uint64)


def server_of(keys: Keys, servers: int) -> npt.NDArray[np.int64]:
    """(keys,): the number of the server that holds each. By hash: values of one table often share their last bits."""
    return np.asarray(_mix(keys) % np.uint64(servers), dtype=np.int64)


def first_values(keys: Keys, dim: int, seed: int, dtype: np.dtype[Any]) -> Rows:
    """(keys, dim): uniform in ±1 / sqrt(dim), a function of seed, key and column (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        start = _mix(keys ^ _mix(np.asarray([seed], dtype=np.uint64)))
        columns = np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(_STEP)
        bits = _mix(start[:, None] + columns[None, :])
    unit = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.asarray((2.0 * unit - 1.0) / np.sqrt(dim), dtype=dtype)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's output function, element by element."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(_STEP)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))
