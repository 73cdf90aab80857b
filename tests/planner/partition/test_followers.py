"""An operator that follows is cut as its leader is, where all its inputs can be."""

from __future__ import annotations

import pytest

from holdfast.planner.partition.axes import MeshAxis
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.specs import Spec
from holdfast.planner.partition.strategies import Devices, followers, strategies

COPIES: Spec = ((), ())


@pytest.mark.parametrize(("width", "is_cut"), [(8, True), (4, True), (6, False), (1, False)])
def test_another_input_that_does_not_divide_is_gathered(width: int, is_cut: bool) -> None:
    """A bias along the second dimension, by four devices. It has nothing of the first one, which is cut in any case."""
    graph = OperatorGraph(
        (
            Operator("bias", Kind.INPUT, (), (width,), 1),
            Operator("h", Kind.INPUT, (), (4, 8), 1, has_gradient=True),
            Operator("s", Kind.FOLLOW, ("h", "bias"), (4, 8), 1, dims=((0, 1), (None, 0))),
        )
    )
    devices = Devices((MeshAxis(4),), flops=2.0)
    lead = strategies(graph, graph.operators[1], devices)
    own = dict(zip((one.rules for one in lead), followers(graph, graph.operators[2], lead, devices), strict=True))
    assert set(own) == {("replicate",), ("cut0",), ("cut1",)}
    assert (own["replicate",].output, own["replicate",].inputs, own["replicate",].memory) == (
        COPIES,
        (COPIES, ((),)),
        32,
    )
    rows: Spec = ((0,), ())
    assert (own["cut0",].output, own["cut0",].inputs, own["cut0",].memory) == (rows, (rows, ((),)), 8)
    columns: Spec = ((), (0,)) if is_cut else COPIES
    bias: Spec = ((0,),) if is_cut else ((),)
    assert (own["cut1",].output, own["cut1",].inputs) == (columns, (columns, bias))
    assert own["cut1",].work == ({0} if is_cut else set())
