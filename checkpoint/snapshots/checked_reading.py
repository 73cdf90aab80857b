"""A snapshot on its way out of memory, compared with its checksums in the same pass. No torch.

What is compared is the very copy that is handed on, while it lies in the processor's cache: a pass of its own through
memory takes longer than the checksums.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

from holdfast.checkpoint.format.checksum import CHUNK_BYTES, Buffer, chunk_sum
from holdfast.checkpoint.format.parts import Entry, held_bytes
from holdfast.checkpoint.format.tiles import runs
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Snapshot
from holdfast.plan.tiles import TensorShard


class CheckedReading:
    """Shards of a pinned snapshot as bytes, in whole MiB where they lie so."""

    def __init__(self, arena: Arena, snapshot: Snapshot, shards: Sequence[tuple[str, TensorShard]]) -> None:
        """Each of `shards` lies inside one that the arena holds."""
        self._arena, self._snapshot = arena, snapshot
        origins: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in arena.description.entries:
            origins[entry.tensor].append(entry)
        self._places = {(name, shard): self._place(shard, origins[name]) for name, shard in shards}
        self.shards = sorted(shards, key=lambda one: self._places[one] or (0, 0))
        """As they lie in memory: in this order one pass reads them."""
        self.broken: set[int] = set()
        """Which MiB were not what was written, when `body` was last asked."""
        self._last = (-1, b"")

    @property
    def unread(self) -> list[int]:
        """Which MiB `body` does not check: nothing of them is among the shards, or no more than parts of rows."""
        read: set[int] = set()
        for start, stop in filter(None, self._places.values()):
            read.update(range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)))
        return [index for index in range(len(self._snapshot.sums)) if index not in read]

    def body(self, entries: Sequence[Entry]) -> Iterator[Buffer]:
        """The bytes of these shards one after the other."""
        self.broken.clear()
        self._last = (-1, b"")
        low = high = 0  # what is to come, and lies in one run, though it may be of many shards
        for entry in entries:
            place = self._places[entry.tensor, entry.shard]
            if place is None:
                yield from self._run(low, high)
                yield from held_bytes([entry], self._arena.held(self._snapshot.slot))
                low = high
            elif place[0] == high:
                high = place[1]
            else:
                yield from self._run(low, high)
                low, high = place
        yield from self._run(low, high)

    def _place(self, shard: TensorShard, origins: Sequence[Entry]) -> tuple[int, int] | None:
        """Where a shard of a tensor lies in the slot, from which byte to which; None when that is not one run."""
        origin = next(one for one in origins if one.shard.holds(shard))
        found = list(itertools.islice(runs(shard, origin.shard), 2))
        if len(found) > 1:
            return None
        first, count = found[0] if found else (0, 0)
        width = self._arena.description.tensors[origin.tensor].item_bytes
        return origin.start + first * width, origin.start + (first + count) * width

    def _run(self, low: int, high: int) -> Iterator[Buffer]:
        while low < high:
            index = low // CHUNK_BYTES
            start = index * CHUNK_BYTES
            stop = min(high, start + CHUNK_BYTES)
            chunk = self._chunk(index)
            is_whole = (low, stop) == (start, start + len(chunk))
            yield chunk if is_whole else memoryview(chunk)[low - start : stop - start]
            low = stop

    def _chunk(self, index: int) -> bytes:
        if self._last[0] != index:
            chunk = self._arena.read(self._snapshot.slot, index)
            if chunk_sum(chunk) != self._snapshot.sums[index]:
                self.broken.add(index)
            self._last = (index, chunk)
        return self._last[1]
