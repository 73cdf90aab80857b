"""The operations with a root that a worker began last, as a ring of rows in its probe file."""

import mmap
import struct
from itertools import count
from typing import NamedTuple
from zlib import crc32

from holdfast.agent.probe_file import layout
from holdfast.base import bounds

_SEAL_BIT = 1 << 32
_pack = layout.PAST.pack
_seal = struct.Struct("<Q").pack
_SIZE = layout.SEAL.size + layout.PAST.size
_ROWS, _STRIDE, _AT = layout.PAST_ROWS, layout.PAST_STRIDE, layout.AT_PAST


class PastRing:
    """The worker's side."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self._map = buffer
        self._next = count().__next__  # atomic: threads never share a row

    def clear(self) -> None:
        """Forget what another process left in the file."""
        self._map[_AT : _AT + _ROWS * _STRIDE] = bytes(_ROWS * _STRIDE)

    def add(self, slot: int, number: int, kind: int, root: int) -> None:
        payload = _pack(number, root, slot, kind)
        at = _AT + self._next() % _ROWS * _STRIDE
        self._map[at : at + _SIZE] = _seal(crc32(payload) | _SEAL_BIT) + payload

    def forget(self, slot: int) -> None:
        """The group's numbers begin anew."""
        for at in range(_AT, _AT + _ROWS * _STRIDE, _STRIDE):
            payload = layout.open_sealed(self._map, at, layout.PAST.size)
            if payload is not None and PastRow(*layout.PAST.unpack(payload)).slot == slot:
                self._map[at : at + layout.SEAL.size] = bytes(layout.SEAL.size)


class PastRow(NamedTuple):
    number: int
    root: int
    slot: int
    kind: int


def read_past(buffer: layout.Buffer, groups: int) -> list[PastRow]:
    """The agent's side: the rows of the first `groups` slots. A row that is just being written, and two that contradict
    each other, say nothing."""
    found: dict[tuple[int, int], PastRow | None] = {}
    raw = buffer[_AT : _AT + _ROWS * _STRIDE]
    for at in range(0, len(raw), _STRIDE):
        payload = layout.unsealed(raw[at : at + _SIZE])
        if payload is None:
            continue
        row = PastRow(*layout.PAST.unpack(payload))
        is_possible = 0 <= row.number <= bounds.MAX_COUNT and 0 <= row.root < bounds.MAX_RANKS
        if is_possible and 0 < row.slot <= groups:
            key = row.slot, row.number
            found[key] = row if found.get(key, row) == row else None
    return [row for row in found.values() if row is not None]
