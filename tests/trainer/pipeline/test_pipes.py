"""Pipelines in both directions: replicas of a stage begin alike, stay alike, and learn what one process learns."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from tests.trainer.run.test_equality import compare, mesh
from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

PAIR = ["parallel.schedule=chimera", "train.dtype=float64"]
HALVING = ["parallel.schedule=chimera-halving"]


def settings(*values: str) -> list[str]:
    return [word for value in (*PAIR, *values) for word in ("--set", value)]


def test_two_pipes_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *mesh(2, 1, 1), *settings("model.layers=4", "model.dropout=0.1", "train.micro_batches=4")]
    compare(zygote, argv, tmp_path, world=2, within=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ((4, 1, 1), ["train.micro_batches=8"]),
        ((4, 1, 1), ["train.micro_batches=6", "model.tied=true", "optim.name=lamb"]),
        ((4, 1, 1), ["train.micro_batches=5", "parallel.chunks=4", "train.recompute=full", "model.tied=true"]),
        ((2, 2, 1), ["train.micro_batches=8", "parallel.zero=0", "optim.name=lamb"]),
        ((2, 1, 2), ["train.micro_batches=4", "parallel.sequence=true", "model.tied=true"]),
        ((2, 1, 1), ["train.micro_batches=1"]),
        ((4, 1, 1), ["train.micro_batches=8", "parallel.schedule=chimera-doubling", "model.dropout=0.1"]),
        ((4, 1, 1), ["train.micro_batches=5", "parallel.schedule=chimera-doubling", "parallel.chunks=4"]),
        ((2, 2, 1), ["train.micro_batches=8", "parallel.schedule=chimera-doubling", "parallel.zero=0"]),
        ((4, 1, 1), [*HALVING, "train.micro_batches=8", "train.micro_batch_size=2"]),
        ((2, 1, 2), [*HALVING, "train.micro_batches=4", "train.micro_batch_size=4"]),
        ((2, 2, 1), ["train.micro_batches=8", "parallel.zero=1", "optim.name=lamb", "model.tied=true"]),
        ((2, 2, 1), ["train.micro_batches=8", "parallel.zero=2", "optim.name=lamb", "train.recompute=selective"]),
        ((2, 2, 2), ["train.micro_batches=8", "parallel.zero=2", "model.tied=true", "parallel.sequence=true"]),
        ((4, 2, 1), ["train.micro_batches=10", "parallel.zero=2", "parallel.chunks=4", "model.tied=true"]),
        ((4, 1, 1), ["train.micro_batches=2", "parallel.zero=1", "parallel.chunks=4", "optim.name=lamb"]),
        ((2, 1, 1), ["train.micro_batches=1", "parallel.zero=2"]),
        ((4, 1, 1), ["train.micro_batches=7", "parallel.zero=2", "parallel.schedule=chimera-doubling"]),
        ((2, 2, 1), [*HALVING, "train.micro_batches=8", "parallel.zero=2", "train.micro_batch_size=2"]),
        ((4, 1, 1), ["train.micro_batches=8", "parallel.zero=0", "parallel.replica_sync=eager"]),
        ((2, 2, 1), ["train.micro_batches=8", "parallel.zero=1", "parallel.replica_sync=eager", "model.tied=true"]),
        ((4, 1, 1), ["train.micro_batches=8", "parallel.zero=1", "parallel.replica_sync=eager-opt"]),
        ((4, 1, 1), ["train.micro_batches=4", "parallel.zero=0", "parallel.replica_sync=eager-opt"]),
    ],
    ids=str,
)
def test_pipes_equal_one_process(
    zygote: Zygote, tiny: list[str], tmp_path: Path, shape: tuple[int, int, int], values: list[str]
) -> None:
    """What test_pairs.py does not have: four pipes, more or fewer micro-batches than fill them, eager sums. The loss of
    the last step has seen two updates."""
    pp, dp, tp = shape
    argv = [*tiny, *mesh(*shape), *settings("model.layers=4", *values)]
    compare(zygote, argv, tmp_path, world=pp * dp * tp, steps=3, within=1e-12)


@pytest.mark.slow
def test_a_restart_changes_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    small = ["model.layers=4", "train.micro_batches=4", "model.dropout=0.1"]
    argv = [*tiny, *mesh(4, 1, 1), *settings("parallel.chunks=4", *small)]
    strike(zygote, argv, tmp_path, victim=1, world=4)


@pytest.mark.slow
def test_a_checkpoint_has_each_parameter_once_and_goes_into_any_layout(
    zygote: Zygote, tiny: list[str], tmp_path: Path
) -> None:
    alike = ["--set", "train.micro_batches=4", "--set", "train.dtype=float64", "--set", "model.layers=4"]
    layouts = {"pipes": [*mesh(2, 1, 1), *settings()], "one way": mesh(2, 1, 1)}
    sizes, found = {}, {}
    for name, layout in layouts.items():
        store = ["--store", (tmp_path / name).as_uri(), "--checkpoint-every", "2"]
        argv = [*tiny, *alike, *layout, *store]
        done = zygote.run("train", 2, tmp_path / f"{name} ranks", args={"argv": [*argv, "--steps", "2"]})
        assert done["exits"] == [0, 0]
        sizes[name] = sum(path.stat().st_size for path in (tmp_path / name).rglob("*.safetensors"))
        # Each goes on where the other one was.
        other = layouts["one way" if name == "pipes" else "pipes"]
        argv = [*tiny, *alike, *other, *store, "--steps", "4"]
        done = zygote.run("train", 2, tmp_path / f"{name} others", args={"argv": argv}, generation=1)
        assert [result["first"] for result in done["results"]] == [2, 2]
        found[name] = losses(done)
    assert sizes["pipes"] == pytest.approx(sizes["one way"], rel=0.01)
    assert found["pipes"] == pytest.approx(found["one way"], abs=1e-12)
