"""`holdfast run` against a scripted controller: what it submits, prints, and does at Ctrl-C."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base.errors import Conflict, NotFound, Unavailable, exit_code
from holdfast.cli.job import follow
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import FakeController, Json, health_as

ROOT = Path(__file__).parents[4]
Capture = pytest.CaptureFixture[str]


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


def test_a_cut_log_goes_on_without_doubles(
    fake: FakeController, capsys: Capture, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "BURST_S", 60.0)  # the tail comes when the machine lets it, and ends by itself
    for text in ("a", "b", "same"):
        fake.line(0, text)
    fake.log.put("cut")
    for text in ("b", "same", "same", "c"):  # the tail that a new connection begins with
        fake.line(0, text)
    fake.end("finished", exit_code=0)
    assert main(["run", script]) == 0
    assert capsys.readouterr().out.split("\n") == ["[0] a", "[0] b", "[0] same", "[0] same", "[0] c", ""]


def test_the_log_survives_a_restart_of_the_controller(
    capsys: Capture, script: str, until: Callable[..., None], free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    fake = FakeController(free_port)  # which nobody else is given while it is away
    monkeypatch.setenv("HOLDFAST_CONTROLLER", fake.address)
    monkeypatch.setenv("HOLDFAST_CONFIG", "")
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
    again = FakeController(free_port)
    try:
        again.line(0, "after")
        again.end("finished", exit_code=0)
        thread.join(timeout=60)
        assert codes == [0]
        assert printed("after")
    finally:
        again.close()


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
    out, err = process.communicate(timeout=60)
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
    _, err = process.communicate(timeout=60)
    left.set()
    fake.log.put("cut")
    assert process.returncode == 130
    assert "left job j1 to itself" in err


@pytest.mark.parametrize("value", ["soon", "-3s", "0", "nan", "1e300"])
def test_a_limit_that_is_no_time_is_one_line(fake: FakeController, capsys: Capture, script: str, value: str) -> None:
    assert main(["run", f"--idle-limit={value}", script]) == 2
    said = capsys.readouterr().err
    assert said.startswith("holdfast: --idle-limit must be ")
    assert said.count("\n") == 1
