"""A small job's state for tests of saving: what each of its workers holds, from the step alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from layouts import filled, share
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.commit.fence import Fence
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.commit.save import Saved, SavingWorkers, save
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.restore.restore import Restored, always, restore
from holdfast.checkpoint.stores.store import Store
from holdfast.plan.tiles import TensorShard

STATE = {"model.layers": 2}
TENSORS = {
    "w": GlobalTensor("w", (300, 7), "F32"),
    "w@exp_avg": GlobalTensor("w@exp_avg", (300, 7), "BF16"),
    "bias": GlobalTensor("bias", (5,), "F64"),
    "empty": GlobalTensor("empty", (0, 3), "F32"),
    "n": GlobalTensor("n", (), "I64"),
}


def rows(tensor: GlobalTensor, worker: int, workers: int) -> TensorShard:
    """Even parts along the first dimension; the whole where there is none, or too little of it."""
    if not tensor.shape or tensor.shape[0] < workers:
        return tensor.shard
    low, high = (tensor.shape[0] * i // workers for i in (worker, worker + 1))
    return TensorShard((low, *(0,) * (len(tensor.shape) - 1)), (high - low, *tensor.shape[1:]))


def layout_of(workers: int, tensors: dict[str, GlobalTensor] | None = None) -> Layout:
    """Rows over workers; what cannot be split is repeated."""
    tensors = tensors or TENSORS
    return Layout(tensors, [{name: [rows(t, w, workers)] for name, t in tensors.items()} for w in range(workers)])


def state_of(step: int, tensors: dict[str, GlobalTensor] | None = None) -> dict[str, np.ndarray]:
    return {name: filled(tensor, step) for name, tensor in (tensors or TENSORS).items()}


def job_of(layout: Layout, keep: int = 3, every: int = 0) -> SavingWorkers:
    workers = len(layout.held)
    return SavingWorkers({"dp": workers}, STATE, layout.tensors, write_shares(layout, 1 << 10), Retention(keep, every))


def save_all(store: Store, fence: Fence, step: int, layout: Layout, **changes: Any) -> list[Saved]:
    """All ranks save the state of `step`."""
    number = changes.pop("number", step)
    store_of: Callable[[int], Store] = changes.pop("store_of", lambda rank: store)
    job, whole = job_of(layout, **changes), state_of(step, dict(layout.tensors))

    def work(group: ThreadGroup) -> Saved:
        held = share(layout, group.rank, whole)
        return save(store_of(group.rank), group, fence, job, step, held, {"applied": step}, number)

    return on_ranks(len(layout.held), work)


def restore_all(
    store: Store,
    layout: Layout,
    mirrors: tuple[Store, ...] = (),
    state: dict[str, Any] | None = None,
    counts: Callable[[Manifest], bool] = always,
    snapshots: Path | None = None,
) -> tuple[list[Restored | None], list[str]]:
    """All ranks restore; what they got, and what they were warned of."""
    warnings: list[str] = []

    def work(group: ThreadGroup) -> Restored | None:
        return restore(
            store, group, layout=layout, state=state or STATE, warn=warnings.append, mirrors=mirrors, counts=counts,
            snapshots=snapshots,
        )  # fmt: skip

    return on_ranks(len(layout.held), work), warnings


def assert_step(found: list[Restored | None], step: int, layout: Layout) -> None:
    whole = state_of(step, dict(layout.tensors))
    for rank, one in enumerate(found):
        assert one is not None
        assert one.manifest.step == step
        assert one.manifest.values == {"applied": step}
        assert one.held.keys() == layout.held[rank].keys()
        for name, shards in layout.held[rank].items():
            for held, shard in zip(one.held[name], shards, strict=True):
                assert held.shard == shard
                assert np.array_equal(held.data, whole[name][(*shard.slices, ...)])
