"""Turns on one slot: one at a time, by the co-scheduler's rule, and none that lasts for ever."""

from math import inf, isinf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.sharing.turns import FIRST_LIMIT_S, LEAST_LIMIT_S, TIMES, Turns


def slot(*names: str) -> Turns:
    turns = Turns()
    for name in names:
        turns.joined(name, 0.0)
    return turns


def take(turns: Turns, name: str, began: float, ended: float) -> None:
    """A turn of the only one that asks."""
    turns.asked(name, began)
    assert turns.next(began) == name
    turns.gave_back(name, ended)


def test_one_turn_at_a_time() -> None:
    turns = slot("a", "b")
    turns.asked("a", 1.0)
    turns.asked("b", 1.0)
    assert turns.next(1.0) == "a", "the first that came"
    assert turns.next(1.5) is None
    turns.gave_back("a", 2.0)
    assert turns.next(2.0) == "b"
    assert turns.holder == "b"


def test_the_one_that_is_furthest_behind_its_share_is_next() -> None:
    """a had 3 s while b waited: each was due 1.5 s. Then b has 1 s while a waits, and is still 1 s behind a."""
    turns = slot("a", "b")
    turns.asked("a", 0.0)
    turns.asked("b", 0.0)
    assert turns.next(0.0) == "a"
    turns.gave_back("a", 3.0)
    turns.asked("a", 3.0)
    assert turns.next(3.0) == "b"
    turns.gave_back("b", 4.0)
    turns.asked("b", 4.0)
    assert turns.next(4.0) == "b"
    turns.gave_back("b", 6.5)
    turns.asked("b", 6.5)
    assert turns.next(6.5) == "a"


def test_time_that_a_job_did_not_ask_for_it_does_not_get_later() -> None:
    turns = slot("a", "b")
    for second in range(10):
        take(turns, "a", second, second + 1.0)
    turns.asked("a", 10.0)
    turns.asked("b", 10.0)
    assert turns.next(10.0) == "a"


def test_one_alone_need_not_ask() -> None:
    turns = slot("a")
    assert not turns.is_shared
    turns.joined("b", 1.0)
    assert turns.is_shared
    turns.left("a", 2.0)
    assert not turns.is_shared


def test_who_is_gone_leaves_its_turn_and_its_place() -> None:
    turns = slot("a", "b", "c")
    for name in "abc":
        turns.asked(name, 0.0)
    assert turns.next(0.0) == "a"
    turns.left("b", 0.5)
    turns.left("a", 1.0)
    assert turns.next(1.0) == "c"
    turns.left("unknown", 1.0)


def test_a_worker_that_comes_again_has_no_turn() -> None:
    turns = slot("a", "b")
    turns.asked("a", 0.0)
    assert turns.next(0.0) == "a"
    turns.asked("b", 0.5)
    turns.joined("a", 1.0)
    assert turns.next(1.0) == "b"


def test_a_turn_that_lasts_too_long_is_taken_back() -> None:
    turns = slot("a", "b")
    assert isinf(turns.ends_by)
    turns.asked("a", 0.0)
    turns.asked("b", 0.0)
    assert turns.next(0.0) == "a"
    assert turns.ends_by == FIRST_LIMIT_S
    assert turns.next(FIRST_LIMIT_S - 0.1) is None
    assert turns.next(FIRST_LIMIT_S) == "b"
    assert turns.overdue == 1
    turns.gave_back("a", FIRST_LIMIT_S + 1.0)
    assert turns.holder == "b", "what it gives back late is another's"
    turns.gave_back("b", FIRST_LIMIT_S + 1.5)
    turns.asked("a", FIRST_LIMIT_S + 2.0)
    assert turns.next(FIRST_LIMIT_S + 2.0) == "a"
    assert turns.ends_by == FIRST_LIMIT_S + 2.0 + FIRST_LIMIT_S, "it says nothing of how long turns last"


@pytest.mark.parametrize(("took", "limit"), [(0.1, LEAST_LIMIT_S), (5.0, TIMES * 5.0)])
def test_the_limit_follows_the_longest_turn(took: float, limit: float) -> None:
    turns = slot("a", "b")
    take(turns, "a", 0.0, took)
    take(turns, "a", 10.0, 10.0 + took / 2)
    turns.asked("a", 20.0)
    assert turns.next(20.0) == "a"
    assert turns.ends_by == pytest.approx(20.0 + limit)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0.0, 0.3)), max_size=30),
)
def test_shares_are_even_whatever_turns_take_and_hung_workers_hold_nobody_up(
    lengths: list[float], troubles: list[tuple[int, float]]
) -> None:
    """All want the slot all the time; some turns are never given back. Each job's time differs from another's by no
    more than two of the longest turns, and nobody waits for longer than a few turns of each of the others."""
    names = [f"j{n}" for n in range(len(lengths))]
    turns, now = slot(*names), 0.0
    had, asked_at = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for name in names:
        take(turns, name, now, now + lengths[names.index(name)])
        now += lengths[names.index(name)]
        had[name] += lengths[names.index(name)]
    for name in names:
        turns.asked(name, now)
        asked_at[name] = now
    hung = {at: None for at, _ in enumerate(troubles) if troubles[at][0] == 0}
    longest = max(max(lengths), *(max(LEAST_LIMIT_S, TIMES * one) for one in lengths)) if hung else max(lengths)
    for number in range(40):
        name = turns.next(now)
        assert name is not None
        assert turns.holder == name
        assert now - asked_at[name] <= 3 * len(names) * longest
        lasts = lengths[names.index(name)]
        if number in hung:
            assert turns.ends_by < inf
            lasts = turns.ends_by - now
            now = turns.ends_by
            turns.asked(name, now)
        else:
            now += lasts
            turns.gave_back(name, now)
            turns.asked(name, now)
        had[name] += lasts
        asked_at[name] = now
    assert max(had.values()) - min(had.values()) <= 2 * longest + max(lengths)
