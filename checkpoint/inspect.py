"""Look at the checkpoints of a store from outside, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError, ManifestInvalid, PartInvalid
from holdfast.checkpoint.folder import read_manifest, slots
from holdfast.checkpoint.manifest import Manifest, check_part
from holdfast.checkpoint.store import Store, open_store


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One committed checkpoint."""

    step: int
    term: int
    generation: int
    job: str
    created: float
    """Seconds since the epoch."""
    mesh: dict[str, int]
    num_parts: int
    num_bytes: int
    folder: str
    """Name of its folder inside the store."""


def list_checkpoints(url: str) -> list[CheckpointInfo]:
    """Committed checkpoints, newest first. Raises StoreUnsupported; a store that is not there has none."""
    store = open_store(url)
    found = []
    for slot, is_attempt in slots(store):
        if is_attempt:
            continue
        try:
            found.append(_info(slot.folder, read_manifest(store, slot)))
        except ManifestInvalid:
            continue
    return found


def verify(url: str, step: int) -> list[str]:
    """Read every byte of the checkpoints of `step`; one line for each problem, none when all is whole.

    Raises StoreUnsupported, and CheckpointError when the store holds nothing of that step.
    """
    store = open_store(url)
    ours = [slot for slot, is_attempt in slots(store) if slot.step == step and not is_attempt]
    if not ours:
        raise CheckpointError(f"no checkpoint of step {step} in {url}")
    problems: list[str] = []
    for slot in ours:
        try:
            manifest = read_manifest(store, slot)
        except ManifestInvalid as error:
            problems.append(f"{slot.folder}: manifest: {error}")
            continue
        problems += _part_problems(store, slot.folder, manifest)
    return problems


def _part_problems(store: Store, folder: str, manifest: Manifest) -> list[str]:
    problems = []
    for part in manifest.parts:
        try:
            check_part(part, store.read(f"{folder}/{part.file}"))
        except FileNotFoundError:
            problems.append(f"{folder}/{part.file} is missing")
        except OSError as error:
            problems.append(f"{folder}/{part.file}: {error.strerror or error}")
        except PartInvalid as error:
            problems.append(f"{folder}/{error}")
    return problems


def _info(folder: str, manifest: Manifest) -> CheckpointInfo:
    return CheckpointInfo(
        step=manifest.step,
        term=manifest.term,
        generation=manifest.generation,
        job=manifest.job,
        created=manifest.created,
        mesh=dict(manifest.mesh),
        num_parts=len(manifest.parts),
        num_bytes=manifest.num_bytes,
        folder=folder,
    )
