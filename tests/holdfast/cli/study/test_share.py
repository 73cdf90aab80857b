"""`holdfast share`: what it prints. Files that are wrong are in tests/planner/sharing/test_file.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.cli.study.share import ranges

TWO = """
slots = 4
[[job]]
name = "a"
k = 4
forward_s = 1
backward_s = 2
iterations = 10
[[job]]
name = "b[0]"
k = 4
forward_s = 1
backward_s = 2
iterations = 10
"""
Capture = pytest.CaptureFixture[str]


def test_two_jobs_beside_gangs(tmp_path: Path, capsys: Capture) -> None:
    """2f + 5/4 b = 4.5 s for both iterations; gangs take 2(f + b) = 6 s: 60 / 45 is a third more."""
    file = tmp_path / "jobs.toml"
    file.write_text(TWO)
    assert main(["share", str(file), "--first", "2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines[1][:5] == ["a", "0-3", "0", lines[1][3], "30"]
    assert lines[2][0] == "b[0]"
    assert lines[2][-1] == "60"
    assert ["0", "a:4", "b[0]:1"] in lines or ["0", "a:4", "b[0]:2"] in lines
    shared, gangs, summary = lines[-3:]
    assert (shared[:4], gangs[-4:-1]) == (["shared", "45", "1.333", "1.000"], ["60", "1.000", "1.000"])
    assert summary[:3] == ["shared:", "efficiency", "+33.3%,"]


def test_as_json(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(TWO)
    assert main(["share", str(file), "--first", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(job["name"], job["slots"], job["alone_s"]) for job in found["jobs"]] == [
        ("a", [0, 1, 2, 3], 30.0),
        ("b[0]", [0, 1, 2, 3], 30.0),
    ]
    assert [job["gang_ended_s"] for job in found["jobs"]] == [30.0, 60.0]
    assert (found["shared"]["makespan_s"], found["gangs"]["makespan_s"]) == (45.0, 60.0)
    assert len(found["roles"]) == 12
    assert {role["slot"] for role in found["roles"]} == {0, 1, 2, 3}


def test_a_job_that_can_not_run_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "jobs.toml"
    file.write_text(TWO.replace("slots = 4", "slots = 3"))
    assert main(["share", str(file)]) == 2
    assert capsys.readouterr().err == f"holdfast: {file}: job a has 4 roles, and there are 3 slots\n"
    assert main(["share", str(tmp_path / "gone.toml")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_ranges() -> None:
    assert ranges((0, 1, 2, 5, 7, 8)) == "0-2,5,7-8"
