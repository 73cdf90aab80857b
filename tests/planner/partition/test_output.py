"""A loss over a vocabulary: which axes share it, and what that costs."""

from __future__ import annotations

import pytest

from holdfast.planner.partition.axes import MeshAxis
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.strategies import Devices, strategies


def all_reduce(size: int, beta: float, num_bytes: float) -> float:
    """Alpa's 2 b (n - 1) / n x, without its tie-breaker."""
    return 2 * beta * (size - 1) / size * num_bytes


@pytest.mark.parametrize("item", [1, 4])
def test_a_cut_vocabulary_sums_three_numbers_a_position(item: int) -> None:
    """The largest logit, the sum of exponentials and the target's own, of (6, 8, 64) logits: 48 positions."""
    logits = Operator("logits", Kind.INPUT, (), (6, 8, 64), item, has_gradient=True)
    graph = OperatorGraph((logits, Operator("loss", Kind.OUTPUT, ("logits",), (6, 8, 64), item)))
    mesh = (MeshAxis(2, beta=3, tie=0), MeshAxis(4, beta=5, tie=0))
    found = {one.rules: one for one in strategies(graph, graph.operators[1], Devices(mesh))}
    # Four devices cut 8 positions or 64 logits, not 6 samples; two cut each of them, eight together 8 and 64.
    first, second = ("replicate", "batch0", "batch1", "vocabulary"), ("replicate", "batch1", "vocabulary")
    assert set(found) == {(a, b) for a in first for b in second}
    for (a, b), one in found.items():
        expected = 0.0
        rows = 48 * item
        if a == "vocabulary":
            expected += 3 * all_reduce(2, 3, rows / (4 if b == "batch1" else 1))
        if b == "vocabulary":
            expected += 3 * all_reduce(4, 5, rows / (2 if a.startswith("batch") else 1))
        assert one.communication == pytest.approx(expected), (a, b)
        assert one.inputs == (one.output,)
        assert (one.compute, one.memory) == (0, 0)
