"""What `benchmarks/pauses.py` expects: the rank named, as what, how soon; and its table of both sides."""

import math
from typing import Any

import pytest

from benchmarks.pause_rows import (
    CASE_HEAD,
    DEAD,
    IDLE,
    SUM_HEAD,
    case_rows,
    expected,
    hang_cases,
    sum_rows,
    wrong_hang,
    wrong_honest,
)

DEAD_ONE: dict[str, Any] = {
    "case": "stop@1", "state": "finished", "incidents": 1, "named": "rank1", "life": "dead", "seconds": 0.6,
    "reported_s": None,
}  # fmt: skip
IDLE_ONE = DEAD_ONE | {"case": "empty-pipe@1", "life": "idle", "seconds": 60.4, "reported_s": 2.3}


def test_thirty_hangs_of_ten_kinds_and_more_each_with_an_expected_liveness() -> None:
    cases = hang_cases()
    assert len(cases) == len(set(cases)) >= 30
    kinds = {case.partition("@")[0].rpartition(":")[2] for case in cases}
    assert kinds == {*DEAD, *IDLE}
    assert len(kinds) >= 10
    assert {expected(case).life for case in cases} == {"dead", "idle"}
    with pytest.raises(KeyError, match="neither dead nor idle"):
        expected("dance@1")


def test_what_is_right() -> None:
    assert wrong_hang(DEAD_ONE) == wrong_hang(IDLE_ONE) == []
    assert wrong_honest({"state": "finished", "restarts": 0, "incidents": []}) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"life": "idle", "seconds": 60.4, "reported_s": 2.3}, "judged idle, not dead"),
        ({"life": ""}, "judged nothing, not dead"),
        ({"named": "rank0"}, "named rank0, not rank1"),
        ({"named": ""}, "named nobody, not rank1"),
        ({"seconds": 2.1}, "found after 2.10 s, not within 2 s"),
        ({"seconds": math.nan}, "not within 2 s"),
        ({"incidents": 2}, "2 incidents"),
        ({"state": "failed"}, "the job is failed"),
    ],
)
def test_a_dead_one_that_is_wrong(change: dict[str, Any], says: str) -> None:
    assert says in "; ".join(wrong_hang(DEAD_ONE | change))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"life": "dead", "seconds": 1.2}, "judged dead, not idle"),
        ({"reported_s": 3.2}, "reported after 3.20 s, not within 3 s"),
        ({"reported_s": None}, "reported after nan s"),
        ({"seconds": 20.0}, "ended after 20.0 s, not at 60 s"),
        ({"seconds": 64.0}, "ended after 64.0 s, not at 60 s"),
        ({"seconds": math.nan}, "ended after nan s"),
    ],
)
def test_an_idle_one_that_is_wrong(change: dict[str, Any], says: str) -> None:
    assert says in "; ".join(wrong_hang(IDLE_ONE | change))


@pytest.mark.parametrize("change", [{"restarts": 1}, {"state": "failed"}, {"incidents": ["rank 0 is dead"]}])
def test_an_honest_one_that_was_not_left_alone(change: dict[str, Any]) -> None:
    assert wrong_honest({"state": "finished", "restarts": 0, "incidents": []} | change)


def test_limits_that_are_longer_by_design() -> None:
    assert expected("first:stop@1").found_s > expected("stop@1").found_s == 2.0
    assert expected("cut-off@1").named == expected("circle").named == "job"
    assert expected("first:quiet-socket@1").limit_s == 300.0
    assert expected("empty-pipe@1").limit_s == 60.0
    assert expected("cut-off@1").limit_s == 180.0


def test_both_sides_stand_in_one_table() -> None:
    honest = {"state": "finished", "restarts": 1, "seconds": 9.0, "incidents": [], "wrong": ["1 restarts"]}
    found: list[dict[str, Any]] = [
        {"set": "honest", "case": "rank 0: sleep", "holdfast": honest,
         "torchrun": {"code": 0, "seconds": 15.0, "is_right": True}},
        {"set": "hang", "case": "stop@1", "holdfast": DEAD_ONE | {"wrong": []},
         "torchrun": {"code": None, "seconds": 30.0, "is_right": False}},
        {"set": "hang", "case": "stop@2", "holdfast": DEAD_ONE | {"case": "stop@2", "wrong": ["named nobody"]}},
        {"set": "hang", "case": "empty-pipe@1", "holdfast": IDLE_ONE | {"wrong": []}},
    ]  # fmt: skip
    rows = case_rows(found)
    assert all(len(row) == len(CASE_HEAD) for row in rows)
    assert rows[0] == ("rank 0: sleep", "ends with 0", "1 restarts", 9.0, "NO", "ends with 0", 15.0, "yes")
    assert rows[1] == ("stop@1", "dead, rank1", "dead, rank1", 0.6, "yes", "stands still", 30.0, "NO")
    sums = sum_rows(found)
    assert all(len(row) == len(SUM_HEAD) for row in sums)
    assert sums == [
        ("honest pauses: left alone", 1, "0 of 1", "-", "-", "1 of 1"),
        ("dead: named within 2 s", 2, "1 of 2", 0.6, 0.6, "0 of 1"),
        ("idle: reported within 3 s, ended at 60 s", 1, "1 of 1", 2.3, 2.3, "not run"),
    ]
