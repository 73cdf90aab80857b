"""What an action is about, where a plan does two micro-batches at once or parts of one."""

from __future__ import annotations

import pytest
import torch

from holdfast.plan.plan import Action, Layers, Mesh, Op, Plan
from holdfast.trainer.pipeline.pieces import Pieces


def pieces(*actions: Action) -> Pieces:
    return Pieces(Plan("by hand", Mesh.of(pp=1), (Layers(0, 1, 0),), 4, (actions,)))


def test_a_micro_batch_that_no_action_divides_is_one_piece() -> None:
    whole = pieces(Action(Op.FORWARD, 0, 0), Action(Op.BACKWARD, 0, 0))
    assert whole.counts == {1}
    assert whole.of(Action(Op.FORWARD, 0, 3)) == ((3, 0),)


def test_each_action_has_its_share_of_the_pieces() -> None:
    """Thirds on one rank and halves on another: sixths everywhere."""
    thirds, halves = ([Action(Op.BACKWARD, 0, 1, turn=i, parts=n) for i in range(n)] for n in (3, 2))
    cut = pieces(Action(Op.FORWARD, 0, 1), *thirds, *halves)
    assert cut.counts == {1, 6}
    assert [cut.count(m) for m in range(3)] == [1, 6, 1]
    assert [cut.of(action) for action in thirds] == [((1, 0), (1, 1)), ((1, 2), (1, 3)), ((1, 4), (1, 5))]
    assert [cut.of(action) for action in halves] == [((1, 0), (1, 1), (1, 2)), ((1, 3), (1, 4), (1, 5))]
    assert cut.of(Action(Op.FORWARD, 0, 1)) == tuple((1, i) for i in range(6))


def test_samples_go_to_their_piece_in_order() -> None:
    cut = pieces(*(Action(Op.BACKWARD, 0, 2, turn=i, parts=2) for i in range(2)))
    samples = cut.cut(torch.arange(8), 4)
    assert {piece: tensor.tolist() for piece, tensor in samples.items()} == {
        (0, 0): [0, 1],
        (1, 0): [2, 3],
        (2, 0): [4],
        (2, 1): [5],
        (3, 0): [6, 7],
    }


@pytest.mark.parametrize("op", [Op.STEP, Op.REDUCE_GRAD, Op.UNSHARD])
def test_an_action_of_the_whole_stage_is_about_no_piece(op: Op) -> None:
    assert pieces().of(Action(op, 0)) == ()
