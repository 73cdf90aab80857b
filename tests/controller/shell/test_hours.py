"""The last hour of a job as columns."""

from pathlib import Path

import pytest

from holdfast.controller.shell.hours import Hours
from holdfast.controller.state.events import StopRequested
from tests.controller.support.stage import make_shell
from tests.controller.support.virtual import Virtual


def test_a_sample_has_what_no_step_carries_and_an_hour_is_kept(tmp_path: Path) -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2, max_steps=100_000, id="j1")
    v.run(8.0)
    hours = Hours(make_shell(tmp_path, v.brain))
    assert hours.columns("j1", 0.0) == {"job": "j1", "at": [], "mfu": [], "goodput": [], "at_risk": [], "spares": []}
    for i in range(300):
        hours.sample(v.instant.wall + 15.0 * i)
    found = hours.columns("j1", 0.0)
    assert len(found["at"]) == 240
    assert found["at"][-1] - found["at"][0] == pytest.approx(239 * 15)
    assert set(found["spares"]) == {1}
    assert 0.0 < found["goodput"][-1] <= 1.0
    assert hours.columns("j1", found["at"][-2])["at"] == found["at"][-1:]


def test_a_job_that_is_over_is_sampled_no_more_and_one_that_is_forgotten_goes(tmp_path: Path) -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2, id="j1")
    v.run(8.0)
    hours = Hours(make_shell(tmp_path, v.brain))
    hours.sample(v.instant.wall)
    v.feed(StopRequested(1.0, "j1"))
    v.run(30.0)
    hours.sample(v.instant.wall)
    assert len(hours.columns("j1", 0.0)["at"]) == 1
    v.brain.jobs.brains.clear()
    hours.sample(v.instant.wall)
    assert hours.columns("j1", 0.0)["at"] == []
