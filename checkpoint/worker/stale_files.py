"""Snapshots of layouts that a job had before: they go when newer ones are complete everywhere. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.restore.memory import PEER_PREFIX
from holdfast.checkpoint.snapshots import long_values
from holdfast.checkpoint.snapshots.arena import Arena


def current_files(ranks: Sequence[tuple[str, str]], peers: Mapping[str, str]) -> dict[str, set[str]]:
    """For each node, the files of snapshots that belong there. Pure.

    `ranks`: node and file name of each rank's own snapshots; `peers`: for each node the one that keeps its copies.
    """
    found: dict[str, set[str]] = {}
    for node, name in ranks:
        found.setdefault(node, set()).add(name)
        if node in peers:
            found.setdefault(peers[node], set()).add(f"{PEER_PREFIX}{node}-{name.removeprefix('own-')}")
    return found


def sweep(folder: Path, keep: Collection[str], step: int) -> tuple[list[str], bool]:
    """Remove snapshots not in `keep` of up to `step` steps; what was removed, and whether none is left."""
    removed, is_done = [], True
    for path in sorted(folder.glob("*.snap")):
        if path.name in keep:
            continue
        try:
            arena = Arena.open(path)
            newest = max((one.step for one in arena.snapshots()), default=0)
            arena.close()
        except (OSError, CheckpointError):
            newest = 0
        if newest > step:
            is_done = False
            continue
        long_values.remove(path)
        removed.append(path.name)
    return removed, is_done
