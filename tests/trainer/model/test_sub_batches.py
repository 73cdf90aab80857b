"""Parts of a micro-batch whose sums are on their way while others are computed: the same gradients."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote
from taking_time import took

from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.load import load
from tests.trainer.run.test_equality import compare

SMALL = [
    "model.layers=2",
    "train.micro_batches=2",
    "train.micro_batch_size=2",
    "parallel.tp=2",
    "parallel.sub_batches=2",
]
CASES: dict[str, tuple[int, list[str]]] = {
    "parallel": (2, []),
    "serial": (2, ["model.block=serial", "model.norm=layer", "model.positions=learned"]),
    "gated, selective": (2, ["model.block=serial", "model.mlp=swiglu", "train.recompute=selective"]),
    "parallel, gated, 3 parts": (2, ["model.mlp=swiglu", "train.micro_batch_size=6", "parallel.sub_batches=3"]),
    "vocabulary, tied, window": (2, ["parallel.shard_vocabulary=true", "model.tied=true", "model.window=5"]),
    "pp2 cell": (4, ["parallel.pp=2", "model.layers=4", "train.recompute=cell", "train.micro_batches=4"]),
    "pp2 chimera": (4, ["parallel.pp=2", "parallel.schedule=chimera", "train.micro_batches=4"]),
    "pp2 merak": (4, ["parallel.pp=2", "parallel.schedule=merak", "train.micro_batches=4"]),
    "dp2 zero0": (4, ["parallel.dp=2", "parallel.zero=0", "train.micro_batches=4"]),
    "dp2 zero1, serial": (4, ["parallel.dp=2", "parallel.zero=1", "model.block=serial", "train.micro_batches=4"]),
    "dp2 zero2": (4, ["parallel.dp=2", "parallel.zero=2", "train.micro_batches=4"]),
    "tp4": (4, ["parallel.tp=4"]),
}  # fmt: skip
FAST = ("parallel", "serial")


def settings(*values: str) -> list[str]:
    return [word for value in (*SMALL, *values) for word in ("--set", value)]


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_sub_batches_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, case: str) -> None:
    world, values = CASES[case]
    argv = [*tiny, *settings("train.dtype=float64", *values)]
    compare(zygote, argv, tmp_path / "run", world=world, steps=3, within=1e-12)


def test_in_float32_as_well(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    compare(zygote, [*tiny, *settings("model.block=serial")], tmp_path / "run", world=2, steps=3, within=1e-6)


@pytest.mark.parametrize("block", ["parallel", "serial"])
def test_each_part_is_summed_up(zygote: Zygote, tiny: list[str], tmp_path: Path, block: str) -> None:
    counts = []
    for parts in (1, 2):
        argv = [*tiny, *settings(f"model.block={block}", f"parallel.sub_batches={parts}"), "--steps", "1"]
        done = zygote.run("collectives", 2, tmp_path / str(parts), args={"argv": argv})
        assert done["exits"] == [0, 0]
        counts.append(Counter(done["results"][0]["counts"]))
    sums = [{name: n for name, n in found.items() if name.startswith("tp:all_reduce")} for found in counts]
    halves = {"parallel": 1, "serial": 2}[block]
    # 2 layers, 2 micro-batches: what is not in layers is summed up once, as before.
    assert sum(sums[1].values()) - sum(sums[0].values()) == 2 * 2 * 2 * halves


@pytest.mark.parametrize(("n", "k", "g", "c"), [(4, 2, 5, 4), (3, 3, 2, 2), (4, 2, 2, 3)])
def test_sums_that_take_time_are_hidden(n: int, k: int, g: int, c: int) -> None:
    """In virtual time: K n max(g, c) + min(g, c) forward, and the same back, where a computation takes 2 g."""
    assert took(n, k, g, c) == tuple(k * n * max(one, c) + min(one, c) for one in (g, 2 * g))
    # In one part, each sum is waited for.
    assert took(n, 1, k * g, k * c) == tuple(k * n * (one + c) for one in (g, 2 * g))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parallel.sub_batches": 0}, "parallel.sub_batches is 0: must be 1 or more"),
        ({"parallel.tp": 1}, "hides the sums of tp ranks, and there is one"),
        ({"train.micro_batch_size": 3}, "train.micro_batch_size = 3 cannot be cut in 2"),
        (
            {"parallel.schedule": "chimera-halving", "parallel.pp": 2},
            "train.micro_batch_size = 2 cannot be cut in 4",
        ),
        ({"parallel.sequence": True}, "set parallel.sequence = false"),
        ({"parallel.overlap_chunks": 2}, "parallel.overlap_chunks = 1"),
        ({"parallel.zero": 3}, "parallel.zero = 3 gathers one at a time"),
        ({"parallel.schedule": "zbv", "parallel.pp": 2}, "needs whole backwards, which zbv halves: choose 1f1b"),
        ({"train.recompute": "full"}, "repeats them one by one (set cell)"),
        ({"train.recompute": "stage-aware"}, "repeats them one by one (set cell)"),
        ({"model.dropout": 0.1}, "set model.dropout = 0"),
    ],
)
def test_what_cannot_go_together_is_refused(change: dict[str, Any], says: str) -> None:
    values = {"parallel.tp": 2, "parallel.sub_batches": 2, "train.micro_batch_size": 2} | change
    with pytest.raises(ConfigError) as error:
        _planned(values)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def _planned(values: dict[str, Any]) -> None:
    config = load(overrides=[*values.items()])
    plan(config, config.parallel.pp * config.parallel.tp, 256)
