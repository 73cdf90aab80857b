"""Values of jobs' environments: in a file of mode 0600, in the commands to agents, and nowhere else."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.controller.journal.recording import Recorder, Start
from holdfast.controller.shell.environments import FOLDER, Environments
from holdfast.controller.shell.report import Report
from holdfast.controller.state.events import ResultSeen, StopRequested
from holdfast.controller.state.model import Instant, JobStatus, Options
from holdfast.wire import messages as msg
from tests.controller.support.stage import Sent, make_shell
from tests.controller.support.virtual import Virtual

SECRET = "sesame-7d1f"
START = msg.Command(
    "c1", "j1", 1, msg.StartWorkers(msg.Program("t.py", env={"X": "ours"}), (msg.Rank(0, 0, 0),), 1, 1, "h", 1, 0)
)


def test_values_are_put_into_starts_and_outlive_the_controller(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    Environments(folder).keep("j1", {"KEY": SECRET, "X": "theirs"})
    path = folder / "j1.json"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(folder.stat().st_mode)) == (0o600, 0o700)
    order = Environments(folder).filled(START).order
    assert isinstance(order, msg.StartWorkers)
    assert order.program.env == {"KEY": SECRET, "X": "ours"}
    stop = msg.Command("c2", "j1", 1, msg.StopWorkers())
    assert Environments(folder).filled(stop) is stop


def test_files_go_with_their_jobs(tmp_path: Path) -> None:
    one = Environments(tmp_path)
    for job in ("j1", "j2", "j3"):
        one.keep(job, {"KEY": SECRET})
    (tmp_path / "j9.part").write_text("{")
    one.forget("j1")
    one.keep_only(["j2"])
    assert [path.name for path in tmp_path.iterdir()] == ["j2.json"]
    assert one.filled(START) is START


def test_a_job_is_refused_when_its_values_cannot_be_kept(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    with pytest.raises(Unavailable) as caught:
        Environments(tmp_path / FOLDER).keep("j1", {"KEY": SECRET})
    assert SECRET not in str(caught.value)


def test_a_damaged_file_is_reported_without_its_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "j1.json").write_text('{"KEY": "' + SECRET)
    assert Environments(tmp_path).filled(START) is START
    assert "environment.unreadable" in caplog.text
    assert SECRET not in caplog.text


def test_a_submitted_jobs_values_reach_its_agents_and_no_record(tmp_path: Path) -> None:
    v = Virtual(nodes=1)
    [node] = v.agents
    recorder = Recorder(tmp_path / "recording.jsonl", Start("b1", Options(), [], {}, Instant(0.0, 0.0)))
    shell = make_shell(tmp_path, v.brain, recorder=recorder)
    stream = Sent(node)
    shell.sessions.open(stream)
    spec = {"program": {"target": "/x/train.py", "env": {"KEY": SECRET}}, "nproc_per_node": 1}
    job = asyncio.run(Report(shell, -1).submit(spec))
    path = tmp_path / FOLDER / f"{job}.json"
    assert json.loads(path.read_text()) == {"KEY": SECRET}
    store = commands(stream)[-1]
    address = {"host": "127.0.0.1", "port": "29500"}
    shell.handle(ResultSeen(node, msg.CommandResult(store.id, True, data=address)))
    start = commands(stream)[-1].order
    assert isinstance(start, msg.StartWorkers)
    assert start.program.env["KEY"] == SECRET
    shell.flush_steps()
    files = [tmp_path / "recording.jsonl", *tmp_path.glob("controller.sqlite*")]
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    shell.handle(StopRequested(0.0, job))
    for command in commands(stream):
        shell.handle(ResultSeen(node, msg.CommandResult(command.id, True)))
    assert shell.brain.c.jobs[job].state is JobStatus.STOPPED
    assert not path.exists()
    recorder.close()
    shell.journal.close()


def commands(stream: Sent) -> list[msg.Command]:
    return [one for one in stream.messages if isinstance(one, msg.Command)]
