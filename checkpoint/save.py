"""Write a checkpoint of all ranks and commit it.

Parts go into a folder of this attempt's own; the folder is renamed and the manifest written last. Until
the manifest is there, nobody sees a checkpoint; once it is there, it is whole. A failure to write is the
job's misfortune, not its end: every rank learns of it and training goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from safetensors.torch import save as to_safetensors

from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.fence import LOCK, Fence, require
from holdfast.checkpoint.folder import MANIFEST, Slot, committed, part_name, slots
from holdfast.checkpoint.group import Group
from holdfast.checkpoint.manifest import Manifest, Part, checksums, chunks, encode, part_from_json
from holdfast.checkpoint.store import Store


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
    group: Group,
    fence: Fence,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    *,
    mesh: Mapping[str, int],
    state: Mapping[str, Any],
    part_state: Mapping[str, str],
    keep: int,
) -> Saved:
    """Save `tensors` of every rank as the checkpoint after `step` steps. Called by all ranks together.

    `part_state` goes into this rank's file as its metadata, `state` into the manifest. `keep` is how many
    checkpoints remain afterwards. Raises StaleGeneration on every rank when a newer run owns the store; a
    failed write is no exception but `Saved(ok=False)`.
    """
    slot = Slot(step, fence.term)
    report = group.gather(_write_part(store, slot, group.rank, tensors, part_state))
    outcome = b""
    if group.rank == 0:
        outcome = json.dumps(_finish(store, fence, slot, report, mesh, state, keep)).encode()
    verdict = json.loads(group.broadcast(outcome))
    if verdict.pop("stale"):
        raise StaleGeneration(verdict["reason"])
    return Saved(**verdict)


def _write_part(
    store: Store, slot: Slot, rank: int, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> bytes:
    """Write this rank's part; the report to rank 0, an entry for the manifest or the reason why not."""
    name = part_name(rank)
    try:
        content = to_safetensors({key: t.contiguous() for key, t in tensors.items()}, dict(metadata))
        store.make_folder(slot.attempt)
        store.create(f"{slot.attempt}/{name}", (bytes(piece) for piece in chunks(content)))
    except OSError as error:
        return json.dumps({"failed": f"{name}: {error.strerror or error}"}).encode()
    return json.dumps(asdict(Part(name, len(content), checksums(content), rank))).encode()


def _finish(
    store: Store,
    fence: Fence,
    slot: Slot,
    reports: list[bytes],
    mesh: Mapping[str, int],
    state: Mapping[str, Any],
    keep: int,
) -> dict[str, Any]:
    """Commit or clean up; at rank 0 only. The fields of Saved, and whether this run is stale."""
    entries = [json.loads(report) for report in reports]
    stale, reason = False, ""
    num_bytes = 0
    try:
        failures = [entry["failed"] for entry in entries if "failed" in entry]
        if failures:
            raise OSError("; ".join(failures[:3]) + (" ..." if len(failures) > 3 else ""))
        parts = tuple(part_from_json(entry) for entry in entries)
        num_bytes = sum(part.bytes for part in parts)
        manifest = Manifest(slot.step, fence.term, fence.generation, fence.job, time.time(), mesh, parts, state)
        commit(store, fence, slot, manifest)
    except StaleGeneration as error:
        stale, reason = True, str(error)
    except (OSError, CheckpointError) as error:
        reason = str(getattr(error, "strerror", None) or error)
    if reason:
        store.remove(slot.attempt)
    # Looking around and tidying up must not turn a committed checkpoint into a failure.
    good = None
    with contextlib.suppress(OSError):
        good = max((s.step for s, _ in committed(store)), default=None)
        if not reason:
            retain(store, fence, keep)
    return {
        "step": slot.step,
        "ok": not reason,
        "reason": reason,
        "last_good": good,
        "num_bytes": num_bytes,
        "stale": stale,
    }


def commit(store: Store, fence: Fence, slot: Slot, manifest: Manifest) -> None:
    """Make the attempt of `slot` a checkpoint. Raises StaleGeneration, OSError; then nothing changed."""
    with store.exclusive(LOCK):
        require(store, fence)
        try:
            store.rename(slot.attempt, slot.folder)
            store.replace(f"{slot.folder}/{MANIFEST}", encode(manifest))
        except OSError:
            # It may have got as far as being visible without being durable: then it must not stay.
            _discard(store, slot)
            raise


def retain(store: Store, fence: Fence, keep: int) -> list[Slot]:
    """Remove all but the newest `keep` committed checkpoints; those removed, newest first."""
    with store.exclusive(LOCK):
        require(store, fence)
        old = [slot for slot, _ in committed(store)][max(keep, 1) :]
        for slot in old:
            _discard(store, slot)
        leftovers = [slot for slot, is_attempt in slots(store) if is_attempt and slot.term < fence.term]
        for slot in leftovers:
            store.remove(slot.attempt)
    return old


def _discard(store: Store, slot: Slot) -> None:
    # The manifest goes first: from then on the checkpoint does not exist, however far the rest gets.
    store.remove(f"{slot.folder}/{MANIFEST}")
    store.remove(slot.folder)
