"""Batches that are there before their step, and are read once a node: a real thread, real loader processes."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from holdfast.trainer.data.batches import Batch
    from holdfast.trainer.data.ring import Ring

STEPS = 6
PATIENCE_S = 20.0
GLANCE_S = 0.05
"""How long to look for a batch that should not be read."""
LENGTH, MICRO_BATCHES, SIZE, DP = 16, 4, 2, 2


def ahead() -> Iterator[Row]:
    """A batch is read while the steps before its own compute, and its step then waits for nothing (MegaScale, 3.4)."""
    for depth in (2, 1, 4):
        found = _Reading(depth).run()
        case = f"{STEPS} steps, depth {depth}"
        yield Row(f"steps behind the first that wait for their batch, {case}", 0, found.waited)
        yield Row(f"batches read beyond the step's, at most, {case}", min(depth, STEPS - 1), found.furthest)
        yield Row(f"batches read, {case}", STEPS, found.read)


def once() -> Iterator[Row]:
    """A node of DP replicas with tp ranks each reads a batch once, not tp times (MegaScale, 3.4)."""
    word = 2
    whole = STEPS * MICRO_BATCHES * SIZE * (LENGTH + 1) * word
    for tp in (4, 1, 2):
        loaded, alone, differ = _node(tp, whole)
        yield Row(f"bytes a node reads in {STEPS} steps, tp {tp}", whole, loaded)
        yield Row(f"share of what its ranks would each read, tp {tp}", 1 / tp, loaded / alone)
        yield Row(f"batches unlike those that a rank reads itself, tp {tp}", 0, differ)


class _Reading:
    """Steps that compute until all is read ahead that may be. Nothing is read from then until the next batch is taken:
    a step that waits for its batch waits in vain, for `PATIENCE_S`."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.read = self.furthest = self.waited = 0
        self.now = 0
        """The step whose batch is taken last, or next."""
        self.is_open = True
        self.changed = threading.Condition()

    def run(self) -> _Reading:
        from holdfast.trainer.data.feed import Prefetched

        feed = Prefetched(self._batch, self.depth, STEPS)
        feed.read(0)
        for step in range(1, STEPS):
            self._compute(min(step + self.depth, STEPS))
            late = threading.Timer(PATIENCE_S, self._open, (True,))
            late.start()
            feed.read(step)
            late.cancel()
            self._open()
        feed.close()
        return self

    def _batch(self, step: int) -> Batch:
        import numpy as np

        with self.changed:
            self.changed.wait_for(lambda: self.is_open)
            self.read += 1
            self.furthest = max(self.furthest, step - self.now)
            self.changed.notify_all()
        return np.full((1, 1), step), np.full((1, 1), step)

    def _compute(self, readable: int) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.read >= readable, PATIENCE_S)
            self.changed.wait_for(lambda: self.read > readable, GLANCE_S)
            self.is_open = False
            self.now += 1

    def _open(self, is_late: bool = False) -> None:
        with self.changed:
            self.waited += is_late
            self.is_open = True
            self.changed.notify_all()


def _node(tp: int, whole: int) -> tuple[int, int, int]:
    """Bytes that the node's loader reads, and its ranks without it; how many of their batches differ."""
    import numpy as np

    from holdfast.trainer.data.batches import Batches
    from holdfast.trainer.data.feed import Inline
    from holdfast.trainer.data.ring import Ring
    from holdfast.trainer.data.shards import Shards
    from holdfast.trainer.data.shared_feed import Loader, SharedFeed

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens")
        path.write_bytes(np.arange(1000, dtype=np.uint16).tobytes())
        shards = Shards([path], [1000], "uint16")
        source = Batches(shards, LENGTH, 3, MICRO_BATCHES, SIZE)
        local = MICRO_BATCHES // DP
        replicas = [rank // tp for rank in range(DP * tp)]
        loader = Loader(source, local * SIZE, len(replicas), 2, STEPS)
        feeds = [
            SharedFeed(Ring.open(loader.ring.path), rank, replica, PATIENCE_S) for rank, replica in enumerate(replicas)
        ]
        try:
            differ = 0
            own = [Inline(source, range(r * local, (r + 1) * local)) for r in replicas]
            for step in range(STEPS):
                for got, alone in zip([feed.read(step) for feed in feeds], own, strict=True):
                    differ += any((a != b).any() for a, b in zip(got, alone.read(step), strict=True))
            return _settled(loader.ring, whole), shards.bytes_read, differ
        finally:
            for feed in feeds:
                feed.close()
            loader.close()


def _settled(ring: Ring, whole: int) -> int:
    """Bytes that were read. The last step's are counted behind it, when its readers may have it already."""
    end = time.monotonic() + PATIENCE_S
    while ring.bytes_read < whole and time.monotonic() < end:
        time.sleep(0.001)
    return ring.bytes_read
