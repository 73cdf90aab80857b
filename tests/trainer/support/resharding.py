"""What forked ranks do in the tests of restoring on another layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from holdfast.checkpoint.format.parts import entry_name
from holdfast.checkpoint.stores.folder import committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.trainer.__main__ import parse
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.run import loop
from holdfast.trainer.settings.config import CheckpointConfig
from holdfast.trainer.settings.launch import Launch, from_environment
from holdfast.trainer.weights import state


def gone_on(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """The outcome of going on up to `steps`, and what this rank held once it had restored, compared with the files by
    their own library."""
    found: dict[str, Any] = {}
    make = loop.make_manager

    def watched(
        config: CheckpointConfig, launch: Launch, mesh: RankMesh, slices: list[Slice], optimizer: Optimizer, fixed: Any
    ) -> CheckpointManager:
        manager = make(config, launch, mesh, slices, optimizer, fixed)
        restore = manager.restore

        def restored() -> int:
            step = restore()
            whole = assembled(config.store)
            held = state.capture(slices, optimizer)
            equal = {name: np.array_equal(h.data, whole[name][h.shard.slices]) for name, (h,) in held.items()}
            found.update(
                step=step,
                differ=sorted(name for name, same in equal.items() if not same),
                boxes={name: [h.shard.offset, h.shard.size] for name, (h,) in held.items()},
                bytes_read=manager.bytes_read,
                applied=optimizer.applied,
            )
            return step

        manager.restore = restored  # type: ignore[method-assign]
        return manager

    loop.make_manager = watched
    outcome = loop.run(parse([*argv, "--steps", str(steps)]), from_environment(os.environ))
    return {**found, "first": outcome.first_step, "losses": outcome.losses}


def assembled(url: str) -> dict[str, np.ndarray]:
    """Whole tensors of the newest checkpoint, of its manifest and safetensors alone."""
    store = open_store(url)
    slot, manifest = next(committed(store))
    root = Path(url.removeprefix("file://")) / slot.folder
    whole = {name: np.empty(t.shape, f"u{t.item_bytes}") for name, t in manifest.tensors.items()}
    for part in manifest.parts:
        with safe_open(root / part.file, "numpy") as opened:
            for entry in part.entries:
                tensor = manifest.tensors[entry.tensor]
                array = opened.get_tensor(entry_name(tensor, entry.shard))
                whole[entry.tensor][entry.shard.slices] = array.view(f"u{tensor.item_bytes}")
    return whole
