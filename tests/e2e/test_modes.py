"""What real daemons leave on disk and in shared memory, under a permissive umask. With a whole job: test_demo.py."""

import os
import signal
import stat
from pathlib import Path

import pytest

from holdfast.agent.workers.workers import shared_dir
from tests.e2e.daemons import Commands, one_line, plain_get, ready, wait_for

pytestmark = pytest.mark.slow


def loose(folder: Path) -> dict[str, str]:
    """What others may read, write or list; by path."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue  # it was there for a moment only
        if not path.is_symlink() and not path.is_socket() and mode & 0o077:
            found[str(path.relative_to(folder.parent))] = oct(mode)
    return found


def test_a_cluster_for_one_job_is_closed(holdfast: Commands, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run = holdfast.start("run", str(tmp_path / "train.py"), env={"TMPDIR": str(temporary)}, umask=0)
    run.says("here", 60)
    [state] = list(temporary.glob("holdfast-run-*"))
    assert loose(state) == {}
    run.signal(signal.SIGINT)
    assert run.wait(60) == 130


def test_a_controller_closes_what_an_earlier_version_left_open(holdfast: Commands, tmp_path: Path) -> None:
    state, record = tmp_path / "state", tmp_path / "events"
    for _ in range(2):
        controller = holdfast.start(
            "controller", "--grpc-port", "0", "--http-port", "0", "--state-dir", str(state), "--record", str(record),
            umask=0,
        )  # fmt: skip
        http = ready(controller)[1]
        assert plain_get(f"http://{http}/api/v1/status").status_code == 200
        wait_for(lambda: record.stat().st_size)
        assert loose(state) == {}
        assert loose(record) == {}
        controller.process.terminate()
        assert controller.wait(60) == 0
        for path in (state, record, *state.rglob("*")):
            path.chmod(0o777)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("daemon", ["controller", "agent"])
def test_a_folder_of_somebody_else_is_one_line(holdfast: Commands, tmp_path: Path, daemon: str) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 65534, 65534)
    refused = holdfast.run(daemon, "--state-dir", str(tmp_path / "theirs"))
    assert refused.process.returncode == 2
    assert "it belongs to" in one_line(refused.err)


def test_a_link_in_shared_memory_is_one_line(holdfast: Commands, tmp_path: Path) -> None:
    """The name of the folder can be known beforehand: another user may have made something there."""
    trap = shared_dir(tmp_path / "state")
    trap.symlink_to(tmp_path)
    try:
        refused = holdfast.run("agent", "--state-dir", str(tmp_path / "state"), "--no-warm")
        assert refused.process.returncode == 2
        assert f"{trap} is no folder that we may use" in one_line(refused.err)
    finally:
        trap.unlink()
