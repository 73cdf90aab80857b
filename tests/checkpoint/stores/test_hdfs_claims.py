"""An HDFS that stalls in the middle of a commit, and is claimed by the next run when it is back: whatever was
asked of it meanwhile is done late, out of turn, or not at all, and still no checkpoint is torn."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from jobs import STATE, assert_step, job_of, layout_of, restore_all, state_of
from layouts import share

from holdfast.base.retry import Backoff
from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.commit.late_claim import LateClaim
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.daemon.attempts import Gathered, UploadAttempt, is_committed, put_entry, write_part
from holdfast.checkpoint.daemon.messages import Leader
from holdfast.checkpoint.errors import StaleGeneration
from holdfast.checkpoint.format.parts import held_bytes
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.restore.restore import load_whole
from holdfast.checkpoint.stores.folder import Slot, read_manifest
from holdfast.checkpoint.stores.opening import open_store
from holdfast.checkpoint.stores.store import Content, Store
from tests.checkpoint.support.daemons import DaemonProcess, Worker, big, close_all, until
from tests.checkpoint.support.hdfs_cluster import HdfsCluster

pytestmark = [pytest.mark.slow, pytest.mark.calm]
ONE = layout_of(1)
STEP, OF_THE_OLDER = 7, 70
_names = itertools.count()


@contextmanager
def stopped(hdfs: HdfsCluster) -> Iterator[Callable[[], None]]:
    """A call that stops the NameNode; it goes on afterwards."""
    try:
        yield hdfs.stop_namenode
    finally:
        hdfs.go_on_namenode()


class Stopping:
    """A store whose NameNode stops right before its n-th change is asked for. From then on it is the impatient one."""

    def __init__(self, inner: Store, impatient: Store, at: int, stop: Callable[[], None]) -> None:
        self._inner, self._impatient, self._left, self._stop = inner, impatient, at, stop

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._stop()
            self._inner = self._impatient

    def create(self, path: str, content: Content) -> None:
        self._count()
        self._inner.create(path, content)

    def replace(self, path: str, content: bytes) -> None:
        self._count()
        self._inner.replace(path, content)

    def rename(self, old: str, new: str) -> None:
        self._count()
        self._inner.rename(old, new)


def persist(store: Store, fence: Fence, content: int) -> None:
    """As a node's daemon makes a checkpoint of a worker's snapshot; `content`: the step that its numbers are of."""
    attempt, job, whole = UploadAttempt(fence, STEP), job_of(ONE), state_of(content)
    shares = [(one.tensor, one.shard) for one in job.shares]
    held = share(ONE, 0, whole)
    part = write_part(
        store, attempt, 0, ONE.tensors, shares, lambda entries: held_bytes(entries, held), lambda pieces: pieces
    )
    assert part is not None
    put_entry(store, attempt, 0, part, {"applied": content})
    gathered = Gathered(store, attempt, Leader((0,), ONE.tensors, job.mesh, STATE, Retention()))
    assert gathered.look()
    gathered.commit()


@pytest.mark.parametrize("at", [1, 2, 3, 4], ids=["part", "entry", "manifest", "commit"])
def test_a_step_that_two_runs_store_is_that_of_either_and_whole(hdfs: HdfsCluster, at: int) -> None:
    store = open_store(f"{hdfs.url}/claims-{next(_names)}", timeout_s=20)
    impatient = open_store(store.url, timeout_s=1)
    older = claim(store, "job", 1)
    with stopped(hdfs) as stop:
        with pytest.raises(OSError, match="no answer"):
            persist(Stopping(store, impatient, at, stop), older, OF_THE_OLDER)  # type: ignore[arg-type]
        late = LateClaim(impatient, "job", 2, Backoff(initial=0.01, cap=0.01))
        until(lambda: (late.poke(), late._thread)[1])
        late.wait(30)
        assert late.outcome is None
    until(lambda: (late.poke(), late.outcome)[1], 60)
    newer = late.outcome
    assert isinstance(newer, Fence)
    persist(store, newer, STEP)
    assert is_committed(store, UploadAttempt(newer, STEP))
    # The older run does not know yet, and retries.
    try:
        persist(store, older, OF_THE_OLDER)
        was_quicker = True
    except StaleGeneration:
        was_quicker = Slot(STEP, older.term) in [Slot(one.step, one.term) for one in list_checkpoints(store.url)]
    assert (STEP, newer.generation) in [(one.step, one.generation) for one in list_checkpoints(store.url)]
    found, warnings = restore_all(store, ONE)
    assert warnings == []
    assert_step(found, STEP, ONE)
    assert verify(store.url, STEP) == []
    assert [one.step for one in list_checkpoints(store.url)] == [STEP] * (1 + was_quicker)
    if was_quicker:
        slot = Slot(STEP, older.term)
        whole = load_whole(store, slot, read_manifest(store, slot), ONE.tensors)
        for name, data in state_of(OF_THE_OLDER).items():
            assert np.array_equal(whole[name].data, data)
    assert Path(older.work).name in store.list()  # a file: nothing can be written below it any more
    assert store.list(newer.work) == []
    assert not [name for name in store.list() if name.startswith("trash-")]


def test_a_daemon_that_wakes_up_with_hdfs_finds_the_step_claimed(hdfs: HdfsCluster, tmp_path: Path) -> None:
    store = open_store(f"{hdfs.url}/claims-{next(_names)}", timeout_s=20)
    impatient = open_store(store.url, timeout_s=1)
    daemons = [DaemonProcess(tmp_path / name, name) for name in ("n0", "n1")]
    try:
        older = Worker(daemons[0], claim(store, "job", 1), store.url, tensors=big(4), rate=1e6, timeout_s=1)
        with stopped(hdfs) as stop:
            older.snapshot(STEP, persist=True)
            until(lambda: daemons[0].of("upload").get("bytes", 0) > 1 << 20)
            stop()
            assert "no answer" in older.note("failing", STEP, 30)["error"]
            late = LateClaim(impatient, "job", 2, Backoff(initial=0.01, cap=0.01))
            until(lambda: (late.poke(), late._thread)[1])
            late.wait(30)
            assert late.outcome is None
        until(lambda: (late.poke(), late.outcome)[1], 60)
        assert isinstance(late.outcome, Fence)
        newer = Worker(daemons[1], late.outcome, store.url, tensors=big(4), generation=2)
        newer.snapshot(STEP, persist=True)
        newer.note("persisted", STEP, 60)
        assert "has taken over" in older.note("refused", STEP, 60)["error"]
        assert [(one.step, one.generation) for one in list_checkpoints(store.url)] == [(STEP, 2)]
        assert verify(store.url, STEP) == []
    finally:
        close_all()
        for daemon in daemons:
            daemon.close()
