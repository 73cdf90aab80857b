"""What a store of checkpoints promises.

Paths inside a store are relative, with "/" between names. What a store promises: after `create`, `claim` or `replace`
returns, the bytes are as durable as the store makes them, and `claim`, `replace` and `rename` happen whole or not at
all, for every reader at once. Nothing else is asked for: no locks, so that HDFS can be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.checksum import Buffer

Content = Callable[[], Iterable[Buffer]]
"""Opens the pieces of a file from its beginning; called again when an upload has to start over."""


class Store(Protocol):
    """The few questions that saving and restoring ask. Failures are OSError, as from a local disk."""

    @property
    def url(self) -> str:
        """The URL that opens this store again."""

    def list(self, path: str = "") -> list[str]:
        """Names in a folder, sorted, those of folders with a "/" behind; empty when there is no such folder."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file from `start`, to its end or at most `length`. Raises FileNotFoundError."""

    def size(self, path: str) -> int:
        """Bytes in a file. Raises FileNotFoundError."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; fine when it exists. Raises NotADirectoryError below a file."""

    def create(self, path: str, content: Content) -> None:
        """Write a file in a folder that exists. Not atomic: for files that must not be read yet."""

    def claim(self, path: str, content: bytes) -> None:
        """Create a small file atomically. Raises FileExistsError when anything has that name."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file atomically, over an older one if there is one."""

    def rename(self, old: str, new: str) -> None:
        """Rename a folder atomically. Raises FileExistsError when there is a `new`, FileNotFoundError without `old`."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; fine when it is gone."""


def inside(path: str) -> str:
    """`path` unless it leaves the store. Raises CheckpointError."""
    if path.startswith("/") or ".." in path.split("/"):
        raise CheckpointError(f"path {path!r} leaves the store")
    return path
