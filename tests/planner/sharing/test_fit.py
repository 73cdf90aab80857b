"""Roles against rooms, by all choices."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.sharing.fit import allowed, matches
from holdfast.planner.sharing.jobs import SharedJob

FEW = st.integers(1, 5)


def by_hand(rooms: list[int], needs: list[int]) -> bool:
    return any(all(need <= room for need, room in zip(order, rooms, strict=True)) for order in permutations(needs))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5))
def test_rooms_match_needs_where_some_order_does(pairs: list[tuple[int, int]]) -> None:
    rooms, needs = [room for room, _ in pairs], [need for _, need in pairs]
    assert matches(rooms, needs) == by_hand(rooms, needs)


@settings(deadline=None)
@given(FEW.flatmap(lambda k: st.lists(st.integers(0, 10), min_size=k, max_size=k)), st.booleans())
def test_a_role_is_allowed_where_the_others_still_have_slots(rooms: list[int], is_partial: bool) -> None:
    k = len(rooms)
    job = SharedJob("a", k, 1.0, 2.0, 1, activation_bytes=2.0 * k, is_partial=is_partial)
    needs = {role: 2 * role if is_partial else 2 * k for role in range(1, k + 1)}
    roles = list(needs)
    expected = [
        role
        for role in roles
        if needs[role] <= rooms[0] and by_hand(rooms[1:], [needs[other] for other in roles if other != role])
    ]
    assert allowed(job, roles, rooms[0], rooms[1:]) == expected
    assert bool(expected) == by_hand(rooms, list(needs.values()))


def test_what_roles_take() -> None:
    job = SharedJob("a", 4, 1.0, 2.0, 10, sync_s=0.5, activation_bytes=8.0)
    assert [job.seconds(role) for role in (1, 2, 3, 4)] == [1.5, 2.0, 2.5, 3.0]
    assert [job.activations(role) for role in (1, 2, 3, 4)] == [2.0, 4.0, 6.0, 8.0]
    assert (job.alone_s, job.work_s) == (10 * 3.5, 10 * 4 * 3.0)
    full = SharedJob("a", 4, 1.0, 2.0, 10, activation_bytes=8.0, is_partial=False)
    assert {full.seconds(role) for role in (1, 2, 3, 4)} == {3.0}
    assert {full.activations(role) for role in (1, 2, 3, 4)} == {8.0}
