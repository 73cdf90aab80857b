"""Optimizer states in host memory change no bit of a job's losses, on any layout, and neither does a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

STEPS = 4
SMALL = ["model.layers=2", "train.micro_batches=4", "model.dropout=0.1", "optim.warmup_steps=2"]
HOST = ["optim.state=host", "optim.bucket=3001"]
CASES = {
    "pp+dp, zero 1": (["--pp", "2", "--dp", "2"], ["train.dtype=bfloat16"]),
    "dp+tp, zero 0": (["--dp", "2", "--tp", "2"], ["parallel.zero=0", "model.tied=true"]),
    "pp+tp, tied": (["--pp", "2", "--tp", "2"], ["train.dtype=bfloat16", "model.tied=true", "parallel.sequence=true"]),
    "dp+tp, zero 2": (["--dp", "2", "--tp", "2"], ["train.dtype=bfloat16", "parallel.zero=2"]),
    "pp+dp, zero 3": (["--pp", "2", "--dp", "2"], ["train.dtype=bfloat16", "parallel.zero=3"]),
    "chimera": (["--pp", "2", "--dp", "2"], ["parallel.schedule=chimera", "optim.name=sgd", "optim.lr=0.1"]),
    "unlike tp": (["--pp", "2"], ["parallel.stage_tp=[1, 3]", "model.heads=6", "model.d_model=48", "optim.name=sgd"]),
}
FAST = "pp+dp, zero 1"


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c == FAST else pytest.mark.slow) for c in CASES])
def test_losses_are_those_of_states_on_the_device(zygote: Zygote, tiny: list[str], tmp_path: Path, case: str) -> None:
    layout, settings = CASES[case]
    argv = [*tiny, *layout, *words([*SMALL, *settings]), "--steps", str(STEPS)]
    found = []
    for name, more in (("device", []), ("host", HOST)):
        done = zygote.run("train", 4, tmp_path / name, args={"argv": [*argv, *words(more)]})
        assert done["exits"] == [0] * 4
        found.append(losses(done))
    assert found[0] == found[1]
    assert len(set(found[0])) == STEPS


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        (["--dp", "2"], ["train.dtype=bfloat16"]),
        pytest.param(["--pp", "2", "--dp", "2"], ["parallel.schedule=interleaved"], marks=pytest.mark.slow),
        pytest.param(["--pp", "2", "--dp", "2"], ["optim.name=sgd", "optim.lr=0.1"], marks=pytest.mark.slow),
    ],
    ids=["bfloat16", "two stages", "sgd"],
)
def test_sums_beside_the_update_change_no_bit(
    zygote: Zygote, tiny: list[str], tmp_path: Path, layout: list[str], more: list[str]
) -> None:
    world = 2 ** (len(layout) // 2)
    settings = [*SMALL, "model.layers=4", *HOST, "parallel.zero=0", "optim.clip_norm=0", *more]
    found = []
    for pieces in (0, 1):
        argv = [*tiny, *layout, *words([*settings, f"optim.reduce_pieces={pieces}"]), "--steps", str(STEPS)]
        done = zygote.run("train", world, tmp_path / str(pieces), args={"argv": argv})
        assert done["exits"] == [0] * world
        found.append(losses(done))
    assert found[0] == found[1]
    assert len(set(found[0])) == STEPS


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c == FAST else pytest.mark.slow) for c in list(CASES)[:2]]
)
def test_a_restart_repeats_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path, case: str) -> None:
    layout, settings = CASES[case]
    strike(zygote, [*tiny, *layout, *words([*SMALL, *settings, *HOST])], tmp_path, victim=3, world=4)
