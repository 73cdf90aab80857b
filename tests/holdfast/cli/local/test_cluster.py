"""A cluster on this machine: it starts, recovers, and leaves nothing behind. Daemons are stand-ins."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.forkserver.fork_from import VARIABLE
from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.cli.local import leftovers
from holdfast.cli.local.cluster import LocalCluster

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
FAKE = (sys.executable, str(ROOT / "tests" / "holdfast" / "support" / "fake_daemon.py"))
ENV = {"PYTHONPATH": str(ROOT)}

Until = Callable[..., None]


def alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def workers(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.glob("node*/worker")]


def answers(cluster: LocalCluster) -> bool:
    try:
        return len(cluster.client.nodes()) == 1
    except Unavailable:
        return False


def test_it_comes_up_and_ends_whole(tmp_path: Path, until: Until) -> None:
    with LocalCluster(tmp_path, nodes=2, slots=4, command=FAKE, env=ENV) as cluster:
        assert {node["name"] for node in cluster.client.nodes()} == {"node0", "node1"}
        pids = [*cluster.pids().values(), *workers(tmp_path)]
        assert len(pids) == 5
        assert all(alive(pid) for pid in pids)
    until(lambda: not any(alive(pid) for pid in pids))  # one that was killed has no environment before it is gone
    assert leftovers.marked(cluster._mark) == []
    cluster.stop()  # again: harmless


def test_only_the_first_agent_imports_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with LocalCluster(tmp_path, nodes=2, spares=1, command=FAKE, env=ENV) as cluster:
        pids = cluster.pids()
        found = {name: Path(f"/proc/{pids[name]}/environ").read_text().split("\0") for name in cluster.node_names}
    wanted = f"{VARIABLE}={tmp_path / 'node0' / 'run'}"
    assert [wanted in found[name] for name in ("node0", "node1", "node2")] == [False, True, True]


def test_a_daemon_that_dies_is_started_again_where_it_was(tmp_path: Path, until: Until) -> None:
    with LocalCluster(tmp_path, command=FAKE, env=ENV) as cluster:
        before, address = cluster.pids(), cluster.http
        cluster.kill_controller()
        os.kill(before["node0"], signal.SIGKILL)
        until(lambda: not set(before.values()) & set(cluster.pids().values()))
        until(lambda: answers(cluster))
        assert cluster.http == address
        assert not cluster.failure


def test_a_controller_comes_back_to_a_port_that_another_process_had_for_a_while(tmp_path: Path, until: Until) -> None:
    """The kernel gives ports away while nothing listens there."""
    with LocalCluster(tmp_path, command=FAKE, env=ENV) as cluster:
        controller = cluster._daemons[0]
        starts = controller.starts
        cluster.kill_controller()
        until(lambda: not alive(controller.pid) or controller.starts > starts)
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", int(cluster.http.rpartition(":")[2])))
            other.listen()
            until(lambda: controller.starts > starts + 1 and controller.ended())
        until(lambda: answers(cluster))
        assert not cluster.failure


def test_workers_of_a_killed_agent_do_not_outlive_the_cluster(tmp_path: Path, until: Until) -> None:
    cluster = LocalCluster(tmp_path, command=FAKE, env=ENV)
    cluster.start()
    [worker] = workers(tmp_path)
    os.kill(cluster.pids()["node0"], signal.SIGKILL)
    cluster.stop()
    until(lambda: not alive(worker))


def test_a_stopped_daemon_still_ends(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, command=FAKE, env=ENV) as cluster:
        pid = cluster.pids()["node0"]
        os.kill(pid, signal.SIGSTOP)
    assert cluster._daemons[1].code == 0  # not killed, as after the grace
    assert not alive(pid)


@pytest.mark.parametrize("name", ["controller", "agent"])
@pytest.mark.parametrize("code", [1, 2])
def test_a_daemon_that_does_not_come_up_says_why(tmp_path: Path, name: str, code: int) -> None:
    env = ENV | {"FAKE_DAEMON": f"{name}={code}"}
    cluster = LocalCluster(tmp_path, command=FAKE, env=env)
    with pytest.raises(HoldfastError, match=f"{name} will not start"), cluster:
        pass
    assert leftovers.marked(cluster._mark) == []


def test_nothing_is_left_when_its_owner_is_killed_outright(tmp_path: Path, until: Until) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom holdfast.cli.local.cluster import LocalCluster\n"
        f"cluster = LocalCluster(Path({str(tmp_path)!r}), nodes=2, command={FAKE!r}, env={ENV!r})\n"
        "cluster.start()\nprint(*cluster.pids().values(), flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()] + workers(tmp_path)
        assert len(pids) == 5
        owner.kill()
        until(lambda: not any(alive(pid) for pid in pids))


def test_settings_of_real_daemons_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CONTROLLER_LISTEN_HOST", "0.0.0.0")
    monkeypatch.setenv("HOLDFAST_AGENT_SLOTS", "99")
    monkeypatch.setenv("HOLDFAST_API_TOKEN", "secret")
    monkeypatch.setenv("HOLDFAST_CONFIG", "/etc/other.toml")
    env = LocalCluster(tmp_path)._env
    assert not {"HOLDFAST_CONTROLLER_LISTEN_HOST", "HOLDFAST_AGENT_SLOTS", "HOLDFAST_API_TOKEN"} & set(env)
    assert env["HOLDFAST_CONFIG"] == ""
