"""What `benchmarks/storm.py` counts: the same faults in both trees, and which are found, overtaken or missed."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.storm_account import (
    GUSTS,
    HEAD,
    KINDS,
    MISSED_S,
    OVERTAKEN_S,
    SPREAD_S,
    Account,
    Hit,
    gusts,
    resolve,
    rows,
)


def reported(kind: str, subject: str, at: float) -> dict[str, Any]:
    return {"kind": kind, "subject": subject, "at": at}


def test_every_tree_gets_the_same_faults_of_all_kinds_some_at_once() -> None:
    made = gusts(3, 30)
    assert made == gusts(3, 30) != gusts(4, 30)
    counts = Counter(fault.kind for gust in made for fault in gust)
    assert set(counts) == set(KINDS)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {len(gust) for gust in made} == set(GUSTS)
    for gust in made:
        moments = [fault.after_s for fault in gust]
        assert moments == sorted(moments)
        assert moments[0] == 0.0
        assert moments[-1] < SPREAD_S


def test_a_fault_is_found_by_a_finding_of_its_kind_on_its_subject_after_it() -> None:
    hit = Hit("worker-killed", "rank1", 100.0)
    for other in (
        reported("worker-killed", "rank1", 99.9),
        reported("worker-killed", "rank2", 100.1),
        reported("log-rule", "rank1", 101.0),
    ):
        assert not resolve([hit], [other], {}, 102.0)
    assert resolve([hit], [reported("worker-killed", "rank1", 100.25)], {}, 100.3)
    assert (hit.state, hit.found) == ("found", pytest.approx(0.25))


def test_a_sleeper_is_found_by_the_report_of_its_pause_and_no_other_fault_is() -> None:
    asleep, stopped = Hit("worker-asleep", "rank1", 100.0), Hit("worker-stopped", "rank2", 100.0)
    assert not resolve([asleep, stopped], [], {"rank1": 102.0, "rank2": 102.0}, 102.1)
    assert (asleep.found, stopped.state) == (2.0, "open")
    earlier = Hit("worker-asleep", "rank1", 100.0)
    assert not resolve([earlier], [], {"rank1": 99.0}, 102.1)


def test_a_worker_that_was_ended_for_another_fault_is_overtaken_and_an_agent_never() -> None:
    stopped, killed = Hit("worker-stopped", "rank1", 100.0), Hit("worker-killed", "rank2", 100.0)
    silent = Hit("agent-stopped", "node0", 100.0)
    found = [reported("worker-killed", "rank2", 100.01)]
    assert not resolve([stopped, killed, silent], found, {}, 100.0 + OVERTAKEN_S)
    assert stopped.state == "open"
    resolve([stopped, killed, silent], found, {}, 100.1 + OVERTAKEN_S)
    assert [hit.state for hit in (stopped, killed, silent)] == ["overtaken", "found", "open"]
    assert resolve([stopped, killed, silent], found, {}, 100.1 + MISSED_S)
    assert silent.state == "missed"


def test_a_fault_that_is_alone_is_missed_not_overtaken() -> None:
    hit = Hit("gil-held", "rank1", 100.0)
    assert not resolve([hit], [], {}, 100.1 + OVERTAKEN_S)
    assert resolve([hit], [], {}, 100.1 + MISSED_S)
    assert hit.state == "missed"


def test_the_table_has_both_trees_beside_each_other() -> None:
    before, after = Account(), Account()
    before.add([Hit("gil-held", "rank1", 0.0, 1.0, "found"), Hit("gil-held", "rank1", 9.0, 2.0, "found")], 0)
    half = Account()
    half.add([Hit("gil-held", "rank1", 0.0, 3.0, "found"), Hit("gil-held", "rank1", 0.0, None, "missed"),
              Hit("worker-exit", "rank0", 0.0, None, "overtaken")], 2)  # fmt: skip
    after.merge(half)
    made = {row[0]: row for row in rows(before, after)}
    assert list(made) == list(KINDS)
    assert all(len(row) == len(HEAD) for row in made.values())
    assert made["gil-held"] == ("gil-held", 2, 0, 1500.0, 2000.0, 1, 1, 3000.0, 3000.0, 2.0)
    assert made["worker-exit"][1:] == (0, 0, "-", "-", 0, 0, "-", "-", "-")
    assert (after.beyond, after.overtaken) == (2, {"worker-exit": 1})
