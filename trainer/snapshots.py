"""Stage 1 of this rank: snapshots into its node's memory every few steps, which the node's daemon makes checkpoints of.

All ranks take a snapshot of the same steps. What they must agree on for it rides on the one collective that every step
has anyway: whether somebody wants a checkpoint, and whether somebody has no free slot. A rank's snapshot is complete
before it enters the next step's collective; so when a rank begins to overwrite its older snapshot, the newer one is
complete everywhere, and there is always a step that all have.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.agent import probe
from holdfast.checkpoint.arena import Arena, Description
from holdfast.checkpoint.daemon_client import DaemonClient
from holdfast.checkpoint.daemon_messages import Hello, Join, Leader, Peer, Taken
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.group import ProcessGroup
from holdfast.checkpoint.peers import choose_peers
from holdfast.checkpoint.save import Job
from holdfast.checkpoint.snapshot import Snapshotter
from holdfast.checkpoint.snapshot_files import FOLDER_VARIABLE, own_file
from holdfast.checkpoint.tiles import Box, GlobalTensor
from holdfast.errors import HoldfastError
from holdfast.trainer.config import CheckpointConfig
from holdfast.trainer.launch import Launch

Held = Mapping[str, tuple[GlobalTensor, Box, Tensor]]

_SLOT_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Node:
    """This rank's node, as its daemon knows it."""

    name: str
    folder: Path
    """Where the job's snapshots lie."""
    client: DaemonClient
    peer: Peer | None
    secret: bytes


def find_node(launch: Launch, group: ProcessGroup, with_peers: bool, warn: Callable[[str], None]) -> Node | None:
    """Meet the node's daemon, and choose who keeps copies for whom. Called by all ranks together.

    None on all ranks when there is no daemon on some node: then there is no memory to go on from.
    """
    folder = os.environ.get(FOLDER_VARIABLE, "")
    told: dict[str, Any] = {}
    client = None
    if folder:
        try:
            client = DaemonClient(Path(folder))
            place = client.hello(Hello(launch.job, launch.generation, launch.rank, launch.world))
            told = {"node": place.node, "switch": place.switch, "address": place.address}
        except (OSError, HoldfastError) as error:
            told = {"error": f"rank {launch.rank}: {error}"}
    everyone = [json.loads(one) for one in group.gather(json.dumps(told).encode())]
    answer: dict[str, Any] = {}
    if everyone and all("node" in one for one in everyone):
        nodes = {one["node"]: one for one in everyone}
        peers = choose_peers({name: one["switch"] for name, one in nodes.items()}) if with_peers else {}
        addresses = {name: one["address"] for name, one in nodes.items()}
        answer = {"addresses": addresses, "peers": peers, "secret": secrets.token_hex(32)}
    elif any("error" in one for one in everyone):
        warn("no snapshots in memory: " + next(one["error"] for one in everyone if "error" in one))
    answer = json.loads(group.broadcast(json.dumps(answer).encode()))
    if not answer:
        if client is not None:
            client.close()
        return None
    assert client is not None
    name = told["node"]
    peer = answer["peers"].get(name)
    host, port = answer["addresses"][peer] if peer else ("", 0)
    return Node(name, Path(folder) / launch.job, client, Peer(peer, (host, port)) if peer else None,
                bytes.fromhex(answer["secret"]))  # fmt: skip


class Snapshots:
    """Takes snapshots of one rank. Used from the thread that trains."""

    def __init__(self, node: Node, arena: Arena, device: torch.device, generation: int, every: int) -> None:
        """`every`: steps between snapshots that nobody asked for; 0: none."""
        self.node, self.arena, self.generation, self.every = node, arena, generation, every
        self.shooter = Snapshotter(arena, device)
        self._persist = False
        self._begun = False
        self.taken = 0
        """Snapshots that this rank completed."""

    def has_room(self) -> bool:
        """Whether a slot is free for the next snapshot."""
        return self.arena.has_room()

    def begin(self, steps: int, values: Mapping[str, Any], held: Held, persist: bool) -> None:
        """Start the snapshot of the state after `steps` steps; nothing may change it until `settle` returns.

        Raises CheckpointError when no slot gets free although all ranks had agreed to begin.
        """
        tensors: Sequence[Tensor] = [tensor for _, _, tensor in held.values()]
        give_up = time.monotonic() + _SLOT_TIMEOUT
        # A copy to the peer may have begun a moment ago; the others are under way, so it is worth the wait.
        while not self.shooter.begin(steps, self.generation, values, tensors):
            if time.monotonic() > give_up:
                raise CheckpointError(f"no slot of {self.arena.path} was free for {_SLOT_TIMEOUT:g} s")
            time.sleep(0.001)
        self._persist, self._begun = persist, True

    def settle(self) -> None:
        """Wait until the snapshot that was begun is complete, and tell the daemon."""
        if not self._begun:
            return
        self._begun = False
        with probe.operation("snapshot:wait"):
            made = self.shooter.finish()
        assert made is not None
        self.taken += 1
        # Without its daemon the node has the snapshot all the same; the client looks for the next one.
        self.node.client.snapshot(Taken(made.step, made.slot, made.seq, self._persist, self.node.peer is not None))

    def notes(self) -> list[dict[str, Any]]:
        """What the daemon had to say since the last call."""
        return self.node.client.poll()

    def close(self, forget: bool) -> None:
        """Leave the daemon. `forget`: the job came to its end, and nobody will go on from here."""
        self.settle()
        self.shooter.close()
        self.node.client.leave(forget)
        self.arena.close()


def open_snapshots(
    node: Node,
    config: CheckpointConfig,
    launch: Launch,
    group: ProcessGroup,
    job: Job,
    settings: str,
    held: Held,
    fence: Fence,
    device: torch.device,
    warn: Callable[[str], None],
) -> Snapshots | None:
    """Take the memory for snapshots, and tell the daemon what to do with them. Called by all ranks together.

    None on all ranks, with a line that has the figures, when some node has not the memory.
    """
    tensors = {name: tensor for name, (tensor, _, _) in held.items()}
    description = Description(
        launch.job, launch.rank, launch.world, settings, tensors, [(name, box) for name, (_, box, _) in held.items()]
    )
    arena, problem = None, ""
    path = own_file(node.folder.parent, description)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        arena = Arena.create(path, description, config.slots)
        writers = tuple(sorted({share.worker for share in job.shares}))
        leader = Leader(writers, job.tensors, job.mesh, job.state, job.retention) if launch.rank == 0 else None
        shares = tuple((share.tensor, share.box) for share in job.shares if share.worker == launch.rank)
        node.client.join(
            Join(
                str(path), settings, node.secret, config.store, fence, shares, config.max_mb_per_s * 1e6, node.peer,
                leader, config.timeout_s,
            )
        )  # fmt: skip
    except (OSError, HoldfastError) as error:
        problem = f"rank {launch.rank}: {error}"
    problems = [one.decode() for one in group.gather(problem.encode()) if one]
    if group.all_agree(not problem):
        assert arena is not None
        return Snapshots(node, arena, device, launch.generation, config.snapshot_every)
    if problems:
        warn(f"no snapshots in memory: {problems[0]}")
    if arena is not None:
        arena.close()
    node.client.close()
    return None
