"""Rows pass, fail where they should, and are what the command prints."""

import json
import math

import pytest

from holdfast.cli.main import main
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.rows import table
from holdfast.trainer.rows.row import Row
from holdfast.trainer.rows.table import TECHNIQUES
from tests.all_rows import all_rows


@pytest.mark.parametrize("id", TECHNIQUES)
def test_every_row_passes(id: str) -> None:
    [rows] = [one["rows"] for one in all_rows()[1] if one["id"] == id]
    assert len(rows) >= 3
    assert [row["what"] for row in rows if not row["passes"]] == []
    assert [row["what"] for row in rows if not abs(row["measured"] - row["expected"]) <= row["tolerance"]] == []
    assert len({row["what"] for row in rows}) == len(rows)


def test_the_command_for_all_of_them() -> None:
    code, techniques = all_rows()
    assert code == 0
    assert [one["id"] for one in techniques] == list(TECHNIQUES)


def test_a_row_passes_within_its_tolerance_only() -> None:
    assert Row("", 10.0, 10.5, 0.5).passes
    assert not Row("", 10.0, 10.6, 0.5).passes
    assert not Row("", 10.0, math.nan, 0.5).passes


def test_another_schedule_under_its_name_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SCHEDULES, "merak", SCHEDULES["merak-early"])
    # All of them take many seconds.
    monkeypatch.setattr(table, "TECHNIQUES", {id: one for id, one in TECHNIQUES.items() if id in ("C2", "C9b")})
    assert main(["rows", "C9b"]) == 1
    assert capsys.readouterr().out.count("FAIL") == 3
    assert main(["rows"]) == 1
    out = capsys.readouterr().out
    assert out.count("FAIL") == 1
    assert "merak, D 4, N 8: expected 38, measured 41" in out


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rows", "C9b", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert [row["expected"] for row in one["rows"]] == [44, 41, 39, 38, 76, 73, 71, 70, 92, 85, 83, 82]
    few = {id: one for id, one in TECHNIQUES.items() if id in ("C2", "C9b")}
    with monkeypatch.context() as patch:
        patch.setattr(table, "TECHNIQUES", few)
        assert main(["rows"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines[1:]] == [(id, "pass") for id in few]
    assert main(["rows", "c1"]) == 2
    assert "did you mean C1?" in capsys.readouterr().err
    assert main(["rows", ""]) == 2
    assert capsys.readouterr().err.startswith("holdfast: there are no rows of ''")
