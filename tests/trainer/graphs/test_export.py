"""The exported graph against the model's own shapes and closed forms."""

from __future__ import annotations

import math
import resource
from dataclasses import replace
from typing import Any

import pytest
import torch

from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.trainer.graphs.export import crossing, graph_of, model_graph, with_samples
from holdfast.trainer.optim.traffic import held_by
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.load import load
from holdfast.trainer.settings.models import settings_of

pytestmark = pytest.mark.aside

SMALL = {"model.d_model": 64, "model.heads": 8, "data.seq_len": 32, "model.layers": 2}


def config_of(**settings: Any) -> Config:
    return load(overrides=[*SMALL.items(), *((key.replace("__", "."), value) for key, value in settings.items())])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"model__block": "serial", "model__mlp": "swiglu", "model__kv_heads": 2, "model__tied": True},
        pytest.param(
            {"model__norm": "layer", "model__positions": "learned", "train__dtype": "bfloat16", "model__dropout": 0.1},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["rope", "grouped gated tied", "learned"],
)
def test_flops_and_bytes_are_those_of_the_model(settings: dict[str, Any]) -> None:
    config = config_of(**settings)
    graph = model_graph(config, samples=3)
    item = 2 if config.train.dtype == "bfloat16" else 4
    held = {one.name: one for one in held_by(config, TrainerLayout(1, 1, 1, 1, 1), 256, 0)}
    parameters = [one for one in graph.operators if one.kind is Kind.PARAMETER]
    assert {one.name: one.shape for one in parameters} == {name: one.shape for name, one in held.items()}
    assert {one.item for one in parameters} == {item}
    rows = 3 * config.data.seq_len
    matrices = sum(
        math.prod(p.shape) for n, p in held.items() if len(p.shape) == 2 and n.startswith(("layers", "head"))
    )
    matrices += 256 * 64 if config.model.tied else 0
    scores = config.model.layers * 4 * 3 * config.data.seq_len**2 * config.model.d_model
    assert graph.flops() == 2 * rows * matrices + scores
    assert graph.operators[-1].name == "loss"
    assert graph.operators[-1].shape == (3, config.data.seq_len, 256)
    assert [one.shape for one in crossing(graph, 1)] == [(3, config.data.seq_len, 64)]
    _check_layers_are_alike(graph, config.model.layers)


def _check_layers_are_alike(graph: OperatorGraph, layers: int) -> None:
    """But for their names, and what comes in."""

    def bare(block: int) -> list[Operator]:
        part = [one for one in graph.operators if one.layer == block and one.kind is not Kind.INPUT]
        return [replace(one, name="", inputs=(), layer=0) for one in part]

    assert len(bare(1)) > 10
    assert all(bare(block) == bare(1) for block in range(2, layers + 1))
    assert not bare(layers + 2)


def test_samples_are_in_the_first_dimension() -> None:
    one = model_graph(config_of(), samples=2, layers=1)
    five = with_samples(one, 5)
    assert five.flops() == 2.5 * one.flops()
    for a, b in zip(one.operators, five.operators, strict=True):
        depends = a.kind not in (Kind.PARAMETER, Kind.INPUT) and a.shape[0] == 2 and a.name not in ROTATION
        assert b.shape == ((5, *a.shape[1:]) if depends or a.name == "x" else a.shape)


ROTATION = ("unsqueeze", "unsqueeze_1")
"""Cosines and sines, which are two as well."""


def test_what_is_cut_over_heads_stays_cut_until_the_last_matrix() -> None:
    """From the first matrix's columns through views, rotation and attention to the last matrix's rows."""
    graph = model_graph(config_of(model__block="serial"), layers=1)
    cut: dict[str, int | None] = {}
    for one in graph.operators:
        if one.kind is Kind.MATMUL and one.inputs[1].endswith("qkv.weight"):
            cut[one.name] = 2
        elif one.kind is Kind.ATTENTION:
            assert [cut.get(name) for name in one.inputs] == [1, 1, 1]
            cut[one.name] = 1
        elif one.kind is Kind.FOLLOW:
            at = one.inputs.index(graph.leader(one))
            if (dim := cut.get(one.inputs[at])) is not None and dim in one.dims[at]:
                cut[one.name] = one.dims[at].index(dim)
        elif one.kind is Kind.MATMUL and one.inputs[1].endswith("attention.out.weight"):
            assert cut.get(one.inputs[0]) == 2
            return
    pytest.fail("no matrix behind attention")


def test_sizes_that_are_not_fixed_are_refused() -> None:
    linear = torch.nn.Linear(4, 4, bias=False)
    sizes = {"input": {0: torch.export.Dim("rows", min=2, max=64)}}
    exported = torch.export.export(linear, (torch.ones(8, 4),), dynamic_shapes=sizes)
    with pytest.raises(ValueError, match="export the model with fixed sizes"):
        graph_of(exported, 1)


def test_175_billion_parameters_take_no_memory() -> None:
    config = load(overrides=settings_of("gpt-175b"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = model_graph(config, layers=1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    by_block = [
        sum(math.prod(o.shape) for o in graph.operators if o.layer == block and o.kind is Kind.PARAMETER)
        for block in range(3)
    ]
    total = by_block[0] + 96 * by_block[1] + by_block[2]
    assert total == pytest.approx(175e9, rel=0.01)
    assert grown < 1 << 20, "in kB: a layer's weights alone are 7 GB"
