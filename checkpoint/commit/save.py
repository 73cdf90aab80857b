"""Write a checkpoint of all workers and commit it. No torch.

Parts go below the run's own work folder, the manifest after them; the folder then gets its final name by one atomic
rename. Until that instant no checkpoint is visible; from then on it is whole. A failure to write is the job's
misfortune, not its end: every worker learns of it and training goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.checkpoint.commit.fence import Fence, require
from holdfast.checkpoint.commit.retention import Retention, retain
from holdfast.checkpoint.errors import CheckpointError, ManifestInvalid, StaleGeneration
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.manifest import Manifest, encode, part_from_json, part_to_json
from holdfast.checkpoint.format.parts import held_bytes, part_name, write_part
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.format.transfer import Share
from holdfast.checkpoint.stores.folder import MANIFEST, Slot, committed, read_manifest
from holdfast.checkpoint.stores.store import Store


class Votes(Protocol):
    """The workers that save together. Every call is made by all of them, in the same order."""

    rank: int
    size: int

    def gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all, in their order, at rank 0; an empty list elsewhere."""

    def broadcast(self, payload: bytes) -> bytes:
        """Rank 0's payload, everywhere."""


@dataclass(frozen=True, slots=True)
class SavingWorkers:
    """What stays the same from one checkpoint of a run to the next."""

    mesh: Mapping[str, int]
    state: Mapping[str, Any]
    """Settings that must be equal in a run that goes on from a checkpoint."""
    tensors: Mapping[str, GlobalTensor]
    shares: Sequence[Share]
    """Which worker writes what: `transfer.write_shares` of the layout."""
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True, slots=True)
class Saved:
    """How a save ended, the same on every rank."""

    step: int
    ok: bool
    reason: str = ""
    """Why not, in words for a log line; empty when it was committed."""
    last_good: int | None = None
    """The newest committed step after this save, None when there is none."""
    num_bytes: int = 0


def save(
    store: Store,
    group: Votes,
    fence: Fence,
    job: SavingWorkers,
    step: int,
    held: Mapping[str, Sequence[HeldShard]],
    values: Mapping[str, Any],
    number: int = 0,
) -> Saved:
    """Save what all workers hold as the checkpoint after `step` steps. Called by all of them together.

    `held`: this worker's shards by tensor; `values`: state that is no tensor, taken from rank 0; `number`: how many
    saves this run began before. Raises StaleGeneration on every rank when a newer run owns the store; a failed write
    is no exception but `Saved(ok=False)`.
    """
    slot = Slot(step, fence.term)
    attempt = f"{fence.token}-{number}"
    folder = f"{fence.work}/step-{step:08d}.{attempt[-20:]}"
    report = group.gather(_write(store, folder, attempt, group.rank, job, held))
    outcome = b""
    if group.rank == 0:
        outcome = json.dumps(_finish(store, fence, slot, folder, attempt, report, job, values)).encode()
    verdict = json.loads(group.broadcast(outcome))
    if verdict.pop("stale"):
        raise StaleGeneration(verdict["reason"])
    return Saved(**verdict)


def _write(
    store: Store, folder: str, attempt: str, worker: int, job: SavingWorkers, held: Mapping[str, Sequence[HeldShard]]
) -> bytes:
    """Write this worker's part; the report to rank 0: an entry for the manifest, nothing, or the reason why not."""
    name = part_name(worker)
    metadata = {"format": "pt", "attempt": attempt}
    try:
        store.make_folder(folder)
        part = write_part(
            lambda pieces: store.create(f"{folder}/{name}", pieces), worker, job.tensors, job.shares,
            lambda entries: held_bytes(entries, held), metadata,
        )  # fmt: skip
    except (OSError, CheckpointError) as error:
        return json.dumps({"failed": f"{name}: {getattr(error, 'strerror', None) or error}"}).encode()
    return json.dumps(part_to_json(part) if part else {}).encode()


def _finish(
    store: Store,
    fence: Fence,
    slot: Slot,
    folder: str,
    attempt: str,
    reports: list[bytes],
    job: SavingWorkers,
    values: Mapping[str, Any],
) -> dict[str, Any]:
    """Commit or clean up; at rank 0 only. The fields of Saved, and whether this run is stale."""
    entries = [entry for entry in map(json.loads, reports) if entry]
    stale, reason, num_bytes = False, "", 0
    try:
        failures = [entry["failed"] for entry in entries if "failed" in entry]
        if failures:
            with contextlib.suppress(OSError):
                require(store, fence)
            raise OSError("; ".join(failures[:3]) + (" ..." if len(failures) > 3 else ""))
        parts = tuple(part_from_json(entry) for entry in entries)
        num_bytes = sum(part.bytes for part in parts)
        manifest = Manifest(
            slot.step, fence.term, attempt, fence.generation, fence.job, time.time(), job.mesh, job.tensors, parts,
            job.state, values,
        )  # fmt: skip
        commit(store, fence, slot, folder, manifest)
    except StaleGeneration as error:
        stale, reason = True, str(error)
    except (OSError, CheckpointError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    # Looking around and tidying up must not turn a committed checkpoint into a failure.
    good = None
    with contextlib.suppress(OSError, CheckpointError):
        if reason and not stale:
            store.remove(folder)
    with contextlib.suppress(OSError, CheckpointError):
        good = next((s.step for s, _ in committed(store)), None)
        if not reason:
            require(store, fence)
            retain(store, job.retention)
    return {
        "step": slot.step,
        "ok": not reason,
        "reason": reason,
        "last_good": good,
        "num_bytes": num_bytes,
        "stale": stale,
    }


def commit(store: Store, fence: Fence, slot: Slot, folder: str, manifest: Manifest) -> None:
    """Make the parts in `folder` a checkpoint. Raises StaleGeneration, OSError; then there is none of this attempt.

    If the answer to the rename was lost, and the store cannot be asked, it may be there all the same: whole.
    """
    try:
        content = encode(manifest)
        store.replace(f"{folder}/{MANIFEST}", content)
        store.rename(folder, slot.folder)
    except OSError:
        with contextlib.suppress(ManifestInvalid):
            if read_manifest(store, slot).attempt == manifest.attempt:
                return  # it was done, and only the answer was lost
        require(store, fence)
        raise
