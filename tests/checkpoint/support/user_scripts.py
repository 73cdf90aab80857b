"""Training scripts as a user writes them, run by forked ranks: what they kept must change nothing."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer
from tests.trainer.support.striking import die_here


class Progress:
    """Something of a user's that has state: other on each rank."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def build(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 3))
    if kind == "ddp":
        return DistributedDataParallel(model) if dist.is_initialized() else model
    fully_shard(model[0])
    fully_shard(model[4])
    return fully_shard(model)


def train(
    folder: Path, kind: str, store: str, steps: int, seed: int = 0, every: int = 3, mark: bool = False,
    daemons: list[str] | None = None, mend: list[str] | None = None, pause: float = 0.0, snapshots: int = 1,
    lose: str = "", torn: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Train; losses by step, digests of the state at the end. `mend`: [at, old, new] renames a store back. `lose`: a
    folder that is gone in the last step. `torn`: rank 1 is killed when its snapshot after so many steps begins."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if daemons:
        os.environ["HOLDFAST_SNAPSHOTS"] = daemons[rank * len(daemons) // world]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    random.seed(seed + rank)
    np.random.seed(seed + rank)
    model = build(kind, seed)
    torch.manual_seed(seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    progress = Progress()
    checkpointer = Checkpointer(
        store, {"model": model, "optimizer": optimizer, "schedule": schedule, "progress": progress}, every=every,
        timeout_s=5.0, snapshot_every=snapshots,
    )  # fmt: skip
    first = checkpointer.restore()
    restored = whole(model, optimizer)
    seen = list(progress.seen)
    losses = []
    for step in range(first, steps):
        if mark:
            (folder / f"mark-{rank}-{step}").touch()
        if mend and rank == 0 and str(step) == mend[0]:
            os.unlink(mend[2])
            os.rename(mend[1], mend[2])
        if lose and rank == 0 and step == steps - 1:
            os.rename(lose, f"{lose}-away")
            Path(lose).touch()
        time.sleep(pause)
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = model(x).square().mean() * (1 + random.random() + np.random.random())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        progress.seen.append(loss.item())
        if mark:
            die_here(step)
        if rank == 1 and step + 1 == torn:
            shots = checkpointer._manager.snapshots
            assert shots is not None
            shots.begin = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        checkpointer.step(step + 1)
    is_stored = checkpointer.close()
    result = {"first": first, "source": checkpointer.source, "losses": losses, "restored": restored, "seen": seen,
              "stored": is_stored, "whole": whole(model, optimizer), "lr": optimizer.param_groups[0]["lr"]}  # fmt: skip
    dist.destroy_process_group()
    return result


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[float]]:
    """Parameters and averages, whole, as numbers."""
    found = [one for one in model.parameters()]
    found += [value for one in model.parameters() for key, value in sorted(optimizer.state.get(one, {}).items())]
    full = [one.full_tensor() if isinstance(one, DTensor) else one for one in found]
    return [one.detach().double().reshape(-1).tolist() for one in full]
