"""The commands against a scripted controller: what they ask, print and exit with."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import UsageError
from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import INCIDENT, STACKS, FakeController, job_as

ROOT = Path(__file__).parents[3]


Capture = pytest.CaptureFixture[str]


def test_look(fake: FakeController, capsys: Capture) -> None:
    for argv, expected in (
        (["nodes"], ["node0", "0-1,3", "2.5 MB", "cordoned", "by hand"]),
        (["job"], ["train (j1)", "running", "/x/train.py --lr 1", "pp 1, dp 2, tp 2", "7 of 10", "97.0%"]),
        (["status"], ["1 healthy, 1 cordoned", "train (j1)", "worker-killed"]),
        (["incidents"], ["i1", "rank3", "restart", "memory", "[by SIGKILL]"]),
        (
            ["stacks"],
            ["generation 3", "  2    train.py:7 load", "0-1: S in futex", "node1 did not report: away"],
        ),
        (["incidents", "i1"], ["generation 1 -> 2", "step 20 -> 19", "signal 9", "its node is well"]),
    ):
        assert main(argv) == 0, argv
        out = capsys.readouterr().out
        assert all(word in out for word in expected), (argv, out)


def test_json_is_what_the_controller_said(fake: FakeController, capsys: Capture) -> None:
    for argv, expected in (
        (["nodes", "--json"], fake.nodes),
        (["job", "--json"], fake.job),
        (["stacks", "--json"], STACKS),
        (["incidents", "--json"], [INCIDENT]),
        (["incidents", "i1", "--json"], INCIDENT),
    ):
        assert main(argv) == 0
        assert json.loads(capsys.readouterr().out) == expected


def test_nothing_there_yet(fake: FakeController, capsys: Capture) -> None:
    fake.job, fake.nodes, fake.incidents = None, [], []
    for argv in (["jobs"], ["nodes"], ["incidents"], ["status"]):
        assert main(argv) == 0
        capsys.readouterr()
    for argv in (
        ["job"], ["job", "--json"], ["job", "stop"], ["job", "restart"], ["logs"], ["logs", "3"], ["blame"],
        ["blame", "--heat"], ["timeline"], ["stacks"], ["top", "--once"], ["checkpoint", "now"],
    ):  # fmt: skip
        assert main(argv) == 1, argv
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "holdfast: no job yet: holdfast run script.py\n"), argv


def test_do(fake: FakeController, capsys: Capture) -> None:
    for argv, asked in (
        (["inject", "kill@20:rank3"], ("POST", "/jobs/j1/inject", {"fault": "kill@20:rank3"})),
        (["inject", "kill", "rank3"], ("POST", "/jobs/j1/inject", {"fault": "kill:rank3"})),
        (["inject", "kill@20", "rank3"], ("POST", "/jobs/j1/inject", {"fault": "kill@20:rank3"})),
        (["cordon", "node0"], ("POST", "/nodes/node0/cordon", None)),
        (["uncordon", "node0"], ("POST", "/nodes/node0/uncordon", None)),
        (
            ["diagnose", "node0", "--suite", "full", "--test", "gemm"],
            ("GET", "/diagnoses/d1", None),
        ),
        (["evict", "node0"], ("POST", "/nodes/node0/evict", None)),
        (["job", "stop", "--grace", "3"], ("POST", "/jobs/j1/stop", {"grace": 3.0})),
    ):
        assert main(argv) == 0, argv
        assert fake.asked[-1] == asked
    assert "kill@20:rank3: armed" in capsys.readouterr().out


def test_a_failed_job_is_acknowledged(fake: FakeController, capsys: Capture) -> None:
    assert main(["ack"]) == 1
    assert "no job has failed" in capsys.readouterr().err
    fake.job = job_as("failed")
    assert main(["ack"]) == 0
    assert fake.asked[-1] == ("POST", "/jobs/j1/ack", None)
    assert main(["ack", "gone"]) == 2


def test_a_test_message_says_what_was_answered(fake: FakeController, capsys: Capture) -> None:
    assert main(["notify", "test"]) == 2
    assert "set `notify`" in capsys.readouterr().err
    fake.receivers = [{"receiver": "slack", "ok": True, "answer": "HTTP 200 ok"}]
    assert main(["notify", "test", "slack"]) == 0
    assert fake.asked[-1] == ("POST", "/notify/test", {"receiver": "slack"})
    assert capsys.readouterr().out == "slack: sent: HTTP 200 ok\n"
    fake.receivers.append({"receiver": "teams", "ok": False, "answer": "HTTP 404 no such flow"})
    assert main(["notify", "test"]) == 1
    assert "teams: refused: HTTP 404 no such flow\n" in capsys.readouterr().out


def test_no_controller(free_port: int, capsys: Capture, script: str) -> None:
    address = f"127.0.0.1:{free_port}"
    for argv in (["status"], ["nodes", "--json"], ["job", "stop"], ["inject", "kill:rank0"], ["run", "--detach"]):
        last = [script] if argv[0] == "run" else []
        assert main([*argv, "--controller", address, *last]) == 1, argv
        captured = capsys.readouterr()
        more = "; training does not depend on it" if argv == ["status"] else ""
        assert (captured.out, captured.err) == (
            "", f"holdfast: no controller answers at {address}: Connection refused{more}\n"
        )  # fmt: skip


def test_the_token_is_sent(capsys: Capture, tmp_path: Path) -> None:
    controller = FakeController(token="secret")
    try:
        (tmp_path / "token").write_text("secret\n")
        base = ["nodes", "--controller", controller.address]
        assert main(base) == 2
        assert "this request needs the API token" in capsys.readouterr().err
        assert main([*base, "--api-token", "secret"]) == 0
        assert main([*base, "--api-token-file", str(tmp_path / "token")]) == 0
    finally:
        controller.close()


@pytest.mark.parametrize("address", ["192.0.2.1:7080", "head.example", "http://head.example:7080", "127.0.0.1.example"])
@pytest.mark.parametrize(
    "argv", [["status"], ["nodes"], ["job", "stop"], ["run", "--detach"], ["inject", "kill:rank0"]]
)
def test_the_token_is_not_sent_where_others_can_read_it(
    capsys: Capture, tmp_path: Path, script: str, address: str, argv: list[str]
) -> None:
    """Refused before anything is sent: 192.0.2.1 would keep us waiting."""
    last = [script] if argv[0] == "run" else []
    (tmp_path / "token").write_text("secret\n")
    for given in (["--api-token", "secret"], ["--api-token-file", str(tmp_path / "token")]):
        assert main([*argv, "--controller", address, *given, *last]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "the API token is not sent to" in said
        assert "--tls-ca" in said
        assert "secret" not in said


def test_the_token_is_sent_where_that_is_said_or_none_can_read_it() -> None:
    far = ClientConfig(controller="head.example:7080", api_token="secret")
    for config in (
        dataclasses.replace(far, insecure=True),
        dataclasses.replace(far, controller="https://head.example"),
        dataclasses.replace(far, controller="127.0.0.1:7080"),
        dataclasses.replace(far, controller="[::1]:7080"),
        dataclasses.replace(far, controller="localhost"),
        dataclasses.replace(far, api_token=""),
    ):
        with Client(config) as client:
            client._connect()
    with Client(far) as client, pytest.raises(UsageError, match="--tls-ca"):
        client._connect()


def test_watch_goes_on_until_interrupted(fake: FakeController) -> None:
    env = {**os.environ, "HOLDFAST_CONTROLLER": fake.address}
    command = [sys.executable, "-m", "holdfast", "status", "--watch", "--json"]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["job"] == job_as("running")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130


def test_certs_command(tmp_path: Path, capsys: Capture) -> None:
    argv = ["certs", "--dir", str(tmp_path / "c"), "--host", "head", "--node", "a", "--node", "b"]
    assert main(argv) == 0
    assert [str(Path(line).relative_to(tmp_path / "c")) for line in capsys.readouterr().out.split()] == [
        "ca/ca.pem", "ca/ca-key.pem",
        "controller/ca.pem", "controller/controller.pem", "controller/controller-key.pem",
        "nodes/a/ca.pem", "nodes/a/node.pem", "nodes/a/node-key.pem",
        "nodes/b/ca.pem", "nodes/b/node.pem", "nodes/b/node-key.pem",
        "controller/api-token", "operator/api-token", "operator/ca.pem",
        "controller/reader-token", "reader/api-token", "reader/ca.pem",
    ]  # fmt: skip
    assert main(argv) == 2
    assert "--force" in capsys.readouterr().err
    assert main(["certs", "--dir", str(tmp_path / "c"), "--renew"]) == 0
    assert main(["certs", "--dir", str(tmp_path / "c"), "--renew", "--force"]) == 2
    assert main(["certs", "--dir", str(tmp_path / "d"), "--node", "../x"]) == 2


def test_version_and_help(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("holdfast 0.")
    for command in ("demo", "run", "controller", "agent", "status", "nodes", "job", "incidents", "inject", "certs"):
        assert main([command, "--help"]) == 0
        assert "Usage: holdfast" in capsys.readouterr().out


def test_a_restart_by_hand_reaches_the_controller(fake: FakeController, capsys: Capture) -> None:
    assert main(["job", "restart", "--dump"]) == 0
    assert ("POST", "/jobs/j1/restart", {"dump": True}) in fake.asked
    assert "restarting" in capsys.readouterr().out


def test_a_pause_is_shown_with_its_limit(fake: FakeController, capsys: Capture) -> None:
    fake.job["pause"] = {
        "life": "busy", "text": "rank 0 writes 212 MB/s; 2 wait for it", "place": "train.py:8 save", "ranks": [0],
        "waiting": 2, "since": 1.0, "seconds": 18.0, "limit_seconds": 1800.0, "usual_seconds": 16.0,
    }  # fmt: skip
    assert main(["job"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "busy for 18 s: rank 0 writes 212 MB/s; 2 wait for it at train.py:8 save" in said


@pytest.mark.parametrize(
    ("argv", "result"),
    [
        (["cordon", "node0"], {"node": "node0", "done": "cordoned"}),
        (["uncordon", "node0"], {"node": "node0", "done": "uncordoned"}),
        (["evict", "node0"], {"node": "node0", "done": "evicted"}),
        (["job", "stop"], {"id": "j1", "name": "train", "request": "stopping"}),
        (["job", "restart"], {"id": "j1", "name": "train", "request": "restarting"}),
    ],
)
def test_programs_read_what_was_done(
    argv: list[str], result: dict[str, str], fake: FakeController, capsys: Capture
) -> None:
    assert main([*argv, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == result
