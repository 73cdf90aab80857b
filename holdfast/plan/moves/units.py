"""What has to move when tensors change their layout: a unit for each part that the same ranks have and want. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from holdfast.plan.tiles import TensorShard, cells


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a tensor that goes from any one of its senders to all of its receivers."""

    tensor: str
    shard: TensorShard
    item_bytes: int
    senders: tuple[int, ...]
    """Ranks that hold it."""
    receivers: tuple[int, ...]
    """Ranks that are to hold it. One that is a sender too has it, and receives nothing."""

    @property
    def num_bytes(self) -> int:
        return self.shard.count * self.item_bytes

    def near(self, hosts: Sequence[int]) -> list[tuple[int, int]]:
        """Receivers on whose host some rank holds it: (that rank, the receiver). Nothing of these crosses hosts."""
        holders = {hosts[rank]: rank for rank in reversed(self.senders)}
        missing = [rank for rank in self.receivers if rank not in self.senders]
        return [(holders[hosts[rank]], rank) for rank in missing if hosts[rank] in holders]

    def far(self, hosts: Sequence[int]) -> list[list[int]]:
        """The other receivers, host by host. It crosses into each of these hosts."""
        holders = {hosts[rank] for rank in self.senders}
        missing = sorted((hosts[rank], rank) for rank in self.receivers if hosts[rank] not in holders)
        return [[rank for _, rank in group] for _, group in groupby(missing, key=lambda pair: pair[0])]


def units(
    tensor: str,
    item_bytes: int,
    sources: Mapping[TensorShard, Sequence[int]],
    targets: Mapping[TensorShard, Sequence[int]],
) -> list[Unit]:
    """All units of a tensor: distinct shards with the ranks that hold them, and those with the ranks to hold them.

    Every element that is wanted is in exactly one unit. ValueError if no rank has it.
    """
    found = []
    for cell in cells(sources, targets):
        if not cell.sources:
            raise ValueError(f"no rank holds the part of {tensor} at {list(cell.shard.offset)}")
        found.append(Unit(tensor, cell.shard, item_bytes, cell.sources, cell.targets))
    return found
