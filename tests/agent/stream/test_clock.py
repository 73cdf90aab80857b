"""The controller's clock as seen over a stream: the shortest round trip counts, and the error bound holds."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.stream.clock import ClockOffset

MS = 1_000_000


def test_nothing_is_known_before_the_first_answer_nor_of_another_controller() -> None:
    clock = ClockOffset()
    assert clock.best(0) is None
    clock.answered(0, 500, 100)
    assert clock.best(100) is not None
    clock.forget()
    assert clock.best(100) is None


def test_an_old_short_trip_loses_to_a_new_longer_one_once_clocks_may_have_drifted() -> None:
    clock = ClockOffset()
    clock.answered(0, 7 * MS, MS)
    soon, late = 10**9, 100 * 10**9
    for again, offset in ((soon, 7 * MS - MS // 2), (late, 9 * MS - 3 * MS // 2)):
        clock.answered(again, again + 9 * MS, again + 3 * MS)
        best = clock.best(again + 3 * MS)
        assert best is not None
        assert best.offset_ns == offset


@given(
    st.integers(-(10**18), 10**18),
    st.lists(st.tuples(st.integers(0, 50 * MS), st.integers(0, 50 * MS)), min_size=1, max_size=80),
)
def test_the_true_offset_is_within_the_stated_error(true: int, delays: list[tuple[int, int]]) -> None:
    clock, now = ClockOffset(), 0
    for there, back in delays:
        clock.answered(now, now + there + true, now + there + back)
        now += 100 * MS
    best = clock.best(now)
    assert best is not None
    assert abs(best.offset_ns - true) <= best.error_ns + 1
