"""What rank 0 sends of a job's plan: what a step is planned to take goes with it where it is of these settings."""

from __future__ import annotations

import pytest
import torch

from holdfast.agent import probe
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.planner.cost.layout import Layout
from holdfast.trainer.run.published_plan import publish_plan
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.planned import settings_of, with_planned
from holdfast.wire.plans import decode_plan, decode_planned

STEP = PlannedStep(1.5, (0.1, 0.2), (0.2, 0.4), (0.0, 0.0), 1e-05, (0.02, 0.03), (0.1, 0.1))
CONFIG = with_planned(settings_of(Config(), Layout(pp=2, dp=2)), STEP, "gpu", 4)
PLAN = SCHEDULES["1f1b"].plan(2, 1, 4)
CPU = torch.device("cpu")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    found: list[bytes] = []
    monkeypatch.setattr(probe, "publish_plan", found.append)
    return found


def test_a_planned_step_goes_with_the_plan(sent: list[bytes], capsys: pytest.CaptureFixture[str]) -> None:
    publish_plan(PLAN, CONFIG, 4, CPU)
    (one,) = sent
    assert decode_plan(one).orders == PLAN.orders
    assert decode_planned(one) == STEP
    assert capsys.readouterr().out == ""


def test_what_was_planned_for_another_number_of_ranks_stays_and_a_line_says_so(
    sent: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    publish_plan(PLAN, CONFIG, 8, CPU)
    (one,) = sent
    assert decode_plan(one).orders == PLAN.orders
    assert decode_planned(one) is None
    assert capsys.readouterr().out == (
        "not compared with a plan: [planned] is of other settings or another number of ranks than 8\n"
    )
