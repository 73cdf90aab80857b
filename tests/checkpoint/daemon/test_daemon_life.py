"""When a daemon starts, stays and ends, which clients it refuses, and what training does without one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.daemon.client import DaemonClient, DaemonRefused
from holdfast.checkpoint.daemon.messages import WorkerHello
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.daemons import SLOWLY, DaemonProcess, Start, Worker, big, steps, talk, until

pytestmark = [pytest.mark.slow, pytest.mark.calm]


def test_nonsense_is_refused_in_one_line(start: Start, store: FileStore, fence: Fence, tmp_path: Path) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url)
    client = talk(daemon)
    for hello, why in (
        (WorkerHello("../x", 1, 0, 1), "no name for a job"),
        (WorkerHello("job", 1, 3, 2), "no worker 3 of 2"),
    ):
        with pytest.raises(DaemonRefused, match=why):
            client.hello(hello)
    with pytest.raises(DaemonRefused, match="send hello first"):
        client.join(worker.order)
    client.hello(WorkerHello("job", 1, 1, 2))
    with pytest.raises(DaemonRefused, match="another worker"):
        client.join(worker.order)
    with pytest.raises(DaemonRefused, match="no such request"):
        client._ask({"do": "dance"})
    worker.snapshot(1, persist=True)
    worker.note("persisted", 1)
    assert "Traceback" not in daemon.said()
    (tmp_path / "daemon.absent").write_text("it ended with 1 at its start\n")
    with pytest.raises(DaemonRefused, match=r"^it ended with 1 at its start$"):
        DaemonClient(tmp_path).hello(WorkerHello("j", 0, 0, 1), wait_s=3600)
    (tmp_path / "daemon.absent").unlink()
    with pytest.raises(DaemonRefused, match="no checkpoint daemon answers"):
        DaemonClient(tmp_path / "nowhere").hello(WorkerHello("job", 1, 0, 1), wait_s=0)


def test_one_daemon_for_each_folder(start: Start) -> None:
    first = start()
    talk(first).hello(WorkerHello("job", 1, 0, 1))
    second = DaemonProcess(first.folder, "n0")
    assert second.process is not None
    assert second.process.wait(30) == 3
    assert first.process is not None
    assert first.process.poll() is None
    assert os.stat(first.folder).st_mode & 0o777 == 0o700


def test_the_last_to_leave_takes_the_folder_along(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    workers = [Worker(daemon, fence, store.url, w, 2) for w in range(2)]
    workers[0].client.leave(forget=True)
    assert (daemon.folder / "job").is_dir()
    workers[1].client.leave(forget=True)
    assert not (daemon.folder / "job").exists()


def test_the_last_upload_of_a_job_that_is_over_is_finished(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url, tensors=big(8), rate=SLOWLY)
    worker.snapshot(9, persist=True)
    worker.client.leave(forget=True)
    assert not (daemon.folder / "job").exists()
    assert steps(store) == []
    until(lambda: steps(store) == [9])


def test_asked_to_end_it_leaves_nothing(start: Start) -> None:
    daemon = start()
    client = talk(daemon)
    client.hello(WorkerHello("job", 1, 0, 1))
    client._ask({"do": "end"})
    assert daemon.process is not None
    assert daemon.process.wait(30) == 0
    assert not daemon.folder.exists()
    # A signal does not clear the memory.
    daemon.start()
    talk(daemon).hello(WorkerHello("job", 1, 0, 1))
    daemon.kill(signal.SIGTERM)
    assert (daemon.folder / "job").is_dir()


def test_a_daemon_that_waits_for_a_leader_that_is_gone_hears_of_the_next_claim(
    start: Start, store: FileStore, fence: Fence
) -> None:
    worker = Worker(start("n1"), fence, store.url, 1, 2)
    worker.snapshot(7, persist=True)
    until(lambda: list(store.root.glob("work-*/*/part-00001.json")))
    claim(store, "job", 2)
    assert "generation 2 has taken over" in worker.note("refused", 7)["error"]


def test_training_goes_on_without_a_daemon(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url)
    daemon.kill()
    for step in range(1, 4):
        made = worker.fill(step)
        assert made is not None
        worker.report(made, persist=step == 3)
        assert worker.client.poll() == []
    assert not worker.client.is_connected
    daemon.start()
    worker.note("persisted", 3)
    assert steps(store) == [3]


def test_a_daemon_that_begins_anew_keeps_what_it_does_not_know(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    workers = [Worker(daemon, fence, store.url, w, 2) for w in range(2)]
    for worker in workers:
        worker.snapshot(1)
    daemon.kill()
    daemon.start()
    until(lambda: (workers[1].client.poll(), workers[1].client.is_connected)[1])
    for step in (2, 3, 4):
        workers[1].snapshot(step)  # the other one has not yet found the new daemon
    until(lambda: daemon.of("snapshot", 1).get("step") == 4)
    workers[1].client._ask({"do": "ping"})  # by now it has done what was asked
    assert workers[0].arena.path.exists()


def test_arenas_of_another_layout_go_when_the_new_one_has_two(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    old = Worker(daemon, fence, store.url, 0, 1)
    old.snapshot(1)
    new = [Worker(daemon, fence, store.url, w, 2, generation=2) for w in range(2)]
    for step in (2, 3):
        for worker in new:
            assert old.arena.path.exists()  # it may be all there is to go on from
            worker.snapshot(step)
    until(lambda: not old.arena.path.exists())
    assert all(worker.arena.path.exists() for worker in new)
