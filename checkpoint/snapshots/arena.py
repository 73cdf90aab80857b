"""Snapshots of one worker in shared memory: stage 1. The file outlives worker, agent and daemon; only the host's end
ends it. No torch.

A file holds two or three slots for the worker's state, so that the newest complete snapshot is never overwritten
before the next one is complete. A slot is locked (OFD locks, which end with their holder) by the worker while it
writes, and by whatever uploads or copies it, which then reads what does not change meanwhile.

    header | what the slots hold (JSON) | record of slot 0 | record of slot 1 | ... | slot 0 | slot 1 | ...

A record is the commit: a sequence number, then step, checksums and so on with a checksum of their own. It is made
invalid before the first byte of its slot is touched, and written when the last one is in place. State that is no tensor
is part of it, or, where that is long, in a file beside the arena that the record names by its checksum.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import xxhash

from holdfast.checkpoint.errors import SnapshotInvalid, SnapshotRefused
from holdfast.checkpoint.format.arrays import HeldShard, held
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, chunk_sum
from holdfast.checkpoint.snapshots import long_values
from holdfast.checkpoint.snapshots.description import Description, Snapshot

_MAGIC = b"HFSNAP02"
_HEADER = struct.Struct("<8sIIQQQQ")  # magic, slots, unused, bytes of description, its checksum, of a record, of a slot
_RECORD = struct.Struct("<QQQ")  # sequence number (0: none), bytes of text, their checksum
_PAGE = mmap.PAGESIZE
_TEXT = 1 << 16  # of a record, beside its checksums
_SPARE = 0.05  # share of the host's memory that is not ours to take
_LOCK = struct.Struct("hhqqi4x")  # struct flock
_MADV_POPULATE_WRITE = 23
_STRETCH = 64 << 20  # bytes prepared at a time


class Arena:
    """One file, mapped. Made by `create` (the worker) or `open` (every other process)."""

    def __init__(self, path: Path, fd: int, is_writer: bool) -> None:
        """Takes `fd` over. Raises SnapshotInvalid when it is no file of ours."""
        self.path, self._fd = path, fd
        try:
            size = os.fstat(fd).st_size
            if size < _PAGE:
                raise SnapshotInvalid(f"{path} is too short to hold snapshots")
            access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writer else 0)
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, access)
            self._view = memoryview(self._map)
            magic, slots, _, length, digest, record, slot = _HEADER.unpack_from(self._view)
            self.slots: int = slots
            self._record: int = record
            self._slot: int = slot
            text = bytes(self._view[_HEADER.size : _HEADER.size + length])
            if magic != _MAGIC or xxhash.xxh3_64_intdigest(text) != digest:
                raise SnapshotInvalid(f"{path} is not a file of snapshots, or of another version")
            self.description = Description.decode(text)
            self._length = self.description.num_bytes  # adds up all shards
            self._records = _up(_HEADER.size + length)
            self._data = self._records + self.slots * self._record
            if size != self._data + self.slots * self._slot:
                raise SnapshotInvalid(f"{path} has {size} bytes, its header says otherwise")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
            self.close()
            raise SnapshotInvalid(f"{path}: {error}") from None
        except SnapshotInvalid:
            self.close()
            raise
        self._complete = {one.slot: one.seq for one in self.snapshots()} if is_writer else {}
        """The writer's: what it knows, it need not read again."""

    @classmethod
    def create(cls, path: Path, description: Description, slots: int = 2, prepare: bool = True) -> Arena:
        """Make the file, or take up the one that is there if it holds the same; its snapshots stay.

        Raises SnapshotRefused, with figures, when the memory for it is not there. Without `prepare` that is the
        caller's to do, before it begins: it takes a second for every GB or two.
        """
        found = cls._found(path, description, slots)
        arena = found or cls._made(path, description, slots)
        if prepare:
            try:
                arena.prepare()
            except SnapshotRefused:
                arena.close()
                if found is None:
                    path.unlink(missing_ok=True)
                raise
        return arena

    @classmethod
    def _found(cls, path: Path, description: Description, slots: int) -> Arena | None:
        with contextlib.suppress(FileNotFoundError, SnapshotInvalid):
            found = cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), is_writer=True)
            if found.description.encode() == description.encode() and found.slots == slots:
                return found
            found.close()
        return None

    @classmethod
    def _made(cls, path: Path, description: Description, slots: int) -> Arena:
        text = description.encode()
        slot = _up(description.num_bytes)
        record = _up(_RECORD.size + _TEXT + 18 * (description.num_bytes // CHUNK_BYTES + 1))
        records = _up(_HEADER.size + len(text))
        total = records + slots * (record + slot)
        require_memory(path.parent, total, f"{slots} snapshots of {description.num_bytes / 1e6:.1f} MB")
        aside = path.with_name(f"{path.name}.new{os.getpid()}")
        fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, total)
            os.posix_fallocate(fd, 0, total - slots * slot)
            digest = xxhash.xxh3_64_intdigest(text)
            os.pwrite(fd, _HEADER.pack(_MAGIC, slots, 0, len(text), digest, record, slot) + text, 0)
            os.rename(aside, path)
        except OSError as error:
            os.close(fd)
            aside.unlink(missing_ok=True)
            raise SnapshotRefused(f"no room for {total / 1e6:.1f} MB in {path.parent}: {error.strerror}") from None
        return cls(path, fd, is_writer=True)

    def prepare(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Take the memory of all slots, and touch it, unless `is_over` first. Raises SnapshotRefused.

        A page that is missing later would kill the worker, and one that is not yet mapped costs it a fault.
        """
        libc = ctypes.CDLL(None)  # mmap.madvise would keep the interpreter to itself all the while
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for at in range(0, len(self._map), _STRETCH):
            if is_over():
                return
            count = min(_STRETCH, len(self._map) - at)
            try:
                os.posix_fallocate(self._fd, at, count)
            except OSError as error:
                size = f"{len(self._map) / 1e6:.1f} MB in {self.path.parent}"
                raise SnapshotRefused(f"no room for {size}: {error.strerror} after {at / 1e6:.1f} MB") from None
            # Older kernels cannot; then it is a fault.
            libc.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(count), _MADV_POPULATE_WRITE)

    @classmethod
    def open(cls, path: Path) -> Arena:
        """For reading. Raises FileNotFoundError, SnapshotInvalid."""
        return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), is_writer=False)

    @property
    def num_bytes(self) -> int:
        """Of the whole file."""
        return len(self._map)

    def snapshots(self) -> list[Snapshot]:
        """All complete ones, newest first."""
        found = [one for slot in range(self.slots) if (one := self._read(slot)) is not None]
        return sorted(found, key=lambda one: -one.seq)

    def memory(self, slot: int) -> memoryview:
        """The bytes of a slot."""
        start = self._data + slot * self._slot
        return self._view[start : start + self._length]

    def read_into(self, slot: int, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the bytes of a slot from `start` on: for one look that is faster than to map pages.
        Raises SnapshotInvalid when the file ends before."""
        done, at = 0, self._data + slot * self._slot + start
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], at + done)
            if not count:
                raise SnapshotInvalid(f"{self.path} is shorter than its head says")
            done += count

    def read(self, slot: int, index: int) -> bytes:
        """A copy of MiB number `index` of a slot, without mapping its pages, which takes longer than the copy. Raises
        SnapshotInvalid when the arena was closed, or its file ends before."""
        start = index * CHUNK_BYTES
        count = min(CHUNK_BYTES, self._length - start)
        if self._fd < 0:
            raise SnapshotInvalid(f"{self.path} was closed")
        try:
            found = os.pread(self._fd, count, self._data + slot * self._slot + start)
        except OSError as error:
            raise SnapshotInvalid(f"{self.path} cannot be read: {error.strerror}") from None
        if len(found) < count:
            raise SnapshotInvalid(f"{self.path} is shorter than its head says")
        return found

    def held(self, slot: int) -> dict[str, list[HeldShard]]:
        """The shards in a slot, by tensor: views, not copies."""
        memory, tensors = self.memory(slot), self.description.tensors
        found: dict[str, list[HeldShard]] = {}
        for entry in self.description.entries:
            tensor = tensors[entry.tensor]
            stop = entry.start + entry.shard.count * tensor.item_bytes
            found.setdefault(entry.tensor, []).append(held(tensor, entry.shard, memory[entry.start : stop]))
        return found

    def broken(self, snapshot: Snapshot, among: Sequence[int] | None = None) -> list[int]:
        """Which MiB of a snapshot, or of those `among` them, are not what was written. Raises SnapshotInvalid."""
        among = range(len(snapshot.sums)) if among is None else among
        return [index for index in among if chunk_sum(self.read(snapshot.slot, index)) != snapshot.sums[index]]

    # --- writing (one worker)

    def has_room(self) -> bool:
        """Whether `begin` would find a slot. Changes nothing."""
        for slot in self._free():
            if self._lock(slot, fcntl.F_WRLCK):
                self._lock(slot, fcntl.F_UNLCK)
                return True
        return False

    def begin(self) -> int | None:
        """Take a slot for the next snapshot: never the newest complete one, nor one that is being read.

        None when there is no such slot now. What was in it is gone.
        """
        for slot in self._free():
            if self._lock(slot, fcntl.F_WRLCK):
                self._complete.pop(slot, None)
                _RECORD.pack_into(self._view, self._records + slot * self._record, 0, 0, 0)
                return slot
        return None

    def _free(self) -> list[int]:
        """Slots but that of the newest snapshot, the oldest first."""
        newest = max(self._complete, key=self._complete.__getitem__, default=-1)
        slots = (slot for slot in range(self.slots) if slot != newest)
        return sorted(slots, key=lambda slot: self._complete.get(slot, 0))

    def commit(self, slot: int, step: int, generation: int, values: Mapping[str, Any], sums: Sequence[int]) -> Snapshot:
        """All bytes of the slot are in place: from now on it is a snapshot, whichever process dies."""
        seq = 1 + max(self._complete.values(), default=0)
        made = Snapshot(slot, seq, step, generation, time.time(), dict(values), tuple(sums))
        body = {key: value for key, value in asdict(made).items() if key not in ("slot", "sums")}
        body["sums"] = "".join(f"{one:016x}" for one in made.sums)
        reported = json.dumps(body["values"]).encode()
        if len(reported) > _TEXT // 2:
            try:
                body["values"] = long_values.put(self.path, slot, reported)
            except SnapshotRefused:
                self._lock(slot, fcntl.F_UNLCK)
                raise
        text = json.dumps(body).encode()
        at = self._records + slot * self._record
        self._view[at + _RECORD.size : at + _RECORD.size + len(text)] = text
        _RECORD.pack_into(self._view, at, seq, len(text), xxhash.xxh3_64_intdigest(text))
        self._complete[slot] = seq
        self._lock(slot, fcntl.F_UNLCK)
        return made

    def drop(self, slot: int) -> None:
        """Give a slot back that will not be committed."""
        self._lock(slot, fcntl.F_UNLCK)

    # --- reading (any process)

    @contextlib.contextmanager
    def pinned(self, snapshot: Snapshot) -> Iterator[bool]:
        """Hold a snapshot against being overwritten; False when it is gone already."""
        is_held = self._lock(snapshot.slot, fcntl.F_RDLCK)
        try:
            now = self._read(snapshot.slot) if is_held else None
            yield now is not None and now.seq == snapshot.seq
        finally:
            if is_held:
                self._lock(snapshot.slot, fcntl.F_UNLCK)

    def repair(self, snapshot: Snapshot, good: Mapping[int, bytes]) -> None:
        """Put MiB of a pinned snapshot back that changed in memory. Raises SnapshotInvalid if they are others."""
        for index, piece in good.items():
            if chunk_sum(piece) != snapshot.sums[index]:
                raise SnapshotInvalid(f"MiB {index} is not what was written in step {snapshot.step}")
            os.pwrite(self._fd, piece, self._data + snapshot.slot * self._slot + index * CHUNK_BYTES)

    def close(self) -> None:
        """Unmap. Idempotent; views that are still in use keep the memory mapped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(AttributeError, BufferError):
            self._view.release()
            self._map.close()

    def _read(self, slot: int) -> Snapshot | None:
        at = self._records + slot * self._record
        seq, length, digest = _RECORD.unpack_from(self._view, at)
        if not seq or length > self._record - _RECORD.size:
            return None
        text = bytes(self._view[at + _RECORD.size : at + _RECORD.size + length])
        if xxhash.xxh3_64_intdigest(text) != digest:
            return None
        try:
            body = json.loads(text)
            sums = body.pop("sums")
            if isinstance(body["values"], int):
                body["values"] = long_values.get(self.path, slot, body["values"])
                if body["values"] is None:
                    return None
            return Snapshot(slot, sums=tuple(int(sums[i : i + 16], 16) for i in range(0, len(sums), 16)), **body)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None  # what it says has the right checksum, and is nothing that we wrote

    def _lock(self, slot: int, kind: int) -> bool:
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(kind, os.SEEK_SET, slot, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def require_memory(folder: Path, wanted: int, what: str) -> None:
    """Raise SnapshotRefused, with the figures, unless `wanted` more bytes fit into the host's shared memory."""
    status = os.statvfs(folder)
    room = status.f_bavail * status.f_frsize
    if wanted > room:
        raise SnapshotRefused(f"{what} take {wanted / 1e6:.1f} MB, {folder} has room for {room / 1e6:.1f} MB")
    memory = psutil.virtual_memory()
    free = memory.available - _SPARE * memory.total
    if wanted > free:
        raise SnapshotRefused(
            f"{what} take {wanted / 1e6:.1f} MB, the host has {memory.available / 1e6:.1f} MB free, "
            f"of which {_SPARE * memory.total / 1e6:.1f} MB are to stay so"
        )


def _up(number: int) -> int:
    return -(-number // _PAGE) * _PAGE
