"""The plan of a job on its way from rank 0 to the agent: told once, whole, and gone with the worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import types as t
from holdfast.agent import plans, probe, probe_layout
from holdfast.agent.plans import Plans
from tests.agent.processes import ROOT

PUBLISH = "from holdfast.agent import probe; probe.attach(); probe.publish_plan(b'first'); probe.publish_plan(b'plan')"


def test_a_plan_is_told_once_and_goes_with_the_worker(tmp_path: Path) -> None:
    told: list[t.Event] = []
    found = Plans(told.append)
    path, key = tmp_path / "j-g2-rank0", ("j", 2, 0)
    found.look(key, path)
    assert told == []
    subprocess.run(
        [sys.executable, "-c", PUBLISH],
        cwd=ROOT,
        env={**os.environ, probe_layout.ENV_PATH: str(path)},
        check=True,
        timeout=20,
    )
    for _ in range(3):
        found.look(key, path)
    assert told == [t.PlanPublished("j", 2, b"plan")]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["j-g2-rank0", "j-g2-rank0.plan"]
    Plans(told.append).look(key, path)  # the agent's next life tells again
    assert len(told) == 2
    found.end(key, path)
    assert len(told) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["j-g2-rank0"]


def test_a_plan_of_a_life_between_two_looks_is_told_at_its_end(tmp_path: Path) -> None:
    told: list[t.Event] = []
    (tmp_path / "probe.plan").write_bytes(b"plan")
    Plans(told.append).end(("j", 1, 0), tmp_path / "probe")
    assert told == [t.PlanPublished("j", 1, b"plan")]


def test_only_rank_0_has_a_plan_and_only_one_of_a_size_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[t.Event] = []
    (tmp_path / "probe.plan").write_bytes(b"plan")
    found = Plans(told.append)
    found.look(("j", 1, 1), tmp_path / "probe")
    monkeypatch.setattr(plans, "_MAX_BYTES", 3)
    found.look(("j", 1, 0), tmp_path / "probe")
    assert told == []


def test_without_an_agent_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(probe_layout.ENV_PATH, str(tmp_path / "probe"))
    probe.publish_plan(b"plan")
    assert not list(tmp_path.iterdir())
