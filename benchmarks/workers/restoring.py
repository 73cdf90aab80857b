"""One rank that restores the same state from memory, from a peer's and from a store. Started by `checkpoint.py`.

python restoring.py RANK WORLD --port PORT --size-mb 1024 --store URL --folder FOLDER --rounds 3

Parameters are on every rank, moments are shared out over ranks along their first dimension, as with ZeRO 1. In turn:
`memory`, every rank's own snapshot; `peer`, where the second half of the ranks (a rank alone: itself) lost its node and
the first node keeps the copies; the store with each byte read by one rank and passed on; the store with every rank
reading for itself. Rank 0 prints a JSON object: seconds of each restore, until the last rank has all and has seen the
checksums match, and the bytes that all ranks read.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import model_state
import numpy as np
import torch
import torch.distributed as dist

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.commit.save import SavingWorkers, save
from holdfast.checkpoint.format.arrays import HeldShard, new, to_bytes
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.restore.group import Alone, ProcessGroup
from holdfast.checkpoint.restore.memory import restore_from_memory
from holdfast.checkpoint.restore.restore import Restored, restore
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.snapshots.files import own_file, peer_file
from holdfast.checkpoint.stores.opening import open_store
from holdfast.plan.tiles import TensorShard

JOB, STEP = "bench", 1
Shards = Mapping[str, Sequence[HeldShard]]


def layout_of(size_mb: float, world: int) -> Layout:
    tensors = {name: GlobalTensor(name, shape, "F32") for name, shape in model_state.tensors(size_mb).items()}

    def shard(tensor: GlobalTensor, rank: int) -> TensorShard:
        if ".exp_avg" not in tensor.name:
            return tensor.shard
        low, high = (tensor.shape[0] * i // world for i in (rank, rank + 1))
        rest = len(tensor.shape) - 1
        return TensorShard((low, *(0,) * rest), (high - low, *tensor.shape[1:]))

    return Layout(tensors, [{name: [shard(t, rank)] for name, t in tensors.items()} for rank in range(world)])


def state_of(layout: Layout, rank: int) -> dict[str, list[HeldShard]]:
    """What a rank holds. Elements differ by tensor and place, so that nothing can be mistaken for something else."""
    found: dict[str, list[HeldShard]] = {}
    for number, (name, (shard,)) in enumerate(layout.held[rank].items()):
        one = new(layout.tensors[name], shard)
        row = one.data[0].size if one.data.ndim else 1
        first = shard.offset[0] * row if shard.offset else 0
        one.data.reshape(-1)[:] = np.arange(first, first + one.data.size, dtype=np.uint32) * 2654435761 + number
        found[name] = [one]
    return found


def put_snapshot(path: Path, layout: Layout, rank: int, held: Shards) -> None:
    """A complete snapshot of a rank, as its worker or a peer's daemon leaves it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    arena = Arena.create(path, description_of(layout, rank), slots=2)
    slot = arena.begin()
    assert slot is not None
    memory = arena.memory(slot)
    for entry in arena.description.entries:
        content = to_bytes(held[entry.tensor][0].data)
        memory[entry.start : entry.start + len(content)] = content
    arena.commit(slot, STEP, 1, {"step": STEP}, checksums(memory))
    arena.close()


def description_of(layout: Layout, rank: int) -> Description:
    shards = [(name, shard) for name, found in layout.held[rank].items() for shard in found]
    return Description(JOB, rank, len(layout.held), "digest", layout.tensors, shards)


class Rank:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.rank, self.world = options, options.rank, options.world
        self.group = ProcessGroup()
        self.layout = layout_of(options.size_mb, self.world)
        self.held = state_of(self.layout, self.rank)
        self.store = open_store(options.store)
        # The first half of the ranks is one node, the rest another, which is lost and comes back empty.
        self.is_lost = self.rank >= self.world // 2

    def save(self) -> None:
        answer = {}
        if self.rank == 0:
            self.store.make_folder("")
            fence = claim(self.store, JOB, 1)
            answer = {"term": fence.term, "token": fence.token}
        answer = json.loads(self.group.broadcast(json.dumps(answer).encode()))
        job = SavingWorkers({"dp": self.world}, {}, self.layout.tensors, write_shares(self.layout))
        fence = Fence(answer["term"], 1, JOB, answer["token"])
        saved = save(self.store, self.group, fence, job, STEP, self.held, {"step": STEP})
        assert saved.ok, saved.reason

    def from_memory(self, folder: Path, node: str) -> tuple[Restored, str]:
        found = restore_from_memory(
            self.group, layout=self.layout, job=JOB, settings="digest", node=node, folder=folder / JOB, at_least=0,
            warn=print,
        )  # fmt: skip
        assert found is not None
        return found

    def from_store(self, with_others: bool) -> Restored:
        if with_others:
            found = restore(self.store, self.group, layout=self.layout, state={}, warn=print)
        else:
            mine = Layout(self.layout.tensors, [self.layout.held[self.rank]])
            found = restore(self.store, Alone(), layout=mine, state={}, warn=print)
        assert found is not None
        return found

    def timed(self, work: Callable[[], Restored]) -> tuple[float, int]:
        """Seconds until the last rank is done, and the bytes of all; what came is compared with what was."""
        dist.barrier()
        began = time.perf_counter()
        restored = work()
        dist.barrier()
        seconds = time.perf_counter() - began
        for name, shards in self.held.items():
            assert np.array_equal(restored.held[name][0].data, shards[0].data), name
        total = torch.tensor([restored.bytes_read])
        dist.all_reduce(total)
        return seconds, int(total.item())

    def measure(self) -> dict[str, Any]:
        folder, rounds = self.options.folder, self.options.rounds
        whole, partial = folder / "whole", folder / f"node{int(self.is_lost)}"
        description = description_of(self.layout, self.rank)

        def memory() -> Restored:
            restored, source = self.from_memory(whole, "node")
            assert source == "memory"
            return restored

        def peer() -> Restored:
            # Alone, it is started where the copies are.
            node = 0 if self.world == 1 else int(self.is_lost)
            restored, source = self.from_memory(folder / f"node{node}", f"node{node}")
            assert source == "peer"
            return restored

        self.save()
        found: dict[str, Any] = {}
        stored = {"store, broadcast": lambda: self.from_store(True), "store, each": lambda: self.from_store(False)}
        for name, work in stored.items():
            found[name] = [self.timed(work) for _ in range(rounds)]
        if self.rank == 0:
            self.store.remove("")
        put_snapshot(own_file(whole, description), self.layout, self.rank, self.held)
        found["memory"] = [self.timed(memory) for _ in range(rounds)]
        own_file(whole, description).unlink()
        kept = peer_file(folder / "node0", "node1", description)
        path = kept if self.is_lost else own_file(partial, description)
        put_snapshot(path, self.layout, self.rank, self.held)
        found["peer"] = [self.timed(peer) for _ in range(rounds)]
        path.unlink()
        return found


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("rank", type=int)
    made.add_argument("world", type=int)
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--size-mb", type=float, required=True)
    made.add_argument("--store", required=True)
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--rounds", type=int, default=3)
    options = made.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore("127.0.0.1", options.port, options.world, options.rank == 0, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=options.rank, world_size=options.world)
    found = Rank(options).measure()
    if options.rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
