"""A checkpoint's parts once more: the same step in this node's memory, as its own snapshots or kept for others.

Where a whole job goes back to the store because some node's memory is lost, what the other nodes still have repairs
what the store has wrong. No torch.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.arrays import to_bytes
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.parts import Entry, Part
from holdfast.checkpoint.snapshots.arena import Arena


class SameStep:
    """Looked into when something is wrong, and only then."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """`folder`: the job's snapshots on this node."""
        self._folder, self._manifest = folder, manifest

    def content(self, part: Part, start: int, stored: bytes) -> bytes:
        """`stored`, which lies at `start` of the part, with the tensors in it that memory has as they are there.

        The file's header stays as it is: no snapshot has one. Whether all is right, checksums say.
        """
        whole = bytearray(stored)
        for entry in part.entries:
            size = entry.shard.count * self._manifest.tensors[entry.tensor].item_bytes
            low, high = max(start, entry.start), min(start + len(stored), entry.start + size)
            if low < high:
                found = self._bytes(entry, low - entry.start, high - entry.start)
                if found is not None:
                    whole[low - start : high - start] = found
        return bytes(whole)

    def _bytes(self, entry: Entry, start: int, stop: int) -> bytes | None:
        tensor = self._manifest.tensors[entry.tensor]
        for path in sorted(self._folder.glob("*.snap")):
            try:
                arena = Arena.open(path)
            except (OSError, CheckpointError):
                continue
            try:
                if arena.description.tensors.get(entry.tensor) != tensor:
                    continue
                for snapshot in arena.snapshots():
                    if snapshot.step == self._manifest.step:
                        for held in arena.held(snapshot.slot).get(entry.tensor, ()):
                            if held.shard.holds(entry.shard):
                                return bytes(to_bytes(held.part(entry.shard))[start:stop])
            finally:
                arena.close()
        return None
