"""Stage 2 by the daemon of a node: its input becomes a checkpoint, whatever dies and whatever the store does."""

from __future__ import annotations

import signal
import time

import pytest

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.daemon.client import DaemonRefused
from holdfast.checkpoint.daemon.messages import WorkerHello
from holdfast.checkpoint.restore.inspect import list_checkpoints
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.daemons import SLOWLY, Start, Worker, big, set_limit, steps, talk, until
from tests.checkpoint.support.jobs import assert_step, layout_of, restore_all

pytestmark = [pytest.mark.slow, pytest.mark.calm]


def test_snapshots_of_two_workers_become_one_checkpoint(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    workers = [Worker(daemon, fence, store.url, worker, 2) for worker in range(2)]
    for worker in workers:
        worker.snapshot(20, persist=True)
    notes = [worker.note("persisted", 20) for worker in workers]
    assert notes[0]["bytes"] == list_checkpoints(store.url)[0].num_bytes
    assert steps(store) == [20]
    found, warnings = restore_all(store, layout_of(3))
    assert_step(found, 20, layout_of(3))
    assert warnings == []
    until(lambda: daemon.of("committed", 1).get("step") == 20)
    for worker in workers:
        worker.close()


def test_daemons_of_two_nodes_make_one_checkpoint_without_talking(start: Start, store: FileStore, fence: Fence) -> None:
    daemons = [start("n0"), start("n1")]
    workers = [Worker(daemons[w], fence, store.url, w, 2) for w in range(2)]
    workers[0].snapshot(5, persist=True)
    time.sleep(0.2)
    assert steps(store) == []  # half of it is no checkpoint
    workers[1].snapshot(5, persist=True)
    for worker in workers:
        worker.note("persisted", 5)
    assert steps(store) == [5]


def test_old_checkpoints_go(start: Start, store: FileStore, fence: Fence) -> None:
    worker = Worker(start(), fence, store.url)
    for step in range(1, 6):
        worker.snapshot(step, persist=True)
        worker.note("persisted", step)
    until(lambda: steps(store) == [5, 4, 3])


def test_a_killed_worker_loses_no_upload(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url, tensors=big(8), rate=SLOWLY)
    worker.snapshot(7, persist=True)
    worker.close()  # as the kernel closes it for one that was killed
    assert steps(store) == []
    until(lambda: steps(store) == [7])


def test_a_killed_daemon_is_followed_by_one_that_finishes(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url, tensors=big(8), rate=SLOWLY)
    worker.snapshot(7, persist=True)
    until(lambda: list(store.root.glob("work-*/*/*.safetensors")))
    daemon.kill()
    worker.client.poll()
    assert steps(store) == []
    daemon.start()
    worker.note("persisted", 7)
    assert steps(store) == [7]
    # Nor is it written twice when the news of its end was lost.
    daemon.kill()
    daemon.start()
    worker.client.poll()
    made = worker.snapshot(8, persist=True)
    worker.note("persisted", 8)
    assert made.step == 8
    assert steps(store) == [8, 7]


def test_a_part_that_was_written_counts_though_its_snapshot_is_gone(
    start: Start, store: FileStore, fence: Fence
) -> None:
    daemons = [start("n0"), start("n1")]
    first = Worker(daemons[0], fence, store.url, 0, 2)
    first.snapshot(5, persist=True)
    until(lambda: list(store.root.glob("work-*/*/part-00000.json")))
    daemons[0].kill()
    for step in (6, 7):
        assert first.fill(step)  # no process holds the slot any more
    daemons[0].start()
    second = Worker(daemons[1], fence, store.url, 1, 2)
    second.snapshot(5, persist=True)
    first.note("persisted", 5)
    second.note("persisted", 5)
    assert steps(store) == [5]
    found, _ = restore_all(store, layout_of(1))
    assert_step(found, 5, layout_of(1))  # the leader's values, too


def test_a_snapshot_that_is_gone_ends_the_attempt_for_all(start: Start, store: FileStore, fence: Fence) -> None:
    daemons = [start("n0"), start("n1")]
    first = Worker(daemons[0], fence, store.url, 0, 2)
    second = Worker(daemons[1], fence, store.url, 1, 2)
    first.snapshot(5, persist=True)
    daemons[1].kill()
    second.snapshot(5, persist=True)
    for step in (6, 7):
        assert second.fill(step)
    daemons[1].start()
    assert "overwritten" in second.note("refused", 5)["error"]
    assert "worker 1" in first.note("refused", 5)["error"]
    until(lambda: not list(store.root.glob("work-*/*/part-*")))
    for worker in (first, second):
        worker.snapshot(8, persist=True)
    first.note("persisted", 8)
    assert steps(store) == [8]


def test_a_snapshot_under_upload_is_not_overwritten(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    assert daemon.process is not None
    worker = Worker(daemon, fence, store.url, tensors=big(8), rate=SLOWLY)
    worker.snapshot(1, persist=True)
    daemon.process.send_signal(signal.SIGSTOP)
    assert worker.fill(2)
    assert worker.fill(3) is None  # one slot is being uploaded, the other is the newest
    daemon.process.send_signal(signal.SIGCONT)
    worker.note("persisted", 1)
    assert worker.fill(3)


def test_the_rate_is_kept(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url, tensors=big(4), rate=8 * 2**20)
    worker.snapshot(1, persist=True)
    assert worker.note("persisted", 1)["seconds"] >= 0.35  # 4 MiB at 8 a second, less a tenth of a second at once
    assert steps(store) == [1]


def test_a_flipped_bit_without_a_copy_is_refused(start: Start, store: FileStore, fence: Fence) -> None:
    worker = Worker(start(), fence, store.url, tensors=big(2))
    made = worker.fill(3)
    assert made
    worker.flip(made, (1 << 20) + 17)
    worker.report(made)
    assert "MiB (1)" in worker.note("refused", 3)["error"]
    assert steps(store) == []


def test_a_store_that_fails_is_reported_once_and_caught_up_with(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url)
    work = store.root / fence.work
    aside = store.root.with_name("unplugged")
    store.root.rename(aside)
    store.root.write_text("no folder any more")
    worker.snapshot(4, persist=True)
    failing = worker.note("failing", 4)
    assert failing["error"]
    until(lambda: daemon.of("upload").get("state") == "failing")
    store.root.unlink()
    aside.rename(store.root)
    worker.note("persisted", 4)
    assert [one for one in worker.notes if one["note"] == "failing" and one["error"] == failing["error"]] == []
    assert steps(store) == [4]
    assert work.is_dir()
    until(lambda: daemon.of("upload").get("state") == "idle")


def test_a_store_fails_until_something_was_written(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    worker = Worker(daemon, fence, store.url)
    aside = store.root.with_name("unplugged")
    store.root.rename(aside)
    store.root.write_text("no folder any more")
    worker.snapshot(4, persist=True)
    worker.note("failing", 4)
    until(lambda: daemon.of("failing"))
    failing = daemon.of("failing")
    assert failing["store"] == store.url
    # Neither a daemon that begins anew, nor a newer snapshot, nor a new generation, is a success.
    daemon.kill()
    daemon.start()
    worker.note("failing", 4)
    worker.snapshot(5, persist=True)
    until(lambda: daemon.of("upload").get("step") == 5)
    assert daemon.of("failing") == failing
    newer = Worker(daemon, fence, store.url, generation=2)
    until(lambda: daemon.status()["generation"] == 2)
    assert daemon.of("failing") == failing
    store.root.unlink()
    aside.rename(store.root)
    newer.snapshot(6, persist=True)
    newer.note("persisted", 6)
    until(lambda: not daemon.of("failing"))


def test_a_full_disk_is_a_failure_and_no_checkpoint(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start(preexec_fn=set_limit(3 << 20))
    worker = Worker(daemon, fence, store.url, tensors=big(4))
    worker.snapshot(4, persist=True)
    assert worker.note("failing", 4)["error"] == "File too large"
    assert steps(store) == []
    # Nothing is lost by it: a daemon with room takes it up.
    daemon.kill()
    daemon._limits.clear()
    daemon.start()
    worker.note("persisted", 4)
    assert steps(store) == [4]


def test_a_newer_generation_shuts_the_older_out(start: Start, store: FileStore, fence: Fence) -> None:
    daemon = start()
    older = Worker(daemon, fence, store.url, tensors=big(8), rate=2e6)
    older.snapshot(7, persist=True)
    newer_fence = claim(store, "job", 2)
    newer = Worker(daemon, newer_fence, store.url, tensors=big(8), generation=2)
    newer.snapshot(6, persist=True)
    newer.note("persisted", 6)
    made = older.fill(8)
    assert made is not None  # the pin is gone
    older.report(made)
    assert "generation 1 of job job ended" in older.note("refused", 8)["error"]
    with pytest.raises(DaemonRefused, match="generation 1 of job job ended"):
        talk(daemon).hello(WorkerHello("job", 1, 0, 1))
    assert steps(store) == [6]


def test_a_claim_elsewhere_ends_an_upload(start: Start, store: FileStore, fence: Fence) -> None:
    worker = Worker(start(), fence, store.url, tensors=big(8), rate=SLOWLY)
    worker.snapshot(7, persist=True)
    claim(store, "job", 2)
    assert "has taken over" in worker.note("refused", 7)["error"]
    assert steps(store) == []
