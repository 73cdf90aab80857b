"""What a file of snapshots says: of all its slots, and of the snapshot in one of them. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.format.parts import Entry
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.plan.tiles import TensorShard

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Description:
    """What the slots of a file hold, the same for all of its snapshots."""

    job: str
    worker: int
    world: int
    settings: str
    """Digest of what must be equal in a run that goes on from here."""
    tensors: Mapping[str, GlobalTensor]
    shards: Sequence[tuple[str, TensorShard]]
    """The shards that this worker holds."""

    @property
    def entries(self) -> list[Entry]:
        """Where each shard lies in a slot."""
        at, found = 0, []
        for name, shard in self.shards:
            found.append(Entry(name, shard, at))
            at += -(-shard.count * self.tensors[name].item_bytes // _ALIGN) * _ALIGN
        return found

    @property
    def num_bytes(self) -> int:
        """Of one slot."""
        return sum(-(-shard.count * self.tensors[name].item_bytes // _ALIGN) * _ALIGN for name, shard in self.shards)

    def encode(self) -> bytes:
        """As canonical JSON."""
        body = {
            "job": self.job, "worker": self.worker, "world": self.world, "settings": self.settings,
            "tensors": {name: [t.dtype, list(t.shape)] for name, t in sorted(self.tensors.items())},
            "boxes": [[name, list(shard.offset), list(shard.size)] for name, shard in self.shards],
        }  # fmt: skip
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> Description:
        """Undo `encode`. ValueError, KeyError, TypeError for anything else."""
        body = json.loads(text)
        tensors = {name: GlobalTensor(name, tuple(shape), dtype) for name, (dtype, shape) in body["tensors"].items()}
        shards = [(name, TensorShard(tuple(low), tuple(size))) for name, low, size in body["boxes"]]
        return cls(body["job"], body["worker"], body["world"], body["settings"], tensors, shards)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot in a slot."""

    slot: int
    seq: int
    """Rises by one with every snapshot of a file."""
    step: int
    """Steps completed, as in a manifest."""
    generation: int
    created: float
    """Seconds since the epoch."""
    values: Mapping[str, Any]
    """State of the job that is no tensor."""
    sums: tuple[int, ...]
    """A checksum for each MiB of the slot."""
