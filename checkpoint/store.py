"""Where checkpoints live: a store by URL.

Paths inside a store are relative, with "/" between names. What a store promises: after `create` or
`replace` returns, the bytes survive a power cut, and a reader sees all of them or none of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from holdfast.checkpoint.errors import CheckpointError, StoreUnsupported


class Store(Protocol):
    """The few questions that saving and restoring ask. Failures are OSError, as from a local disk."""

    @property
    def url(self) -> str:
        """The URL that opens this store again."""

    def list(self, path: str = "") -> list[str]:
        """Names in a folder, sorted; empty when there is no such folder."""

    def read(self, path: str) -> bytes:
        """All bytes of a file. Raises FileNotFoundError."""

    def size(self, path: str) -> int:
        """Bytes in a file. Raises FileNotFoundError."""

    def make_folder(self, path: str) -> None:
        """Create a folder and its parents; fine when it exists."""

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file in a folder that exists, durably. Not atomic: for files nobody may read yet."""

    def replace(self, path: str, content: bytes) -> None:
        """Write a small file atomically and durably, over an older one if there is one."""

    def rename(self, old: str, new: str) -> None:
        """Rename a folder atomically and durably. Raises FileExistsError when `new` holds anything."""

    def remove(self, path: str) -> None:
        """Remove a file or a folder with all it holds; fine when it is gone."""

    def exclusive(self, name: str, deadline_s: float = 30.0) -> contextlib.AbstractContextManager[None]:
        """Hold the lock `name` against every other process. Raises TimeoutError after `deadline_s`."""


class FileStore:
    """A folder on a local or shared file system."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def list(self, path: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str) -> bytes:
        return self._at(path).read_bytes()

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def make_folder(self, path: str) -> None:
        self._at(path).mkdir(parents=True, exist_ok=True)

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        with open(self._at(path), "wb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())

    def replace(self, path: str, content: bytes) -> None:
        target = self._at(path)
        # The process id keeps two writers of one file from sharing a temporary name.
        aside = target.with_name(f"{target.name}.tmp{os.getpid()}")
        try:
            with open(aside, "wb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def rename(self, old: str, new: str) -> None:
        source, target = self._at(old), self._at(new)
        _sync_folder(source)
        if target.exists():
            raise FileExistsError(f"{target} exists already")
        os.rename(source, target)
        _sync_folder(target.parent)

    def remove(self, path: str) -> None:
        target = self._at(path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    @contextlib.contextmanager
    def exclusive(self, name: str, deadline_s: float = 30.0) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._at(f".{name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            give_up = time.monotonic() + deadline_s
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > give_up:
                        raise TimeoutError(f"lock {name} of {self.url} held for {deadline_s:g} s") from None
                    time.sleep(0.01)
            yield
        finally:
            os.close(handle)  # closing also unlocks, and so does the death of the process

    def _at(self, path: str) -> Path:
        if path.startswith("/") or ".." in path.split("/"):
            raise CheckpointError(f"path {path!r} leaves the store {self.root}")
        return self.root / path if path else self.root


def open_store(url: str) -> Store:
    """Open the store that `url` names: file:///path or a plain path.

    Raises StoreUnsupported for any other scheme. Creates nothing.
    """
    parts = urlsplit(url)
    if "://" not in url:
        return FileStore(Path(url).expanduser().absolute())
    if parts.scheme != "file":
        raise StoreUnsupported(f"checkpoint store {url!r}: no such scheme {parts.scheme!r}; use file:///path")
    if parts.netloc not in ("", "localhost"):
        raise StoreUnsupported(f"checkpoint store {url!r}: a file URL has three slashes, as in file:///path")
    if not parts.path.strip("/"):
        raise StoreUnsupported(f"checkpoint store {url!r}: names no folder; use file:///path")
    return FileStore(Path(unquote(parts.path)))


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
