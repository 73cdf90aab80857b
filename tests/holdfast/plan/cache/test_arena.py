"""Every byte is counted, by what it is for."""

import pytest

from holdfast.plan.cache.arena import Arena, ArenaFullError


def test_peaks_are_of_all_and_of_each_kind() -> None:
    arena = Arena("device", 100)

    arena.take("weights", 60)
    arena.take("buffers", 30)
    arena.release("weights", 40)
    arena.take("buffers", 20)

    assert (arena.used, arena.peak, arena.free) == (70, 90, 30)
    assert arena.used_by == {"weights": 20, "buffers": 50}
    assert arena.peak_by == {"weights": 60, "buffers": 50}


def test_what_does_not_fit_is_refused_with_what_is_there() -> None:
    arena = Arena("device", 100)
    arena.take("weights", 60)

    with pytest.raises(ArenaFullError, match=r"^device: 41 bytes for chunks do not fit, 60 of 100 .* \(weights 60\)$"):
        arena.take("chunks", 41)

    assert (arena.used, arena.peak) == (60, 60)
    assert "chunks" not in arena.used_by


def test_no_more_of_a_kind_is_released_than_was_taken() -> None:
    arena = Arena("host")
    arena.take("weights", 10)
    arena.take("buffers", 10)

    for size in (11, -1):
        with pytest.raises(ValueError, match="can't be released"):
            arena.release("weights", size)
    with pytest.raises(ValueError, match="less than none"):
        arena.take("weights", -1)
    arena.release("weights", 10)
    arena.take("nothing", 0)

    assert arena.used_by == {"buffers": 10}
    assert arena.free == float("inf")
