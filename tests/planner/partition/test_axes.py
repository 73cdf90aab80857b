"""Costs of collectives and of laying tensors out anew, against figures worked out by hand."""

from __future__ import annotations

import pytest

from holdfast.planner.partition.axes import Collective, MeshAxis
from holdfast.planner.partition.specs import Spec, fits, reshard


@pytest.mark.parametrize(
    ("collective", "expected"),
    [
        (Collective.ALL_GATHER, 5 + 2 * 3 / 4 * 1000 + 0.1),
        (Collective.ALL_REDUCE, 5 + 2 * 2 * 3 / 4 * 1000 + 0.01),
        (Collective.REDUCE_SCATTER, 5 + 2 * 3 / 4 * 1000 + 0.001),
        (Collective.ALL_TO_ALL, 5 + 2 * 3 / 16 * 1000 * 2 + 0.001),
    ],
)
def test_a_collective_costs_what_alpa_has(collective: Collective, expected: float) -> None:
    assert MeshAxis(4, alpha=5, beta=2).cost(collective, 1000) == pytest.approx(expected, rel=1e-12)
    assert MeshAxis(4, alpha=5, beta=2, tie=0).cost(collective, 1000) == pytest.approx(expected, abs=0.2)
    assert MeshAxis(1, alpha=5, beta=2).cost(collective, 1000) == 0


@pytest.mark.parametrize("wrong", [{"size": 0}, {"size": 2, "alpha": -1}, {"size": 2, "beta": -1}])
def test_an_axis_has_devices_and_costs(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a size of 1 or more, and no cost below 0"):
        MeshAxis(**wrong)  # type: ignore[arg-type]


ROWS, COLUMNS, BOTH, COPIES = ((0,), ()), ((), (0,)), ((0,), (1,)), ((), ())
MESH = (MeshAxis(2, tie=0), MeshAxis(4, tie=0))


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (ROWS, ROWS, 0),
        (COPIES, BOTH, 0),
        (ROWS, COPIES, 1 / 2 * 800),
        (ROWS, COLUMNS, 1 / 4 * 800 * 1),  # all-to-all of 2
        (BOTH, ((0,), ()), 3 / 4 * 400),  # half of it on each row of devices
        (BOTH, COPIES, 1 / 2 * 200 + 3 / 4 * 800),  # the first axis gathers quarters, then the second all of it
        (((), (1,)), ((1,), ()), 3 / 16 * 800 * 2),
        (BOTH, COLUMNS, 1 / 4 * 200 + 3 / 4 * 400),  # what moves goes before what is gathered
        (((1,), ()), ((0,), (1,)), 3 / 16 * 400 * 2),  # cut first, which halves what moves
    ],
)
def test_laying_out_anew(source: Spec, target: Spec, expected: float) -> None:
    assert reshard(800, source, target, MESH) == pytest.approx(expected, rel=1e-12)


def test_what_divides() -> None:
    assert fits((4, 8), ((0,), (1,)), MESH)
    assert not fits((4, 6), ((0,), (1,)), MESH)
    assert fits((8, 3), ((0, 1), ()), MESH)
    assert not fits((4, 3), ((0, 1), ()), MESH)
