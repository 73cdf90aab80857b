"""The loader of one node: reads the corpus once for all its ranks and writes batches into their ring.

    python -m holdfast.trainer.data.loader RING

Started and watched by the node's first rank. It holds no state of its own: which samples a step has follows from its
number, and where to go on from what the ring holds and the readers want. One that is killed is simply started again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.trainer.data.batches import Batches
from holdfast.trainer.data.ring import Ring
from holdfast.trainer.data.shards import Shards

_SHORTEST_S, _LONGEST_S = 0.0005, 0.02
"""Between two checks whether a slot has become free."""


def serve(ring: Ring, alone: Callable[[], bool]) -> None:
    """Fill the ring until it is closed or `alone` says that no reader is left."""
    settings = ring.settings()
    step = -1
    try:
        pause = _SHORTEST_S
        while not ring.complete():
            if ring.closing or alone():
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
        wanted = ring.next_wanted()
        if wanted is None:
            return
        step = wanted
        shards = Shards([Path(path) for path in settings["paths"]], settings["counts"], settings["dtype"])
        batches = Batches(shards, *(settings[key] for key in ("seq_len", "seed", "micro_batches", "micro_batch_size")))
        _fill(ring, settings, shards, batches, step, alone)
    except (OSError, ValueError) as error:
        # Reported, not raised: it concerns the step that needs this batch, and those before it are in the ring.
        wanted = ring.next_wanted()
        while wanted is not None and ring.has(wanted):
            wanted += 1
        ring.fail(wanted or 0, f"{type(error).__name__}: {error}")
        while not (ring.closing or alone()):
            time.sleep(_LONGEST_S)


def _fill(
    ring: Ring, settings: dict[str, Any], shards: Shards, batches: Batches, step: int, alone: Callable[[], bool]
) -> None:
    local = settings["samples"] // settings["micro_batch_size"]
    ranges = [range(replica * local, (replica + 1) * local) for replica in ring.replicas()]
    pause, freed_at = _SHORTEST_S, time.monotonic()
    while not ring.closing:
        wanted = ring.next_wanted()
        assert wanted is not None
        if step >= settings["steps"] or step >= wanted + ring.slots:
            if alone():
                return
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_S)
            continue
        # A fraction of what a step takes, so that a ring of few slots is never found empty by fast steps.
        now = time.monotonic()
        pause, freed_at = min(max((now - freed_at) / 16, _SHORTEST_S), _LONGEST_S), now
        if not ring.has(step):  # else one before us wrote it
            before = shards.bytes_read
            ring.put(step, [batches.read(step, micro_batches) for micro_batches in ranges])
            ring.count_bytes(shards.bytes_read - before)
        step += 1


def main(path: str) -> int:
    parent = os.getppid()
    try:
        ring = Ring.open(Path(path))
    except (OSError, ValueError) as error:
        print(f"holdfast loader: {error}", file=sys.stderr)
        return 1
    ring.pid = os.getpid()
    orphaned = False

    def alone() -> bool:
        nonlocal orphaned
        orphaned = os.getppid() != parent
        return orphaned

    serve(ring, alone)
    if orphaned:
        ring.close(remove=True)  # its maker was killed and cannot
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
