"""The first and the last state of a run: neither is lost silently."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.restore.inspect import list_checkpoints
from holdfast.checkpoint.worker.manager import CheckpointManager
from holdfast.checkpoint.worker.options import CheckpointWatch
from holdfast.cli.main import main

Capture = pytest.CaptureFixture[str]


def checkpointer(mount: Path, timeout_s: float = 0.2) -> Checkpointer:
    return Checkpointer(str(mount / "store"), {"t": torch.ones(2)}, every=100, rng=False, keep=1, timeout_s=timeout_s)


def test_close_says_whether_the_last_state_is_stored(tmp_path: Path, capsys: Capture) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    one = checkpointer(mount)
    one.step(1)
    mount.rename(tmp_path / "away")
    mount.touch()
    assert not one.close()
    assert not one.close()
    assert capsys.readouterr().err.count("checkpoint of step 1 failed") == 1
    mount.unlink()
    (tmp_path / "away").rename(mount)
    two = checkpointer(mount)
    two.step(2)
    assert two.close()
    assert Checkpointer(str(tmp_path / "other"), {"t": torch.ones(2)}).close()  # nothing was done


def test_the_last_save_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount, failed = tmp_path / "mount", threading.Event()
    mount.mkdir()
    one = checkpointer(mount, timeout_s=60.0)
    one.step(1)
    mount.rename(tmp_path / "away")
    mount.touch()

    def mend() -> None:
        assert failed.wait(30)
        mount.unlink()
        (tmp_path / "away").rename(mount)

    thread = threading.Thread(target=mend)
    thread.start()
    monkeypatch.setattr("holdfast.checkpoint.worker.manager.time.sleep", lambda seconds: (failed.set(), thread.join()))
    assert one.close()
    assert [found.step for found in list_checkpoints(str(mount / "store"))] == [1]


def test_a_run_that_begins_anew_does_not_remove_what_is_there(tmp_path: Path, capsys: Capture) -> None:
    """As when a script forgets to call restore: retention would take the older run's checkpoints for its own."""
    one = checkpointer(tmp_path)
    one.step(5000)
    one.close()
    for step in (1, 2):
        other = checkpointer(tmp_path)
        other.step(step)
        other.close()
    said = capsys.readouterr().err
    assert said.count("starting over in a store that has a checkpoint of step 5000: step-00005000-t0001 is now") == 1
    url = str(tmp_path / "store")
    assert [(found.step, found.protected) for found in list_checkpoints(url)] == [(2, False), (1, True), (5000, True)]
    third = checkpointer(tmp_path)
    assert third.restore() == 2
    third.step(3)
    third.close()
    assert not capsys.readouterr().err
    assert main(["checkpoint", "list", url, "--json"]) == 0
    assert [found["step"] for found in json.loads(capsys.readouterr().out)] == [3, 1, 5000]


def wait_for_upload(monkeypatch: pytest.MonkeyPatch, notes: list[tuple[float, Any]], patience_s: float) -> list[Any]:
    """Three workers wait for the first one's upload of step 5; each: whether it is done, seconds, meetings.

    `notes`: after how many seconds the daemon says what. Time goes on only while the first one sleeps: the others wait
    for nothing but it.
    """
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr("holdfast.checkpoint.worker.manager.time", clock)
    monkeypatch.setattr("holdfast.checkpoint.worker.manager._MEET_S", 0.05)

    def wait(group: ThreadGroup) -> Any:
        began, left, meetings = now[0], list(notes), 0

        def reported() -> list[Any]:
            due = [note for after, note in left if now[0] - began >= after]
            left[:] = left[len(due) :]
            return due

        def broadcast(payload: bytes) -> bytes:
            nonlocal meetings
            meetings += 1
            return group.broadcast(payload)

        manager: Any = SimpleNamespace(
            snapshots=SimpleNamespace(node=SimpleNamespace(client=SimpleNamespace(is_connected=True)), notes=reported),
            options=SimpleNamespace(timeout_s=0.2), watch=CheckpointWatch(warn=lambda text: None),
            last_saved=None, _failing=False,
            _uploading=5 if group.rank == 0 else None, group=SimpleNamespace(broadcast=broadcast),
        )  # fmt: skip
        manager._heed = lambda note: CheckpointManager._heed(manager, note)
        CheckpointManager._wait_for_upload(manager, patience_s)
        return manager.last_saved == 5, now[0] - began, meetings

    return on_ranks(3, wait)


def test_an_upload_that_goes_well_is_waited_for_and_workers_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wait_for_upload(monkeypatch, [(0.6, {"note": "persisted", "step": 5})], 60.0)
    assert [is_done for is_done, _, _ in found] == [True, False, False]
    assert 0.6 <= found[0][1] < 0.61  # the others may have begun to wait a little later
    assert all(meetings >= 10 for *_, meetings in found)
    assert len({meetings for *_, meetings in found}) == 1


def test_one_that_fails_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    found = wait_for_upload(monkeypatch, [(0.1, {"note": "failing", "step": 5, "error": "x"})], 60.0)
    assert not any(is_done for is_done, _, _ in found)
    assert 0.29 < found[0][1] < 0.31
    impatient = wait_for_upload(monkeypatch, [], 0.0)
    assert not any(is_done for is_done, _, _ in impatient)
    assert 0.2 <= impatient[0][1] < 0.21
    refused = [(0.0, {"note": "refused", "step": 5, "error": "x"})]
    assert wait_for_upload(monkeypatch, refused, 60.0)[0][1] < 0.01
