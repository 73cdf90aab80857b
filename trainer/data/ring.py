"""Batches in shared memory: one loader writes a ring of steps, the ranks of its node read them where they lie.

No locks: each word has one writer. A slot carries the number of its step, written after its content, and a CRC-32,
which a reader checks. The file lies in memory, and every process that uses it holds a shared lock on it, which ends
with the process: a file without a lock was left by a dead process.

Layout, in 64-bit words: header; a line for each reader; a line for each slot; then, from a page boundary on, the
slots: for each replica on the node its inputs and targets as int64. Lines are whole cache lines.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PREFIX = "holdfast-ring-"
_MAGIC = 0x31474E4952444C48  # "HLDRING1"
_TEXT, _TEXT_BYTES = 4096, 1 << 17  # settings for the loader, and why it failed
_PAGE = 4096
_SLOTS, _READERS, _BLOCK, _PID, _FAILED, _CLOSING, _READ, _GONE, _WRITTEN, _FIRST = range(1, 11)
_NEED, _NEXT = range(2)  # of a reader's line: 1 + replica, or 1 << 32 for none; 1 + the step that it wants
_SEQ, _CRC = range(2)  # of a slot's line: 1 + its step, 0 while it is written; one CRC-32 for each replica
_NOTHING = 1 << 32

Words = npt.NDArray[np.uint64]


def folder() -> Path:
    """Where rings lie: in memory, if the host has such a place."""
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(os.environ.get("TMPDIR", "/tmp"))


def sweep(where: Path) -> int:
    """Remove the rings that no process uses any more; how many. Those of other users are left alone."""
    count = 0
    for path in where.glob(f"{PREFIX}{os.getuid()}-*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                count += 1
            finally:
                os.close(fd)
    for path in where.glob(f"new-{PREFIX}{os.getuid()}-*"):  # never finished, hence never locked for long
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 60:
                path.unlink()
    return count


class Ring:
    """One node's ring, mapped. Made once by the node's first rank; the loader and all local ranks open it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        fcntl.flock(fd, fcntl.LOCK_SH)
        self._map = mmap.mmap(fd, 0)
        head: Words = np.frombuffer(self._map, np.uint64, 512)
        if head[0] != _MAGIC:
            raise ValueError(f"{path}: not a ring of batches")
        self.slots, self.readers = int(head[_SLOTS]), int(head[_READERS])
        self._head = head
        start, width = _TEXT + _TEXT_BYTES, _slot_line(self.readers)
        lines: Words = np.frombuffer(self._map, np.uint64, 8 * self.readers, start)
        self._reader_lines = lines.reshape(self.readers, 8)
        lines = np.frombuffer(self._map, np.uint64, width * self.slots, start + 64 * self.readers)
        self._slot_lines = lines.reshape(self.slots, width)
        self._data = _data_start(self.readers, self.slots)

    @classmethod
    def create(cls, where: Path, readers: int, slots: int, block_bytes: int, settings: Mapping[str, Any]) -> Ring:
        """A new ring under a name of its own; `settings` are for the loader, `block_bytes` one replica's step."""
        text = json.dumps(settings).encode()
        if len(text) >= _TEXT_BYTES // 2:
            raise ValueError(f"{len(text)} bytes of settings for the loader are too many")
        name = f"{PREFIX}{os.getuid()}-{secrets.token_hex(8)}"
        fresh = where / f"new-{name}"
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # Memory is taken when it is written: replicas that do not live on this node cost nothing.
        os.truncate(fd, _data_start(readers, slots) + slots * readers * block_bytes)
        head = np.zeros(512, np.uint64)
        head[[0, _SLOTS, _READERS, _BLOCK]] = _MAGIC, slots, readers, block_bytes
        os.pwrite(fd, head.tobytes(), 0)
        os.pwrite(fd, text, _TEXT)
        ring = cls(where / name, fd)
        os.rename(fresh, ring.path)  # only now, and locked, it can be found and swept
        return ring

    @classmethod
    def open(cls, path: Path) -> Ring:
        """Raises OSError, ValueError."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def settings(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._text(_TEXT))
        return found

    def close(self, remove: bool = False) -> None:
        """Forget it; `remove`: for all processes. What was read from it may still be in use, so it stays mapped."""
        if remove:
            self.path.unlink(missing_ok=True)
        os.close(self._fd)

    # --- readers -------------------------------------------------------------------------------------------------

    def register(self, reader: int, replica: int | None) -> None:
        """Say which replica's batches reader `reader` of this node wants; None for none. Every reader must."""
        self._reader_lines[reader, _NEED] = _NOTHING if replica is None else replica + 1

    def want(self, reader: int, step: int) -> None:
        """Reader is done with all steps before `step`, whose slots may be overwritten."""
        self._reader_lines[reader, _NEXT] = step + 1

    def take(self, step: int, replica: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
        """Inputs and targets of `step`, as they lie in the ring; None while they are not there."""
        line = self._slot_lines[step % self.slots]
        if line[_SEQ] != step + 1:
            return None
        number = self.replicas().index(replica)
        block = self._block(step, number)
        if zlib.crc32(block.data) != line[_CRC + number]:
            return None  # half visible, on a machine that orders writes loosely: look again
        return block[0], block[1]

    def failure(self, step: int) -> str | None:
        """Why there will be no batch for `step`."""
        if self._head[_FAILED] and step + 1 >= self._head[_FAILED]:
            return self._text(_TEXT + _TEXT_BYTES // 2)
        return "the loader of this node died repeatedly" if self._head[_GONE] else None

    # --- the loader ----------------------------------------------------------------------------------------------

    def complete(self) -> bool:
        """Whether all readers have registered, and one that wants anything has begun."""
        needs = self._reader_lines[:, _NEED]
        wanting = needs != _NOTHING
        return bool((needs > 0).all() and (not wanting.any() or (self._reader_lines[wanting, _NEXT] > 0).any()))

    def replicas(self) -> list[int]:
        """The replicas that are read on this node, in the order of their blocks. Fixed once `complete`."""
        needs = self._reader_lines[:, _NEED]
        return sorted({int(need) - 1 for need in needs if 0 < need < _NOTHING})

    def next_wanted(self) -> int | None:
        """The first step that a reader is not done with; None when there are no readers. Only once `complete`."""
        wanted = self._reader_lines[self._reader_lines[:, _NEED] != _NOTHING, _NEXT]
        if not len(wanted):
            return None
        if not self._head[_FIRST]:
            self._head[_FIRST] = wanted[wanted > 0].min()
        # A reader that has not begun yet will begin where the first one did.
        return int(np.where(wanted > 0, wanted, self._head[_FIRST]).min()) - 1

    def has(self, step: int) -> bool:
        return bool(self._slot_lines[step % self.slots, _SEQ] == step + 1)

    def put(self, step: int, batches: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]) -> None:
        """Write a step: one pair of inputs and targets for each of `replicas`, in that order."""
        line = self._slot_lines[step % self.slots]
        line[_SEQ] = 0
        for number, pair in enumerate(batches):
            block = self._block(step, number)
            block[0], block[1] = pair
            line[_CRC + number] = zlib.crc32(block.data)
        line[_SEQ] = step + 1
        self._head[_WRITTEN] += np.uint64(1)

    def fail(self, step: int, why: str) -> None:
        """No batch for `step` nor for any after it."""
        text = why.encode()[: _TEXT_BYTES // 2 - 1]
        start = _TEXT + _TEXT_BYTES // 2
        self._map[start : start + len(text) + 1] = text + b"\0"
        self._head[_FAILED] = step + 1

    # --- words of the header -------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The loader's process; 0 before there is one."""
        return int(self._head[_PID])

    @pid.setter
    def pid(self, value: int) -> None:
        self._head[_PID] = value

    @property
    def closing(self) -> bool:
        return bool(self._head[_CLOSING])

    @closing.setter
    def closing(self, value: bool) -> None:
        self._head[_CLOSING] = int(value)

    @property
    def steps_written(self) -> int:
        """By all loaders of this ring."""
        return int(self._head[_WRITTEN])

    @property
    def bytes_read(self) -> int:
        """From the corpus, by all loaders of this ring."""
        return int(self._head[_READ])

    def count_bytes(self, number: int) -> None:
        self._head[_READ] += np.uint64(number)

    def give_up(self) -> None:
        """There will be no loader any more."""
        self._head[_GONE] = 1

    def _text(self, start: int) -> str:
        return self._map[start : start + _TEXT_BYTES // 2].split(b"\0", 1)[0].decode()

    def _block(self, step: int, number: int) -> npt.NDArray[np.int64]:
        size = int(self._head[_BLOCK])
        offset = self._data + (step % self.slots) * self.readers * size + number * size
        samples, length = self._shape
        return np.frombuffer(self._map, np.int64, size // 8, offset).reshape(2, samples, length)

    @property
    def _shape(self) -> tuple[int, int]:
        if not hasattr(self, "_known_shape"):
            settings = self.settings()
            self._known_shape = (int(settings["samples"]), int(settings["seq_len"]))
        return self._known_shape


def _slot_line(readers: int) -> int:
    return -(-(1 + readers) // 8) * 8


def _data_start(readers: int, slots: int) -> int:
    lines = 64 * readers + 8 * _slot_line(readers) * slots
    return _TEXT + _TEXT_BYTES + -(-lines // _PAGE) * _PAGE
