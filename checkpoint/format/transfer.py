"""Plans for writing state: which worker writes what, each byte once, all writing about as much. Pure.

The same plan comes out wherever it is made from the same layouts, so workers need not send plans around.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.format.tiles import Layout, pieces
from holdfast.plan.tiles import TensorShard, cells

GRAIN_BYTES = 4 << 20
"""Parts smaller than this are not cut for the sake of balance."""


@dataclass(frozen=True, slots=True)
class Share:
    """A shard that one worker writes for all that hold it."""

    tensor: str
    shard: TensorShard
    worker: int
    num_bytes: int


def write_shares(layout: Layout, grain: int = GRAIN_BYTES) -> list[Share]:
    """Which worker writes what, so that all that is held is written once and replicas write about equal amounts."""
    found = []
    for name, tensor in layout.tensors.items():
        held = layout.holders(name)
        for cell in cells(held, held):
            for shard in _shared(cell.shard, tensor.item_bytes, len(cell.sources), grain):
                found.append((name, shard, cell.sources, shard.count * tensor.item_bytes))
        if not tensor.shard.count:
            # Nothing to hold, yet a reader wants to find the name.
            owner = next((w for w, shards in enumerate(layout.held) if name in shards), 0)
            found.append((name, tensor.shard, (owner,), 0))
    workers = balanced([(holders, num_bytes) for _, _, holders, num_bytes in found], len(layout.held))
    return [
        Share(name, shard, worker, num_bytes)
        for (name, shard, _, num_bytes), worker in zip(found, workers, strict=True)
    ]


def balanced(items: Sequence[tuple[Sequence[int], int]], workers: int) -> list[int]:
    """For each item (workers that may take it, its bytes) a worker: the least loaded, large and rare items first.

    Longest processing time first (Graham 1969).
    """
    load = [0] * workers
    taken = [0] * len(items)
    for index in sorted(range(len(items)), key=lambda i: (len(items[i][0]) > 1, -items[i][1])):
        candidates, num_bytes = items[index]
        taken[index] = min(candidates, key=lambda worker: (load[worker], worker))
        load[taken[index]] += num_bytes
    return taken


def _shared(shard: TensorShard, item_bytes: int, holders: int, grain: int) -> list[TensorShard]:
    if holders == 1 or shard.count * item_bytes <= grain:
        return [shard]
    return pieces(shard, min(holders, -(-shard.count * item_bytes // grain)))
