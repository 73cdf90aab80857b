"""Where checkpoints live: a store by URL.

Paths inside a store are relative, with "/" between names. What a store promises: after `create`, `claim` or `replace`
returns, the bytes are as durable as the store makes them, and `claim`, `replace` and `rename` happen whole or not at
all, for every reader at once. Nothing else is asked for: no locks, so that HDFS can be one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from holdfast.address import parse_address
from holdfast.checkpoint.checksum import Buffer
from holdfast.checkpoint.errors import CheckpointError, StoreUnsupported
from holdfast.errors import UsageError
from holdfast.files import expand

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
        """Write a file in a folder that exists. Not atomic: for files nobody may read yet."""

    def claim(self, path: str, content: bytes) -> None:
        """Create a small file atomically. Raises FileExistsError when anything has that name."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file atomically, over an older one if there is one."""

    def rename(self, old: str, new: str) -> None:
        """Rename a folder atomically. Raises FileExistsError when there is a `new`, FileNotFoundError without `old`."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; fine when it is gone."""


def open_store(url: str, timeout_s: float = 30.0) -> Store:
    """Open the store that `url` names: file:///path or a plain path, hdfs://host:port/path, webhdfs://host:port/path.

    `timeout_s`: how long a store behind a network is asked again before a failure counts. Raises StoreUnsupported
    for any other scheme. Creates nothing, and asks nobody.
    """
    from holdfast.checkpoint.file_store import FileStore

    if not url.strip():
        raise StoreUnsupported("checkpoint store '': names nothing; use file:///path, hdfs:// or webhdfs://")
    if "://" not in url and url.startswith(("file:", "hdfs:", "webhdfs:")):
        raise StoreUnsupported(f"checkpoint store {url!r}: write file:///path, hdfs://host:port/path or webhdfs://...")
    try:
        if "://" not in url:
            return FileStore(expand(url).absolute())
        parts = urlsplit(url)
        folder = expand(unquote(parts.path, errors="surrogateescape"))
    except ValueError as error:  # brackets around no address, a NUL, nobody's home folder
        raise StoreUnsupported(f"checkpoint store {url!r}: {error}") from None
    if parts.scheme in ("hdfs", "webhdfs"):
        _check_hosts(url, parts)
        if parts.scheme == "hdfs":
            from holdfast.checkpoint.hdfs_store import HdfsStore

            return HdfsStore(url, timeout_s)
        from holdfast.checkpoint.webhdfs_store import WebHdfsStore

        return WebHdfsStore(url, timeout_s)
    if parts.scheme != "file":
        raise StoreUnsupported(
            f"checkpoint store {url!r}: no such scheme {parts.scheme!r}; use file:///path, hdfs:// or webhdfs://"
        )
    if parts.netloc not in ("", "localhost"):
        raise StoreUnsupported(f"checkpoint store {url!r}: a file URL has three slashes, as in file:///path")
    if not parts.path.strip("/"):
        raise StoreUnsupported(f"checkpoint store {url!r}: names no folder; use file:///path")
    return FileStore(folder)


def _check_hosts(url: str, parts: SplitResult) -> None:
    """StoreUnsupported for hosts that nobody can be asked at: asking them again and again would not help."""
    user, _, hosts = parts.netloc.rpartition("@")
    try:
        unquote(user, errors="strict").encode()
        for host in hosts.split(","):
            parse_address(host, 8020)
        unquote(parts.path, errors="strict").encode()
    except (UsageError, UnicodeError) as error:
        raise StoreUnsupported(
            f"checkpoint store {url!r}: {error}; write {parts.scheme}://host:port/folder in UTF-8"
        ) from None
    if not parts.path.strip("/"):
        raise StoreUnsupported(f"checkpoint store {url!r}: names no folder; write {parts.scheme}://host:port/folder")


def inside(path: str) -> str:
    """`path` unless it leaves the store. Raises CheckpointError."""
    if path.startswith("/") or ".." in path.split("/"):
        raise CheckpointError(f"path {path!r} leaves the store")
    return path
