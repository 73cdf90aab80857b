"""What forked ranks do in the tests of restoring on another layout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from joining import joined
from safetensors import safe_open

from holdfast.checkpoint.format.parts import entry_name
from holdfast.checkpoint.stores.folder import committed
from holdfast.checkpoint.stores.opening import open_store
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment
from holdfast.trainer.weights import state
from holdfast.trainer.weights.persist import make_manager


def gone_on(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """What `restored` finds, and the outcome of going on from there up to `steps`, by the same ranks."""
    found = restored(argv)
    outcome = loop.run(parse([*argv, "--steps", str(steps)]), from_environment(_next_life()))
    return {**found, "first": outcome.first_step, "losses": outcome.losses}


def _next_life() -> dict[str, str]:
    """The environment of this rank after one more restart: what ranks exchanged in this attempt is void."""
    number = str(int(os.environ["HOLDFAST_GENERATION"]) + 1)
    return {**os.environ, "HOLDFAST_GENERATION": number, "TORCHELASTIC_RESTART_COUNT": number}


def restored(argv: list[str]) -> dict[str, Any]:
    """Restore and train no further; what this rank then holds, compared with the files by their own library."""
    with joined(argv) as rank:
        trainer, config, mesh = rank.trainer(), rank.config, rank.mesh
        settings = state.settings(config, rank.corpus.digest)
        manager = make_manager(config.checkpoint, rank.launch, mesh, trainer.slices, trainer.optimizer, settings)
        try:
            step = manager.restore()
            whole = assembled(config.checkpoint.store)
            held = state.capture(trainer.slices, trainer.optimizer)
            equal = {name: np.array_equal(h.data, whole[name][h.shard.slices]) for name, (h,) in held.items()}
            return {
                "step": step,
                "differ": sorted(name for name, same in equal.items() if not same),
                "boxes": {name: [h.shard.offset, h.shard.size] for name, (h,) in held.items()},
                "bytes_read": manager.bytes_read,
                "applied": trainer.optimizer.applied,
            }
        finally:
            manager.close(False)


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
