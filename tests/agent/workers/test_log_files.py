"""Files of the user's choice for workers' output."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.agent.workers import log_files
from holdfast.base.errors import UsageError
from holdfast.wire import messages as msg

PLACE = msg.Rank(5, 1, 2)


def pair(log_dir: str, redirects: str, generation: int = 3) -> log_files.Pair:
    order = msg.StartWorkers(msg.Program("t.py", log_dir=log_dir, redirects=redirects), (PLACE,), 8, 4, "h", 1, 0)
    return log_files.chosen(msg.Command("c1", "j1", generation, order), order, PLACE)


@pytest.mark.parametrize(
    ("redirects", "names"),
    [
        ("3", ("stdout.log", "stderr.log")),
        ("1", ("stdout.log", "")),
        ("0:3", ("", "")),
        ("0:3,1:2", ("", "stderr.log")),
    ],
)
def test_a_folder_for_each_node_attempt_and_local_rank(redirects: str, names: tuple[str, str]) -> None:
    assert pair("/logs", redirects) == tuple(f"/logs/j1_2/attempt_2/1/{name}" if name else "" for name in names)


def test_without_a_folder_the_agents_own_files_do() -> None:
    assert pair("", "3") == ("", "")


def test_they_have_the_mode_of_the_umask_and_what_was_there_stays(tmp_path: Path) -> None:
    files = pair(str(tmp_path / "new"), "3")
    before = os.umask(0o027)
    try:
        log_files.make(files)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(files[0]).st_mode) == 0o640
    Path(files[1]).write_text("kept")
    log_files.make(files)
    assert Path(files[1]).read_text() == "kept"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        UsageError, match=r"--log-dir: cannot write .*/file/j1_2/attempt_2/1/stdout\.log: Not a directory"
    ):
        log_files.make(pair(str(tmp_path / "file"), "1"))


def test_a_running_workers_files_are_found_again(tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL)
        try:
            assert log_files.of_process(worker.pid) == (str(tmp_path / "out"), "")
        finally:
            worker.communicate()
    assert log_files.of_process(worker.pid) == ("", "")


def test_they_are_followed_and_never_rotated(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.log"
    logs = WorkerLogs(tmp_path / "logs", max_bytes=100)
    out, err = logs.paths("j", 1, 0, users=(str(theirs), ""))
    assert (out, err) == (theirs, tmp_path / "logs" / "j" / "g1" / "rank0.err")
    text = "".join(f"line {n}\n" for n in range(100))
    for part in (text[:400], text[400:]):
        with open(theirs, "a") as file:
            file.write(part)
        assert "".join(chunk.text for chunk in logs.poll()) != ""
    assert logs.tail("j", 1, 0, "out", 18) == "line 98\nline 99\n"
    assert logs.drain("j", 1, 0) == []
    assert theirs.read_text() == text
    assert os.listdir(tmp_path / "logs" / "j" / "g1") == []
    assert logs.tail("j", 1, 0, "out", 18) == "line 98\nline 99\n"
    logs.close()
