"""Layers of each stage against all cuts; the rule's own figures; what is refused."""

from itertools import accumulate, combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.planner.unlike.shares import by_speed, evenly, minimax


@pytest.mark.parametrize(
    ("layers", "speeds", "stages", "alpha", "expected"),
    [
        (48, (197.0, 160.0), (), 1.0, (26, 22)),
        (48, (160.0, 197.0), (), 1.0, (22, 26)),  # the slowest takes the rest, wherever it is
        (48, (197.0, 160.0), (), 1.05, (27, 21)),
        (48, (1.0, 1.0), (), 1.0, (24, 24)),
        # S n: 2 x 2 of 5 and 1 x 1 of 5 of 40: a cluster of two stages gets as much for each of them.
        (40, (2.0, 1.0), (2, 1), 1.0, (32, 8)),
        # floor(3/6 x 11) = 5, floor(2/6 x 11) = 3, the rest.
        (11, (3.0, 2.0, 1.0), (), 1.0, (5, 3, 3)),
        # 0.3 / 0.4 x 4 is 2.9999999999999996 in floats.
        (4, (0.3, 0.1), (), 1.0, (3, 1)),
        # Of two that are equally slow the last takes the rest.
        (7, (1.0, 1.0), (), 1.0, (3, 4)),
    ],
)
def test_layers_by_speed(
    layers: int, speeds: tuple[float, ...], stages: tuple[int, ...], alpha: float, expected: tuple[int, ...]
) -> None:
    assert by_speed(layers, speeds, stages, alpha) == expected


@settings(deadline=None)
@given(st.data())
def test_the_cut_is_the_best_of_all(data: st.DataObject) -> None:
    """Whole numbers of seconds, so that sums are exact."""
    whole = st.integers(1, 12).map(float)
    stages, least = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 2))
    layers = data.draw(st.lists(whole, min_size=stages * least, max_size=9))
    factors = data.draw(st.lists(whole, min_size=stages, max_size=stages))
    ends = data.draw(st.one_of(st.just([]), st.lists(st.integers(0, 30).map(float), min_size=stages, max_size=stages)))

    def worth(cut: tuple[int, ...]) -> tuple[float, float]:
        parts = pairwise([0, *accumulate(cut)])
        more = ends or [0.0] * stages
        own = [f * sum(layers[a:b]) + e for (a, b), f, e in zip(parts, factors, more, strict=True)]
        return max(own), sum(own)

    inner = combinations(range(1, len(layers)), stages - 1)
    cuts = [tuple(b - a for a, b in pairwise((0, *ends_, len(layers)))) for ends_ in inner]
    allowed = [cut for cut in cuts if min(cut) >= least]
    found = minimax(layers, factors, ends, least)
    assert found in allowed
    assert worth(found) == min(map(worth, allowed))


def test_among_equal_cuts_the_fast_stage_has_more() -> None:
    """The first stage has 10 s besides, so neither 1, 2 nor 3 layers of 1 s on the others are more than its 11."""
    assert minimax([1.0] * 4, [1.0, 1.0, 2.0], [10.0, 0.0, 0.0]) == (1, 2, 1)


def test_equal_stages_have_equal_layers() -> None:
    assert minimax([1.0] * 96, [1.0] * 8) == (12,) * 8
    assert evenly(11, 4) == (3, 3, 3, 2)


@pytest.mark.parametrize(
    ("layers", "factors", "least"), [(3, 4, 1), (0, 1, 1), (1025, 2, 1), (7, 4, 2), (4, 0, 1), (4, 2, 0)]
)
def test_layers_that_do_not_reach(layers: int, factors: int, least: int) -> None:
    with pytest.raises(UsageError, match="layers in"):
        minimax([1.0] * layers, [1.0] * factors, (), least)


@pytest.mark.parametrize(
    ("layers", "speeds", "stages", "alpha"),
    [
        (48, (), (), 1.0),
        (48, (1.0, 0.0), (), 1.0),
        (48, (1.0, 2.0), (1,), 1.0),
        (48, (1.0, 2.0), (1, 0), 1.0),
        (48, (1.0, 2.0), (), 0.0),
        (4, (100.0, 1.0), (1, 2), 1.0),  # 3 and 1, and the second cluster has two stages
        (48, (1.0, 1.0), (), 2.0),  # the first takes all
    ],
)
def test_speeds_that_leave_a_stage_without_layers(
    layers: int, speeds: tuple[float, ...], stages: tuple[int, ...], alpha: float
) -> None:
    with pytest.raises(UsageError):
        by_speed(layers, speeds, stages, alpha)
