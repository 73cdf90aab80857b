"""How many ranks hold a parameter, so that a norm counts each once, and which two hold the copies of a tied one."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.plan.schedules.table import Placement
from holdfast.trainer.__main__ import parse
from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.optim import slices
from holdfast.trainer.pipeline.pipeline import build_stages
from holdfast.trainer.settings.layout import TrainerLayout, plan

SMALL = ("model.layers=4", "model.d_model=32", "model.heads=4", "train.micro_batches=4")
MATRIX, NORM, EMBEDDING = "layers.0.inward.weight", "layers.0.norm.weight", "embed.weight"


def held(*named: str) -> dict[str, slices.Slice]:
    """What rank 0 of a job with these settings holds, by name."""
    config = parse([word for one in (*SMALL, *named) for word in ("--set", one)])
    parallel = config.parallel
    layout = plan(config, parallel.pp * parallel.dp * parallel.tp, 256)
    moment: Any = None  # nothing is computed
    with rank_of(layout) as mesh:
        stages = build_stages(config, mesh, 256, moment, lambda logits, targets: logits.sum())
        return {one.name: one for one in slices.slices_of(stages, mesh)}


@pytest.mark.parametrize(
    ("pp", "dp", "tp", "zero", "matrix", "norm"),
    [  # tp splits matrices and repeats norms; dp splits both, but not with zero = 0
        (1, 1, 1, 1, 1, 1),
        (1, 1, 2, 1, 1, 2),
        (1, 2, 1, 1, 1, 1),
        (1, 2, 1, 0, 2, 2),
        (1, 2, 1, 3, 1, 1),
        (2, 2, 2, 1, 1, 2),
        (2, 2, 2, 0, 2, 4),
        (1, 3, 4, 0, 3, 12),
    ],
)
def test_ranks_that_hold_the_same(pp: int, dp: int, tp: int, zero: int, matrix: int, norm: int) -> None:
    count = "train.micro_batches=12"  # divides over all these
    found = held(count, *(f"parallel.{k}={v}" for k, v in {"pp": pp, "dp": dp, "tp": tp, "zero": zero}.items()))
    assert (found[MATRIX].copies, found[NORM].copies) == (matrix, norm)
    assert (found[MATRIX].is_split, found[NORM].is_split) == (tp > 1, False)
    assert {found[MATRIX].is_sharded, found[NORM].is_sharded} == {dp > 1 and zero > 0}


def test_a_tied_embedding_is_held_by_two_stages_of_a_pipeline() -> None:
    tied = "model.tied=true"
    assert not held("parallel.pp=2", "parallel.dp=1")[EMBEDDING].is_tied
    assert not held("parallel.pp=1", "parallel.dp=1", tied)[EMBEDDING].is_tied
    found = held("parallel.pp=2", "parallel.dp=1", tied)
    assert {name: one.copies for name, one in found.items() if one.copies != 1} == {EMBEDDING: 2}


def test_pipes_hold_replicas() -> None:
    """Four of each, whole or cut; a tied embedding has as many in the other stage."""
    pipes = ("parallel.pp=4", "parallel.dp=1", "parallel.schedule=chimera", "parallel.chunks=4", "model.tied=true")
    for zero, copies in ((0, (4, 8)), (1, (1, 2))):
        found = held(*pipes, f"parallel.zero={zero}")
        assert (found[MATRIX].copies, found[EMBEDDING].copies) == copies


@pytest.mark.parametrize(
    ("layout", "dp_rank", "tp_rank", "expected"),
    [
        # Ranks count through tp first, then dp, then pp.
        (TrainerLayout(2, 1, 1, 1, 4), 0, 0, [0, 1]),
        (TrainerLayout(4, 2, 3, 1, 4), 1, 2, [5, 23]),
        (TrainerLayout(4, 3, 2, 2, 4), 2, 1, [5, 23]),
        (TrainerLayout(4, 2, 2, 2, 4, Placement.FOLD), 1, 1, None),  # the first rank has the last stage too
    ],
)
def test_both_copies_of_a_tied_embedding_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, layout: TrainerLayout, dp_rank: int, tp_rank: int, expected: list[int] | None
) -> None:
    monkeypatch.setattr(slices, "group_of", lambda ranks, timeout, name, networks: ranks)
    mesh: Any = SimpleNamespace(
        layout=layout, dp_rank=dp_rank, tp_rank=tp_rank, timeout=timedelta(seconds=1), networks=None
    )
    assert slices._pair_group(mesh) == expected
