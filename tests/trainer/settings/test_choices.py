"""Every pair of choices of model and layout computes, in float64, what one plain process computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forked import Zygote
from pairwise import cover, pairs_of

from tests.trainer.run.test_equality import compare, mesh

pytestmark = pytest.mark.aside

STYLES = {
    "llama": ["model.norm=rms", "model.positions=rope", "model.mlp=swiglu"],
    "gpt": ["model.norm=layer", "model.positions=learned", "model.mlp=gelu"],
    "both": ["model.norm=layer", "model.positions=rope", "model.mlp=gelu", "model.ffn_width=72"],
}
AXES: dict[str, list[Any]] = {
    "layout": [(1, 1, 1), (1, 1, 2), (2, 1, 1), (1, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 1)],
    "style": list(STYLES),
    "recompute": ["none", "selective", "full", "cell", "stage-aware"],
    "block": ["parallel", "serial"],
    "window": [0, 5],
    "tied": ["false", "true"],
    "kv_heads": [0, 2],
    "sequence": ["false", "true"],
    "dropout": [0.0, 0.1],
    "vocabulary": ["false", "true"],
}
CASES = cover(AXES)


def settings(case: dict[str, Any]) -> list[str]:
    recompute = case["recompute"]
    if recompute == "full" and case["layout"][0] == 2:
        recompute = "full,none"  # each stage as it likes
    values = [
        *STYLES[case["style"]],
        f"train.recompute={recompute}",
        f"model.block={case['block']}",
        f"model.window={case['window']}",
        f"model.tied={case['tied']}",
        f"model.kv_heads={case['kv_heads']}",
        f"model.dropout={case['dropout']}",
        f"parallel.sequence={case['sequence']}",
        f"parallel.shard_vocabulary={case['vocabulary']}",
        *("model.layers=2", "model.heads=4", "train.micro_batches=4", "train.dtype=float64"),
    ]
    return [word for value in values for word in ("--set", value)]


def name(case: dict[str, Any]) -> str:
    return "-".join(str(value).replace(" ", "") for value in case.values())


def equal(zygote: Zygote, tiny: list[str], folder: Path, case: dict[str, Any]) -> None:
    pp, dp, tp = case["layout"]
    argv = [*tiny, *settings(case), *mesh(pp, dp, tp)]
    compare(zygote, argv, folder, world=pp * dp * tp, steps=3, within=1e-9)


def test_the_cases_hold_every_pair() -> None:
    met = set().union(*(pairs_of(case) for case in CASES))
    for a in AXES:
        for b in AXES:
            if a < b:
                assert {((a, x), (b, y)) for x in AXES[a] for y in AXES[b]} <= met
    print(*map(name, CASES), sep="\n")


@pytest.mark.parametrize("tp", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_serial_layers_width_need_not_be_a_multiple_of_its_heads(
    zygote: Zygote, tiny: list[str], tmp_path: Path, tp: int
) -> None:
    """As Llama 13B, which has 13,824 for 40 heads."""
    case = dict.fromkeys(AXES, "false") | {"style": "llama", "recompute": "none", "block": "serial", "window": 0}
    case |= {"layout": (1, 1, tp), "kv_heads": 0, "dropout": 0.0}
    equal(zygote, [*tiny, "--set", "model.ffn_width=50"], tmp_path, case)


def _ranks(case: dict[str, Any]) -> int:
    pp, dp, tp = case["layout"]
    return int(pp * dp * tp)


@pytest.mark.parametrize("case", [c for c in CASES if _ranks(c) == 1], ids=name)
def test_choices_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, case: dict[str, Any]) -> None:
    equal(zygote, tiny, tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if _ranks(c) > 1], ids=name)
def test_choices_on_several_ranks(zygote: Zygote, tiny: list[str], tmp_path: Path, case: dict[str, Any]) -> None:
    equal(zygote, tiny, tmp_path, case)
