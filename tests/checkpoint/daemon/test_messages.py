"""Messages of workers to the daemon: the same on both sides; and when a daemon forgets. In virtual time."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import UsageError
from holdfast.checkpoint.commit.fence import Fence
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.daemon.attempts import UploadAttempt
from holdfast.checkpoint.daemon.daemon import Daemon
from holdfast.checkpoint.daemon.messages import (
    Join,
    Leader,
    Peer,
    SnapshotTaken,
    WorkerHello,
    hello_from,
    join_from,
    taken_from,
)
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.snapshots.files import SOCKET
from holdfast.plan.tiles import TensorShard

FENCE = Fence(3, 2, "job", "a" * 32)
LEADER = Leader((0, 2), {"w": GlobalTensor("w", (4, 2), "BF16")}, {"dp": 3}, {"lr": 0.1}, Retention(5, 100))
JOIN = Join(
    "/dev/shm/x/job/own.snap", "digest", b"s" * 32, "file:///store", FENCE, (("w", TensorShard((0, 0), (2, 2))),), 1e6,
    Peer("n1", ("10.0.0.1", 4711)), LEADER, 12.0,
)  # fmt: skip


@pytest.mark.parametrize("join", [JOIN, replace(JOIN, peer=None, leader=None), Join("/a/b", "", b"s" * 16)])
def test_a_join_arrives_as_it_was_sent(join: Join) -> None:
    assert join_from(json.loads(json.dumps(join.encode()))) == join


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"arena": 3}, "arena is 3"),
        ({"secret": "xyz"}, "non-hexadecimal"),
        ({"secret": "00"}, "at least 16 bytes"),
        ({"fence": None}, "needs the claim"),
        ({"fence": {"term": 1}}, "join: TypeError"),
        ({"shares": [["w", [0]]]}, "join: ValueError"),
        ({"leader": {"writers": [0]}}, "join: KeyError: 'tensors'"),
        ({"leader": {**JOIN.encode()["leader"], "tensors": {"w": ["F31", [1]]}}}, "of type 'F31'"),
        ({"peer": {"node": "n", "address": ["h", "x"]}}, "join: ValueError"),
    ],
)
def test_what_is_wrong_with_a_join_is_reported(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        join_from({**JOIN.encode(), **change})


def test_other_messages_are_checked_too() -> None:
    taken = {"step": 4, "slot": 1, "seq": 9, "persist": True, "peer": False}
    assert taken_from(taken) == SnapshotTaken(4, 1, 9, True, False)
    for key, value in (("step", True), ("persist", 1), ("seq", "9")):
        with pytest.raises(UsageError, match=f"snapshot: {key} is"):
            taken_from({**taken, key: value})
    hello = {"job": "j@2", "generation": 1, "worker": 0, "world": 2}
    assert hello_from(hello) == WorkerHello("j@2", 1, 0, 2)
    for key, value in (("job", ".."), ("job", "a/b"), ("job", ""), ("worker", 2), ("worker", -1), ("world", None)):
        with pytest.raises(UsageError, match="hello"):
            hello_from({**hello, key: value})
    with pytest.raises(UsageError, match="hello: 'job'"):
        hello_from({})


def test_all_daemons_name_an_attempt_alike_and_no_two_attempts_so() -> None:
    ours = UploadAttempt(FENCE, 20)
    assert ours == UploadAttempt(Fence(3, 2, "job", "a" * 32), 20)
    others = [
        UploadAttempt(FENCE, 21),
        UploadAttempt(replace(FENCE, token="b" * 32), 20),
        UploadAttempt(replace(FENCE, term=4), 20),
    ]
    assert len({one.folder for one in [ours, *others]}) == 4
    assert ours.folder.startswith(f"{FENCE.work}/step-00000020.")


def test_a_job_without_a_connection_is_swept_after_an_hour(tmp_path: Path) -> None:
    async def story() -> None:
        daemon = Daemon(tmp_path, "n0")
        (tmp_path / SOCKET).touch()
        now = asyncio.get_running_loop().time()
        left, busy = daemon.job("left"), daemon.job("busy")
        member = busy.greet(WorkerHello("busy", 1, 0, 1))
        busy.members[0] = member
        member.report = [].append
        left.seen = busy.seen = now
        daemon.sweep(now + 3590)
        assert sorted(daemon.jobs) == ["busy", "left"]
        daemon.sweep(now + 3610)
        assert sorted(daemon.jobs) == ["busy"]
        assert not (tmp_path / "left").exists()
        # Its last worker was there until then.
        member.report = None
        daemon.sweep(now + 7000)
        assert sorted(daemon.jobs) == ["busy"]
        daemon.sweep(now + 7300)
        assert daemon.jobs == {}
        assert not daemon._stop.is_set()
        # With nothing to be here for, it goes.
        daemon.sweep(now + 7550)
        assert not daemon._stop.is_set()
        daemon.sweep(now + 7650)
        assert daemon._stop.is_set()

    asyncio.run(story())


def test_a_daemon_whose_folder_was_removed_goes(tmp_path: Path) -> None:
    async def story() -> None:
        daemon = Daemon(tmp_path, "n0")
        daemon.sweep(0.0)
        assert daemon._stop.is_set()

    asyncio.run(story())
