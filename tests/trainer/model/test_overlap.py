"""Chunks that are multiplied while others are on their way: the same gradients, and as many waits as chunks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote

from holdfast.trainer.model import symmetric
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from holdfast.trainer.settings.load import load
from tests.trainer.run.test_equality import compare

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=2", "--tp", "2"]
# A serial SwiGLU has two matrices on the way in, all others one.
LAYERS = {"serial": "gelu", "serial, gated": "swiglu", "parallel": "gelu", "parallel, gated": "swiglu"}

Collectives = Callable[[bool, int, str], Counter[str]]


def chosen(sequence: bool, chunks: int) -> list[str]:
    flag = "true" if sequence else "false"
    return ["--set", f"parallel.sequence={flag}", "--set", f"parallel.overlap_chunks={chunks}"]


def made_of(layer: str) -> list[str]:
    return ["--set", f"model.block={layer.split(',')[0]}", "--set", f"model.mlp={LAYERS[layer]}"]


# Which matrices a layer has makes no difference to how a chunk's transfer is taken apart.
@pytest.mark.parametrize(
    ("layer", "sequence"), [*((layer, True) for layer in LAYERS), ("serial, gated", False), ("parallel", False)]
)
def test_chunks_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, layer: str, sequence: bool) -> None:
    argv = [*tiny, *SMALL, *chosen(sequence, 4), *made_of(layer), "--set", "train.dtype=float64"]
    compare(zygote, argv, tmp_path / "run", world=2, steps=3, within=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
def test_fused_operations_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, layer: str) -> None:
    argv = [*tiny, *SMALL, *chosen(True, 4), *made_of(layer), "--set", "train.dtype=float64"]
    for result in compare(zygote, argv, tmp_path / "run", world=2, steps=2, within=1e-9, task="fused:gradients"):
        assert result["calls"]["fused_all_gather_matmul"] == result["calls"]["fused_matmul_reduce_scatter"] > 0


@pytest.mark.parametrize(
    ("change", "suits"),
    [
        ({}, True),
        ({"kind": "cpu"}, False),
        ({"dtype": torch.float64}, False),
        ({"has_ops": False}, False),
        ({"ranks": [6, 7, 8, 9]}, False),  # two hosts
        ({"ranks": [8, 10, 12, 14]}, True),
        ({"ranks": [3]}, False),
        ({"direct": False}, False),
    ],
)
def test_fused_operations_are_for_gpus_that_reach_each_other(change: dict[str, Any], suits: bool) -> None:
    usual: dict[str, Any] = {
        "kind": "cuda", "dtype": torch.bfloat16, "has_ops": True, "ranks": [0, 1, 2, 3], "local_world": 8,
        "direct": True,
    }  # fmt: skip
    assert symmetric.suits(**usual | change) == suits


@pytest.fixture(scope="module")
def collectives(zygote: Zygote, tiny: list[str], tmp_path_factory: pytest.TempPathFactory) -> Collectives:
    """Collectives of one step among two tp ranks, by `sequence`, chunks and layer. Each is run once."""

    @functools.cache
    def counted(sequence: bool, chunks: int, layer: str) -> Counter[str]:
        argv = [*tiny, *SMALL, *chosen(sequence, chunks), *made_of(layer), "--steps", "1"]
        done = zygote.run("collectives", 2, tmp_path_factory.mktemp("collectives"), args={"argv": argv})
        assert done["exits"] == [0, 0]
        return Counter(done["results"][0]["counts"])

    return counted


@pytest.mark.parametrize("sequence", [False, True])
def test_each_chunk_is_waited_for(collectives: Collectives, sequence: bool) -> None:
    counts = [collectives(sequence, chunks, "serial") for chunks in (1, 4)]
    gather = "tp:all_gather forward"
    assert counts[1][gather] == 4 * counts[0][gather]
    assert (counts[0][gather] > 0) == sequence


@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_second_matrix_in_costs_no_transfer(collectives: Collectives, sequence: bool, chunks: int) -> None:
    counts = [collectives(sequence, chunks, layer) for layer in ("serial", "serial, gated")]
    assert counts[0] == counts[1]
    assert counts[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"parallel.overlap_chunks": 0}, "must be 1 or more"),
        ({"parallel.overlap_chunks": 7}, "overlap_chunks"),
        ({"parallel.overlap_chunks": 32, "parallel.sequence": True, "data.seq_len": 32}, "overlap_chunks"),
        ({"parallel.overlap_chunks": 2, "parallel.schedule": "zbv", "parallel.pp": 2}, "choose 1f1b"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, object], says: str) -> None:
    def planned() -> None:
        config = load(None, [("parallel.tp", 2), *settings.items()])
        plan(config, 2 * config.parallel.pp, 256)

    with pytest.raises(ConfigError, match=says):
        planned()
