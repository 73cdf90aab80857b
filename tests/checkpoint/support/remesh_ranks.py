"""What forked ranks do in the tests of a load on another layout: each is a host of its own, with a counted store."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.commit.save import SavingWorkers, save
from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.restore.group import Alone, ProcessGroup
from holdfast.checkpoint.restore.restore import Restored, restore
from holdfast.checkpoint.restore.traffic import counted
from holdfast.checkpoint.stores.file import FileStore
from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard

STEP, LAYERS, ROWS, COLUMNS = 3, 4, 512, 1024
STATE = {"model.layers": LAYERS}


def whole() -> dict[str, GlobalTensor]:
    """Parameters and moments of four layers: 16 MiB."""
    found = {}
    for layer in range(LAYERS):
        for kind in ("", "@exp_avg"):
            name = f"layer.{layer}.w{kind}"
            found[name] = GlobalTensor(name, (ROWS, COLUMNS), "F32")
    return found


def layout_of(pp: int, dp: int, tp: int) -> Layout:
    """Layers over stages, rows over tp; moments over dp too (ZeRO 1), parameters are replicas there."""
    mesh = Mesh.of(pp=pp, dp=dp, tp=tp)
    held: list[dict[str, list[TensorShard]]] = []
    for place in range(mesh.world):
        stage = mesh.coordinate(place)["pp"]
        held.append({})
        for name, tensor in whole().items():
            if int(name.split(".")[1]) * pp // LAYERS == stage:
                spec = ShardSpec(mesh, (("tp", "dp") if "@" in name else ("tp",), ()))
                held[-1][name] = [spec.shard(place, tensor.shape)]
    return Layout(whole(), held)


def content(name: str) -> np.ndarray[Any, Any]:
    """A tensor's bits, all different."""
    number = sorted(whole()).index(name)
    return np.arange(number * ROWS * COLUMNS, (number + 1) * ROWS * COLUMNS, dtype="u4").reshape(ROWS, COLUMNS)


class Counting(FileStore):
    """Counts what it gives of parts; blocks for good at a read of a number, with a mark for the test."""

    def __init__(self, root: Path, mark: Path | None = None, block_at: int = 0) -> None:
        super().__init__(root)
        self.given = self.reads = 0
        self._mark, self._block_at = mark, block_at

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        found = super().read(path, start, length)
        if path.endswith(".safetensors"):
            self.given += len(found)
            self.reads += 1
            if self._mark is not None and self.reads == self._block_at:
                self._mark.touch()
                time.sleep(3600)
        return found


def _group() -> ProcessGroup:
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    group = ProcessGroup()
    group.host = f"host{group.rank}"
    return group


def saved(folder: Path, store: str, mesh: list[int]) -> dict[str, Any]:
    """Save the state at a layout."""
    group, layout, place = _group(), layout_of(*mesh), FileStore(Path(store))
    answer = claim(place, "job", 0).token if group.rank == 0 else ""
    fence = Fence(1, 0, "job", group.broadcast(answer.encode()).decode())
    job = SavingWorkers({"world": group.size}, STATE, layout.tensors, write_shares(layout, 1 << 20))
    held = {
        name: [HeldShard(layout.tensors[name], s, content(name)[s.slices].copy()) for s in shards]
        for name, shards in layout.held[group.rank].items()
    }
    done = save(place, group, fence, job, STEP, held, {"applied": STEP})
    return {"ok": done.ok, "reason": done.reason}


def loaded(folder: Path, store: str, mesh: list[int], block: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Load at a layout; what each rank read and sent, and whether it has what a plain load by itself gives it.

    `block`: by rank, the read of a part in which it stays, after a mark for whoever is to kill it.
    """
    group, layout = _group(), layout_of(*mesh)
    at = (block or {}).get(str(group.rank), 0)
    counting = Counting(Path(store), folder / f"mark-{group.rank}-1", at)
    found = restore(counting, group, layout=layout, state=STATE, warn=print)
    assert found is not None
    traffic = counted(group, found.bytes_read, found.bytes_sent)
    itself = Counting(Path(store))
    mine = Layout(layout.tensors, [layout.held[group.rank]])
    plain = restore(itself, Alone(), layout=mine, state=STATE, warn=print)
    assert plain is not None
    return {
        "given": counting.given, "read": found.bytes_read, "sent": found.bytes_sent, "plain": itself.given,
        "differ": _differing(found, plain), "traffic": [traffic.read, traffic.sent, traffic.most_read,
        traffic.most_sent], "line": str(traffic), "pid": os.getpid(),
    }  # fmt: skip


def _differing(found: Restored, plain: Restored) -> list[str]:
    """Tensors that are not what a plain load gives, or not what was saved."""
    return [
        name
        for name, (one,) in found.held.items()
        if one.data.tobytes() != plain.held[name][0].data.tobytes()
        or one.data.tobytes() != content(name)[one.shard.slices].tobytes()
    ]
