"""Checkpoint daemons as processes, and workers that talk to them. Without torch."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.checkpoint.commit.fence import Fence
from holdfast.checkpoint.daemon.client import DaemonClient, WorkerPlace
from holdfast.checkpoint.daemon.messages import Join, Leader, Peer, SnapshotTaken, WorkerHello
from holdfast.checkpoint.format.arrays import to_bytes
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.checkpoint.snapshots.files import STATUS, own_file
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.jobs import STATE, job_of, layout_of, state_of

ROOT = Path(__file__).resolve().parents[3]
SECRET = b"0123456789abcdef"


def until(what: Callable[[], object], deadline_s: float = 30.0) -> None:
    """Poll until true; fails after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < end, "what was waited for did not happen in time"
        time.sleep(0.005)


OPEN: list[DaemonClient | Arena] = []
"""To be closed by `close_all`."""


def talk(daemon: Node) -> DaemonClient:
    """A line to a daemon."""
    client = DaemonClient(daemon.folder)
    OPEN.append(client)
    return client


def close_all() -> None:
    """What a test has opened, ends with it."""
    while OPEN:
        OPEN.pop().close()


class Node:
    """A node, and where its daemon is."""

    def __init__(self, folder: Path, node: str) -> None:
        self.folder, self.node = folder, node


class DaemonProcess(Node):
    """The daemon of one node, as a process of this test."""

    def __init__(self, folder: Path, node: str = "n0", **limits: Any) -> None:
        super().__init__(folder, node)
        self.log = folder.parent / f"{folder.name}.log"
        self._limits = limits
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "holdfast.checkpoint.daemon.daemon"]
        command += ["--folder", str(self.folder), "--node", self.node]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=log, **self._limits)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(20)

    def status(self, job: str = "job") -> dict[str, Any]:
        """Its status of a job; empty before its first report."""
        try:
            found: dict[str, Any] = json.loads((self.folder / job / STATUS).read_bytes())
            return found
        except FileNotFoundError:
            return {"workers": {}, "copies": {}}

    def of(self, what: str, worker: int = 0) -> dict[str, Any]:
        """Its report of a worker's `snapshot`, `peer`, `upload` or `committed`; empty before that."""
        found = self.status()["workers"].get(str(worker), {}).get(what)
        return found or {}

    def said(self) -> str:
        return self.log.read_text()

    def close(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


class Worker:
    """One worker of a job: its arena and its line to the daemon of its node."""

    def __init__(
        self,
        daemon: Node,
        fence: Fence | None,
        store: str | None,
        worker: int = 0,
        world: int = 1,
        *,
        tensors: dict[str, GlobalTensor] | None = None,
        generation: int = 1,
        peer: tuple[Node, WorkerPlace] | None = None,
        secret: bytes = SECRET,
        rate: float = 0.0,
        slots: int = 2,
        timeout_s: float = 30.0,
    ) -> None:
        layout = layout_of(world, tensors)
        self.layout: Layout = layout
        job = job_of(layout)
        shards = [(name, shard) for name, found in layout.held[worker].items() for shard in found]
        what = Description("job", worker, world, "digest", layout.tensors, shards)
        self.generation = generation
        self.notes: list[dict[str, Any]] = []
        self.client = talk(daemon)
        self.place = self.client.hello(WorkerHello("job", generation, worker, world))
        self.arena = Arena.create(own_file(daemon.folder, what), what, slots)
        OPEN.append(self.arena)
        writers = tuple(sorted({share.worker for share in job.shares}))
        leader = Leader(writers, job.tensors, job.mesh, STATE, job.retention) if worker == 0 else None
        shares = tuple((share.tensor, share.shard) for share in job.shares if share.worker == worker)
        known = Peer(peer[0].node, peer[1].address) if peer else None
        self.order = Join(str(self.arena.path), "digest", secret, store, fence, shares, rate, known, leader, timeout_s)
        self.client.join(self.order)

    def fill(self, step: int) -> Snapshot | None:
        """Put the state of `step` into the arena; None when no slot is free."""
        slot = self.arena.begin()
        if slot is None:
            return None
        whole = state_of(step, dict(self.layout.tensors))
        memory = self.arena.memory(slot)
        for entry in self.arena.description.entries:
            content = to_bytes(whole[entry.tensor][(*entry.shard.slices, ...)])
            memory[entry.start : entry.start + len(content)] = content
        return self.arena.commit(slot, step, self.generation, {"applied": step}, checksums(memory))

    def snapshot(self, step: int, persist: bool = False, peer: bool = False) -> Snapshot:
        """A snapshot of `step`, reported to the daemon."""
        made = self.fill(step)
        assert made is not None
        self.report(made, persist, peer)
        return made

    def note(self, kind: str, step: int | None = None, deadline_s: float = 30.0) -> dict[str, Any]:
        """The next note of this kind; others that came are kept."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            self.notes += self.client.poll()
            found[:] = [one for one in self.notes if one["note"] == kind and step in (None, one["step"])]
            return bool(found)

        try:
            until(has_come, deadline_s)
        except AssertionError:
            raise AssertionError(f"no {kind} of {step}, but {self.notes}") from None
        self.notes.remove(found[0])
        return found[0]

    def report(self, made: Snapshot, persist: bool = True, peer: bool = False) -> None:
        """Report a snapshot to the daemon."""
        self.client.snapshot(SnapshotTaken(made.step, made.slot, made.seq, persist, peer))

    def flip(self, snapshot: Snapshot, at: int) -> None:
        """Change one bit of a snapshot in memory."""
        self.arena.memory(snapshot.slot)[at] ^= 1

    def close(self) -> None:
        self.client.close()
        self.arena.close()


def big(num_mib: int) -> dict[str, GlobalTensor]:
    """A job's tensors of so many MiB."""
    return {"w": GlobalTensor("w", (num_mib, 1 << 18), "F32"), "n": GlobalTensor("n", (), "I64")}


def set_limit(num_bytes: int) -> Callable[[], None]:
    """For a process to start with: no file of more bytes."""

    def limit() -> None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, num_bytes))

    return limit


Start = Callable[..., DaemonProcess]
SLOWLY = 3e6
"""Bytes a second: 8 MiB take nearly three seconds, which allows for delays in the test."""


def steps(store: FileStore) -> list[int]:
    """Of the checkpoints, each of which is whole."""
    found = [one.step for one in list_checkpoints(store.url)]
    assert all(verify(store.url, step) == [] for step in found)
    return found
