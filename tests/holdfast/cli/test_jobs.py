"""The commands where there are several jobs: the list, which one a command is about, how `run` stays with its own."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.job.job import share_row, spent
from holdfast.cli.main import main
from tests.holdfast.support.fake_controller import INCIDENT, FakeController, job_as, node_as

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def two(fake: FakeController) -> FakeController:
    """`train` (j1) runs and is the newest, `eval` (j2) waits, `old` (j0) failed."""
    waits = {"nodes": [], "step": -1, "reason": "waiting for nodes: train (j1) is first in the queue"}
    fake.others = [
        job_as("pending", id="j2", name="eval", priority=-5, preempt=True, max_steps=None, **waits),
        job_as("failed", id="j0", name="old", nodes=[], ended_at=9.0),
    ]
    fake.incidents = [INCIDENT, INCIDENT | {"id": "i2", "job": "j2", "kind": "worker-hang"}]
    return fake


def words(capsys: Capture) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_the_list_of_jobs(two: FakeController, capsys: Capture) -> None:
    assert main(["jobs"]) == 0
    head, first, second, third = words(capsys)
    assert head == ["QUEUE", "NAME", "ID", "STATE", "PRIORITY", "NODES", "STEP", "SINCE", "WHY"]
    assert first[:7] == ["1", "train", "j1", "running", "0", "1/2", "7/10"]
    assert second[:7] == ["2", "eval", "j2", "pending", "-5+", "0/2", "-"]
    assert " ".join(second[9:]) == "waiting for nodes: train (j1) is first in the queue"
    assert third[:4] == ["-", "old", "j0", "failed"]
    assert main(["jobs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == two.jobs()


def test_no_job_yet(fake: FakeController, capsys: Capture) -> None:
    fake.job = None
    assert main(["jobs"]) == 0
    assert capsys.readouterr().out == "no job yet: holdfast run script.py\n"
    assert main(["stacks", "--job", "x"]) == 1
    assert capsys.readouterr().err == "holdfast: no job is called 'x': there is none yet\n"
    assert main(["job"]) == main(["job", "--json"]) == 1
    assert capsys.readouterr().err == 2 * "holdfast: no job yet: holdfast run script.py\n"


def test_status_shows_one_job_in_full_and_several_as_a_list(two: FakeController, capsys: Capture) -> None:
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "`holdfast job --job NAME` shows one" in out
    assert "eval" in out
    assert "j0" not in out  # it is over
    two.others[0]["state"] = "finished"
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "goodput" in out
    assert "eval" not in out


@pytest.mark.parametrize("name", ["j2", "eval"])
def test_a_command_reaches_the_job_that_is_named(two: FakeController, capsys: Capture, name: str) -> None:
    for argv, asked in (
        (["job", "stop", "--grace", "3"], ("POST", "/jobs/j2/stop", {"grace": 3.0})),
        (["job", "restart"], ("POST", "/jobs/j2/restart", {"dump": False})),
        (["stacks"], ("POST", "/jobs/j2/stacks", None)),
        (["inject", "kill:rank0"], ("POST", "/jobs/j2/inject", {"fault": "kill:rank0"})),
        (["checkpoint", "now", "--wait", "0"], ("POST", "/jobs/j2/checkpoint", None)),
        (["job"], ("GET", f"/jobs/{name}", None)),
        (["incidents"], ("GET", f"/jobs/{name}/incidents", None)),
    ):
        assert main([*argv, "--job", name]) == 0, argv
        assert two.asked[-1] == asked
    out = capsys.readouterr().out
    assert "eval (j2): stopping" in out
    assert "eval (j2): restarting" in out


PATHS = {"blame": "blame", "blame --heat": "blame/heat", "timeline -o x.json": "timeline",
         "timeline --predicted newest": "spans/predicted"}  # fmt: skip


@pytest.mark.parametrize("argv", [line.split() for line in PATHS])
def test_blame_and_timeline_ask_for_the_job_that_is_named(
    two: FakeController, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*argv, "--job", "eval"]) == 2  # the fake has no spans
    assert two.asked[-1][1] == f"/jobs/eval/{PATHS[' '.join(argv)]}"
    assert capsys.readouterr().err.count("\n") == 1


COMMANDS = [["job", "stop"], ["job", "restart"], ["stacks"], ["inject", "kill:rank0"], ["checkpoint", "now"]]


@pytest.mark.parametrize("argv", COMMANDS)
def test_a_command_that_names_none_of_several_jobs_does_nothing(
    two: FakeController, capsys: Capture, argv: list[str]
) -> None:
    assert main(argv) == 2
    said = "holdfast: several jobs are active: train (j1), eval (j2); name one with --job\n"
    assert capsys.readouterr().err == said
    assert all(method == "GET" for method, _, _ in two.asked)
    for name, code, says in (
        ("evla", 2, "no job is called 'evla'; did you mean eval?"),
        ("old", 1, "job old (j0) is failed already"),
    ):
        assert main([*argv, "--job", name]) == code
        assert capsys.readouterr().err == f"holdfast: {says}\n"
    assert all(method == "GET" for method, _, _ in two.asked)


@pytest.mark.parametrize("argv", COMMANDS[:4])
def test_a_command_means_the_only_active_job_though_a_newer_one_is_over(
    two: FakeController, capsys: Capture, argv: list[str]
) -> None:
    two.job = job_as("finished")
    assert main(argv) == 0
    assert two.asked[-1][1].startswith("/jobs/j2/")


def test_an_option_of_the_wrong_command_is_one_line(two: FakeController, capsys: Capture) -> None:
    assert main(["job", "--job", "eval", "stop"]) == 2
    assert capsys.readouterr().err == "holdfast: write --job behind stop: it is that command's option\n"
    assert main(["incidents", "i1", "--job", "eval"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["job", "--job", "gone"]) == 2
    assert "no job is called 'gone'" in capsys.readouterr().err


def test_incidents_name_their_job_where_there_are_several(two: FakeController, capsys: Capture) -> None:
    assert main(["incidents"]) == 0
    assert [row[1] for row in words(capsys)[:3]] == ["JOB", "j1", "j2"]
    assert main(["incidents", "--job", "eval"]) == 0
    rows = words(capsys)
    assert rows[0][1] == "OPENED"
    assert [row[0] for row in rows[1:]] == ["i2"]
    assert main(["incidents", "i2"]) == 0
    assert "worker-hang on rank3 of job j2" in capsys.readouterr().out


def test_nodes_name_the_job_that_holds_them(two: FakeController, capsys: Capture) -> None:
    two.nodes = [node_as("node0", job="j2"), node_as("node1", job=None, ranks=[])]
    assert main(["nodes"]) == 0
    rows = words(capsys)
    assert rows[0][4:6] == ["JOB", "RANKS"]
    assert [row[4] for row in rows[1:]] == ["j2", "-"]


def test_checkpoint_now_waits_for_a_commit_of_its_own_job(two: FakeController, capsys: Capture) -> None:
    two.nodes = [
        node_as("node0", job="j1", host={"checkpoint_step": 900.0}),
        node_as("node1", job="j2", host={"checkpoint_step": 5.0}),
    ]
    answer = two.answer

    def commits(method: str, path: str, body: object) -> tuple[int, object]:
        if method == "POST" and path == "/jobs/j2/checkpoint":
            two.nodes[0]["host"]["checkpoint_step"] = 901.0  # another job's
            two.nodes[1]["host"]["checkpoint_step"] = 6.0
        return answer(method, path, None)

    two.answer = commits  # type: ignore[method-assign, assignment]
    assert main(["checkpoint", "now", "--job", "eval", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 6


# --- run -----------------------------------------------------------------------------------------------------


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


def test_run_gives_its_place_in_the_queue(fake: FakeController, capsys: Capture, script: str) -> None:
    assert main(["run", "--priority", "-7", "--preempt", "--detach", script]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    assert (spec["priority"], spec["preempt"]) == (-7, True)
    assert main(["run", "--priority", "1001", "--detach", script]) == 2
    assert "--priority" in capsys.readouterr().err


TRAINER = ["-m", "holdfast.trainer", "--set", "train.micro_batches=4"]
PARTIAL = [*TRAINER, "--set", "parallel.partial_backward=4", "--set", "parallel.zero=0", "--set", "model.tied=false",
           "--set", "model.layers=4"]  # fmt: skip


def test_run_may_share_its_nodes(fake: FakeController) -> None:
    assert main(["run", "--share", "20GB", "--nproc-per-node", "4", "--detach", *PARTIAL]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    assert spec["share_bytes"] == 20_000_000_000


@pytest.mark.parametrize(
    ("size", "program", "said"),
    [
        ("much", PARTIAL, "--share is 'much': write the most memory that a worker uses, such as 20GB"),
        ("0", PARTIAL, "--share is '0': write the most memory"),
        ("9e9TB", PARTIAL, "--share is '9e9TB': write the most memory"),
        ("20GB", TRAINER, "--share is for jobs with partial backward"),
        ("20GB", ["-m", "other.train"], "--share is for jobs with partial backward"),
    ],
)
def test_what_cannot_share_is_refused_in_one_line(
    fake: FakeController, capsys: Capture, size: str, program: list[str], said: str
) -> None:
    assert main(["run", "--share", size, "--detach", *program]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not [asked for asked in fake.asked if asked[1] == "/jobs" and asked[0] == "POST"]


def test_the_lists_say_which_jobs_share_nodes(two: FakeController, capsys: Capture) -> None:
    assert main(["jobs"]) == 0
    assert "BESIDE" not in capsys.readouterr().out
    two.others[0]["shares_with"], two.others[1]["shares_with"] = ["j0", "j9"], ["j2"]
    assert main(["jobs"]) == 0
    head, *rows = words(capsys)
    beside = {row[head.index("NAME")]: row[head.index("BESIDE") :] for row in rows}
    assert beside["eval"][:2] == ["old,", "j9"]
    assert beside["old"][0] == "eval"
    assert beside["train"][0] == "-"


def test_a_job_says_with_whom_it_shares() -> None:
    assert share_row({"share_bytes": 0}) == {}
    assert share_row({"share_bytes": 2e9, "shares_with": []}) == {"shares": "2.0 GB a worker, alone on its nodes"}
    assert share_row({"share_bytes": 2e9, "shares_with": ["j2", "j3"]}) == {"shares": "2.0 GB a worker, beside j2, j3"}


def test_run_gives_the_modules_to_preload(fake: FakeController, script: str) -> None:
    assert main(["run", "--preload", "lightning,torch.nn,lightning", "--detach", script]) == 0
    spec = next(asked[2] for asked in fake.asked if asked[1] == "/jobs")
    assert spec is not None
    assert spec["program"]["preload"] == ["lightning", "torch.nn"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--preempt"], "--preempt"),
        (["--priority=3"], "--priority"),
        (["--share=2GB", *PARTIAL], "--share"),
        (["--priority=3", "--preempt"], "--priority and --preempt"),
    ],
)
def test_a_place_in_the_queue_needs_a_controller(
    capsys: Capture, script: str, monkeypatch: pytest.MonkeyPatch, given: list[str], named: str
) -> None:
    monkeypatch.delenv("HOLDFAST_CONTROLLER", raising=False)
    monkeypatch.setattr("holdfast.cli.job.run._answers", lambda client, must: False)
    assert main(["run", *given, *([] if "-m" in given else [script])]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"holdfast: {named}: no controller answers at 127.0.0.1:7080")
    assert said.count("\n") == 1


def test_run_stays_with_its_own_job_when_another_is_submitted(
    fake: FakeController, capsys: Capture, script: str, until: Callable[..., None]
) -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["run", script])))
    thread.start()
    fake.line(0, "hello")
    until(lambda: any(asked[1] == "/jobs/j1" for asked in fake.asked))  # the log is silent: it looks at its job
    fake.others = [job_as("failed", exit_code=3, reason="rank1: the same traceback 3 times")]
    fake.job = job_as("running", id="j2", name="eval")
    fake.log.put("end")
    thread.join(timeout=60)
    assert codes == [3]
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["holdfast: the reason: rank1: the same traceback 3 times",
                          "holdfast: job train failed: The job is failed."]  # fmt: skip
    assert ("GET", "/job", None) not in fake.asked


def test_run_says_once_why_its_job_waits(
    fake: FakeController, capsys: Capture, script: str, until: Callable[..., None]
) -> None:
    fake.job = job_as("pending", reason="waiting for nodes: old (j0) is first in the queue")
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["run", script])))
    thread.start()
    until(lambda: sum(asked[1] == "/jobs/j1" for asked in fake.asked) > 2)
    fake.end("finished", exit_code=0)
    thread.join(timeout=60)
    assert codes == [0]
    err = capsys.readouterr().err
    assert err.startswith(
        "holdfast: job j1 is waiting for nodes: old (j0) is first in the queue\nholdfast: 8 of 10 steps"
    )
    assert err.count("waiting for nodes") == 1


def test_a_job_that_the_controller_lost_is_one_line(fake: FakeController, capsys: Capture, script: str) -> None:
    fake.log.put("cut")
    answer = fake.answer
    fake.answer = lambda method, path, body: (  # type: ignore[method-assign]
        (404, {"error": "no job is called 'j1'; GET /api/v1/jobs lists them"})
        if path.startswith("/jobs/j1")
        else answer(method, path, body)
    )
    fake.log.put("end")
    assert main(["run", script]) == 1
    assert capsys.readouterr().err == f"holdfast: job j1 is gone: the controller at {fake.address} does not know it\n"


def test_time_in_the_queue_is_shown_beside_the_losses() -> None:
    found = spent({"wall": 20.0, "productive": 9.0, "unsaved": 0.5, "queued": 8.0, "lost": {"restore": 2.5}})
    assert found == "20 s: productive 9.00 s, unsaved 0.50 s, queued 8.00 s, restore 2.50 s"
