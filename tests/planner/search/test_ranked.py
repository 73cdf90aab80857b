"""The order of layouts and the words for it, of predictions whose figures are given."""

from __future__ import annotations

import pytest

from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.prediction import Breakdown, Memory, Prediction, Wire
from holdfast.planner.search.ranked import Ranked, why


def ranked(layout: Layout | None = None, held: float = 1.0, step_s: float | None = None, **seconds: float) -> Ranked:
    kinds = ("compute", "recompute", "tensor", "bubble", "replicas", "optimizer")
    spent = Breakdown(**{kind: seconds.get(kind, 0.0) for kind in kinds})
    memory = (Memory(held, 0, 0, 0, 0, 0), Memory(held / 2, 0, 0, 0, 0, 0))
    step = spent.total if step_s is None else step_s
    return Ranked(layout or Layout(), Prediction(step, spent, memory, 0.0, Wire({}, {}), 0.5, 80e9))


def test_the_goal_is_first_and_equal_ones_have_an_order() -> None:
    layout = Layout(pp=4, dp=9, tp=2, zero=3, chunks=5, micro_batch_size=7)
    one = ranked(layout, held=30.0, compute=2.0)
    assert one.key("time") == (2.0, 30.0, 4, 2, 3, 5, 7, 0, 0, 1)
    assert one.key("memory") == (30.0, 2.0, 4, 2, 3, 5, 7, 0, 0, 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"compute": 10.0}, "computation alone"),
        ({"compute": 8.0, "bubble": 1.5, "replicas": 0.5}, "bubble 15%, sums over replicas 5%"),
        ({"compute": 15.0, "tensor": 1.0, "recompute": 4.0}, "recompute 20%, tensor collectives 5%"),
        ({"compute": 98.0, "optimizer": 1.5, "tensor": 0.5}, "computation alone"),
        ({"compute": 99.0, "bubble": 1.0}, "bubble 1%"),
    ],
)
def test_what_the_best_spends_on_besides_computation(seconds: dict[str, float], text: str) -> None:
    best = ranked(**seconds)
    assert why(best, best) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ({"compute": 8.0, "bubble": 4.5}, "+25.0%: bubble takes 2.50 s more"),
        ({"compute": 9.0, "bubble": 3.0}, "+20.0%: computation takes 1.00 s more"),
        ({"compute": 8.0, "bubble": 2.0, "optimizer": 0.125}, "+1.2%: optimizer takes 125 ms more"),
        ({"compute": 8.0, "bubble": 2.004}, "as fast"),
        ({"compute": 8.0, "bubble": 1.996}, "as fast"),
        ({"compute": 8.0, "bubble": 2.006}, "+0.1%: bubble takes 6 ms more"),
        ({"compute": 8.0, "bubble": 1.0}, "-10.0%"),
        ({"compute": 8.5, "bubble": 1.0}, "-5.0%"),
    ],
)
def test_what_makes_another_slower(seconds: dict[str, float], text: str) -> None:
    best = ranked(compute=8.0, bubble=2.0)
    assert why(ranked(**seconds), best) == text
    # The same where no part of it is longer.
    assert why(ranked(step_s=11.0, compute=8.0, bubble=2.0), best) == "+10.0%"
