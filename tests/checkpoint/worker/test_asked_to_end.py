"""After SIGTERM no worker ends before the state is where it outlives it: in the store, or at the peer."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.checkpoint.worker.options import CheckpointWatch
from holdfast.checkpoint.worker.preemption import Preempted
from holdfast.checkpoint.worker.stage1 import Snapshots

STEP = 7
AFTER_S = 0.4
"""From the snapshot to the daemon's note."""


class FakeClient:
    """A daemon that reports these notes, each so long after it was handed a snapshot."""

    is_connected = True

    def __init__(self, notes: list[dict[str, Any]]) -> None:
        self._left = notes
        self._began = float("inf")
        self.reported = 0.0

    def snapshot(self, taken: Any) -> None:
        self.taken, self._began = taken, time.monotonic()

    def poll(self) -> list[dict[str, Any]]:
        if time.monotonic() - self._began < AFTER_S:
            return []
        due, self._left = self._left, []
        self.reported = time.monotonic() if due else self.reported
        return due


def snapshots(client: FakeClient, has_peer: bool) -> Snapshots:
    """Snapshots of one worker that are complete as soon as they are begun."""
    made = Snapshots.__new__(Snapshots)
    begun: list[int] = []

    def begin(steps: int, *rest: Any) -> bool:
        begun.append(steps)
        return True

    made.node = SimpleNamespace(client=client, peer=SimpleNamespace() if has_peer else None)  # type: ignore[assignment]
    made.run = SimpleNamespace(generation=1)  # type: ignore[assignment]
    made.snapshotter = SimpleNamespace(  # type: ignore[assignment]
        begin=begin, finish=lambda: SimpleNamespace(step=begun[-1], slot=0, seq=len(begun)), is_ready=True
    )
    made._watch, made._begun, made._persist = CheckpointWatch(), False, False
    made._keep, made._sweep_at = set(), 0.0
    made.taken = made.safe_step = 0
    made.every = 1
    return made


def ended(group: ThreadGroup, client: FakeClient, has_peer: bool, has_store: bool) -> tuple[list[str], float]:
    """This worker's step after one of them was asked to end: what it printed last, and when it ended."""
    printed: list[str] = []
    manager = CheckpointManager.__new__(CheckpointManager)
    manager.snapshots = snapshots(client, has_peer)
    manager.group = group  # type: ignore[assignment]
    manager.options = SimpleNamespace(timeout_s=30.0, every=100)  # type: ignore[assignment]
    manager.watch = CheckpointWatch(warn=printed.append)
    manager.claim = SimpleNamespace(fence=SimpleNamespace() if has_store else None)  # type: ignore[assignment]
    manager.state = SimpleNamespace(capture=lambda: ({"t": (None, None, torch.ones(1))}, {}))  # type: ignore[assignment]
    manager.run = SimpleNamespace(rank=group.rank)  # type: ignore[assignment]
    manager._notice = SimpleNamespace(given=group.rank == 1)  # type: ignore[assignment]
    manager._wanted = manager._failing = False
    manager._uploading = manager.last_saved = None
    with pytest.raises(Preempted):
        manager.after_step(STEP, (1, 0, 0, 0, 0, 0), is_last=False)
    return printed, time.monotonic()


def test_workers_wait_for_the_upload_of_the_last_state() -> None:
    clients = [FakeClient([{"note": "persisted", "step": STEP}] if rank == 0 else []) for rank in range(3)]
    found = on_ranks(3, lambda group: ended(group, clients[group.rank], has_peer=False, has_store=True))
    assert clients[0].taken.persist
    for rank, (printed, at) in enumerate(found):
        assert at >= clients[0].reported > 0
        assert printed[-1].startswith(f"rank {rank} ")
        assert printed[-1].endswith(f"step {STEP} is in the store")


def test_without_a_store_each_waits_for_its_own_copy() -> None:
    clients = [FakeClient([{"note": "peer", "step": STEP}]) for _ in range(3)]
    found = on_ranks(3, lambda group: ended(group, clients[group.rank], has_peer=True, has_store=False))
    for client, (printed, at) in zip(clients, found, strict=True):
        assert at >= client.reported > 0
        assert printed[-1].endswith(f"step {STEP} is in memory")


@pytest.mark.parametrize("has_peer", [True, False])
def test_a_snapshot_is_safe_when_its_copy_is_there_and_not_before(has_peer: bool) -> None:
    """Where a node has no peer, its own memory is all there is."""
    client = FakeClient([])
    shots = snapshots(client, has_peer)
    for step, copied in itertools.pairwise((0, 4, 5, 9)):
        shots.begin(copied, {}, {}, persist=False)
        assert shots.safe_step == step
        shots.settle()
        assert client.taken.peer == has_peer
        assert shots.safe_step == (step if has_peer else copied)
        client._left, client._began = [{"note": "peer", "step": copied}], 0.0
        shots.notes()
        assert shots.safe_step == copied


@pytest.mark.parametrize("kind", ["peer-failing", "failing", "refused", "repaired"])
def test_no_other_note_makes_a_snapshot_safe(kind: str) -> None:
    client = FakeClient([{"note": kind, "step": STEP, "error": "x"}])
    shots = snapshots(client, has_peer=True)
    client._began = 0.0
    assert len(shots.notes()) == 1
    assert shots.safe_step == 0


def test_an_older_copy_that_comes_late_takes_nothing_back() -> None:
    client = FakeClient([{"note": "peer", "step": 5}, {"note": "peer", "step": 4}])
    shots = snapshots(client, has_peer=True)
    client._began = 0.0
    assert len(shots.notes()) == 2
    assert shots.safe_step == 5
