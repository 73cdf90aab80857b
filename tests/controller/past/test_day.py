"""The day of a job, made of its moments."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.journal.moments import Moment
from holdfast.controller.past.day import DAY_S, MOST_SAMPLES, day, then
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.wire import types as t

NOW = 1_790_000_000.0


def moment(at: float, condition: str = "well", **more: Any) -> Moment:
    """`useful_s` grows by 0.9 a second."""
    doc = {
        "health": {"condition": condition}, "step": int(at - NOW + DAY_S), "generation": 1, "stored": None,
        "useful_s": 0.9 * (at - NOW + DAY_S), "queued_s": 0.0,
    }  # fmt: skip
    return Moment(at, doc | more)


def incident(id: str, opened: float, closed: float | None, job: str = "j1", action: str = "restart") -> Incident:
    found = Finding(t.FindingKind.WORKER_KILLED, t.Severity.CRITICAL, "rank3", "rank 3 was killed", opened, opened)
    state = IncidentState.OPEN if closed is None else IncidentState.CLOSED
    return Incident(id, opened, [found], state, closed=closed, job=job, action=action)


def whole(moments: list[Moment], incidents: tuple[Incident, ...] = ()) -> dict[str, Any]:
    return day("j1", moments, incidents, NOW - DAY_S, NOW)


def test_a_day_of_minutes_is_thinned_and_no_change_is_lost() -> None:
    rows = [moment(NOW - 60.0 * i) for i in range(1440, 0, -1)]
    rows[701] = moment(rows[701].at, "recovering")
    found = whole(rows)
    assert len(found["at"]) <= MOST_SAMPLES + 3
    i = found["condition"].index("recovering")
    assert (found["at"][i], found["end"][i]) == (rows[701].at, rows[702].at)
    assert found["end"][:-1] == found["at"][1:]
    assert found["end"][-1] == NOW
    assert [one for one in found["goodput"] if one is not None] == pytest.approx([0.9] * (len(found["at"]) - 1))


def test_time_without_a_controller_is_a_gap() -> None:
    rows = [moment(NOW - 4000.0), moment(NOW - 3940.0), moment(NOW - 100.0), moment(NOW - 40.0)]
    found = whole(rows)
    assert found["end"] == [NOW - 3940.0, NOW - 3880.0, NOW - 40.0, NOW]
    assert found["goodput"][1] is None


def test_time_in_the_queue_is_no_loss() -> None:
    rows = [moment(NOW - 100.0, useful_s=0.0), moment(NOW - 40.0, useful_s=20.0, queued_s=40.0)]
    assert whole(rows)["goodput"][0] == pytest.approx(1.0)


def test_work_that_was_lost_makes_no_goodput_below_zero() -> None:
    rows = [moment(NOW - 100.0, useful_s=50.0), moment(NOW - 40.0, useful_s=10.0)]
    assert whole(rows)["goodput"][0] == 0.0


def test_generations_checkpoints_and_incidents_have_their_times() -> None:
    rows = [
        moment(NOW - 300.0, stored=9), moment(NOW - 240.0, stored=9), moment(NOW - 180.0, stored=19, generation=2),
        moment(NOW - 120.0, stored=None, generation=2),
    ]  # fmt: skip
    found = whole(rows, (incident("i1", NOW - 200.0, NOW - 190.0), incident("i2", NOW - 99999.0, NOW - 99000.0),
                         incident("i3", NOW - 99999.0, None), incident("i4", NOW - 50.0, None, job="j2")))  # fmt: skip
    assert found["generations"] == [{"at": NOW - 300.0, "generation": 1}, {"at": NOW - 180.0, "generation": 2}]
    assert found["checkpoints"] == [{"at": NOW - 300.0, "stored": 9}, {"at": NOW - 180.0, "stored": 19}]
    assert [one["id"] for one in found["incidents"]] == ["i3", "i1"]


def test_an_instant_has_the_incidents_that_were_open_then_and_no_alerts() -> None:
    incidents = [
        incident("i1", NOW - 200.0, NOW - 100.0), incident("i2", NOW - 150.0, NOW - 150.0, action="alert"),
        incident("i3", NOW - 10.0, None),
    ]  # fmt: skip
    found = then("j1", moment(NOW - 180.0), incidents, NOW - 150.0)
    assert [one["id"] for one in found["incidents"]] == ["i1"]
    assert (found["at"], found["kept_at"]) == (NOW - 150.0, NOW - 180.0)


@given(st.lists(st.tuples(st.floats(0.5, 4000.0), st.sampled_from(["well", "slow", "failed"])), max_size=2000))
def test_rows_never_overlap_and_name_the_condition_that_held(gaps: list[tuple[float, str]]) -> None:
    at, rows = NOW - DAY_S, []
    for gap, condition in gaps:
        at += gap
        if at < NOW:
            rows.append(moment(at, condition))
    found = whole(rows)
    spans = list(zip(found["at"], found["end"], found["condition"], strict=True))
    assert all(a < b for a, b, _ in spans)
    assert all(one[1] <= later[0] for one, later in pairwise(spans))
    for one in rows:
        assert [c for a, b, c in spans if a <= one.at < b] == [one.doc["health"]["condition"]]
