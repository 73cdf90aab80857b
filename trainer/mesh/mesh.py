"""This rank's place in the mesh, and the process groups that go with it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Store  # what `torch.distributed.Store` is, where type checkers see it
from torch.distributed.device_mesh import DeviceMesh

from holdfast.agent import probe
from holdfast.trainer.mesh import by_nic
from holdfast.trainer.mesh.networks import Network, Networks
from holdfast.trainer.mesh.redis_store import RedisStore
from holdfast.trainer.mesh.rendezvous import open_store
from holdfast.trainer.settings.checks import check_transport, policy
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError, Disagreement
from holdfast.trainer.settings.launch import Launch, keep_loopback_local
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.transport import export, heeding


@dataclass(frozen=True)
class RankMesh:
    """The device mesh (pp, dp, tp) as one rank sees it; (dp, tp) of its own pipeline rank where they differ in tp."""

    layout: TrainerLayout
    device: torch.device
    device_mesh: DeviceMesh
    pp_rank: int
    dp_rank: int
    tp_rank: int
    store: Store
    """The rendezvous store. Held here because torch does not keep a store that is written in Python alive."""
    timeout: timedelta
    """Of every group: parallel.timeout_s."""
    hosts: tuple[int, ...] = ()
    """Where pipeline ranks differ in tp: a number of the host of each rank of this rank's pipeline, in the order of
    `pp_group`."""
    pipeline: dist.ProcessGroup | None = None
    """There: all ranks of this rank's pipeline, whatever their place in tp."""
    networks: Networks | None = None
    """With transport.networks = by-nic: what each group goes through."""

    def keep_rendezvous_alive(self) -> None:
        """Keep the store's keys of a long job from expiring. Cheap: call it between steps."""
        if isinstance(self.store, RedisStore) and self.device_mesh.get_rank() == 0:
            self.store.keep_alive()

    @property
    def tp(self) -> DeviceMesh:
        return self._of_stages["tp"]

    @property
    def dp(self) -> DeviceMesh:
        return self.device_mesh["dp"]

    @property
    def tp_size(self) -> int:
        """Of this rank's pipeline rank."""
        return self.layout.tps[self.pp_rank]

    @property
    def pp_group(self) -> dist.ProcessGroup:
        """This rank's pipeline: its peers of the same place in tp, or where pipeline ranks differ in tp, all of it."""
        return self.device_mesh.get_group("pp") if self.pipeline is None else self.pipeline

    def second_pp_group(self) -> dist.ProcessGroup:
        """Another group of this rank's pipeline, which waits for nothing in the first. Called by all of its ranks."""
        layout = self.layout
        ranks = [layout.rank(p, self.dp_rank, self.tp_rank) for p in range(layout.pp)]
        return group_of(ranks, self.timeout, "pp-back", self.networks)

    def near_pp_group(self) -> tuple[dist.ProcessGroup, dict[int, int]] | None:
        """A group of those of this rank's pipeline that it reaches by a better network than the others, and their
        places there by pipeline rank; None where there are none. Called by all of its ranks."""
        layout = self.layout
        line = [layout.rank(p, self.dp_rank, self.tp_rank) for p in range(layout.pp)]
        near = () if self.networks is None else self.networks.near(line, line[self.pp_rank])
        if not near:
            return None
        return group_of(near, self.timeout, "pp-near", self.networks), {line.index(r): i for i, r in enumerate(near)}

    @property
    def replicas(self) -> DeviceMesh:
        """The ranks at this place in tp that hold this rank's stages, each of them the same ones: dp, in all pipes."""
        return self._of_stages["dp"]

    @functools.cached_property
    def _of_stages(self) -> DeviceMesh:
        """All ranks with parts of this rank's stages, as (dp, tp); dp goes through all pipes.

        What is sharded over both axes needs one mesh of both. With several pipes, called by all of these ranks together
        the first time.
        """
        layout = self.layout
        if layout.pipes == 1:
            return self.device_mesh
        places = layout.peers_of(self.pp_rank)
        ranks = torch.arange(layout.world).view(layout.pp, -1, layout.tp)[places].reshape(-1, layout.tp)
        pipes = group_of(ranks[:, self.tp_rank].tolist(), self.timeout, "pipes", self.networks)
        groups = [pipes, self.device_mesh.get_group("tp")]
        return DeviceMesh.from_group(groups, self.device.type, ranks, mesh_dim_names=("dp", "tp"))

    def whole_stages(self) -> dist.ProcessGroup:
        """The ranks that together hold every part of this rank's stages: `replicas`, each with its tp ranks.

        Called by all of them together.
        """
        layout = self.layout
        if self.tp_size == 1 or layout.replicas == 1:
            return (self.replicas if self.tp_size == 1 else self.tp).get_group()
        if layout.replicas * self.tp_size == layout.world:
            return everyone()
        ranks = [rank for p in layout.peers_of(self.pp_rank) for d in range(layout.dp) for rank in layout.line(p, d)]
        return group_of(ranks, self.timeout, "stage", self.networks)

    @property
    def has_loss(self) -> bool:
        """Whether this rank holds the last stage, where losses come from."""
        return self.pp_rank == self.layout.rank_of(self.layout.stages - 1)

    @property
    def sizes(self) -> dict[str, int]:
        """By axis, for a checkpoint's manifest; their product is the world size."""
        layout = self.layout
        if layout.stage_tp:
            return {"dp": layout.dp, f"tp {'+'.join(map(str, layout.stage_tp))}": sum(layout.stage_tp)}
        return {"pp": layout.pp, "dp": layout.dp, "tp": layout.tp}


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


def join(
    config: Config, launch: Launch, layout: TrainerLayout, device: torch.device, store: Store | None = None
) -> RankMesh:
    """Meet the other ranks and build the mesh. Called once in a process, by every rank of the job.

    `store`: where to meet, instead of where the settings say.
    """
    timeout = timedelta(seconds=config.parallel.timeout_s)
    if device.type == "cuda":
        transport = heeding(policy(config), os.environ)
        check_transport(transport, infiniband=True)
        export(transport, os.environ)
        torch.cuda.set_device(device)
        if config.train.deterministic:
            only_deterministic(os.environ)
    is_by_nic = config.transport.networks == "by-nic"
    if is_by_nic:
        by_nic.prepare(config.transport, os.environ, device.type == "cuda")
    # CPU tensors keep a backend of their own: checkpoints and votes go over it while the GPU is busy.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    with probe.operation("setup:rendezvous"):
        keep_loopback_local(os.environ)
        if store is None:
            store = open_store(config.parallel.rendezvous, launch, os.environ, timeout)
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world, timeout=timeout)
    pp, dp, tp = layout.coordinate(launch.rank)
    with probe.operation("setup:mesh"):
        networks = by_nic.exchanged(config.transport, launch, os.environ) if is_by_nic else None
        if networks is not None and device.type == "cuda":
            by_nic.set_network(everyone(), networks.of(range(launch.world)))
        if layout.stage_tp:
            device_mesh, pipeline = _unlike_groups(layout, launch.rank, device, timeout, networks)
            hosts = _hosts(launch)
            line = [hosts[rank] for p in range(layout.pp) for rank in layout.line(p, dp)]
            return RankMesh(layout, device, device_mesh, pp, dp, tp, store, timeout, tuple(line), pipeline, networks)
        device_mesh = _own_groups(layout, launch.rank, device, timeout, networks)
    return RankMesh(layout, device, device_mesh, pp, dp, tp, store, timeout, networks=networks)


def only_deterministic(environ: MutableMapping[str, str]) -> None:
    """From now on the GPU gives the same bits for the same work. What cannot raises RuntimeError in the first step.

    Where torch is set to warn only, the backward of attention goes on adding up in any order.
    """
    environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)


def _own_groups(
    layout: TrainerLayout, rank: int, device: torch.device, timeout: timedelta, networks: Networks | None = None
) -> DeviceMesh:
    """The mesh out of groups that only their members make, and only among themselves.

    The habit is that every rank takes part in making every group of the job, though it is in few of them. Groups of
    one axis share no rank and every rank goes through the axes in the same order, so no circular wait arises.

    Axes with the same ranks share a group: each of gloo's has a thread that wakes a hundred times a second.
    """
    sizes = (layout.pp, layout.dp, layout.tp)
    ranks = torch.arange(layout.world).view(sizes)
    here = layout.coordinate(rank)
    names = ("pp", "dp", "tp")
    made = _made(layout, networks)
    groups = []
    for axis, name in enumerate(names):
        line = tuple(ranks[tuple(slice(None) if a == axis else here[a] for a in range(len(sizes)))].tolist())
        if line not in made:
            made[line] = group_of(line, timeout, name, networks)
        groups.append(made[line])
    return DeviceMesh.from_group(groups, device.type, ranks, mesh_dim_names=names)


def _unlike_groups(
    layout: TrainerLayout, rank: int, device: torch.device, timeout: timedelta, networks: Networks | None = None
) -> tuple[DeviceMesh, dist.ProcessGroup]:
    """(dp, tp) of this rank's pipeline rank, and its whole pipeline, made as `_own_groups` makes groups."""
    pp, dp, _ = layout.coordinate(rank)
    stage = [layout.line(pp, d) for d in range(layout.dp)]
    place = stage[dp].index(rank)
    line = [r for p in range(layout.pp) for r in layout.line(p, dp)]
    made = _made(layout, networks)
    for ranks, name in ((line, "pp"), ([row[place] for row in stage], "dp"), (stage[dp], "tp")):
        if tuple(ranks) not in made:
            made[tuple(ranks)] = group_of(ranks, timeout, name, networks)
    pipeline = made[tuple(line)]
    groups = [made[tuple(row[place] for row in stage)], made[tuple(stage[dp])]]
    mesh = DeviceMesh.from_group(groups, device.type, torch.tensor(stage), mesh_dim_names=("dp", "tp"))
    return mesh, pipeline


def _made(layout: TrainerLayout, networks: Networks | None) -> dict[tuple[int, ...], dist.ProcessGroup]:
    """Groups that there are already, by their ranks: that of all, unless such a group is to listen elsewhere."""
    everybody = tuple(range(layout.world))
    return {} if networks is not None and networks.of(everybody).interface else {everybody: everyone()}


def _hosts(launch: Launch) -> list[int]:
    """By rank, its host: the first rank there. Called by all ranks together."""
    found = torch.zeros(launch.world, dtype=torch.int64)
    found[launch.rank] = launch.rank - launch.local_rank
    dist.all_reduce(found)
    hosts: list[int] = found.tolist()
    return hosts


def group_of(
    ranks: Sequence[int], timeout: timedelta, name: str, networks: Networks | None = None
) -> dist.ProcessGroup:
    """A group that its members alone make. The only place that makes one: a group without a timeout of its own waits
    torch's half hour for a rank that stopped, or NCCL's ten minutes, whatever the group of all ranks has."""
    network = Network() if networks is None else networks.of(ranks)
    with _named_by_members(), by_nic.listening(network, os.environ):
        group: dist.ProcessGroup = dist.new_group(
            list(ranks), timeout=timeout, use_local_synchronization=True, group_desc=name,
            pg_options=by_nic.options(network, timeout),
        )  # fmt: skip
    return group


@contextmanager
def _named_by_members() -> Iterator[None]:
    """torch names a group by its members and by how many groups this rank is in. Of ranks that are in unlike numbers
    of them, each would wait under a name of its own. Here the name is that of the members, and how often they have
    made a group already, which they agree on."""
    theirs = c10d._hash_ranks_to_str

    def name_of(ranks: Sequence[int]) -> str:
        names = (hashlib.sha256(f"{list(ranks)} {number}".encode()).hexdigest() for number in itertools.count())
        return next(name for name in names if name not in c10d._world.pg_names.values())

    c10d._hash_ranks_to_str = name_of
    try:
        yield
    finally:
        c10d._hash_ranks_to_str = theirs


def everyone() -> dist.ProcessGroup:
    """The group of all ranks of the job."""
    group = dist.group.WORLD
    assert group is not None
    return group


def leave(store: Store | None = None, done: bool = False, failed_on: str = "") -> None:
    """Destroy the process groups, and close the store of the rendezvous. Safe to call when there are none.

    `done`: all ranks have come to their end, and none will meet here again. `failed_on`: the type of device on which
    this rank has failed. NCCL first completes what was begun (PyTorch pull request 141510), which peers may never do:
    the rank's error would be lost, and it would end at the watchdog's timeout. Its process ends anyway.
    """
    if dist.is_initialized() and not (failed_on == "cuda" and dist.get_world_size() > 1):
        with warnings.catch_warnings():
            # A group torn down after a peer died complains; the death itself has been reported.
            warnings.simplefilter("ignore")
            dist.destroy_process_group()
    if isinstance(store, RedisStore):
        store.close(done)


def is_crowded(launch: Launch, device: torch.device) -> bool:
    """Whether some host has fewer cores than ranks that compute on them. Called by all ranks together."""
    if device.type != "cpu" or launch.world == 1:
        return False
    flag = torch.tensor(launch.local_world > len(os.sched_getaffinity(0)), dtype=torch.uint8)
    with probe.operation("setup:agreement"):
        dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def require_agreement(fingerprint: int, what: str) -> None:
    """Raise Disagreement on every rank unless all ranks pass the same number (below 2**62)."""
    pair = torch.tensor([fingerprint, -fingerprint])
    with probe.operation("setup:agreement"):
        dist.all_reduce(pair, dist.ReduceOp.MAX)
    if int(pair[0]) != -int(pair[1]):
        raise Disagreement(f"ranks were started with different {what}")
