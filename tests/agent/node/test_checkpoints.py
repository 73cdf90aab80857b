"""The agent and its node's checkpoint daemon: it runs when workers want it, and its reports are passed on."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.agent.node.checkpoints import Checkpoints, failures, gauges, snapshots_dir
from holdfast.checkpoint.daemon.client import DaemonClient
from holdfast.checkpoint.daemon.messages import WorkerHello
from holdfast.wire import types as t
from tests.agent.support.processes import python, until
from tests.agent.support.warm_node import alive
from tests.agent.test_app import answered, config, running, start
from tests.controller.support.stage import eventually, stage

WHO = WorkerHello("job", 1, 0, 1)


@pytest.fixture
def reported() -> list[t.AgentNotice]:
    return []


@pytest.fixture
def agent(tmp_path: Path, reported: list[t.AgentNotice]) -> Iterator[Checkpoints]:
    """The agent's side of the daemon; ended with all that it started."""
    made = an_agent(tmp_path, reported)
    yield made
    made.close(end=True)
    assert not made.folder.exists()


def an_agent(state_dir: Path, reported: list[Any]) -> Checkpoints:
    return Checkpoints(state_dir, "n0", "s0", lambda: "127.0.0.1", reported.append)


def daemon_pid(agent: Checkpoints) -> int:
    """The pid of the daemon that answers in its folder, once there is one."""
    client = DaemonClient(agent.folder)
    try:
        place = client.hello(WHO)
        assert (place.node, place.switch, place.address[0]) == ("n0", "s0", "127.0.0.1")
        return int(client._ask({"do": "ping"})["pid"])
    finally:
        client.close()


def texts(reported: list[t.AgentNotice]) -> list[tuple[t.Severity, str]]:
    assert all(notice.kind in ("checkpoint", "checkpoint-store") for notice in reported)
    return [(notice.severity, notice.text) for notice in reported]


def test_a_daemon_is_there_when_workers_want_it(agent: Checkpoints, reported: list[t.AgentNotice]) -> None:
    assert agent.look() == {}
    assert not agent.folder.exists()  # no worker wanted it yet
    agent.ensure()
    agent.ensure()
    pid = daemon_pid(agent)
    process = psutil.Process(pid)
    own = psutil.Process().nice()
    assert process.nice() > own or own == 19  # the lowest that there is
    assert agent.environment() == {"HOLDFAST_SNAPSHOTS": str(agent.folder)}
    agent.look()
    assert daemon_pid(agent) == pid
    assert reported == []
    before = sum(process.cpu_times()[:2])
    agent.look()
    assert sum(process.cpu_times()[:2]) - before < 0.1


def test_a_daemon_that_dies_is_followed_by_another(agent: Checkpoints, reported: list[t.AgentNotice]) -> None:
    agent.ensure()
    first = daemon_pid(agent)
    agent.look()
    os.kill(first, signal.SIGKILL)
    until(lambda: (agent.look(), reported)[1])
    assert texts(reported) == [
        (t.Severity.WARNING, "the checkpoint daemon died; its snapshots stay, a new daemon takes over")
    ]
    until(lambda: (agent.look(), agent.is_connected)[1])
    assert daemon_pid(agent) != first
    agent.look()
    assert len(reported) == 1


def test_a_death_that_is_seen_bit_by_bit_is_reported_once(
    agent: Checkpoints, reported: list[t.AgentNotice], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was killed first closes its sockets, and has ended some time after that."""
    agent.ensure()
    first = daemon_pid(agent)
    agent.look()
    os.kill(first, signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.agent.node.checkpoints.os.waitpid", lambda pid, how: (0, 0))
        until(lambda: (agent.look(), reported)[1])
        agent.look()
    until(lambda: (agent.look(), agent.is_connected)[1])
    assert daemon_pid(agent) != first
    assert texts(reported) == [
        (t.Severity.WARNING, "the checkpoint daemon died; its snapshots stay, a new daemon takes over")
    ]


def test_one_that_was_killed_before_it_was_seen_is_waited_for(
    agent: Checkpoints, reported: list[t.AgentNotice]
) -> None:
    agent.ensure()
    pid = agent.daemon_pid()
    assert pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: (agent.look(), reported)[1])
    assert texts(reported) == [
        (t.Severity.WARNING, "the checkpoint daemon was killed at its start, by signal 9; restarting it")
    ]
    assert not (agent.folder / "daemon.absent").exists()  # no worker goes on without what is in memory
    until(lambda: (agent.look(), agent.is_connected)[1])


@contextmanager
def left_behind(second: Checkpoints, state_dir: Path) -> Iterator[int]:
    """The daemon of an agent that was killed."""
    code = (
        "from pathlib import Path; import time\n"
        "from holdfast.agent.node.checkpoints import Checkpoints\n"
        f"agent = Checkpoints(Path({str(state_dir)!r}), 'n0', 's0', lambda: '127.0.0.1', print)\n"
        "agent.ensure()\n"
        "time.sleep(60)\n"
    )
    assert not second.adopt()
    try:
        with python(code) as first:
            until(lambda: (second.folder / "daemon.sock").exists())
            first.send_signal(signal.SIGKILL)
            first.wait(10)
        yield daemon_pid(second)
    finally:
        second.close(end=True)
    assert not second.folder.exists()


def test_it_outlives_its_agent_and_is_found_by_the_next(tmp_path: Path, reported: list[t.AgentNotice]) -> None:
    second = an_agent(tmp_path, reported)
    with left_behind(second, tmp_path) as pid:
        assert second.adopt()
        assert daemon_pid(second) == pid
    until(lambda: not alive(pid))
    assert reported == []


def test_one_that_died_while_there_was_no_agent_is_followed_by_another(
    tmp_path: Path, reported: list[t.AgentNotice]
) -> None:
    second = an_agent(tmp_path, reported)
    with left_behind(second, tmp_path) as pid:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))
        assert second.adopt()
        # What is left of the dead one's threads may still hold its socket for a moment.
        until(lambda: (second.look(), second.is_connected and second.daemon_pid() not in (0, pid))[1])
        assert daemon_pid(second) == second.daemon_pid()


def test_workers_are_notified_of_a_daemon_that_does_not_start(
    agent: Checkpoints, reported: list[t.AgentNotice], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = agent.folder / "daemon.absent"
    with monkeypatch.context() as patch:
        broken = [sys.executable, "-c", "raise SystemExit('no luck')"]
        patch.setattr("holdfast.agent.processes.interpreter.command", lambda *words: broken)
        agent.ensure()
        until(lambda: (agent.look(), absent.exists())[1])
    assert "no luck" in absent.read_text()
    until(lambda: (agent.look(), agent.is_connected)[1])
    assert not absent.exists()


def test_a_daemon_that_cannot_start_is_reported_with_its_last_words(
    tmp_path: Path, reported: list[t.AgentNotice]
) -> None:
    agent = an_agent(tmp_path, reported)
    agent.folder.parent.mkdir(exist_ok=True)
    agent.folder.write_text("in the way")
    try:
        agent.ensure()
        until(lambda: (agent.look(), reported)[1], 30.0)  # the start of an interpreter, on a busy host
        severity, text = texts(reported)[0]
        assert severity is t.Severity.WARNING
        assert "the checkpoint daemon ended with 2 at its start" in text
        assert str(agent.folder) in text
    finally:
        agent.close(end=True)
        agent.folder.unlink()


def worker(step: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "snapshot": {"step": step, "generation": 1, "at": 1000.0 + step, "bytes": 50},
        "peer": {"node": "n1", "step": step - 1, "at": 0, "bytes": 50, "seconds": 0.5, "error": ""},
        "upload": {
            "state": "idle", "step": step, "bytes": 40, "bytes_total": 40, "error": "", "seconds": 3.0,
            "write_seconds": 2.0,
        },
        "committed": {"step": step, "token": "x", "at": 1001.0, "bytes": 80, "seconds": 3.0},
        "repairs": 0, "failing": None,
    }  # fmt: skip
    return found | more


def test_gauges_of_several_workers_are_those_of_the_last() -> None:
    document = {"job": "j", "at": 5.0, "workers": {"0": worker(20), "1": worker(19)}, "copies": {"3": {"bytes": 7}}}
    assert gauges([document, {"job": "old", "at": 1.0, "workers": {}, "copies": {}}], 1030.0) == {
        "snapshot_step": 19, "snapshot_age_seconds": 11, "snapshot_bytes": 100, "snapshot_peer_step": 18,
        "snapshot_peer_seconds": 0.5, "snapshot_copies_bytes": 7, "checkpoint_step": 20, "checkpoint_age_seconds": 29,
        "checkpoint_upload_seconds": 3, "checkpoint_upload_bytes_per_second": 40, "checkpoint_failing": 0,
        "snapshot_repaired_chunks": 0,
    }  # fmt: skip
    empty = worker(1, snapshot=None, peer=None, upload=None, committed=None)
    assert gauges([{"job": "j", "at": 5.0, "workers": {"0": empty}, "copies": {}}], 1.0) == {
        "snapshot_repaired_chunks": 0
    }
    assert gauges([], 1.0) == {}


def test_a_store_that_no_daemon_could_claim_is_one_that_fails() -> None:
    document = {
        "job": "j",
        "at": 5.0,
        "workers": {"0": worker(1, upload=None, down="hdfs://n/x: refused")},
        "copies": {},
    }
    assert gauges([document], 1.0)["checkpoint_failing"] == 1
    assert list(failures([document])) == [("j", "hdfs://n/x: refused")]
    document["workers"]["0"]["down"] = ""
    assert list(failures([document])) == []


def test_a_store_that_fails_and_comes_back_is_reported_once(agent: Checkpoints, reported: list[t.AgentNotice]) -> None:
    agent.ensure()
    daemon_pid(agent)

    def say(error: str, repairs: int = 0, **more: Any) -> dict[str, float]:
        failing = {"store": "file:///x", "error": error} if error else None
        reported = worker(3, failing=failing, repairs=repairs, **more)
        body = {"job": "job", "at": 9.0, "workers": {"0": reported}, "copies": {}}
        (agent.folder / "job" / "new").write_text(json.dumps(body))
        os.replace(agent.folder / "job" / "new", agent.folder / "job" / "status.json")
        return agent.look()

    new = {"upload": worker(3)["upload"] | {"state": "uploading", "write_seconds": 0.0}, "committed": None}
    assert "checkpoint_failing" not in say("", **new)
    assert say("")["checkpoint_failing"] == 0
    assert say("No space left on device")["checkpoint_failing"] == 1
    assert say("No space left on device", **new)["checkpoint_failing"] == 1  # tried again, with no success yet
    say("Connection refused")
    say("", repairs=2)
    assert texts(reported) == [
        (t.Severity.WARNING, "checkpoints of job job cannot be stored: No space left on device; retrying, "
         "the snapshots wait in memory"),
        (t.Severity.INFO, "checkpoints of job job can be stored again"),
        (t.Severity.WARNING, "2 MiB of snapshots of job job changed in this host's memory; repaired"),
    ]  # fmt: skip


WORKER = """
import os, time
from pathlib import Path
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.daemon.client import DaemonClient
from holdfast.checkpoint.daemon.messages import Join, SnapshotTaken, WorkerHello
from holdfast.checkpoint.snapshots.files import own_file
from holdfast.checkpoint.format.tiles import GlobalTensor
folder = Path(os.environ["HOLDFAST_SNAPSHOTS"])
client = DaemonClient(folder)
client.hello(WorkerHello(os.environ["HOLDFAST_JOB"], int(os.environ["HOLDFAST_GENERATION"]), 0, 1))
w = GlobalTensor("w", (1000,), "F32")
what = Description(os.environ["HOLDFAST_JOB"], 0, 1, "d", {"w": w}, [("w", w.shard)])
arena = Arena.create(own_file(folder, what), what)
client.join(Join(str(arena.path), "d", b"0" * 16))
slot = arena.begin()
made = arena.commit(slot, 41, 1, {}, checksums(arena.memory(slot)))
client.snapshot(SnapshotTaken(made.step, made.slot, made.seq, False, False))
while True: time.sleep(1)
"""


def test_workers_find_the_daemon_and_the_controller_hears_of_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as here:
            here.shell.logs.begin("j1")
            async with running(config(tmp_path, here.port)):
                await eventually(lambda: "node0" in here.brain.c.nodes)
                start(tmp_path, here, "c1", code=WORKER)
                [answer] = await answered(here, 1)
                assert answer.ok
                node = here.brain.c.nodes["node0"]
                await eventually(lambda: node.host.get("snapshot_step") == 41)
                assert node.host["snapshot_bytes"] >= 4000
                assert "cpu_ratio" in node.host  # none goes for another
            assert not snapshots_dir(tmp_path / "agent", "node0").exists()

    asyncio.run(story())
