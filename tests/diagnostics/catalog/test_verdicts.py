"""Figures against a bar, peers and the past."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import ProtocolError, UsageError
from holdfast.diagnostics.catalog.catalog import CHECKS, Suite, choose, metric_of, parse_suite
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult, Reading, parse_result
from holdfast.diagnostics.catalog.verdicts import Baseline, Grade, Metric, best, judge, worst

SPEED = Metric("flops", "FLOP/s", True, degraded=0.9, fail=0.7)
LOSS = Metric("loss", "ratio", False, bar=0.002)
DELAY = Metric("delay", "s", False, degraded=0.9, fail=0.5)
PEERS = Baseline.of([98.0, 99.0, 100.0, 101.0, 102.0])


@pytest.mark.parametrize(
    ("value", "grade"), [(100.0, "pass"), (95.0, "pass"), (89.0, "degraded"), (71.0, "degraded"), (69.0, "fail")]
)
def test_against_peers(value: float, grade: str) -> None:
    verdict = judge("n", "gemm", SPEED, value, peers=PEERS)
    assert verdict.grade == grade
    assert (verdict.baseline, verdict.baseline_n) == (100.0, 5)
    assert verdict.against == "peers"


def test_less_is_better_for_some() -> None:
    peers = Baseline.of([1.0, 1.0, 1.01, 0.99])
    assert judge("n", "c", DELAY, 0.2, peers=peers).grade is Grade.PASS
    assert judge("n", "c", DELAY, 3.0, peers=peers).grade is Grade.FAIL


def test_a_node_far_below_peers_that_scatter_as_far_is_not_bad() -> None:
    peers = Baseline.of([30.0, 60.0, 100.0, 140.0, 170.0])
    assert judge("n", "gemm", SPEED, 40.0, peers=peers).grade is Grade.PASS


def test_peers_that_agree_to_the_last_digit_blame_no_rank_for_a_tiny_difference() -> None:
    peers = Baseline.of([100.0] * 9)
    assert judge("n", "gemm", SPEED, 99.0, peers=peers).grade is Grade.PASS
    assert judge("n", "gemm", SPEED, 60.0, peers=peers).grade is Grade.FAIL


def test_the_bar_holds_without_peers() -> None:
    verdict = judge("n", "pair", LOSS, 0.01)
    assert (verdict.grade, verdict.against, verdict.text) == (Grade.FAIL, "bar", "above the bar")
    assert judge("n", "pair", LOSS, 0.001).grade is Grade.PASS


def test_the_past_warns_but_never_fails() -> None:
    past = Baseline.of([100.0, 101.0, 99.0], since=1e9)
    verdict = judge("n", "gemm", SPEED, 40.0, past=past)
    assert (verdict.grade, verdict.against, verdict.baseline_since) == (Grade.DEGRADED, "past", 1e9)


def test_the_worst_of_all_comparisons_counts() -> None:
    past = Baseline.of([100.0, 101.0, 99.0])
    assert judge("n", "gemm", SPEED, 60.0, peers=PEERS, past=past).against == "peers"


def test_two_values_are_no_baseline() -> None:
    assert Baseline.of([1.0, 2.0]) is None
    assert Baseline.of([1.0, math.nan, 2.0]) is None
    verdict = judge("n", "gemm", SPEED, 1.0)
    assert (verdict.grade, verdict.text) == (Grade.PASS, "nothing to compare with yet")


def test_what_could_not_run_is_no_pass() -> None:
    assert worst([Grade.UNABLE, Grade.UNABLE]) is Grade.UNABLE
    assert worst([]) is Grade.UNABLE
    assert worst([Grade.UNABLE, Grade.PASS]) is Grade.PASS
    assert worst([Grade.PASS, Grade.FAIL, Grade.DEGRADED]) is Grade.FAIL


def test_the_best_of_several_attempts() -> None:
    assert best(SPEED, [1.0, 3.0, math.nan]) == 3.0
    assert best(LOSS, [1.0, 3.0]) == 1.0
    assert math.isnan(best(LOSS, []))


@given(st.lists(st.floats(50, 150), min_size=4, max_size=40), st.floats(0.01, 0.5))
def test_no_member_of_a_calm_group_fails_whoever_else_is_slow(values: list[float], slow: float) -> None:
    """One node far below does not change the verdict of nodes at or above the median."""
    median = sorted(values)[len(values) // 2]
    peers = Baseline.of([*values[1:], median * slow])
    assert judge("n", "gemm", SPEED, max(values), peers=peers).grade is Grade.PASS


def test_json_of_a_verdict_has_no_nan() -> None:
    doc = judge("n", "gemm", SPEED, math.nan).to_doc()
    assert doc["value"] is None
    json.dumps(doc, allow_nan=False)


def test_results_survive_the_pipe() -> None:
    fault = CheckFault("wrong", "gpu1", False, "reset")
    result = CheckResult("gemm", (Reading("flops", 1e12, "gpu0", 9e11),), (fault,), "", "", {"a": [1]}, 2.5)
    assert parse_result(result.to_json()) == result
    back = parse_result(CheckResult("memory", (Reading("bandwidth", 1.0),)).to_json())
    assert math.isnan(back.readings[0].bar)


@pytest.mark.parametrize("text", ["", "[]", '{"check": "x"}', "nan", '{"check":"x","readings":[1]}'])
def test_anything_else_on_the_pipe_is_reported_in_one_line(text: str) -> None:
    with pytest.raises(ProtocolError, match="not the result of a check"):
        parse_result(text)


def test_suites() -> None:
    quick, full = choose(Suite.QUICK), choose(Suite.FULL)
    assert set(quick) < set(full) == set(CHECKS)
    assert [c.name for c in choose(Suite.QUICK, ("all-to-all",))] == ["all-to-all"]
    with pytest.raises(UsageError, match="did you mean gemm"):
        choose(Suite.QUICK, ("gem",))
    with pytest.raises(UsageError, match="quick or full"):
        parse_suite("long")


def test_a_part_brings_its_own_bar() -> None:
    metric = metric_of("loopback", "bandwidth", 45e9)
    assert metric is not None
    assert judge("n", "loopback", metric, 30e9).grade is Grade.FAIL
    assert metric_of("loopback", "unheard-of") is None
