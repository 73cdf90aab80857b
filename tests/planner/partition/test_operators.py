"""What a graph says of its operators, of one that is small enough to say it by hand."""

from __future__ import annotations

import pytest

from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph

GRAPH = OperatorGraph(
    (
        Operator("x", Kind.INPUT, (), (1, 3), 2),
        Operator("state", Kind.INPUT, (), (1, 5), 8, has_gradient=True),
        Operator("w", Kind.PARAMETER, (), (5, 3), 4),
        Operator("h", Kind.MATMUL, ("x", "w"), (1, 5), 4, flops=30.0),
        Operator("v", Kind.FOLLOW, ("h",), (5, 1), 4, dims=((1, 0),), is_view=True),
        Operator("s", Kind.FOLLOW, ("x", "state", "w"), (1, 5), 4, flops=5.0, dims=((0, None),) * 3, layer=1),
        Operator("t", Kind.FOLLOW, ("s", "h", "x"), (1, 5), 4, dims=((0, 1),) * 3, layer=2),
        Operator("out", Kind.OUTPUT, ("t",), (1, 5), layer=2),
    )
)


def of(name: str) -> Operator:
    return GRAPH.operators[GRAPH.index[name]]


def test_bytes_flops_and_traffic() -> None:
    """A dimension may have one element. An operator reads all its inputs and writes its result; a view does neither."""
    assert {name: of(name).num_bytes for name in ("x", "state", "w", "h")} == {"x": 6, "state": 40, "w": 60, "h": 20}
    assert GRAPH.traffic(of("h")) == 6 + 60 + 20
    assert GRAPH.traffic(of("v")) == 0
    assert GRAPH.traffic(of("t")) == 20 + 20 + 6 + 20
    assert GRAPH.flops() == 35


def test_gradients_and_last_uses() -> None:
    """Of data none is wanted; of what parameters made, or what comes from another stage, it is."""
    assert dict(GRAPH.gradients) == {
        "x": False, "state": True, "w": True, "h": True, "v": True, "s": True, "t": True, "out": True,
    }  # fmt: skip
    data = OperatorGraph((of("x"), Operator("y", Kind.FOLLOW, ("x",), (1, 3), dims=((0, 1),))))
    assert dict(data.gradients) == {"x": False, "y": False}
    assert dict(GRAPH.last_uses) == {"x": 6, "state": 5, "w": 5, "h": 6, "v": 4, "s": 6, "t": 7, "out": 7}


@pytest.mark.parametrize(
    ("inputs", "leader"),
    [
        (("w", "x"), "x"),  # no parameter, though it has a gradient
        (("state", "x"), "state"),  # with a gradient
        (("x", "state"), "state"),
        (("state", "h", "x"), "h"),  # computed, not come in
        (("s", "h"), "s"),  # the one computed last
        (("h", "s"), "s"),
    ],
)
def test_the_input_that_is_followed(inputs: tuple[str, ...], leader: str) -> None:
    one = Operator("f", Kind.FOLLOW, inputs, (1, 5), dims=((0, 1),) * len(inputs))
    assert GRAPH.leader(one) == leader


def test_layers_get_what_earlier_ones_made_as_inputs() -> None:
    part = GRAPH.of_layers(1, 3)
    assert [(one.name, one.kind, one.has_gradient) for one in part.operators] == [
        ("x", Kind.INPUT, None), ("state", Kind.INPUT, True), ("w", Kind.PARAMETER, None), ("h", Kind.INPUT, True),
        ("s", Kind.FOLLOW, None), ("t", Kind.FOLLOW, None), ("out", Kind.OUTPUT, None),
    ]  # fmt: skip
    assert [one.name for one in GRAPH.of_layers(0, 1).operators] == ["x", "state", "w", "h", "v"]
    assert [one.name for one in GRAPH.of_layers(1, 2).operators] == ["x", "state", "w", "s"]
    assert (part.operators[3].shape, part.operators[3].item) == ((1, 5), 4)
