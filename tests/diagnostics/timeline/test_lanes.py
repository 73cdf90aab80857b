"""Spans as columns for a timeline: chosen ranks, the newest steps, and only arrows between ranks that are there."""

import numpy as np
import pytest

from benchmarks.simulated_spans import Job, simulate
from holdfast.base.errors import UsageError
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.diagnostics.timeline import lanes as module
from holdfast.diagnostics.timeline.lanes import lanes
from holdfast.wire.plans import encode_plan


@pytest.fixture(scope="module")
def job() -> tuple[SpanTable, JobShape]:
    table, plan = simulate(Job(), [], 5, 3)
    return table, JobShape("j1", "train", ("node0", "node1"), 4, encode_plan(plan))


def test_columns_hold_the_spans_in_the_order_of_lanes(job: tuple[SpanTable, JobShape]) -> None:
    table, shape = job
    found = lanes(table, shape)
    assert len(found["rank"]) == len(found["start"]) == len(table)
    assert found["ranks"] == list(range(8))
    assert min(found["start"]) == 0
    keys = list(zip(found["rank"], found["start"], strict=True))
    assert keys == sorted(keys)
    took = sum(found["took"]) * 1e-6
    assert took == pytest.approx((table.end - table.start).sum() * 1e-9, rel=0.01)


def test_only_the_last_steps_if_so_many_were_asked_for(job: tuple[SpanTable, JobShape]) -> None:
    found = lanes(*job, steps=2)
    last = int(job[0].step.max())
    assert (found["first"], found["last"], set(found["step"])) == (last - 1, last, {last - 1, last})


def test_arrows_are_between_ranks_that_are_there(job: tuple[SpanTable, JobShape]) -> None:
    everybody = lanes(*job, steps=1)["arrows"]
    assert {0, 1} == set(everybody["name"]), "messages, and last arrivals"
    some = lanes(*job, ranks=[1, 5], steps=1)
    assert some["ranks"] == [1, 5]
    arrows = some["arrows"]
    assert set(zip(arrows["source"], arrows["target"], strict=True)) == {(1, 5), (5, 1)}
    assert arrows["name"] == [0] * len(arrows["name"])
    later = np.array(arrows["seen"]) - np.array(arrows["sent"])
    assert (later >= 0).all()
    # Each end lies in a span of its rank.
    spans = list(zip(some["rank"], some["start"], some["took"], strict=True))
    for rank, at in zip(arrows["target"], arrows["seen"], strict=True):
        assert any(r == rank and start - 1 <= at <= start + took + 1 for r, start, took in spans)


def test_what_lies_before_the_last_peers_arrival_is_waiting(job: tuple[SpanTable, JobShape]) -> None:
    table, shape = job
    found = lanes(table, shape, steps=1)
    ends = {"dp": [], "tp": []}  # type: dict[str, list[tuple[int, int, int]]]
    for i, group in enumerate(found["groups"][g] for g in found["group"]):
        if group in ends:
            start, took, waited = (found[name][i] for name in ("start", "took", "waited"))
            assert 0 <= waited <= took
            ends[group].append((start + took, start, waited))
        else:
            assert group or found["waited"][i] == 0 or "recv" in found["kinds"][found["kind"][i]]
    for rows in ends.values():
        assert max(waited for _, _, waited in rows) > 0
        for end, start, waited in rows:
            # All of a group end at once; the last to arrive waits for no one, and no one's transfer begins before it.
            last = max(other for ended, other, _ in rows if abs(ended - end) <= 1)
            assert start + waited <= last + 2


def test_what_does_not_fit_is_left_out_and_counted(
    job: tuple[SpanTable, JobShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, _ = job
    of_a_step = int((table.step == table.step.max()).sum())
    monkeypatch.setattr(module, "MOST_SPANS", of_a_step * 2 + 1)
    assert lanes(*job)["first"] == int(table.step.max()) - 1
    monkeypatch.setattr(module, "MOST_SPANS", of_a_step // 2 + 1)
    found = lanes(*job)
    assert found["first"] == found["last"] == int(table.step.max())
    assert 0 < len(found["ranks"]) < 8
    assert found["left_out"] == 8 - len(found["ranks"])


def test_ranks_that_reported_nothing_are_one_clear_line(job: tuple[SpanTable, JobShape]) -> None:
    with pytest.raises(UsageError, match="no spans of these ranks"):
        lanes(*job, ranks=[99])
