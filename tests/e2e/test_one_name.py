"""One name, one folder, one holder: second agents and second controllers are refused, and say why."""

import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.daemons import Commands, Running, events, incidents, one_line, plain_get, ready, wait_for
from tests.e2e.test_bad_input import PORTS_0

pytestmark = [pytest.mark.slow, pytest.mark.calm]
SCRIPT = """
import time
for n in range(40):
    print("at", n, flush=True)
    time.sleep(0.1)
print("done")
"""


def begin(holdfast: Commands, folder: Path) -> tuple[Running, str, str]:
    controller = holdfast.start("controller", *PORTS_0, "--state-dir", str(folder / "controller"))
    return controller, *ready(controller)


def agent(holdfast: Commands, rpc: str, state: Path, name: str = "node0", through: Sequence[str] = ()) -> Running:
    flags = ("--controller", rpc, "--node-name", name, "--no-warm", "--slots", "2")
    return holdfast.start("agent", *flags, "--state-dir", str(state), through=through)


def other_host(name: str) -> list[str]:
    """What makes a command believe that it is on another host."""
    through = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
    if subprocess.run([*through, "true"], capture_output=True).returncode:
        pytest.skip("no namespace of another hostname can be made here")
    return through


def test_a_second_agent_of_the_same_name_disturbs_no_other(holdfast: Commands, tmp_path: Path) -> None:
    """A whole job runs and ends beside it; when the first is killed, the second is taken."""
    controller, rpc, http = begin(holdfast, tmp_path)
    first = agent(holdfast, rpc, tmp_path / "a")
    first.says("controller.joined")
    second = agent(holdfast, rpc, tmp_path / "b")
    second.says("controller.away")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = holdfast.run("run", "--controller", http, "--nproc-per-node", "2", str(script))
    assert run.process.returncode == 0, run.err
    assert run.out.count("done") == 2
    (away,) = events(second, "controller.away")
    assert "the node name 'node0' is used by an agent on this host" in away["reason"]
    assert "give this one another --node-name and --state-dir" in away["reason"]
    assert len(events(first, "controller.joined")) == 1
    assert len(events(controller, "node.joined")) == 1
    reported = [one for one in incidents(http) if one["kind"] == "node-name-taken"]
    assert [one["culprit"] for one in reported] == ["node0"]
    assert "a second agent there uses the same name and is refused" in reported[0]["summary"]
    first.signal(signal.SIGKILL)
    first.wait(10)
    second.says("controller.joined")


def test_a_copy_of_a_live_folder_displaces_no_agent_and_ends_no_worker(holdfast: Commands, tmp_path: Path) -> None:
    """The copy names the holder's runs and its workers; the lock that vouches for both is that of the original."""
    controller, rpc, http = begin(holdfast, tmp_path)
    first = agent(holdfast, rpc, tmp_path / "a")
    first.says("controller.joined")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = holdfast.start("run", "--controller", http, "--nproc-per-node", "2", str(script))
    run.says("at 5")
    subprocess.run(["cp", "-a", tmp_path / "a", tmp_path / "b"], check=True)  # sockets too, which shutil cannot copy
    second = agent(holdfast, rpc, tmp_path / "b")
    second.says("controller.away")
    (away,) = events(second, "controller.away")
    assert "the node name 'node0' is used by an agent on this host" in away["reason"]
    assert not events(second, "worker.adopted")
    second.signal(signal.SIGTERM)
    second.wait(60)
    assert run.wait() == 0, run.err
    assert run.out.count("done") == 2
    assert len(events(controller, "node.joined")) == 1
    assert [one["kind"] for one in incidents(http)] == ["node-name-taken"]


def test_a_clone_under_another_hostname_is_refused_and_both_hosts_are_named(holdfast: Commands, tmp_path: Path) -> None:
    through = other_host("clone7")
    controller, rpc, http = begin(holdfast, tmp_path)
    first = agent(holdfast, rpc, tmp_path / "a")
    first.says("controller.joined")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    second = agent(holdfast, rpc, tmp_path / "b", through=through)
    second.says("controller.away")
    (away,) = events(second, "controller.away")
    here = socket.gethostname()
    assert f"the node name 'node0' is used by an agent on {here} (127.0.0.1): give another" in away["reason"]
    assert len(events(controller, "node.joined")) == 1
    (reported,) = [one for one in incidents(http) if one["kind"] == "node-name-taken"]
    assert reported["summary"] == (
        f"node0 is the agent on {here} (127.0.0.1); an agent on clone7 (127.0.0.1) uses the same name and is refused"
    )


def test_an_agent_that_is_killed_and_started_again_is_taken_at_once(holdfast: Commands, tmp_path: Path) -> None:
    controller, rpc, _ = begin(holdfast, tmp_path)
    for life in range(3):
        one = agent(holdfast, rpc, tmp_path / "a")
        one.says("controller.joined")
        assert not events(one, "controller.away")
        assert len(events(controller, "node.joined")) == life + 1
        one.signal(signal.SIGKILL)
        one.wait(10)


def test_a_state_folder_is_one_agents_until_that_is_killed(holdfast: Commands, tmp_path: Path) -> None:
    _, rpc, _ = begin(holdfast, tmp_path)
    first = agent(holdfast, rpc, tmp_path / "a", "node0")
    first.says("controller.joined")
    second = agent(holdfast, rpc, tmp_path / "a", "node1")
    assert second.wait(60) == 2
    assert f"the agent with pid {first.process.pid} uses it" in one_line(second.err)
    assert first.process.poll() is None
    first.signal(signal.SIGKILL)
    first.wait(10)
    third = agent(holdfast, rpc, tmp_path / "a", "node1")
    third.says("controller.joined")


def test_a_state_folder_is_one_controllers_until_that_is_killed(holdfast: Commands, tmp_path: Path) -> None:
    first, _, _ = begin(holdfast, tmp_path)
    done = holdfast.run("controller", *PORTS_0, "--state-dir", str(tmp_path / "controller"))
    assert done.process.returncode == 2
    assert f"the controller with pid {first.process.pid} uses it" in one_line(done.err)
    first.signal(signal.SIGKILL)
    first.wait(10)
    third, _, http = begin(holdfast, tmp_path)
    wait_for(lambda: plain_get(f"http://{http}/healthz").status_code == 200)
    assert third.process.poll() is None


def test_a_copy_of_a_running_agents_folder_is_no_successor(holdfast: Commands, tmp_path: Path) -> None:
    """A host that was cloned with its folder: the earlier runs that it names are another's."""
    controller, rpc, _ = begin(holdfast, tmp_path)
    first = agent(holdfast, rpc, tmp_path / "a")
    first.says("controller.joined")
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "a" / "agent.lock", tmp_path / "b")
    second = agent(holdfast, rpc, tmp_path / "b")
    second.says("controller.away")
    (away,) = events(second, "controller.away")
    assert "the node name 'node0' is used by an agent on this host" in away["reason"]
    assert len(events(controller, "node.joined")) == 1
    assert len(events(first, "controller.joined")) == 1
