"""The groups of a worker in its probe file, and how many operations it has begun in each."""

import mmap
import struct
import threading
from collections.abc import Sequence

from holdfast.agent.probe_file import layout
from holdfast.base import bounds
from holdfast.wire import rank_sets
from holdfast.wire.types import GroupCount

_WORDS = layout.GROUP_STRIDE // 8
_FIRST_WORD = layout.AT_GROUPS // 8
_PRIME = 16_777_619  # FNV's, of 32 bits
_pack_sizes = struct.Struct("<I").pack_into


class GroupTable:
    """The worker's side. Slots are given out in the order of first use; 0 is none."""

    def __init__(self, buffer: mmap.mmap, words: memoryview) -> None:
        """`words`: the whole file as 8-byte integers."""
        self._map, self._words = buffer, words
        self._slots: dict[bytes, int] = {}
        self._sizes = [0] * layout.GROUPS
        self._lock = threading.Lock()  # the liveness thread registers groups that were made behind the hooks' back

    def clear(self) -> None:
        """Forget what another process left in the file."""
        size = layout.AT_OPEN - layout.AT_GROUPS
        self._map[layout.AT_GROUPS : layout.AT_OPEN] = bytes(size)
        self._words[layout.WORD_NO_SLOT] = 0

    def register(self, label: str, ident: int, members: Sequence[int], counted: int = layout.COUNTED_BY_TORCH) -> int:
        """The slot of a group, its count at 0; slot 0 when the table is full. `counted`: one of `layout.COUNTED_*`."""
        with self._lock:
            return self._register(label, ident, members, counted)

    def _register(self, label: str, ident: int, members: Sequence[int], counted: int) -> int:
        text = rank_sets.compact(members).encode()
        payload = layout.GROUP.pack(
            ident & 0xFFFFFFFF,
            label.encode("utf-8", "replace")[: layout.GROUP_LABEL],
            text if len(text) <= layout.GROUP_MEMBERS else b"",
        )
        slot = self._slots.get(payload)
        if slot is None:
            slot = len(self._slots) + 1
            if slot >= layout.GROUPS:
                self._words[layout.WORD_NO_SLOT] = 1
                return 0
            self._slots[payload] = slot
            self._map[layout.AT_COUNTED + slot] = counted
            at = layout.AT_GROUPS + slot * layout.GROUP_STRIDE + 8
            self._map[at : at + 8 + layout.GROUP.size] = layout.seal(payload)
        self._words[_FIRST_WORD + slot * _WORDS] = 0
        self._write_sizes(slot, 0)
        return slot

    def count(self, slot: int, size: int) -> int:
        """One more operation begins in the group: its number, from 0. `size`: its operation_size, 0 if not known."""
        at = _FIRST_WORD + slot * _WORDS
        number: int = self._words[at]
        self._words[at] = number + 1
        if size:
            self._write_sizes(slot, ((self._sizes[slot] * _PRIME) ^ size) & 0xFFFFFFFF)
        return number

    def counted(self, slot: int) -> int:
        """Operations that `count` was called for."""
        number: int = self._words[_FIRST_WORD + slot * _WORDS]
        return number

    def count_in_part(self, slot: int) -> None:
        """From now on the probe does not see all of the group's operations."""
        self._map[layout.AT_COUNTED + slot] = layout.COUNTED_IN_PART

    def _write_sizes(self, slot: int, value: int) -> None:
        self._sizes[slot] = value
        _pack_sizes(self._map, layout.AT_GROUPS + slot * layout.GROUP_STRIDE + layout.AT_GROUP_SIZES, value)


def read_groups(buffer: layout.Buffer) -> list[GroupCount]:
    """The agent's side: all groups by slot, from slot 1 on, with the probe's counts."""
    found = []
    counted = buffer[layout.AT_COUNTED : layout.AT_COUNTED + layout.GROUPS]
    raw = buffer[layout.AT_GROUPS : layout.AT_GROUPS + layout.GROUPS * layout.GROUP_STRIDE]
    for at in range(layout.GROUP_STRIDE, len(raw), layout.GROUP_STRIDE):
        payload = layout.unsealed(raw[at + 8 : at + 8 + layout.SEAL.size + layout.GROUP.size])
        if payload is None:
            break
        ident, label, members = layout.GROUP.unpack(payload)
        text, ranks = (part.rstrip(b"\0").decode("utf-8", "replace") for part in (label, members))
        begun = bounds.whole(int.from_bytes(raw[at : at + 8], "little", signed=True), 0, bounds.MAX_COUNT)
        sizes = int.from_bytes(raw[at + layout.AT_GROUP_SIZES : at + layout.GROUP_STRIDE], "little")
        slot = at // layout.GROUP_STRIDE
        is_exact = counted[slot] == layout.COUNTED_HERE
        found.append(GroupCount(text, ident, ranks, begun, sizes, is_exact))
    return found
