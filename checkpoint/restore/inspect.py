"""Look at the checkpoints of a store from outside, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.commit.fence import CLAIMS
from holdfast.checkpoint.commit.retention import is_protected
from holdfast.checkpoint.errors import CheckpointError, ManifestInvalid, PartInvalid, StoreMissing
from holdfast.checkpoint.format.checksum import CHUNK_BYTES
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.parts import Part
from holdfast.checkpoint.restore.copies import Copies
from holdfast.checkpoint.stores.folder import Slot, committed, read_manifest, slots
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.store import Store

_SPAN_BYTES = 8 * CHUNK_BYTES
Progress = Callable[[int, int], None]
"""Gets bytes done and bytes in all."""
Report = Callable[[str], None]
"""Gets a line for each checkpoint that is passed over, because its manifest is damaged."""


def _nothing(line: str) -> None:
    pass


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
    num_tensors: int
    protected: bool
    folder: str
    """Name of its folder inside the store."""


def list_checkpoints(url: str, report: Report = _nothing) -> list[CheckpointInfo]:
    """Committed checkpoints, newest first; a store that is not there has none. Raises StoreUnsupported, OSError."""
    store = open_store(url)
    return [_info(store, slot, manifest) for slot, manifest in committed(store, report)]


def check_store(store: Store) -> None:
    """StoreMissing if no run has ever written to this folder, for example one that holds stores. OSError."""
    if not slots(store) and f"{CLAIMS}/" not in store.list():
        raise StoreMissing(f"{store.url} is no checkpoint store: it has no step-... and no {CLAIMS}; name its folder")


def find(store: Store, step: int | None = None, report: Report = _nothing) -> tuple[Slot, Manifest]:
    """The newest checkpoint, or the newest of `step`. Raises CheckpointError when there is none, OSError."""
    problem = ""
    for slot in slots(store):
        if step is None or slot.step == step:
            try:
                found = slot, read_manifest(store, slot)
            except ManifestInvalid as error:
                line = f"{slot.folder}: manifest: {error}"
                if problem:
                    report(line)
                problem = problem or line
                continue
            if problem:
                report(problem)
            return found
    which = "" if step is None else f" of step {step}"
    raise CheckpointError(problem or f"no checkpoint{which} in {store.url}")


def verify(url: str, step: int, progress: Progress | None = None) -> list[str]:
    """Read every byte of the checkpoints of `step`; one line for each problem, none when all is whole.

    Raises CheckpointError when the store holds nothing of that step, OSError when it cannot be asked.
    """
    store = open_store(url)
    ours = [slot for slot in slots(store) if slot.step == step]
    if not ours:
        raise CheckpointError(f"no checkpoint of step {step} in {store.url}")
    problems: list[str] = []
    manifests: list[tuple[Slot, Manifest]] = []
    for slot in ours:
        try:
            manifests.append((slot, read_manifest(store, slot)))
        except ManifestInvalid as error:
            problems.append(f"{slot.folder}: manifest: {error}")
    total, done = sum(manifest.num_bytes for _, manifest in manifests), 0
    for slot, manifest in manifests:
        copies = Copies([store], slot.folder, problems.append)
        for part in manifest.parts:

            def read(num_bytes: int, before: int = done) -> None:
                if progress is not None:
                    progress(before + num_bytes, total)

            problems += [f"{slot.folder}/{problem}" for problem in _part_problems(store, slot, part, copies, read)]
            done += part.bytes
            read(part.bytes)
    return problems


def _part_problems(store: Store, slot: Slot, part: Part, copies: Copies, read: Callable[[int], None]) -> list[str]:
    """`read` is called with how many bytes of the part were read."""
    problems: list[str] = []
    try:
        size = store.size(f"{slot.folder}/{part.file}")
    except FileNotFoundError:
        return [f"{part.file} is missing"]
    if size != part.bytes:
        return [f"{part.file} has {size} bytes, written were {part.bytes}"]
    for start in range(0, part.bytes, _SPAN_BYTES):
        try:
            copies.read(part, start, min(start + _SPAN_BYTES, part.bytes))
        except PartInvalid as error:
            problems.append(str(error))
        read(start)
    return problems


def _info(store: Store, slot: Slot, manifest: Manifest) -> CheckpointInfo:
    return CheckpointInfo(
        step=manifest.step,
        term=manifest.term,
        generation=manifest.generation,
        job=manifest.job,
        created=manifest.created,
        mesh=dict(manifest.mesh),
        num_parts=len(manifest.parts),
        num_bytes=manifest.num_bytes,
        num_tensors=len(manifest.tensors),
        protected=is_protected(store, slot),
        folder=slot.folder,
    )
