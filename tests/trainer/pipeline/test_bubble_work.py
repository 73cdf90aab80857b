"""How long DP-KFAC's work takes beside computations, in multiplications that are counted by hand."""

from __future__ import annotations

import pytest

from holdfast.plan.plan import Action, Op
from holdfast.trainer.__main__ import parse
from holdfast.trainer.pipeline.bubble_work import bubble_work
from holdfast.trainer.pipeline.job_plan import BubbleWork
from holdfast.trainer.settings.layout import plan

ROWS = 4
"""Tokens of a micro-batch."""
LAYER = 24 * 8 + 8 * 8 + 32 * 8 + 8 * 32
"""Weights: queries, keys and values; the way out; both of the feed-forward layer."""
ATTENTION = 2 * 8 * (4 * 5 // 2)
"""Scores and values of width 8, of the pairs that are not masked."""
FORWARD = [ROWS * LAYER + ATTENTION, ROWS * (LAYER + 256 * 8) + ATTENTION]
"""By stage; the head is in the last one."""


def made(*settings: str, dp: int = 1) -> BubbleWork:
    """Two layers of width 8 in two stages."""
    small = [
        *(
            "model.layers=2",
            "model.d_model=8",
            "model.heads=2",
            "model.block=serial",
            "model.mlp=gelu",
            "data.seq_len=4",
        ),
        *("model.tied=false", "train.micro_batch_size=1", "train.micro_batches=4", "parallel.zero=0"),
        *("optim.kfac_fill=true", *settings),
    ]
    words = [word for setting in small for word in ("--set", setting)]
    config = parse(["--optimizer", "dp-kfac", "--pp", "2", "--dp", str(dp), *words])
    found = bubble_work(config, plan(config, 2 * dp, 256))
    assert found is not None
    return found


def inversion(*sizes: int) -> int:
    """Of a matrix's two factors: 6 d^3 each."""
    return sum(6 * size**3 for size in sizes)


def test_computations_take_what_their_products_take() -> None:
    of = made().duration
    for stage, forward in enumerate(FORWARD):
        assert of(Action(Op.FORWARD, stage, 0)) == of(Action(Op.RECOMPUTE, stage, 0)) == forward
        assert of(Action(Op.FORWARD, stage, 0, also=(1, 2))) == 3 * forward
        assert of(Action(Op.BACKWARD, stage, 0)) == 2 * forward
        assert of(Action(Op.BACKWARD, stage, 0, parts=2)) == forward
        assert of(Action(Op.SEND_FORWARD, stage, 0)) == 0
    # The first stage gives no gradient to its input.
    assert [of(Action(Op.BACKWARD_INPUT, stage, 0)) for stage in (0, 1)] == [0, FORWARD[1]]
    assert [of(Action(Op.BACKWARD_WEIGHT, stage, 0)) for stage in (0, 1)] == [2 * FORWARD[0], FORWARD[1]]


@pytest.mark.parametrize(("kind", "again"), [("full", FORWARD), ("selective", [ATTENTION] * 2), ("none", [0, 0])])
def test_a_backward_computes_again_what_was_not_kept(kind: str, again: list[int]) -> None:
    of = made(f"train.recompute={kind}").duration
    for stage, forward in enumerate(FORWARD):
        assert of(Action(Op.BACKWARD, stage, 0)) == 2 * forward + again[stage]
        assert of(Action(Op.BACKWARD_INPUT, stage, 0)) == forward * stage + again[stage]


def test_one_replica_builds_and_inverts_all_factors() -> None:
    """B d^2 of each side of each matrix; a round for each matrix of a stage, in their order."""
    work = made()
    inputs, outputs = 3 * 8**2 + 32**2, 24**2 + 8**2 + 32**2 + 8**2
    for turn in (0, 2):
        assert work.duration(Action(Op.FACTOR, 0, turn=turn)) == ROWS * inputs
        assert work.duration(Action(Op.FACTOR, 1, turn=turn + 1)) == ROWS * (outputs + 256**2)
    assert work.duration(Action(Op.FACTOR, 1)) == ROWS * (inputs + 8**2)
    assert dict(work.rounds) == {0: 4, 1: 5}
    turns = [work.duration(Action(Op.INVERT, 1, turn=turn)) for turn in range(6)]
    assert turns == [inversion(24, 8), inversion(8, 8), inversion(32, 8), inversion(8, 32), inversion(256, 8), 0]


def test_a_tied_head_computes_and_has_no_factors() -> None:
    of = made("model.tied=true").duration
    assert [of(Action(Op.FORWARD, stage, 0)) for stage in (0, 1)] == FORWARD
    assert of(Action(Op.FACTOR, 1)) == of(Action(Op.FACTOR, 0)) == ROWS * (3 * 8**2 + 32**2)
    assert of(Action(Op.INVERT, 1, turn=4)) == 0


def test_of_two_replicas_the_one_with_more_to_do_counts() -> None:
    """The longest first to whoever has least: the feed-forward's two matrices apart, then 24 x 8 to the first of both,
    8 x 8 to the second."""
    work = made(dp=2)
    assert work.rounds[0] == 2
    assert [work.duration(Action(Op.INVERT, 0, turn=turn)) for turn in (0, 1)] == [inversion(24, 8), inversion(32, 8)]
    assert work.duration(Action(Op.FACTOR, 0)) == ROWS * (8**2 + 32**2)  # 8 x 8 and 8 x 32
    assert work.duration(Action(Op.FACTOR, 0, turn=1)) == ROWS * (24**2 + 32**2)


def test_nothing_is_wanted_in_the_bubbles() -> None:
    config = parse(["--pp", "2"])
    assert bubble_work(config, plan(config, 2, 256)) is None
