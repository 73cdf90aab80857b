"""Since when a candidate is slow, and how that went."""

from itertools import pairwise
from typing import Any

from holdfast.controller.past.slowness import SlowHistory

Json = dict[str, Any]


def named(rank: int, share: float = 0.07, kind: str = "compute") -> Json:
    return {"rank": rank, "peer": -1, "kind": kind, "share": share, "ratio": 1.0 + share}


def of(history: SlowHistory, rank: int, kind: str = "compute") -> Json:
    culprit = named(rank, kind=kind)
    history.add_to(culprit)
    return culprit


def test_it_begins_with_the_first_step_that_was_looked_at() -> None:
    history = SlowHistory()
    history.see([named(6)], 90.0, 100.0)
    history.see([named(6, 0.08), named(2)], 100.0, 110.0)
    assert of(history, 6)["since"] == 90.0
    assert of(history, 6)["history"] == {"at": [100.0, 110.0], "share": [0.07, 0.08], "ratio": [1.07, 1.08]}
    assert of(history, 2)["since"] == 100.0
    assert "since" not in of(history, 6, "link"), "another kind of slowness is another candidate"


def test_a_look_that_misses_it_is_noise_and_two_minutes_are_not() -> None:
    history = SlowHistory()
    history.see([named(6)], 0.0, 10.0)
    history.see([], 10.0, 20.0)
    history.see([named(6)], 20.0, 30.0)
    assert of(history, 6)["since"] == 0.0
    history.see([], 200.0, 210.0)
    assert "since" not in of(history, 6)
    history.see([named(6)], 210.0, 220.0)
    assert of(history, 6)["since"] == 210.0


def test_weeks_of_it_stay_small_and_keep_both_ends() -> None:
    history = SlowHistory()
    for i in range(60_000):
        history.see([named(6, 0.05 + i * 1e-6)], 10.0 * i, 10.0 * (i + 1))
    found = of(history, 6)
    assert found["since"] == 0.0
    points = found["history"]["at"]
    assert 100 < len(points) <= 241
    assert points == sorted(points)
    assert points[0] == 10.0
    assert points[-1] > 590_000.0
    widest = max(b - a for a, b in pairwise(points))
    assert widest < 4 * 600_000.0 / len(points), "no stretch of it is left out"
    assert len({len(column) for column in found["history"].values()}) == 1


def test_ten_thousand_candidates_are_bounded() -> None:
    history = SlowHistory()
    history.see([named(rank) for rank in range(10_000)], 0.0, 10.0)
    assert sum("since" in of(history, rank) for rank in range(10_000)) == 200
