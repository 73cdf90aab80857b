"""A store in a folder on a local or shared file system."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from pathlib import Path

from holdfast.checkpoint.stores.store import Content, inside


class FileStore:
    """A folder. What was written is on the disk, not only in the kernel's memory, when a call returns."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def url(self) -> str:
        return self.root.as_uri()

    def list(self, path: str = "") -> list[str]:
        try:
            with os.scandir(self._at(path)) as found:
                return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in found)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with open(self._at(path), "rb") as opened:
            opened.seek(start)
            return opened.read(-1 if length is None else length)

    def size(self, path: str) -> int:
        return self._at(path).stat().st_size

    def make_folder(self, path: str) -> None:
        try:
            self._at(path).mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None

    def create(self, path: str, content: Content) -> None:
        with open(self._at(path), "wb") as out:
            for piece in content():
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())

    def claim(self, path: str, content: bytes) -> None:
        target = self._at(path)
        aside = self._aside(target, content)
        try:
            os.link(aside, target)  # unlike a rename, it never replaces what is there
        finally:
            aside.unlink(missing_ok=True)
        _sync_folder(target.parent)

    def replace(self, path: str, content: bytes) -> None:
        target = self._at(path)
        aside = self._aside(target, content)
        try:
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def rename(self, old: str, new: str) -> None:
        source, target = self._at(old), self._at(new)
        _sync_folder(source)
        # The system would replace an empty folder; one that holds something it leaves alone, whatever we see here.
        if target.exists():
            raise FileExistsError(f"{target} exists already")
        os.rename(source, target)
        _sync_folder(target.parent)

    def remove(self, path: str) -> None:
        target = self._at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def _at(self, path: str) -> Path:
        return self.root / inside(path) if path else self.root

    def _aside(self, target: Path, content: bytes) -> Path:
        """A file of this content beside `target`, under a name that no other process uses."""
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with open(aside, "xb") as out:
                out.write(content)
                out.flush()
                os.fsync(out.fileno())
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        return aside


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
