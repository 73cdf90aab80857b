"""Verified reads: bytes of a part that match the manifest, from whichever copy has them. No torch.

No byte of a checkpoint is used before its chunk's checksum was compared. A chunk that does not match is asked for once
more, then from snapshots of the same step in memory and from the other copies; each such repair is reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import PartInvalid
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, chunk_sum
from holdfast.checkpoint.format.parts import Part
from holdfast.checkpoint.stores.store import Store

if TYPE_CHECKING:  # a process that only inspects checkpoints has no numpy
    from holdfast.checkpoint.restore.same_step import SameStep

Report = Callable[[str], None]


class Copies:
    """One checkpoint's parts in a store and, with the same names, in others."""

    def __init__(self, stores: Sequence[Store], folder: str, report: Report, memory: SameStep | None = None) -> None:
        """`stores`: the first is asked first. `report` gets one line for each repair."""
        self.stores, self.folder, self.report, self.memory = stores, folder, report, memory
        self.bytes_read = 0
        """Bytes that stores gave, repeated reads included."""
        self._lock = threading.Lock()

    def read(self, part: Part, start: int, stop: int) -> memoryview:
        """Bytes [start, stop) of a part; both at edges of chunks, or `stop` at the end.

        Raises PartInvalid, naming the file and the MiB, when no copy has them right.
        """
        content, problem = self._ask(self.stores[0], part, start, stop)
        bad = [at for at in range(start, stop, CHUNK_BYTES) if not self._is_good(part, at, content, start)]
        if not bad:
            return memoryview(content)
        whole = bytearray(content.ljust(stop - start, b"\0"))
        for at in bad:
            good = self._repaired(part, at, min(at + CHUNK_BYTES, stop), problem)
            whole[at - start : at - start + CHUNK_BYTES] = good
        return memoryview(whole)

    def _repaired(self, part: Part, start: int, stop: int, problem: str) -> bytes:
        where = f"{self.folder}/{part.file}, MiB {start // CHUNK_BYTES}"
        for content, more, origin in self._others(part, start, stop):
            problem = problem or more
            if self._is_good(part, start, content, start):
                self.report(f"{where}: {problem.strip(' :') or 'corrupt'}; repaired from {origin}")
                return content
        if problem:
            raise PartInvalid(f"{part.file}{problem}")
        raise PartInvalid(f"{part.file} is corrupt within MiB {start // CHUNK_BYTES}")

    def _others(self, part: Part, start: int, stop: int) -> Iterator[tuple[bytes, str, str]]:
        """What else may be right, what is wrong with it, and where it is from."""
        again, problem = self._ask(self.stores[0], part, start, stop)
        yield again, problem, "a second read"
        if self.memory is not None:
            yield self.memory.content(part, start, again.ljust(stop - start, b"\0")), "", "a snapshot in memory"
        for store in self.stores[1:]:
            yield *self._ask(store, part, start, stop), store.url

    def _ask(self, store: Store, part: Part, start: int, stop: int) -> tuple[bytes, str]:
        """What the store has there, maybe too little, and why."""
        path = f"{self.folder}/{part.file}"
        try:
            content = store.read(path, start, stop - start)
        except FileNotFoundError:
            return b"", " is missing"
        except OSError as error:
            return b"", f": {error.strerror or error}"
        with self._lock:
            self.bytes_read += len(content)
        if len(content) < stop - start:
            return content, f" has {start + len(content)} bytes, written were {part.bytes}"
        return content, ""

    def _is_good(self, part: Part, at: int, content: bytes, start: int) -> bool:
        expected = min(CHUNK_BYTES, part.bytes - at)
        piece = memoryview(content)[at - start : at - start + expected]
        return len(piece) == expected and chunk_sum(piece) == part.sums[at // CHUNK_BYTES]
