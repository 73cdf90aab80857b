"""The operations that threads of a worker wait for, a row for each in its probe file."""

import mmap
import struct
import threading
from collections import deque
from typing import NamedTuple
from zlib import crc32

from holdfast.agent.probe_file import layout
from holdfast.base import bounds

_SEAL_BIT = 1 << 32
_pack = layout.OPEN.pack
_seal = struct.Struct("<Q").pack
_SIZE = layout.SEAL.size + layout.OPEN.size
_RETRIES = 8


class OpenTable:
    """The worker's side. A row belongs to one wait from `begin` to `end`, in whichever thread."""

    def __init__(self, buffer: mmap.mmap, words: memoryview) -> None:
        """`words`: the whole file as 8-byte integers."""
        self._map, self._words = buffer, words
        self._free = deque(range(layout.OPEN_ROWS))  # its appends and pops are atomic
        self._unseen = 0
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget what another process left in the file."""
        self._map[layout.AT_OPEN : layout.AT_RECORD] = bytes(layout.AT_RECORD - layout.AT_OPEN)
        self._words[layout.WORD_UNSEEN] = 0

    def begin(
        self, since: int, number: int, thread: int, size: int, root: int, slot: int, kind: int, flags: int
    ) -> int:
        """A thread waits from now on: the row, -1 if none was left."""
        try:
            row = self._free.popleft()
        except IndexError:
            self._count(1)
            return -1
        payload = _pack(since, number, thread, size, root, slot, kind, flags)
        at = layout.AT_OPEN + row * layout.OPEN_STRIDE
        self._map[at : at + _SIZE] = _seal(crc32(payload) | _SEAL_BIT) + payload
        return row

    def end(self, row: int) -> None:
        if row < 0:
            self._count(-1)
            return
        self._words[(layout.AT_OPEN + row * layout.OPEN_STRIDE) >> 3] = 0  # the seal of no block
        self._free.append(row)

    def _count(self, by: int) -> None:
        with self._lock:
            self._unseen += by
            self._words[layout.WORD_UNSEEN] = self._unseen


class OpenRow(NamedTuple):
    since: int
    number: int
    thread: int
    size: int
    root: int
    slot: int
    kind: int
    flags: int


def read_open(buffer: layout.Buffer) -> list[OpenRow] | None:
    """The agent's side: the rows in use; None if one of them was being written at each look."""
    found: list[OpenRow] = []
    raw = buffer[layout.AT_OPEN : layout.AT_RECORD]
    for at in range(0, len(raw), layout.OPEN_STRIDE):
        piece = raw[at : at + _SIZE]
        for _ in range(_RETRIES):
            if not any(piece[:8]):
                break
            if (payload := layout.unsealed(piece)) is not None:
                found.append(_within_bounds(OpenRow(*layout.OPEN.unpack(payload))))
                break
            piece = buffer[layout.AT_OPEN + at : layout.AT_OPEN + at + _SIZE]
        else:
            return None
    return found


def _within_bounds(row: OpenRow) -> OpenRow:
    return row._replace(
        number=bounds.whole(row.number, -1, bounds.MAX_COUNT),
        thread=row.thread if 0 < row.thread <= bounds.MAX_PID else 0,
        size=max(row.size, 0),
        root=row.root if 0 <= row.root < bounds.MAX_RANKS else -1,
    )
