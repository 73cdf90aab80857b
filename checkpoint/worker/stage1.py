"""Stage 1 of this worker: snapshots into its node's memory, of which the node's daemon makes checkpoints.

All workers take a snapshot of the same steps, which they agree on in one small collective (see `manager`). A worker's
snapshot is complete before it enters the next one; so when a worker begins to overwrite its older snapshot, the newer
one is complete everywhere, and there is always a step that all have.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.base.errors import HoldfastError
from holdfast.checkpoint.commit.fence import Fence
from holdfast.checkpoint.commit.save import SavingWorkers
from holdfast.checkpoint.daemon.client import DaemonClient
from holdfast.checkpoint.daemon.messages import Join, Leader, Peer, SnapshotTaken, WorkerHello
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.group import SavingGroup
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.snapshots.files import FOLDER_VARIABLE, own_file
from holdfast.checkpoint.snapshots.peers import choose_peers
from holdfast.checkpoint.worker.options import CheckpointOptions, CheckpointWatch, Run
from holdfast.checkpoint.worker.snapshot import Snapshotter
from holdfast.checkpoint.worker.stale_files import current_files, sweep
from holdfast.plan.tiles import TensorShard

Tensors = Mapping[str, tuple[GlobalTensor, TensorShard, Tensor]]
"""What a worker holds, by name: of which tensor, which part, and where."""

_SLOT_TIMEOUT = 60.0
_SWEEP_S = 30.0


@dataclass(frozen=True, slots=True)
class NodeOfWorkers:
    """This worker's node, as its daemon knows it."""

    name: str
    folder: Path
    """Where the job's snapshots lie."""
    client: DaemonClient
    peer: Peer | None
    secret: bytes
    peers: Mapping[str, str]
    """For each node, the one that keeps copies for it."""


def find_node(run: Run, group: SavingGroup, with_peers: bool, watch: CheckpointWatch) -> NodeOfWorkers | None:
    """Meet the node's daemon, and choose which node keeps copies for which. Called by all workers together.

    None on all of them when there is no daemon on some node: then there is no memory to go on from.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    reported: dict[str, Any] = {}
    client = None
    if folder:
        try:
            client = DaemonClient(Path(folder))
            place = client.hello(WorkerHello(run.job, run.generation, run.rank, run.world))
            reported = {"node": place.node, "switch": place.switch, "address": place.address}
        except (OSError, HoldfastError) as error:
            reported = {"error": f"rank {run.rank}: {error}"}
    everyone = [json.loads(one) for one in group.gather(json.dumps(reported).encode())]
    answer: dict[str, Any] = {}
    if everyone and all("node" in one for one in everyone):
        nodes = {one["node"]: one for one in everyone}
        peers = choose_peers({name: one["switch"] for name, one in nodes.items()}) if with_peers else {}
        addresses = {name: one["address"] for name, one in nodes.items()}
        answer = {"addresses": addresses, "peers": peers, "secret": secrets.token_hex(32)}
    elif any("error" in one for one in everyone):
        watch.warn("no snapshots in memory: " + next(one["error"] for one in everyone if "error" in one))
    answer = json.loads(group.broadcast(json.dumps(answer).encode()))
    if not answer:
        if client is not None:
            client.close()
        return None
    assert client is not None
    name = reported["node"]
    peer = answer["peers"].get(name)
    host, port = answer["addresses"][peer] if peer else ("", 0)
    return NodeOfWorkers(name, Path(folder) / run.job, client, Peer(peer, (host, port)) if peer else None,
                bytes.fromhex(answer["secret"]), answer["peers"])  # fmt: skip


class Snapshots:
    """Takes snapshots of one worker. Used from the thread that trains."""

    def __init__(
        self, node: NodeOfWorkers, arena: Arena, device: torch.device, run: Run, every: int, order: Join,
        keep: set[str], watch: CheckpointWatch,
    ) -> None:  # fmt: skip
        """`every`: steps between snapshots without a request; 0: none. `keep`: files of snapshots that belong here,
        empty where another worker of the node sees to that."""
        self.node, self.arena, self.run, self.every, self.order = node, arena, run, every, order
        self.snapshotter = Snapshotter(arena, device)
        self._watch, self._keep = watch, keep
        self._persist = False
        self._begun = False
        self._sweep_at = 0.0
        self.taken = 0
        """Snapshots that this worker completed."""
        self.safe_step = 0
        """Steps of the newest of them that is also where its copy should be."""

    def has_room(self) -> bool:
        """Whether a slot is there, and free, for the next snapshot. Raises SnapshotRefused when none will ever be."""
        return self.snapshotter.is_ready and self.arena.has_room()

    def begin(self, steps: int, values: Mapping[str, Any], held: Tensors, persist: bool) -> None:
        """Start the snapshot of the state after `steps` steps; nothing may change it until `settle` returns.

        Raises CheckpointError when no slot gets free although all workers had agreed to begin.
        """
        tensors: Sequence[Tensor] = [tensor for _, _, tensor in held.values()]
        give_up = time.monotonic() + _SLOT_TIMEOUT
        # A copy to the peer may have begun a moment ago; the others are under way, so it is worth the wait.
        while not self.snapshotter.begin(steps, self.run.generation, values, tensors):
            if time.monotonic() > give_up:
                raise CheckpointError(f"no slot of {self.arena.path} was free for {_SLOT_TIMEOUT:g} s")
            time.sleep(0.001)
        self._persist, self._begun = persist, True

    def wait_copied(self) -> None:
        """Return when what the snapshot is of may change again."""
        if self._begun:
            with self._watch.operation("snapshot:wait"):
                self.snapshotter.wait_copied()

    def settle(self) -> None:
        """Wait until the snapshot that was begun is complete, and notify the daemon."""
        if not self._begun:
            return
        self._begun = False
        with self._watch.operation("snapshot:wait"):
            made = self.snapshotter.finish()
        assert made is not None
        self.taken += 1
        if self.node.peer is None:
            self.safe_step = made.step
        # Without its daemon the node has the snapshot all the same; the client looks for the next one.
        self.node.client.snapshot(
            SnapshotTaken(made.step, made.slot, made.seq, self._persist, self.node.peer is not None)
        )

    def notes(self) -> list[dict[str, Any]]:
        """What the daemon had to say since the last call."""
        found = self.node.client.poll()
        for note in found:
            if note["note"] == "peer":
                self.safe_step = max(self.safe_step, int(note["step"]))
        return found

    def join_store(self, store: str, fence: Fence) -> None:
        """The store that was down has been claimed. Raises HoldfastError; the next daemon is notified all the same."""
        self.order = replace(self.order, store=store, fence=fence, down="")
        self.node.client.join(self.order)

    def sweep(self) -> None:
        """Remove what other layouts left, as far as it is older. All workers have a safe snapshot."""
        if self._keep and time.monotonic() >= self._sweep_at:
            _, is_done = sweep(self.node.folder, self._keep, self.safe_step)
            self._sweep_at = float("inf") if is_done else time.monotonic() + _SWEEP_S

    def close(self, forget: bool) -> None:
        """Leave the daemon. `forget`: the job came to its end, and no worker will resume from here."""
        self.settle()
        self.snapshotter.close()
        self.node.client.leave(forget)
        self.arena.close()


def open_snapshots(
    node: NodeOfWorkers,
    options: CheckpointOptions,
    run: Run,
    group: SavingGroup,
    job: SavingWorkers,
    settings: str,
    held: Tensors,
    fence: Fence | None,
    down: str,
    device: torch.device,
    watch: CheckpointWatch,
) -> Snapshots | None:
    """Take the memory for snapshots, and send the daemon its orders for them. Called by all workers together.

    `fence`: None while the store is down, for the reason `down`. None on all workers, with a line that has the
    figures, when some node has not the memory.
    """
    tensors = {name: tensor for name, (tensor, _, _) in held.items()}
    description = Description(
        run.job, run.rank, run.world, settings, tensors, [(name, shard) for name, (_, shard, _) in held.items()]
    )
    arena, problem = None, ""
    path = own_file(node.folder.parent, description)
    writers = tuple(sorted({share.worker for share in job.shares}))
    leader = Leader(writers, job.tensors, job.mesh, job.state, job.retention) if run.rank == 0 else None
    shares = tuple((share.tensor, share.shard) for share in job.shares if share.worker == run.rank)
    store = options.store if fence is not None else None
    rate = options.max_mb_per_s * 1e6
    order = Join(
        str(path), settings, node.secret, store, fence, shares, rate, node.peer, leader, options.timeout_s,
        "" if fence is not None else down,
    )  # fmt: skip
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        arena = Arena.create(path, description, options.slots, prepare=False)
        node.client.join(order)
    except (OSError, HoldfastError) as error:
        problem = f"rank {run.rank}: {error}"
    everyone = [json.loads(one) for one in group.gather(json.dumps([node.name, path.name, problem]).encode())]
    reported = json.loads(group.broadcast(json.dumps(everyone).encode()))
    problems = [what for _, _, what in reported if what]
    if not problems:
        assert arena is not None
        files = current_files([(name, file) for name, file, _ in reported], node.peers)[node.name]
        is_first = next(rank for rank, (name, _, _) in enumerate(reported) if name == node.name) == run.rank
        every = options.snapshot_every
        return Snapshots(node, arena, device, run, every, order, files if is_first else set(), watch)
    if run.rank == 0:
        watch.warn(f"no snapshots in memory: {problems[0]}")
    if arena is not None:
        arena.close()
    node.client.close()
    return None
