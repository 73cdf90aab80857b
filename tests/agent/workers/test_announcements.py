"""The plan of a job on its way from rank 0 to the agent: reported once, whole, and gone with the worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent import probe
from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.probe_file import side_files
from holdfast.agent.workers import announcements
from holdfast.agent.workers.announcements import Announcements
from holdfast.wire import types as t
from tests.agent.support.processes import ROOT

PUBLISH = "from holdfast.agent import probe; probe.attach(); probe.publish_plan(b'first'); probe.publish_plan(b'plan')"


def test_a_plan_is_reported_once_and_goes_with_the_worker(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    found = Announcements(reported.append)
    path, key = tmp_path / "j-g2-rank0", ("j", 2, 0)
    found.look(key, path)
    assert reported == []
    subprocess.run(
        [sys.executable, "-c", PUBLISH],
        cwd=ROOT,
        env={**os.environ, probe_layout.ENV_PATH: str(path)},
        check=True,
        timeout=60,
    )
    for _ in range(3):
        found.look(key, path)
    assert reported == [t.PlanPublished("j", 2, b"plan")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j-g2-rank0", "j-g2-rank0.plan"]
    Announcements(reported.append).look(key, path)  # the agent reports again after a restart
    assert len(reported) == 2
    found.end(key, path)
    assert len(reported) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["j-g2-rank0"]


def test_a_plan_of_a_run_between_two_looks_is_reported_at_its_end(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    (tmp_path / "probe.plan").write_bytes(b"plan")
    Announcements(reported.append).end(("j", 1, 0), tmp_path / "probe")
    assert reported == [t.PlanPublished("j", 1, b"plan")]


def test_only_rank_0_has_a_plan_and_only_one_of_a_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[t.Event] = []
    (tmp_path / "probe.plan").write_bytes(b"plan")
    found = Announcements(reported.append)
    found.look(("j", 1, 1), tmp_path / "probe")
    monkeypatch.setitem(announcements._MAX_BYTES, ".plan", 3)
    found.look(("j", 1, 0), tmp_path / "probe")
    assert reported == []


def test_without_an_agent_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe_layout.ENV_PATH, str(tmp_path / "probe"))
    probe.publish_plan(b"plan")
    assert not list(tmp_path.iterdir())


def test_where_the_state_came_from_is_reported_once(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    found = Announcements(reported.append)
    path, key = tmp_path / "j-g2-rank0", ("j", 2, 0)
    code = "from holdfast.agent import probe; probe.attach(); probe.restored(12, 'peer', 0.5, 4096, 8192)"
    environ = {**os.environ, probe_layout.ENV_PATH: str(path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environ, check=True, timeout=60)
    for _ in range(2):
        found.look(key, path)
    assert reported == [t.StateRestored("j", 2, 12, "peer", 0.5, 4096, 8192)]
    found.end(key, path)
    assert [file.name for file in tmp_path.iterdir()] == ["j-g2-rank0"]


def test_the_time_of_imports_is_rank_0s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[t.Event] = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv(probe_layout.ENV_PATH, str(tmp_path / f"j-g2-rank{rank}"))
        side_files.leave_imports(2.5, ["torch", "lightning"])
    assert [file.name for file in tmp_path.iterdir()] == ["j-g2-rank0.imports"]
    Announcements(reported.append).look(("j", 2, 0), tmp_path / "j-g2-rank0")
    assert reported == [t.ImportsTimed("j", 2, 2.5, "torch,lightning")]


def test_a_probe_of_before_says_nothing_of_what_was_sent(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    (tmp_path / "j-g2-rank0.restored").write_text('{"step": 1, "source": "store", "seconds": 2.0, "bytes": 3}')
    Announcements(reported.append).look(("j", 2, 0), tmp_path / "j-g2-rank0")
    assert reported == [t.StateRestored("j", 2, 1, "store", 2.0, 3, 0)]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', '{"step": "x", "source": 1, "seconds": 0, "bytes": 0}'])
def test_what_cannot_be_read_is_not_reported(tmp_path: Path, text: str) -> None:
    reported: list[t.Event] = []
    (tmp_path / "j-g2-rank0.restored").write_text(text)
    Announcements(reported.append).look(("j", 2, 0), tmp_path / "j-g2-rank0")
    assert reported == []


def test_what_is_no_file_is_not_waited_for_and_looked_at_once(tmp_path: Path) -> None:
    reported: list[t.Event] = []
    os.mkfifo(tmp_path / "probe.plan")
    os.mkfifo(tmp_path / "probe.imports")
    (tmp_path / "probe.restored").symlink_to("/proc/self/mem")
    found, key = Announcements(reported.append), ("j", 1, 0)
    found.look(key, tmp_path / "probe")
    assert not found.expects(key)
    assert reported == []
