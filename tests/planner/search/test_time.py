"""Searches that time ends, over costs from a table: also where nothing fits, and where single layouts are long."""

from __future__ import annotations

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.schedule import computations, plan_of, samples_of
from holdfast.planner.search import search as module
from holdfast.planner.search.budget import Budget
from holdfast.planner.search.ranked import Goal
from holdfast.planner.search.reasons import NothingFits, NothingFound
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space, families
from tests.planner.support.drawn import CLUSTER, MODEL, SPACE, Table, search


def members() -> list[Layout]:
    return [one for family in families(MODEL, CLUSTER, 8, SPACE) for one in family.members(MODEL, SPACE)]


class Over(Table):
    """Costs whose bounds are small, and predictions large."""

    def least_bytes(self, model: Transformer, one: Layout) -> float:
        return 0.0

    def least_of_family(self, model: Transformer, one: Layout, policies: object = ()) -> float:
        return 0.0

    def _held(self, one: Layout) -> float:
        return 2e9


def test_time_ends_a_search_in_which_nothing_fits_and_more_time_goes_on() -> None:
    """By a clock of one second for each prediction."""
    costs = Over(0)
    one, number = search(costs, limit_bytes=1e9), len(members())
    for predictions in (1, 3, 6):
        budget = Budget(predictions - len(costs.predicted), lambda: float(len(costs.predicted)))
        with pytest.raises(NothingFound) as found:
            one.run(budget.is_up, budget.is_too_long)
        assert str(found.value) == (
            f"time was up before a layout was found that fits in 1 GB a device: {predictions} of {number} were looked "
            "at, and the smallest of them needs 2 GB or more; more time looks at the rest"
        )
        assert len(costs.predicted) == predictions
    with pytest.raises(
        NothingFits, match=r"no layout fits in 1 GB a device: the smallest .* needs 2 GB or more"
    ) as last:
        one.run()
    assert not isinstance(last.value, NothingFound)
    assert len(costs.predicted) == len(set(costs.predicted)) == number
    assert len(search(Table(0), limit_bytes=9.0).run(lambda: True).best) == 1


def test_a_search_whose_long_layouts_have_no_time_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 0)
    with pytest.raises(NothingFound, match=rf": 0 of {len(members())} were looked at; more time looks at the rest"):
        search(Over(0), limit_bytes=1e9).run(lambda: False, lambda count: True)


@pytest.mark.parametrize("seed", range(10))
def test_the_smallest_of_all_is_named_where_nothing_fits(seed: int) -> None:
    costs = Table(seed)
    least = min((costs.least_bytes(MODEL, one), number) for number, one in enumerate(members()))
    smallest = members()[least[1]]
    one = search(costs, limit_bytes=least[0] * 0.999)
    with pytest.raises(NothingFits):
        one.run()
    assert one._smallest == (least[0], smallest)
    assert costs.predicted == []
    # What the trainer does not take is not named.
    one = search(costs, limit_bytes=least[0] * 0.999, allows=lambda layout: layout != smallest)
    with pytest.raises(NothingFits):
        one.run()
    assert one._smallest is not None
    assert one._smallest[0] == sorted(costs.least_bytes(MODEL, one) for one in members())[1]


@pytest.mark.parametrize("goal", ["time", "memory"])
def test_long_layouts_are_looked_at_last_and_not_at_all_without_time(
    goal: Goal, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = sorted(computations(one) for one in members())
    most = counts[len(counts) // 2]
    monkeypatch.setattr(module, "AT_ONCE", most)
    costs = Table(1)
    found = search(costs, goal=goal, kept=1000, limit_bytes=9.0).run()
    sizes = [computations(one) for one in costs.predicted]
    assert sorted(sizes) == counts
    short = [size for size in sizes if size <= most]
    assert 0 < len(short) < len(sizes)
    assert sizes[: len(short)] == short
    assert sizes[len(short) :] == sorted(sizes[len(short) :])
    assert found.is_complete
    # No time for those above the least of the long ones.
    costs.predicted.clear()
    again = search(costs, goal=goal, kept=1000, limit_bytes=9.0)
    part = again.run(lambda: False, lambda count: count > sizes[len(short)])
    assert {computations(one) for one in costs.predicted} == {size for size in sizes if size <= sizes[len(short)]}
    assert not part.is_complete
    left = set(members()) - set(costs.predicted)
    assert part.floor_s == min(costs.floor(MODEL, one, with_schedule=True) for one in left)
    assert again.run().best == found.best


def test_the_computations_of_a_layout_are_those_of_its_plans() -> None:
    for one in (
        Layout(4, 2, 1, micro_batches=16),
        Layout(4, 2, 1, "interleaved", 3, micro_batches=16),
        Layout(4, 1, 1, "zbv", micro_batches=9),
        Layout(4, 1, 1, "chimera", 2, micro_batches=9),
        Layout(4, 1, 1, micro_batches=1000),
        Layout(4, 1, 1, micro_batches=9, recompute="cell"),
    ):
        lengths = samples_of(one) or (one.local_micro_batches,)
        assert computations(one) == sum(len(order) for n in lengths for order in plan_of(one, n).orders)


def test_a_model_of_1t_is_refused_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 layers on 768 devices of 20 GB: the fewest bytes of a rank are states of 128 / 96 = 1.33, so 2 layers."""
    model = Transformer(128, 25600, 160, 51200, 2048)
    text = 'gpu = "A100"\nnodes = 96\ngpus_per_node = 8\n[links.switch]\ngbit_per_s = 200\n'
    costs = CostModel(parse(text), Precision.of("bfloat16"))

    def built(*_: object) -> None:
        raise AssertionError("a plan was built")

    monkeypatch.setattr("holdfast.planner.cost.schedule._plan", built)
    space = Space(micro_batch_sizes=(1,), schedules=("1f1b", "interleaved", "chimera"))
    one = Search(model, costs, 1536, space=space, limit_bytes=20e9)
    with pytest.raises(NothingFits, match=r"no layout fits in 20 GB a device: the smallest .* would do") as refused:
        one.run()
    assert not isinstance(refused.value, NothingFound)
