"""The last hour of a job as columns, and the moments of its days."""

import sqlite3
import time
from pathlib import Path

import pytest

from holdfast.base.errors import Conflict
from holdfast.controller.journal import moments
from holdfast.controller.shell.days import Days
from holdfast.controller.shell.report import Report
from holdfast.controller.state.events import StopRequested
from tests.controller.support.fake_facade import FakeFacade
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual


def made(folder: Path, nodes: int = 3) -> tuple[Virtual, Days, Report]:
    v = Virtual(nodes=nodes)
    v.submit(nnodes=2, max_steps=100_000, id="j1")
    v.run(8.0)
    shell = make_shell(folder, v.brain)
    days = Days(shell)
    return v, days, Report(shell, 3, days=days)


def test_a_sample_has_what_no_step_carries_and_an_hour_is_kept(tmp_path: Path) -> None:
    v, days, _ = made(tmp_path)
    assert days.hour("j1", 0.0) == {"job": "j1", "at": [], "mfu": [], "goodput": [], "at_risk": [], "spares": []}
    for i in range(900):
        days.sample(v.instant.wall + 5.0 * i)
    found = days.hour("j1", 0.0)
    assert len(found["at"]) == 240
    assert found["at"][-1] - found["at"][0] == pytest.approx(239 * 15)
    assert set(found["spares"]) == {1}
    assert 0.0 < found["goodput"][-1] <= 1.0
    assert days.hour("j1", found["at"][-2])["at"] == found["at"][-1:]


def test_a_job_that_is_over_is_sampled_once_more_and_one_that_is_forgotten_goes(tmp_path: Path) -> None:
    v, days, _ = made(tmp_path)
    wall = v.instant.wall
    days.sample(wall)
    v.feed(StopRequested(1.0, "j1"))
    v.run(30.0)
    for i in range(1, 5):
        days.sample(wall + 100.0 * i)
    assert len(days.hour("j1", 0.0)["at"]) == 1
    kept = moments.between(tmp_path / "controller.sqlite", "j1", 0.0, wall + 1e6)
    assert [one.doc["state"] for one in kept] == ["running", "stopped"]
    v.brain.jobs.brains.clear()
    days.sample(wall + 1000.0)
    assert days.hour("j1", 0.0)["at"] == []


def test_a_moment_is_kept_each_minute_and_whenever_the_condition_changes(tmp_path: Path) -> None:
    v, days, report = made(tmp_path)
    wall = v.instant.wall
    facade = FakeFacade()
    facade.warm_up(20)
    days.view = lambda _: facade.document()
    for i in range(13):
        days.sample(wall + 5.0 * i)
    facade.fault(3)
    days.sample(wall + 70.0)
    day = report.day(wall + 75.0, "j1")()
    assert day["at"] == pytest.approx([wall, wall + 60.0, wall + 70.0])
    assert day["end"] == pytest.approx([wall + 60.0, wall + 70.0, wall + 75.0])
    assert day["condition"] == ["well", "well", "recovering"]
    then = report.then(wall + 30.0, "j1")()
    assert (then["kept_at"], then["at"]) == pytest.approx((wall, wall + 30.0))
    assert then["health"]["condition"] == "well"
    assert "rank 3" in report.then(wall + 71.0, "j1")()["health"]["sentence"]
    with pytest.raises(Conflict, match="nothing is kept of job j1 at that time"):
        report.then(wall - 1.0, "j1")()


def test_the_past_is_there_after_a_new_start(tmp_path: Path) -> None:
    v, days, _ = made(tmp_path)
    wall = v.instant.wall
    for i in range(60):
        days.sample(wall + 60.0 * i)
    before = days.hour("j1", 0.0)
    v.brain.jobs.brains["j1"].c.time.samples.clear()  # as after a start
    again = Days(make_shell(tmp_path, v.brain))
    again.restore(wall + 3590.0)
    found = again.hour("j1", 0.0)
    assert found["at"] == before["at"]
    assert found["spares"] == before["spares"]
    assert v.brain.jobs.brains["j1"].c.time.recent_ratio(wall + 3590.0, 86400.0) is not None


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, days, report = made(tmp_path)
    days.sample(time.time())

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(moments, "newest", fails)
    with pytest.raises(Conflict, match="journal cannot be read: disk I/O error"):
        report.then(time.time(), "j1")()
