"""How fast a snapshot becomes a checkpoint through a node's daemon. Started by `checkpoint.py`. No torch.

python uploading.py --size-mb 1024 --rounds 12 --hdfs hdfs://HOST:PORT --servers PID ...

To HDFS and to a folder in memory, in turns with plain writes of the same bytes. Prints a JSON object: of each turn the
seconds, and the processor's seconds of the writers and of HDFS's servers (--servers). `closes`: seconds of each of some
small files, which are half a second or next to nothing.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
import model_state
import numpy as np
from common import cpu_seconds, scratch

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.daemon.client import DaemonClient
from holdfast.checkpoint.daemon.messages import Join, Leader, SnapshotTaken, WorkerHello
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import list_checkpoints
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import STATUS, own_file
from holdfast.checkpoint.stores.opening import open_store

JOB = "bench"
SECRET = b"of the benchmark"
PIECE = 1 << 20  # of 0.25, 1, 4 MiB what takes hdfs-native the least of the processor
TIMEOUT_S = 300.0
NICE = 5
Turns = list[dict[str, float]]


@contextmanager
def daemon(folder: Path, node: str) -> Iterator[int]:
    """A checkpoint daemon of its own; its process."""
    folder.mkdir(mode=0o700)
    command = [sys.executable, "-m", "holdfast.checkpoint.daemon.daemon", "--folder", str(folder), "--node", node]
    with open(folder.parent / f"{node}.log", "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


class Worker:
    """One worker that holds the whole state, its snapshot taken."""

    def __init__(self, folder: Path, size_mb: float) -> None:
        tensors = {name: GlobalTensor(name, shape, "F32") for name, shape in model_state.tensors(size_mb).items()}
        self.tensors = tensors
        what = Description(JOB, 0, 1, "", tensors, [(name, tensor.shard) for name, tensor in tensors.items()])
        self.client = DaemonClient(folder)
        self.client.hello(WorkerHello(JOB, 1, 0, 1))
        self.arena = Arena.create(own_file(folder, what), what, slots=2)
        slot = self.arena.begin()
        assert slot is not None
        memory = np.frombuffer(self.arena.memory(slot), np.uint8)
        memory[:] = np.resize(np.frombuffer(os.urandom(1 << 20), np.uint8), memory.size)
        self.made: Snapshot = self.arena.commit(slot, 1, 1, {"step": 1}, checksums(memory.data))
        self._number = 0

    @property
    def content(self) -> memoryview:
        return self.arena.memory(self.made.slot)

    def upload(self, url: str) -> tuple[float, float]:
        """Seconds from the order to the committed checkpoint, and of these until its part was in the store."""
        store = open_store(url)
        store.make_folder("")
        fence = claim(store, JOB, 1)
        leader = Leader((0,), self.tensors, {"dp": 1}, {}, Retention(1))
        shares = tuple((name, tensor.shard) for name, tensor in self.tensors.items())
        self.client.join(Join(str(self.arena.path), "", SECRET, url, fence, shares, leader=leader))
        began = time.perf_counter()
        self.client.snapshot(SnapshotTaken(1, self.made.slot, self.made.seq, persist=True, peer=False))
        note = self._note("persisted")
        seconds = time.perf_counter() - began
        (found,) = list_checkpoints(url)
        assert (found.step, note["step"]) == (1, 1)
        store.remove("")
        return seconds, self._written(fence.token)

    def _note(self, kind: str) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            for note in self.client.poll():
                if note["note"] == kind:
                    return note
                raise SystemExit(f"the upload failed: {note}")
            time.sleep(0.01)  # the daemon needs the core more than we do
        raise SystemExit(f"no {kind} within {TIMEOUT_S:g} s")

    def _written(self, token: str) -> float:
        """Seconds that the part took of the upload that was committed with this token."""
        end = time.monotonic() + TIMEOUT_S
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):  # it is replaced as a whole
                reported = json.loads((self.arena.path.parent / STATUS).read_bytes())["workers"]["0"]
                if reported["committed"] and reported["committed"]["token"] == token:
                    return float(reported["upload"]["write_seconds"])
            time.sleep(0.05)
        raise SystemExit("the daemon does not report its upload")

    def close(self) -> None:
        self.client.leave(forget=True)
        self.arena.close()


def plain_hdfs(url: str, content: memoryview) -> tuple[float, float]:
    """Seconds that `hdfs-native` takes, synced to the DataNodes' disks like a checkpoint."""
    from hdfs_native import Client, WriteOptions

    client = Client(url)
    began = time.perf_counter()
    writer = client.create("/plain", WriteOptions(overwrite=True))
    for at in range(0, len(content), PIECE):
        writer.write(bytes(content[at : at + PIECE]))  # by far its fastest way
    writer.hsync()
    writer.close()
    seconds = time.perf_counter() - began
    client.delete("/plain")
    return seconds, seconds


def closes(url: str, files: int = 40) -> list[float]:
    """Seconds that `hdfs-native` takes to close each of some files of a few bytes, synced before."""
    from hdfs_native import Client, WriteOptions

    client, found = Client(url), []
    for _ in range(files):
        writer = client.create("/small", WriteOptions(overwrite=True))
        writer.write(b"small")
        writer.hsync()
        began = time.perf_counter()
        writer.close()
        found.append(time.perf_counter() - began)
    client.delete("/small")
    return found


def plain_file(path: Path, content: memoryview) -> tuple[float, float]:
    began = time.perf_counter()
    with open(path, "wb") as out:
        for at in range(0, len(content), PIECE):
            out.write(content[at : at + PIECE])
        out.flush()
        os.fsync(out.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds, seconds


def alternating(
    pairs: dict[str, Callable[[], tuple[float, float]]], writers: dict[str, int], servers: Sequence[int], rounds: int
) -> dict[str, Turns]:
    """Turns of each, the first left out; every other round the other way about. `writers`: the process of each."""
    found: dict[str, Turns] = {name: [] for name in pairs}
    for number in range(rounds + 1):
        order = list(pairs)
        for name in reversed(order) if number % 2 else order:
            pids = (writers[name], *servers)
            before = [cpu_seconds(pid) for pid in pids]
            seconds, written = pairs[name]()
            writer, *rest = (cpu_seconds(pid) - was for pid, was in zip(pids, before, strict=True))
            if number:
                turn = {"seconds": seconds, "written_s": written, "cpu_s": writer, "servers_cpu_s": sum(rest)}
                found[name].append(turn)
    return found


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--size-mb", type=float, required=True)
    made.add_argument("--rounds", type=int, required=True)
    made.add_argument("--hdfs", required=True, help="URL")
    made.add_argument("--servers", type=int, nargs="*", default=[], metavar="PID", help="HDFS's processes")
    options = made.parse_args()
    count = itertools.count()
    with scratch() as folder, daemon(folder / "n0", "n0") as pid:
        # After the daemon's start, which is as nice by itself: HDFS's servers, on the same cores, have one share of
        # them beside either.
        os.nice(NICE)
        writers = {"plain": os.getpid(), "ours": pid}
        worker = Worker(folder / "n0", options.size_mb)
        content = worker.content
        found: dict[str, Any] = {"bytes": len(content)}
        found["hdfs"] = alternating(
            {"plain": lambda: plain_hdfs(options.hdfs, content),
             "ours": lambda: worker.upload(f"{options.hdfs}/s{next(count)}")},
            writers, options.servers, options.rounds,
        )  # fmt: skip
        found["closes"] = closes(options.hdfs)
        found["file"] = alternating(
            {"plain": lambda: plain_file(folder / "plain", content),
             "ours": lambda: worker.upload((folder / f"s{next(count)}").as_uri())},
            writers, (), options.rounds,
        )  # fmt: skip
        print(json.dumps(found), flush=True)
        worker.close()


if __name__ == "__main__":
    main()
