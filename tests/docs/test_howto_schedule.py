"""The worked example of docs/howto-schedule.md is a schedule: it is planned, simulated and listed with the others."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.plan.check import in_flight, verify
from holdfast.plan.schedules.table import SCHEDULES, Schedule
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout

PAGE = (Path(__file__).parents[2] / "docs" / "howto-schedule.md").read_text()


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Schedule:
    (code,) = re.findall(r"^ *```python\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(code), "docs/howto-schedule.md", "exec"), names)
    made: Schedule = names["ENTRY"]
    monkeypatch.setitem(SCHEDULES, made.name, made)
    return made


@pytest.mark.parametrize(("ranks", "count"), [(1, 1), (2, 1), (4, 8), (5, 7), (8, 32)])
def test_it_is_a_plan_with_what_passes_add(entry: Schedule, ranks: int, count: int) -> None:
    assert verify(entry.plan(ranks, 1, count)) == []
    plan = job_plan(TrainerLayout(ranks, 1, 1, 1, count), entry.name, ranks, entry.build(ranks, 1, count), ahead=2)
    assert verify(plan) == []
    assert in_flight(plan) == tuple(min((ranks - rank + 1) // 2, count) for rank in range(ranks))


def test_it_is_listed_with_the_figures_of_the_page(entry: Schedule, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedules", "--pp", "4", "--micro-batches", "8", "--json"]) == 0
    found = {one["schedule"]: one for one in json.loads(capsys.readouterr().out)["schedules"]}
    stated = re.search(r"beside the others: (\d+) micro-batches held and a makespan of\s+(\d+)", PAGE)
    assert stated is not None
    assert (max(found["lean"]["held"]), found["lean"]["makespan"]) == (int(stated[1]), int(stated[2]))
    assert (max(found["1f1b"]["held"]), found["1f1b"]["makespan"]) == (4, 33)
