"""Read the newest checkpoint that is whole on every rank.

Each rank checks its own part, and all must agree; when one part is bad, every rank moves on to the next
older checkpoint together, and rank 0 says which file was wrong.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load as from_safetensors

from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch, PartInvalid
from holdfast.checkpoint.folder import Slot, committed, read_manifest
from holdfast.checkpoint.group import Group
from holdfast.checkpoint.manifest import Manifest, check_part
from holdfast.checkpoint.store import Store


@dataclass(frozen=True, slots=True)
class Restored:
    """One rank's share of a checkpoint."""

    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]


def restore(
    store: Store,
    group: Group,
    *,
    mesh: Mapping[str, int],
    state: Mapping[str, Any],
    warn: Callable[[str], None],
) -> Restored | None:
    """The newest checkpoint whose parts are whole everywhere; None when there is none at all.

    Called by all ranks together. `warn` gets one line at rank 0 for each checkpoint passed over. Raises
    CheckpointMismatch on all ranks when the newest one belongs to another mesh or state, and
    CheckpointError when there are checkpoints but not one of them is whole.
    """
    listing = b""
    if group.rank == 0:
        listing = json.dumps(_candidates(store, mesh, state)).encode()
    found = json.loads(group.broadcast(listing))
    for slot in (Slot(*pair) for pair in found["slots"]):
        restored, problem = _load(store, slot, group.rank)
        if group.all_agree(restored is not None):
            return restored
        problems = group.gather(problem.encode())
        if group.rank == 0:
            warn(f"checkpoint of step {slot.step} passed over: {_summary(problems)}")
    if found["mismatch"]:
        raise CheckpointMismatch(found["mismatch"])
    if found["slots"]:
        raise CheckpointError(f"none of the {len(found['slots'])} checkpoints in {store.url} is whole")
    return None


def _candidates(store: Store, mesh: Mapping[str, int], state: Mapping[str, Any]) -> dict[str, Any]:
    """Checkpoints that fit, newest first, up to the first that does not; and why that one does not."""
    fitting: list[tuple[int, int]] = []
    for slot, manifest in committed(store):
        try:
            require_match(manifest, mesh, state)
        except CheckpointMismatch as error:
            return {"slots": fitting, "mismatch": str(error)}
        fitting.append((slot.step, slot.term))
    return {"slots": fitting, "mismatch": ""}


def _load(store: Store, slot: Slot, rank: int) -> tuple[Restored | None, str]:
    """This rank's part and no problem, or None and the problem."""
    try:
        manifest = read_manifest(store, slot)
        part = manifest.parts[rank]
        content = store.read(f"{slot.folder}/{part.file}")
        check_part(part, content)
        return Restored(manifest, from_safetensors(content)), ""
    except FileNotFoundError:
        return None, f"{slot.folder}/{part.file} is missing"
    except OSError as error:
        return None, f"{slot.folder}: {error.strerror or error}"
    except PartInvalid as error:
        return None, f"{slot.folder}/{error}"
    except CheckpointError as error:
        return None, f"{slot.folder}: {error}"


def require_match(manifest: Manifest, mesh: Mapping[str, int], state: Mapping[str, Any]) -> None:
    """Raise CheckpointMismatch, naming the first difference, unless the checkpoint fits this run."""
    for kind, saved, ours in (("mesh", manifest.mesh, mesh), ("setting", manifest.state, state)):
        for key in sorted({*saved, *ours}):
            if saved.get(key) != ours.get(key):
                raise CheckpointMismatch(
                    f"checkpoint of step {manifest.step} was written with {kind} {key} = {saved.get(key)}, "
                    f"this run has {ours.get(key)}: use the same, or another store"
                )


def _summary(problems: list[bytes]) -> str:
    said = [text.decode() for text in problems if text]
    return said[0] + (f" (and {len(said) - 1} more parts)" if len(said) > 1 else "")
