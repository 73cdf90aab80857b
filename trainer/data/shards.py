"""Tokens on disk: one long row in several memory-mapped files, with what is read of it counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from holdfast.trainer.data.tokens import Tokens


class Shards:
    """A row of tokens over files, read-only. Its slices are arrays; one inside a single file is not copied.

    Raises OSError for a file that is not there, ValueError for one of another size than `counts` says.
    """

    def __init__(self, paths: Sequence[Path], counts: Sequence[int], dtype: str) -> None:
        self.paths, self.counts, self.dtype = tuple(paths), tuple(counts), np.dtype(dtype)
        for path, count in zip(paths, counts, strict=True):
            if path.stat().st_size != count * self.dtype.itemsize:
                raise ValueError(f"{path}: {path.stat().st_size} bytes instead of {count * self.dtype.itemsize}")
        self._files = [np.memmap(path, self.dtype, mode="r", shape=(n,)) for path, n in zip(paths, counts, strict=True)]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self.bytes_read = 0
        """Bytes of all slices taken so far: what came from disk, were nothing of it in memory."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, where: slice) -> Tokens:
        start, stop, step = where.indices(len(self))
        if step != 1:
            raise ValueError("tokens are read in their order")
        pieces: list[Any] = []
        for file, begin, end in zip(self._files, self._starts, self._starts[1:], strict=False):
            if start < end and stop > begin:
                pieces.append(file[max(start - begin, 0) : min(stop, end) - begin])
        self.bytes_read += max(stop - start, 0) * self.dtype.itemsize
        if len(pieces) == 1:
            return pieces[0]  # type: ignore[no-any-return]  # numpy's memmap knows no element type
        return np.concatenate(pieces) if pieces else np.empty(0, self.dtype)


class ShardWriter:
    """Writes a row of tokens piece by piece, a piece never across files. A context manager.

    A file gets its name when it is whole and on disk: others may have mapped the one that had it before.
    """

    def __init__(self, name: Callable[[int], Path], dtype: np.dtype[Any], full_bytes: int) -> None:
        """`name`: the path of file n; `full_bytes`: size that a file does not exceed, but for a longer piece."""
        self.counts: list[int] = []
        """Tokens in each file."""
        self._name, self._itemsize, self._full = name, dtype.itemsize, full_bytes
        self._out: BinaryIO | None = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        elif self._out is not None:
            self._out.close()
            os.unlink(self._out.name)

    def write(self, piece: bytes) -> None:
        if self._out is None or self.counts[-1] * self._itemsize + len(piece) > self._full:
            self._finish()
            path = self._name(len(self.counts))
            self._out = open(path.with_name(f"{path.name}.tmp"), "wb")  # noqa: SIM115  # closed by _finish
            self.counts.append(0)
        self._out.write(piece)
        self.counts[-1] += len(piece) // self._itemsize

    def _finish(self) -> None:
        if self._out is not None:
            with self._out as out:
                out.flush()
                os.fsync(out.fileno())
            os.replace(self._out.name, self._out.name.removesuffix(".tmp"))
            self._out = None
