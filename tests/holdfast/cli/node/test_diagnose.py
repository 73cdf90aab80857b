"""`holdfast diagnose`: what it asks, prints and returns."""

import json

import pytest

from holdfast.cli.main import main
from holdfast.cli.node.diagnose import quantity
from tests.holdfast.support.fake_controller import FakeController, diagnosis_as, verdict_as

Capture = pytest.CaptureFixture[str]


def test_all_well(fake: FakeController, capsys: Capture) -> None:
    assert main(["diagnose"]) == 0
    assert fake.asked[0] == (
        "POST",
        "/diagnose",
        {"nodes": [], "suite": "quick", "tests": [], "busy": False, "passes": 0},
    )
    assert "none failed (8.50 s, 2 rounds of pairs)" in capsys.readouterr().out


def test_what_is_asked_arrives(fake: FakeController) -> None:
    assert main(["diagnose", "node0", "node1", "--suite", "full", "--test", "gemm", "--test", "pair", "--busy"]) == 0
    wanted = {"nodes": ["node0", "node1"], "suite": "full", "tests": ["gemm", "pair"], "busy": True, "passes": 0}
    assert fake.asked[0] == ("POST", "/diagnose", wanted)


def test_a_failed_node_is_shown_with_its_figures_and_the_exit_code_is_1(fake: FakeController, capsys: Capture) -> None:
    bad = verdict_as("node0", "fail", text="40% of its peers' median", action="look for throttling")
    fake.diagnosis = diagnosis_as(bad, verdict_as("node1", "pass"))
    assert main(["diagnose"]) == 1
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("node0")]
    for word in ("gemm flops", "cpu", "fail", "40.0 GFLOP/s", "100.0 GFLOP/s", "7", "40% of its peers' median"):
        assert word in row
    assert "node1" not in out.replace("node0", "")
    assert "failed: node0" in out


def test_the_past_is_shown_with_its_date(fake: FakeController, capsys: Capture) -> None:
    fake.diagnosis = diagnosis_as(verdict_as("node0", "degraded", against="past", baseline_since=1.75e9))
    assert main(["diagnose"]) == 0
    assert "7 since 2025-06-15" in capsys.readouterr().out


def test_json_is_the_diagnosis_itself(fake: FakeController, capsys: Capture) -> None:
    assert main(["diagnose", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == fake.diagnosis


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1.25e9, "bytes/s", "1.2 GB/s"), (2e11, "FLOP/s", "200.0 GFLOP/s"), (0.0123, "ratio", "1.23%"),
        (0.00025, "s", "0.25 ms"), (None, "s", "-"),
    ],
)  # fmt: skip
def test_quantities(value: float | None, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


def test_here_without_a_controller(capsys: Capture) -> None:
    assert main(["diagnose", "--local", "--test", "memory", "--test", "clock", "--json"]) == 0
    doc = json.loads(capsys.readouterr().out)
    assert doc["failed"] == []
    (memory,) = [v for v in doc["verdicts"] if v["check"] == "memory"]
    assert memory["value"] > 1e8
    assert memory["grade"] == "pass"
