"""The commands against a scripted controller: what they ask, print and exit with."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import Conflict, NotFound, Unavailable, UsageError, exit_code
from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import INCIDENT, STACKS, FakeController, Json, health_as, job_as

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


# --- run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def test_run_takes_torchruns_options(
    fake: FakeController, capsys: Capture, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("HF_HOME", "/data/hf")
    fake.end("finished", exit_code=0)
    argv = ["run", "--nnodes=1:2", "--nproc_per_node=4", "--max-restarts", "2", "--rdzv-backend", "c10d"]
    argv += ["--rdzv_endpoint=h:1", "--node-rank=0", "--standalone", "--env", "A=b=c", "--no-env", "--env", "HF_HOME"]
    argv += ["--fault", "kill@3:rank3"]
    argv += ["--idle-limit", "10m", "--pause-limit=2h", "--hang-steps", "4", "--stuck-limit", "30s"]
    argv += ["--no-hooks", "--fresh", script, "--nnodes", "9", "-m", "x"]
    assert main(argv) == 0
    method, path, spec = next(asked for asked in fake.asked if asked[1] == "/jobs")
    assert (method, path) == ("POST", "/jobs")
    assert spec == {
        "name": "train",
        "program": {
            "target": script,
            "args": ["--nnodes", "9", "-m", "x"],
            "module": False,
            "cwd": os.getcwd(),
            "env": {"OMP_NUM_THREADS": "1", "A": "b=c", "HF_HOME": "/data/hf"},
            "hooks": False,
            "warm": False,
            "executable": False,
            "virtual_local_rank": False,
            "log_dir": "",
            "redirects": "0",
            "stdin": "",
            "preload": [],
        },
        "nnodes": 2,
        "node_counts": [1],
        "nproc_per_node": 4,
        "max_restarts": 2,
        "faults": ["kill@3:rank3"],
        "limits": {"idle_limit": 600.0, "pause_limit": 7200.0, "hang_steps": 4.0, "stuck_limit": 30.0},
        "priority": 0,
        "preempt": False,
    }
    assert "--rdzv-backend, --rdzv-endpoint: not needed here" in capsys.readouterr().err


def test_run_gives_the_shells_environment(fake: FakeController, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", "/data/hf")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    fake.end("finished", exit_code=0)
    assert main(["run", script]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    env = spec["program"]["env"]
    assert (env["HF_HOME"], env["PATH"]) == ("/data/hf", os.environ["PATH"])
    assert not {"CUDA_VISIBLE_DEVICES", "PWD"} & set(env)


def test_run_module_auto(fake: FakeController, capsys: Capture) -> None:
    fake.end("finished", exit_code=0)
    assert main(["run", "--nproc-per-node", "auto", "-m", "my.train", "--lr", "1"]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    assert (spec["program"]["target"], spec["program"]["module"]) == ("my.train", True)
    assert spec["nproc_per_node"] == 4


def test_run_prints_the_log_and_gives_the_jobs_code(fake: FakeController, capsys: Capture, script: str) -> None:
    fake.line(0, "hello\n")
    fake.line(1, "oops\n\nagain", "err")
    health = health_as(
        "failed", "Failed: rank 1: ValueError: no. No step is lost.", needs_person=True, action="Start it again."
    )
    fake.end("failed", exit_code=3, health=health)
    assert main(["run", script]) == 3
    captured = capsys.readouterr()
    assert captured.out == "[0] hello\n"
    lines = captured.err.splitlines()
    assert lines[:3] == ["[1] oops", "[1] ", "[1] again"]
    assert lines[3:6] == [
        "holdfast: 8 of 10 steps, 0 restarts, 1 generation, loss 2.5000",
        "holdfast: goodput 97.0% of 12 s: productive 9.00 s, unsaved 0.50 s, queued 2.00 s, restore 0.50 s",
        "holdfast: incident i1: worker-killed on rank3, seen after 0.02 s, training again after 1.50 s, restart, "
        "state from memory",
    ]
    assert lines[-2:] == [
        "holdfast: job train failed: rank 1: ValueError: no. No step is lost.",
        "holdfast: next: Start it again.",
    ]


def test_run_detached(fake: FakeController, capsys: Capture, script: str) -> None:
    assert main(["run", "--detach", script]) == 0
    assert capsys.readouterr().out == "j1\n"


def test_run_is_refused(fake: FakeController, capsys: Capture, script: str) -> None:
    fake.submit_error = (409, "job 'x' is running; stop it first")
    assert main(["run", script]) == 1
    assert capsys.readouterr().err == "holdfast: job 'x' is running; stop it first\n"


def test_a_conflict_is_no_bad_input() -> None:
    assert exit_code(Conflict("no job is running")) == 1
    assert exit_code(NotFound("no job is called 'x'")) == 2
    assert exit_code(Unavailable("no controller answers")) == 1


def test_a_cut_log_goes_on_without_doubles(fake: FakeController, capsys: Capture, script: str) -> None:
    for text in ("a", "b", "same"):
        fake.line(0, text)
    fake.log.put("cut")
    for text in ("b", "same", "same", "c"):  # the tail that a new connection begins with
        fake.line(0, text)
    fake.end("finished", exit_code=0)
    assert main(["run", script]) == 0
    assert capsys.readouterr().out.split("\n") == ["[0] a", "[0] b", "[0] same", "[0] same", "[0] c", ""]


def test_the_log_survives_a_restart_of_the_controller(
    fake: FakeController, capsys: Capture, script: str, until: Callable[..., None]
) -> None:
    codes: list[int] = []
    fake.line(0, "before")
    thread = threading.Thread(target=lambda: codes.append(main(["run", script])))
    thread.start()
    out = ""

    def printed(text: str) -> bool:
        nonlocal out
        out += capsys.readouterr().out
        return text in out

    until(lambda: printed("before"))
    fake.log.put("cut")
    fake.close()
    time.sleep(0.3)
    again = FakeController(port=fake.port)
    try:
        again.line(0, "after")
        again.end("finished", exit_code=0)
        thread.join(timeout=15)
        assert codes == [0]
        assert printed("after")
    finally:
        again.close()
        fake.close = lambda: None  # type: ignore[method-assign]  # the fixture closes it once more


def run_in_terminal(fake: FakeController, script: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "HOLDFAST_CONTROLLER": fake.address}
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast", "run", script],
        env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_ctrl_c_stops_the_job(fake: FakeController, script: str, until: Callable[..., None]) -> None:
    process = run_in_terminal(fake, script)
    fake.line(0, "going")
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] going\n"
    process.send_signal(signal.SIGINT)
    until(lambda: ("POST", "/jobs/j1/stop", {"grace": 10.0}) in fake.asked)
    fake.line(0, "ending well")
    fake.end("stopped")
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert out == "[0] ending well\n"
    assert "stopping the job" in err


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_second_ctrl_c_leaves_it(
    fake: FakeController, script: str, until: Callable[..., None], is_slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the controller has not yet answered to the first."""
    left, answer = threading.Event(), fake.answer

    def slowly(method: str, path: str, body: Json | None) -> tuple[int, object]:
        if is_slow and path == "/jobs/j1/stop":
            left.wait(20)
        return answer(method, path, body)

    monkeypatch.setattr(fake, "answer", slowly)
    process = run_in_terminal(fake, script)
    fake.line(0, "going")
    assert process.stdout is not None
    assert process.stdout.readline() == "[0] going\n"
    process.send_signal(signal.SIGINT)
    until(lambda: any(asked[1] == "/jobs/j1/stop" for asked in fake.asked))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    left.set()
    fake.log.put("cut")
    assert process.returncode == 130
    assert "left job j1 to itself" in err


def test_watch_goes_on_until_interrupted(fake: FakeController) -> None:
    env = {**os.environ, "HOLDFAST_CONTROLLER": fake.address}
    command = [sys.executable, "-m", "holdfast", "status", "--watch", "--json"]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["job"] == job_as("running")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
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


@pytest.mark.parametrize("value", ["soon", "-3s", "0", "nan", "1e300"])
def test_a_limit_that_is_no_time_is_one_line(fake: FakeController, capsys: Capture, script: str, value: str) -> None:
    assert main(["run", f"--idle-limit={value}", script]) == 2
    said = capsys.readouterr().err
    assert said.startswith("holdfast: --idle-limit must be ")
    assert said.count("\n") == 1


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
