"""`holdfast timeline --predicted`: the numbers of a step beside its prediction, as text and as JSON."""

import json
from typing import Any

import pytest

from holdfast.cli.common.client import Client
from holdfast.cli.main import main
from holdfast.diagnostics.timeline.beside import beside
from tests.diagnostics.support.walked import Walk, table_of, walk
from tests.diagnostics.timeline.test_beside import plan_of, shape_of, took

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the controller was asked; it answers with a step in which rank 2's backward of micro-batch 3 is late."""
    plan, found = plan_of(), list[tuple[str, int, int]]()
    late = walk(Walk(plan, took, longer={(0, "2B3"): 0.040}))
    table = table_of([walk(Walk(plan, took)), late], first=11)

    def predicted(self: Client, job: str, step: int, times_of: int) -> dict[str, Any]:
        found.append((job, step, times_of))
        return beside(table, shape_of(plan), None if times_of < 0 else lambda: table.of_steps(times_of, times_of))

    monkeypatch.setattr(Client, "predicted", predicted)
    return found


def test_it_prints_the_numbers_and_names_the_rank(asked: list[tuple[str, int, int]], capsys: Capture) -> None:
    assert main(["timeline", "--predicted", "newest", "--job", "train"]) == 0
    printed = capsys.readouterr().out
    assert asked == [("train", -1, -1)]
    assert "step 12 of train, 1f1b, predicted with its own times" in printed
    assert "+40.0 ms" in printed
    assert "rank 2: backward of micro-batch 3 on stage 2 took 40.0 ms longer than predicted" in printed


def test_json_is_the_controllers_answer(asked: list[tuple[str, int, int]], capsys: Capture) -> None:
    assert main(["timeline", "--predicted", "12", "--times-of", "11", "--job", "train", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert asked == [("train", 12, 11)]
    assert (found["step"], found["times_of"]) == (12, 11)
    assert found["measured_s"] - found["predicted_s"] == pytest.approx(0.040, abs=1e-6)
