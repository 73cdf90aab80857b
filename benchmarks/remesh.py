"""A checkpoint loaded at another layout than the one that saved it: seconds and bytes, with and without one another.

python benchmarks/remesh.py [--size-mb 64] [--store-mb-s 40] [--nic-mb-s 100] [--repeats 3] [--json]

Real processes over gloo, each a host of its own, whose NIC sends one message after another at its rate; a store that
gives all of them together so many bytes a second. Four pipeline stages saved parameters and both moments; they are
loaded by two stages of two replicas, and by four replicas (ZeRO 1: moments are shared out over replicas). Ways:

    each itself  every rank reads what it wants
    tree         each byte is read once, and goes on along a binary tree of hosts, in the order of the readers' turns
    planned      each byte is read once, and goes on as `checkpoint/restore/routes.py` plans it

The last case is a load from memory that one host alone has. `formula` is the larger one of the bytes read over the
store's rate and the most that one NIC has to send over its rate. What comes is compared with what was saved. The
fastest repeat counts: other work on the machine only adds.
"""

import multiprocessing
import os
import queue
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from common import finish, parser, scratch

from holdfast.trainer.preload import preload

LAYERS, COLUMNS = 4, 1024
KINDS = ("", "@exp_avg", "@exp_avg_sq")
SAVED = (4, 1)
CASES = (("store, 4x1 to 2x2", (2, 2)), ("store, 4x1 to 1x4", (1, 4)), ("memory of one host, to 1x4", (1, 4)))
WAYS = ("each itself", "tree", "planned")
WORLD, STEP, STATE = 4, 1, {"model.layers": LAYERS}


def layout_of(size_mb: float, pp: int, dp: int) -> Any:
    """Layers over stages; parameters on every replica, moments by rows over replicas."""
    from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
    from holdfast.plan.moves.shard_spec import ShardSpec
    from holdfast.plan.plan import Mesh

    rows = max(int(size_mb * 1e6 / (LAYERS * len(KINDS) * COLUMNS * 4)), WORLD)
    mesh = Mesh.of(pp=pp, dp=dp)
    tensors = {
        f"{n}{kind}": GlobalTensor(f"{n}{kind}", (rows, COLUMNS), "F32") for n in range(LAYERS) for kind in KINDS
    }
    held: list[dict[str, Any]] = [{} for _ in range(mesh.world)]
    for rank, place in enumerate(held):
        for name, tensor in tensors.items():
            if int(name.partition("@")[0]) * pp // LAYERS == mesh.coordinate(rank)["pp"]:
                spec = ShardSpec(mesh, (("dp",) if "@" in name else (), ()))
                place[name] = [spec.shard(rank, tensor.shape)]
    return Layout(tensors, held)


def content(layout: Any, name: str) -> Any:
    """A tensor's bits."""
    import numpy as np

    shape, number = layout.tensors[name].shape, sorted(layout.tensors).index(name)
    return (np.arange(shape[0] * shape[1], dtype=np.uint32) * 2654435761 + number).reshape(shape)


def shares(layout: Any, rank: int) -> Any:
    from holdfast.checkpoint.format.arrays import HeldShard

    return {
        name: [HeldShard(layout.tensors[name], shard, content(layout, name)[shard.slices]) for shard in found]
        for name, found in layout.held[rank].items()
    }


class Bucket:
    """One pipe for all processes: a transfer begins when those before it are over. `free`: when it is."""

    def __init__(self, free: Any, bytes_per_s: float) -> None:
        self._free, self._rate = free, bytes_per_s

    def take(self, num_bytes: int) -> None:
        with self._free.get_lock():
            self._free.value = max(self._free.value, time.monotonic()) + num_bytes / self._rate
            until = self._free.value
        time.sleep(max(until - time.monotonic(), 0.0))


class Rank:
    def __init__(self, rank: int, folder: Path, options: Any, store_free: Any) -> None:
        import torch.distributed as dist

        from holdfast.checkpoint.restore.group import ProcessGroup
        from holdfast.checkpoint.stores.file import FileStore

        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        meeting = dist.FileStore(str(folder / "meeting"), WORLD)
        dist.init_process_group("gloo", store=meeting, rank=rank, world_size=WORLD, timeout=timedelta(seconds=120))
        self.rank, self.folder, self.options = rank, folder, options
        pipe = Bucket(store_free, options.store_mb_s * 1e6)

        class Throttled(FileStore):
            def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
                found = super().read(path, start, length)
                if path.endswith(".safetensors"):
                    pipe.take(len(found))
                return found

        class Nic(ProcessGroup):
            """Sends one message after another, from a thread, as a NIC does."""

            def __init__(self) -> None:
                super().__init__()
                self.host, self._waiting, self._free = f"host{rank}", queue.SimpleQueue[Any](), 0.0
                threading.Thread(target=self._work, daemon=True).start()

            def send(self, payload: Any, to: int, tag: int = 0) -> Any:
                later = Later()
                self._waiting.put((payload, to, tag, later, time.monotonic()))
                return later

            def _work(self) -> None:
                while True:
                    payload, to, tag, later, queued = self._waiting.get()
                    # From when it was queued, not from now: a thread that wakes late does not make the link slower.
                    self._free = max(self._free, queued) + len(payload) / (options.nic_mb_s * 1e6)
                    time.sleep(max(self._free - time.monotonic(), 0.0))
                    later.sending = super().send(payload, to, tag)
                    later.begun.set()

        class Later:
            def __init__(self) -> None:
                self.begun, self.sending = threading.Event(), None

            def wait(self) -> None:
                self.begun.wait(120)
                self.sending.wait()  # type: ignore[union-attr]

        (folder / "store").mkdir(exist_ok=True)
        self.store, self.plain, self.group = Throttled(folder / "store"), FileStore(folder / "store"), Nic()

    def save(self) -> None:
        """Into the store by four stages, and into the memory of the first host as one snapshot."""
        from holdfast.checkpoint.commit.fence import Fence, claim
        from holdfast.checkpoint.commit.save import SavingWorkers, save
        from holdfast.checkpoint.format.arrays import to_bytes
        from holdfast.checkpoint.format.checksum import checksums
        from holdfast.checkpoint.format.transfer import write_shares
        from holdfast.checkpoint.snapshots.arena import Arena
        from holdfast.checkpoint.snapshots.description import Description

        layout = layout_of(self.options.size_mb, *SAVED)
        token = claim(self.plain, "bench", 0).token if self.rank == 0 else ""
        fence = Fence(1, 0, "bench", self.group.broadcast(token.encode()).decode())
        job = SavingWorkers({"pp": WORLD}, STATE, layout.tensors, write_shares(layout))
        saved = save(self.plain, self.group, fence, job, STEP, shares(layout, self.rank), {"step": STEP})
        assert saved.ok, saved.reason
        memory = self.folder / f"node{self.rank}"
        memory.mkdir()
        if self.rank == 0:
            what = Description(
                "bench", 0, 1, "digest", layout.tensors, [(n, t.shard) for n, t in layout.tensors.items()]
            )
            arena = Arena.create(memory / "own-w00000.snap", what)
            slot = arena.begin()
            assert slot is not None
            room = arena.memory(slot)
            for entry in what.entries:
                whole = to_bytes(content(layout, entry.tensor))
                room[entry.start : entry.start + len(whole)] = whole
            arena.commit(slot, STEP, 0, {"step": STEP}, checksums(room))
            del room
            arena.close()

    def load(self, case: str, mesh: tuple[int, int], way: str) -> tuple[float, float, int, int]:
        """When it began and ended, on a clock of all processes, and the bytes read and sent."""
        import torch.distributed as dist

        from holdfast.checkpoint.format.tiles import Layout
        from holdfast.checkpoint.restore import exchange, memory, restore, routes
        from holdfast.checkpoint.restore.group import Alone

        layout = layout_of(self.options.size_mb, *mesh)
        with ExitStack() as stack:
            if way == "tree":
                tree = lambda line, size: routes.Route(tuple(line), False, ((0, size),))  # noqa: E731
                stack.enter_context(mock.patch.object(exchange, "route", tree))
                for module in (restore, memory):
                    stack.enter_context(mock.patch.object(module, "arranged", lambda plan, hosts: plan))
            dist.barrier()
            began = time.monotonic()
            if case.startswith("memory"):
                both = memory.restore_from_memory(
                    self.group, layout=layout, job="bench", settings="digest", node=f"node{self.rank}",
                    folder=self.folder / f"node{self.rank}", at_least=0, warn=print,
                )  # fmt: skip
                found = both[0] if both else None
            elif way == "each itself":
                mine = Layout(layout.tensors, [layout.held[self.rank]])
                found = restore.restore(self.store, Alone(), layout=mine, state=STATE, warn=print)
            else:
                found = restore.restore(self.store, self.group, layout=layout, state=STATE, warn=print)
            ended = time.monotonic()
        assert found is not None
        for name, (one,) in found.held.items():
            assert (one.data == content(layout, name)[one.shard.slices]).all(), f"{name} is not what was saved"
        return began, ended, found.bytes_read, found.bytes_sent


def _work(rank: int, folder: Path, options: Any, store_free: Any, results: Any) -> None:
    import torch.distributed as dist

    one = Rank(rank, folder, options, store_free)
    one.save()
    for case, mesh in CASES:
        for way in WAYS:
            if case.startswith("memory") and way == "each itself":
                continue
            for _ in range(options.repeats):
                everyone: list[Any] = [None] * WORLD
                dist.all_gather_object(everyone, one.load(case, mesh, way))
                if rank == 0:
                    results.send((case, way, everyone))
    if rank == 0:
        results.send(None)
    dist.barrier()
    dist.destroy_process_group()


def measure(options: Any) -> dict[tuple[str, str], list[Any]]:
    """By case and way, for each repeat what each rank reports."""
    forked = multiprocessing.get_context("fork")
    preload()
    found: dict[tuple[str, str], list[Any]] = {}
    with scratch() as folder:
        reader, writer = forked.Pipe(duplex=False)
        store_free = forked.Value("d", 0.0)
        processes = [
            forked.Process(target=_work, args=(rank, folder, options, store_free, writer)) for rank in range(WORLD)
        ]
        for process in processes:
            process.start()
        writer.close()
        try:
            while reader.poll(300) and (one := reader.recv()) is not None:
                found.setdefault(one[:2], []).append(one[2])
        finally:
            for process in processes:
                process.join(60)
                process.kill()
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--size-mb", type=float, default=64.0, help="of the state")
    options.add_argument("--store-mb-s", type=float, default=40.0, help="what the store gives all ranks together")
    options.add_argument("--nic-mb-s", type=float, default=100.0, help="what a host sends")
    options.add_argument("--repeats", type=int, default=3)
    asked = options.parse_args()
    if min(asked.size_mb, asked.store_mb_s, asked.nic_mb_s, asked.repeats) <= 0:
        options.error("sizes, rates and repeats are above 0")
    rows, cases = [], []
    for (case, way), repeats in measure(asked).items():
        seconds = min(max(end for _, end, _, _ in one) - max(begin for begin, _, _, _ in one) for one in repeats)
        read, sent = (sum(rank[i] for rank in repeats[0]) / 1e6 for i in (2, 3))
        most = max(rank[3] for rank in repeats[0]) / 1e6
        formula = max(0.0 if case.startswith("memory") else read / asked.store_mb_s, most / asked.nic_mb_s)
        rows.append([case, way, seconds, formula, read, sent, most])
        names = ("case", "way", "seconds", "formula_s", "read_mb", "sent_mb", "most_sent_mb")
        cases.append(dict(zip(names, rows[-1], strict=True)))
    head = ["case", "way", "seconds", "formula", "MB read", "MB sent", "most of one rank"]
    finish({"cases": cases}, asked.json, head, rows)


if __name__ == "__main__":
    main()
