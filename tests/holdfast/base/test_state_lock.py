"""A state folder has one holder, and loses it with the holder's death."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.base.state_lock import StateLock

ROOT = Path(__file__).parents[3]
HOLDER = """
import subprocess, sys
from pathlib import Path
from holdfast.base.state_lock import StateLock
lock = StateLock(Path(sys.argv[1]), "agent", sys.argv[2])
child = subprocess.Popen(["sleep", "30"], close_fds=False)  # what it starts holds nothing
print(child.pid, flush=True)
input()
"""


def test_the_second_is_refused_in_one_line_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "i1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as first:
        assert first.stdout is not None
        child = int(first.stdout.readline())
        try:
            with pytest.raises(UsageError, match=f"the agent with pid {first.pid} uses it; end that one") as caught:
                StateLock(tmp_path, "agent", "i2", patience_s=0.1)
            assert "\n" not in str(caught.value)
            StateLock(tmp_path, "controller", "i2", patience_s=0.1).close()  # each daemon has a lock of its own
            first.kill()
            first.wait(10)
            lock = StateLock(tmp_path, "agent", "i3")
            assert lock.runs == ["i1"]
            lock.close()
            lock.close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_attempts_are_remembered_within_bounds(tmp_path: Path) -> None:
    for n in range(20):
        lock = StateLock(tmp_path, "agent", f"i{n}")
        assert lock.runs == [f"i{k}" for k in range(max(0, n - 8), n)]
        lock.close()


@pytest.mark.parametrize("is_live", [True, False])
def test_a_copy_of_a_folder_has_no_earlier_runs(is_live: bool, tmp_path: Path) -> None:
    """The lock of the copy is another one: no lock vouches that the runs which it names have ended."""
    original = StateLock(tmp_path, "agent", "i1")
    if not is_live:
        original.close()
    shutil.copytree(tmp_path, tmp_path / "copy")
    for run, runs in (("i2", []), ("i3", ["i2"])):
        lock = StateLock(tmp_path / "copy", "agent", run)
        assert (lock.runs, lock.is_copy) == (runs, not runs)
        lock.close()
    original.close()
    os.rename(tmp_path / "copy", tmp_path / "moved")
    lock = StateLock(tmp_path / "moved", "agent", "i4")
    assert (lock.runs, lock.is_copy) == (["i2", "i3"], False)
    lock.close()


def test_without_locks_no_run_is_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    StateLock(tmp_path, "agent", "i1").close()
    monkeypatch.setattr(fcntl, "flock", none)
    lock = StateLock(tmp_path, "agent", "i2")
    assert lock.runs == []
    lock.close()


def test_the_file_of_an_earlier_release_is_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.lock"
    path.touch()
    found = path.stat()
    path.write_text(json.dumps({"pid": 1, "lives": ["i1"], "file": [found.st_dev, found.st_ino]}))
    lock = StateLock(tmp_path, "agent", "i2")
    assert lock.runs == ["i1"]
    lock.close()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b'{"pid": "x", "runs": []}', b"[" * 5000])
def test_a_damaged_file_is_a_new_one(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "agent.lock").write_bytes(content)
    lock = StateLock(tmp_path, "agent", "i1")
    assert lock.runs == []
    lock.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give another --state-dir"):
        StateLock(tmp_path / "gone", "agent", "i1")
