"""A cluster that speaks IPv6 only: ready lines that can be pasted, agents, commands and a job over it."""

import json
import socket
from pathlib import Path

import pytest

from tests.e2e.daemons import Commands, plain_get, ready, wait_for


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


pytestmark = [
    pytest.mark.slow,
    pytest.mark.calm,
    pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6 on loopback"),
]


def test_from_the_ready_line_to_a_jobs_end(holdfast: Commands, tmp_path: Path) -> None:
    ports = ("--grpc-port", "0", "--http-port", "0")
    controller = holdfast.start("controller", "--listen-host", "::1", *ports, "--state-dir", str(tmp_path / "c"))
    grpc, http = ready(controller)
    assert grpc.startswith("[::1]:")
    assert http.startswith("[::1]:")
    assert plain_get(f"http://{http}/api/v1/status").status_code == 200
    flags = ("--controller", grpc, "--node-name", "six", "--preload", "", "--state-dir", str(tmp_path / "a"))
    agent = holdfast.start("agent", *flags)
    agent.says("controller.joined", 60)
    assert f'"address": "{grpc}"' in agent.err
    for address in (http, f"http://{http}", f"http://{http}/"):
        done = holdfast.run("nodes", "--controller", address, "--json")
        assert [node["name"] for node in json.loads(done.out)] == ["six"], done.err

    def is_healthy() -> bool:
        found = holdfast.run("nodes", "--json", env={"HOLDFAST_CONTROLLER": http})
        return bool(json.loads(found.out)[0]["state"] == "healthy")

    wait_for(is_healthy, 60, lambda: agent.err)
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['MASTER_ADDR'], os.environ['WORLD_SIZE'])\n")
    run = holdfast.run("run", "--controller", http, "--fresh", str(script), deadline_s=120)
    assert run.process.returncode == 0, run.err
    assert run.out.rstrip().endswith(" 1")


def test_an_address_that_is_taken_is_said_with_brackets(holdfast: Commands, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        for flags in (("--grpc-port", port, "--http-port", "0"), ("--grpc-port", "0", "--http-port", port)):
            state = ("--state-dir", str(tmp_path / "state"))
            done = holdfast.run("controller", "--listen-host", "::1", *flags, *state)
            assert done.process.returncode == 2
            assert f"[::1]:{port}" in done.err
