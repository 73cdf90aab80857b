"""What stages keep, so that all ranks hold as many bytes: pure, for any plan."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.memory import live
from holdfast.plan.recompute import Kept, StageBytes, stage_aware
from holdfast.plan.schedules.table import SCHEDULES


@pytest.mark.parametrize("d", [4, 8])
@pytest.mark.parametrize("name", ["1f1b", "eager-1f1b", "interleaved", "zbv", "gpipe", "chimera"])
def test_all_ranks_hold_as_much(name: str, d: int) -> None:
    schedule = SCHEDULES[name]
    plan = schedule.plan(d, schedule.chunks, 2 * d)
    size = StageBytes(8, whole=18, selective=14, full=1)
    found = stage_aware(plan, [size] * len(plan.stages))
    assert found.spread <= 1.1
    # What live counts when each forward weighs what is kept of it.
    again = live(plan, lambda a: float(sum(size.held(found.kept[a.stage, m]) for m in a.micro_batches)) / a.parts)
    assert again == found.bytes


def test_in_1f1b_the_last_rank_keeps_all_and_the_first_a_share() -> None:
    d, n, layers = 4, 8, 12
    found = stage_aware(SCHEDULES["1f1b"].plan(d, 1, n), [StageBytes(layers, whole=100, selective=100, full=0)] * d)
    assert found.bytes == (1200,) * d
    for rank in range(d):
        # d - rank micro-batches are under way, and hold what one of the last rank does.
        assert {kept for (stage, _), kept in found.kept.items() if stage == rank} == {Kept(layers // (d - rank), 0)}


def test_what_does_not_come_out_even_is_spread_over_micro_batches() -> None:
    found = stage_aware(SCHEDULES["1f1b"].plan(2, 1, 8), [StageBytes(3, whole=10, selective=10, full=0)] * 2)
    first = [found.kept[0, m].whole for m in range(8)]
    assert first == [1, 2] * 4  # 2 under way, 3 layers
    assert found.bytes == (30, 30)


def test_of_amounts_that_hold_as_much_the_one_that_recomputes_least() -> None:
    """Selective recomputation that saves nothing is not chosen."""
    found = stage_aware(SCHEDULES["1f1b"].plan(2, 1, 4), [StageBytes(4, whole=10, selective=10, full=2)] * 2)
    assert all(kept.selective == 0 for kept in found.kept.values())


def test_a_rank_that_holds_more_whatever_it_does_recomputes_all() -> None:
    sizes = [StageBytes(2, 100, 90, 80), StageBytes(2, 100, 90, 80)]
    found = stage_aware(SCHEDULES["1f1b"].plan(2, 1, 4), sizes)
    assert {found.kept[0, m] for m in range(4)} == {Kept(0, 0)}
    assert found.bytes == (2 * 2 * 80, 2 * 100)


def test_one_rank_alone_recomputes_nothing() -> None:
    found = stage_aware(SCHEDULES["1f1b"].plan(1, 1, 4), [StageBytes(5, 9, 5, 1, 7)])
    assert set(found.kept.values()) == {Kept(5, 0)}
    assert found.bytes == (5 * 9 + 7,)


def test_a_plan_with_recomputes_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match="merak recomputes whole stages already"):
        stage_aware(SCHEDULES["merak"].plan(4, 1, 8), [StageBytes(2, 9, 5, 1)] * 4)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["1f1b", "eager-1f1b", "interleaved", "bfs", "zbv", "chimera", "chimera-doubling"]),
    st.integers(1, 6),
    st.lists(st.integers(0, 50), min_size=4, max_size=4),
    st.lists(st.integers(1, 6), min_size=8, max_size=8),
)
def test_nobody_keeps_more_than_there_is(name: str, count: int, sizes: list[int], layers: list[int]) -> None:
    schedule = SCHEDULES[name]
    plan = schedule.plan(4, schedule.chunks, 2 * count)
    full, selective, whole, rest = sizes[0] + 1, sizes[0] + sizes[1] + 1, sum(sizes[:3]) + 1, sizes[3]
    stages = [StageBytes(layers[i % 8], whole, selective, full, rest) for i in range(len(plan.stages))]
    found = stage_aware(plan, stages)
    for (stage, _), kept in found.kept.items():
        assert min(kept) >= 0
        assert sum(kept) <= layers[stage % 8]
    everything = live(plan, lambda a: float(stages[a.stage].held(Kept(stages[a.stage].layers, 0)) * a.share))
    assert all(held <= most + 1e-9 for held, most in zip(found.bytes, everything, strict=True))
