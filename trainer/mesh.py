"""This rank's place in the mesh, and the process groups that go with it."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from holdfast.agent import probe
from holdfast.trainer.config import Config
from holdfast.trainer.errors import ConfigError, Disagreement
from holdfast.trainer.launch import Launch, keep_loopback_local
from holdfast.trainer.layout import Layout


@dataclass(frozen=True, slots=True)
class Mesh:
    """The device mesh (pp, dp, tp) as one rank sees it."""

    layout: Layout
    device: torch.device
    device_mesh: DeviceMesh
    pp_rank: int
    dp_rank: int
    tp_rank: int

    @property
    def tp(self) -> DeviceMesh:
        return self.device_mesh["tp"]

    @property
    def dp(self) -> DeviceMesh:
        return self.device_mesh["dp"]

    @property
    def pp_group(self) -> dist.ProcessGroup:
        return self.device_mesh.get_group("pp")

    @property
    def has_loss(self) -> bool:
        """Whether this rank holds the last stage, where losses come from."""
        return self.pp_rank == self.layout.rank_of(self.layout.stages - 1)

    @property
    def sizes(self) -> dict[str, int]:
        return {"pp": self.layout.pp, "dp": self.layout.dp, "tp": self.layout.tp}


def choose_device(config: Config, launch: Launch) -> torch.device:
    """The device that the settings ask for. Raises ConfigError for cuda without a GPU for this rank."""
    wanted = config.parallel.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if launch.local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"parallel.device {wanted}: local rank {launch.local_rank} has no GPU of its own, "
            f"there are {torch.cuda.device_count()}; use cpu or fewer ranks a node",
            is_local=True,
        )
    return torch.device("cuda", launch.local_rank)


def join(config: Config, launch: Launch, layout: Layout, device: torch.device) -> Mesh:
    """Meet the other ranks and build the mesh. Called once in a process, by every rank of the job."""
    timeout = timedelta(seconds=config.parallel.timeout_s)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if config.train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
    # CPU tensors keep a backend of their own: checkpoints and votes go over it while the GPU is busy.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    with probe.operation("setup:rendezvous"):
        if launch.is_distributed:
            keep_loopback_local(os.environ)
            dist.init_process_group(backend, rank=launch.rank, world_size=launch.world, timeout=timeout)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch forgot to list it
            dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    with probe.operation("setup:mesh"):
        device_mesh = init_device_mesh(
            device.type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp")
        )
    pp, dp, tp = layout.coordinate(launch.rank)
    return Mesh(layout, device, device_mesh, pp, dp, tp)


def leave() -> None:
    """Give the process groups back. Safe to call when there are none."""
    if dist.is_initialized():
        with warnings.catch_warnings():
            # A group torn down after a peer died complains; the death itself has been reported.
            warnings.simplefilter("ignore")
            dist.destroy_process_group()


def require_agreement(fingerprint: int, what: str) -> None:
    """Raise Disagreement on every rank unless all ranks pass the same number (below 2**62)."""
    pair = torch.tensor([fingerprint, -fingerprint])
    with probe.operation("setup:agreement"):
        dist.all_reduce(pair, dist.ReduceOp.MAX)
    if int(pair[0]) != -int(pair[1]):
        raise Disagreement(f"ranks were started with different {what}")
