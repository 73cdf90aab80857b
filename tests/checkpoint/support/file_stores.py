"""Stores in folders that break, or count, and how they are filled."""

from __future__ import annotations

import threading
from pathlib import Path

from jobs import layout_of, save_all

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.format.tiles import Layout
from holdfast.checkpoint.restore.inspect import list_checkpoints
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.store import Content

ONE, TWO = layout_of(1), layout_of(2)


class Killed(BaseException):
    """Stands for the death of the process: nothing after it runs, no handler catches it."""


class BrokenStore(FileStore):
    """Fails at the n-th change, before or after it is done, by an error or by death."""

    def __init__(self, root: Path, at: int, error: BaseException) -> None:
        super().__init__(root)
        self.at, self.error, self.count = at, error, 0

    def _strike(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise self.error

    def create(self, path: str, content: Content) -> None:
        self._strike()
        super().create(path, content)
        self._strike()

    def replace(self, path: str, content: bytes) -> None:
        self._strike()
        super().replace(path, content)
        self._strike()

    def rename(self, old: str, new: str) -> None:
        self._strike()
        super().rename(old, new)
        self._strike()


class CountingStore(FileStore):
    """Counts the bytes that go in and come out of parts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written = self.given = 0
        self._lock = threading.Lock()

    def create(self, path: str, content: Content) -> None:
        super().create(path, content)
        with self._lock:
            self.written += self.size(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        content = super().read(path, start, length)
        if path.endswith(".safetensors"):
            with self._lock:
                self.given += len(content)
        return content


def steps(store: FileStore) -> list[int]:
    return [info.step for info in list_checkpoints(store.url)]


def fill(store: FileStore, *steps: int, keep: int = 3, every: int = 0, layout: Layout = TWO) -> Fence:
    fence = claim(store, "job", 0)
    for step in steps:
        assert all(s.ok for s in save_all(store, fence, step, layout, keep=keep, every=every))
    return fence
