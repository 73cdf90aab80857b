"""The kept lines of a job's log: the newest of each generation, shared fairly among its ranks. Pure.

Without shares one rank that prints a lot would leave nothing of the others; without generations a restart would leave
nothing of the fault.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.wire import messages as msg

TAIL_BYTES = 1 << 20
"""Of the newest generation."""
PAST_BYTES = 256 << 10
"""Of each earlier one."""
PAST_GENERATIONS = 8
_CHUNK_BYTES = 100
"""What a chunk takes besides its text."""


@dataclass(frozen=True, slots=True)
class KeptChunk:
    at: float
    """When the controller received it, Unix time."""
    node: str
    chunk: msg.LogChunk


def size(chunk: msg.LogChunk) -> int:
    return len(chunk.text) + _CHUNK_BYTES


class GenerationTail:
    """Chunks of one generation in the order in which they came."""

    def __init__(self) -> None:
        self.chunks: deque[KeptChunk] = deque()
        self._held: Counter[int] = Counter()
        self._bytes = 0

    def add(self, kept: KeptChunk, limit: int = TAIL_BYTES) -> None:
        self.chunks.append(kept)
        self._held[kept.chunk.rank] += size(kept.chunk)
        self._bytes += size(kept.chunk)
        if self._bytes > limit:
            self.shrink(limit - limit // 8)  # some at a time: each pass goes over all chunks

    def shrink(self, target: int) -> None:
        """Remove the oldest chunks of those ranks that hold more than their share. The newest chunk stays."""
        share = fair_share(list(self._held.values()), target)
        kept: deque[KeptChunk] = deque()
        newest = self.chunks[-1] if self.chunks else None
        for one in self.chunks:
            rank, cost = one.chunk.rank, size(one.chunk)
            if self._bytes > target and self._held[rank] > share and one is not newest:
                self._held[rank] -= cost
                self._bytes -= cost
            else:
                kept.append(one)
        self.chunks = kept


def fair_share(held: list[int], target: int) -> int:
    """The most that one may hold so that all together hold `target`, where those that hold less keep what they have.

    >>> fair_share([10, 50, 90], 90)
    40
    """
    rest = target
    for i, mine in enumerate(sorted(held)):
        share = rest // (len(held) - i)
        if mine > share:
            return share
        rest -= mine
    return max(held, default=0)


class LogTail:
    def __init__(self) -> None:
        self._generations: dict[int, GenerationTail] = {}

    def add(self, kept: KeptChunk) -> None:
        generation = kept.chunk.generation
        tail = self._generations.get(generation)
        if tail is None:
            tail = self._generations[generation] = GenerationTail()
            for past in sorted(self._generations)[:-1]:
                self._generations[past].shrink(PAST_BYTES)
            for gone in sorted(self._generations)[: -PAST_GENERATIONS - 1]:
                del self._generations[gone]
        # The last words of a generation may come when the next one has begun.
        tail.add(kept, TAIL_BYTES if generation == max(self._generations, default=generation) else PAST_BYTES)

    def __iter__(self) -> Iterator[KeptChunk]:
        """From the oldest generation on."""
        for generation in sorted(self._generations):
            yield from self._generations[generation].chunks
