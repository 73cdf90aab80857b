"""Moments are recorded once and compared then; who leaves is who is needed last on the device."""

from __future__ import annotations

import pytest

from holdfast.trainer.chunks.moments import Evict, Moment, Moments, margin_of, uses_on_device


def recorded(capacity: int | None = 100, on_device: range = range(0), device_bytes: int = 0) -> Moments:
    """Two groups forward and back; 30 bytes besides in the second moment."""
    moments = Moments(capacity)
    moments.begin()
    for group, is_written, beside in ((0, False, 10), (1, False, 30), (1, True, 20), (0, True, 5)):
        assert moments.next(Moment((group,), is_written)) is None
        moments.beside(beside)
        moments.beside(1)
    moments.end(on_device, 2, device_bytes)
    return moments


def test_what_is_left_is_known_after_a_step() -> None:
    assert list(recorded().limits) == [90, 70, 80, 95, 100, 100]
    assert list(recorded(None).limits) == [None] * 6
    # Lists that stay on the device take their part of each moment.
    assert list(recorded(on_device=range(1), device_bytes=12).limits) == [78, 58, 68, 83, 88, 88]


def test_updates_are_where_the_lists_are() -> None:
    moments = recorded(on_device=range(1), device_bytes=12)
    assert list(moments.moments[4:]) == [Moment((0,), True, False), Moment((1,), False, True)]
    assert moments.next(moments.moments[4]) == 88


def test_a_step_that_is_not_like_the_first_is_noticed() -> None:
    moments = recorded()
    moments.begin()
    moments.next(Moment((0,), False))
    with pytest.raises(AssertionError, match="moment 1 of step 1"):
        moments.next(Moment((0,), False))


def test_a_step_that_was_not_done_to_its_end_is_recorded_again() -> None:
    moments = Moments(100)
    moments.begin()
    moments.next(Moment((7,), False))
    moments.beside(99)
    moments.begin()
    moments.next(Moment((0,), False))
    moments.end(range(0), 1, 0)
    assert list(moments.limits) == [100, 100]
    assert [one.groups for one in moments.moments] == [(0,), (0,)]


def test_moments_count_through_the_steps() -> None:
    moments = recorded()
    assert [moments.next(one) and moments.now for one in moments.moments[4:]] == [4, 5]
    moments.begin()
    moments.next(moments.moments[0])
    assert moments.now == 6


def test_what_is_updated_in_host_memory_leaves_first() -> None:
    # Behind its backward, group 1 is needed by the host; group 0 by the device, later.
    uses = uses_on_device(recorded(on_device=range(1)).moments)
    assert [uses.next(group, 3) for group in (0, 1)] == [4, float("inf")]
    assert uses.next(0, 4) == 6
    assert uses.next(1, 1) == 2


def test_the_next_step_may_begin_in_host_memory() -> None:
    """Of a group that the host needs first in each step, the device's use behind that is none for a cache."""
    uses = uses_on_device([Moment((0,), is_on_host=True), Moment((0,))])
    assert [uses.next(0, now) for now in (0, 1, 2)] == [1, float("inf"), 3]


def test_who_leaves_changes_with_what_is_known() -> None:
    moments = Moments(100)
    evict = Evict("belady", moments)
    moments.begin()
    for group in (0, 1, 1, 0):
        moments.next(Moment((group,), False))
        evict.used(group, moments.now)
    # Not used for longest.
    assert evict.victim([0, 1], moments.now) == 1
    moments.end(range(2), 2, 0)
    # Needed at 4 and 5.
    assert evict.victim([0, 1], 3) == 1
    assert evict.victim([0, 1], 4) == 0
    for name, leaves in (("lru", 1), ("fifo", 0)):
        other = Evict(name, moments)
        for now, group in enumerate((0, 1, 0)):
            if now < 2:
                other.entered(group, now)
            other.used(group, now)
        assert other.victim([0, 1], 3) == leaves


def test_the_margin_is_four_fifths_of_what_is_free_in_every_moment() -> None:
    # 1000 - 100 besides - 300 of parameters; 0.8 of it is 480.
    assert margin_of(1000, 100, 300, 48, 20) == 10
    assert margin_of(1000, 100, 300, 49, 20) == 9
    assert margin_of(1000, 100, 300, 48, 3) == 3
    assert margin_of(1000, 100, 950, 48, 20) == 0
    assert margin_of(None, 100, 300, 48, 20) == 20
    # Nothing was seen besides: 0.8 of 704 is 563.2.
    assert [Moments(1004).margin(300, group, 20) for group in (563, 564)] == [1, 0]
    assert recorded(1000).margin(300, 49, 20, in_update=10) == margin_of(1000, 40, 300, 49, 20)
