"""Recompute by cell and stage-aware, on real ranks: the same bits as without, and as many bytes as planned."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote

pytestmark = pytest.mark.aside

CASES: dict[str, tuple[int, list[str], list[str]]] = {
    "1f1b pp4": (4, ["pp=4"], ["cell", "full,cell,none,selective", "stage-aware"]),
    "gpipe pp2": (2, ["pp=2", "schedule=gpipe"], ["cell", "stage-aware"]),
    "eager-1f1b pp4": (4, ["pp=4", "schedule=eager-1f1b"], ["cell", "stage-aware"]),
    "interleaved pp2": (2, ["pp=2", "schedule=interleaved"], ["cell", "stage-aware"]),
    "bfs pp2 dp2 zero3": (4, ["pp=2", "dp=2", "zero=3", "zero_unit=stage", "schedule=bfs"], ["cell", "stage-aware"]),
    "zbv pp2": (2, ["pp=2", "schedule=zbv"], ["cell", "stage-aware"]),
    "dualpipev pp2": (2, ["pp=2", "schedule=dualpipev"], ["cell", "stage-aware"]),
    "chimera pp2": (2, ["pp=2", "schedule=chimera", "zero=0"], ["cell", "stage-aware"]),
    "chimera-doubling pp2": (2, ["pp=2", "schedule=chimera-doubling", "zero=0"], ["cell", "stage-aware"]),
    "chimera-halving pp2": (2, ["pp=2", "schedule=chimera-halving", "zero=0"], ["cell", "stage-aware"]),
    "chimera pp2 dp2 zero1": (4, ["pp=2", "dp=2", "schedule=chimera"], ["cell", "stage-aware"]),
    "axonn pp2": (2, ["pp=2", "schedule=axonn"], ["stage-aware"]),
    "1f1b pp2 tp2": (4, ["pp=2", "tp=2"], ["cell", "stage-aware"]),
    "1f1b pp2 tp2 sequence": (4, ["pp=2", "tp=2", "sequence=true"], ["cell", "stage-aware"]),
    "1f1b pp2 dp2 zero3": (4, ["pp=2", "dp=2", "zero=3"], ["cell", "stage-aware"]),
    "1f1b pp2 dp2 zero2": (4, ["pp=2", "dp=2", "zero=2"], ["cell", "stage-aware"]),
}  # fmt: skip
FAST = ("1f1b pp4",)
STEPS = 2


@functools.cache
def run(zygote: Zygote, tiny: tuple[str, ...], folder: Path, case: str) -> list[dict[str, Any]]:
    world, named, recompute = CASES[case]
    values = [*(f"parallel.{one}" for one in named), "train.micro_batches=8", "train.micro_batch_size=2"]
    # Stages have two layers or more each; more are needed only for an even spread of what is kept.
    values += [f"model.layers={16 if case == '1f1b pp4' else 4 if 'tp=2' in named else 8}"]
    values += [] if "halving" in case or "doubling" in case else ["model.dropout=0.1"]
    argv = [*tiny, *(word for value in values for word in ("--set", value))]
    done = zygote.run(
        "recomputing:each", world, folder, args={"argv": argv, "settings": ["none", *recompute], "steps": STEPS}
    )
    assert done["exits"] == [0] * world
    results: list[dict[str, Any]] = done["results"]
    return results


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_the_bits_are_those_without_recompute(
    zygote: Zygote, tiny: list[str], tmp_path_factory: pytest.TempPathFactory, case: str
) -> None:
    for rank in run(zygote, tuple(tiny), tmp_path_factory.getbasetemp() / f"recompute {case}", case):
        plain = rank["none"]
        for setting in CASES[case][2]:
            found = rank[setting]
            assert found["losses"] == plain["losses"], setting
            assert found["digests"] == plain["digests"], setting
            if "cell" in setting:
                assert any("R" in text.strip("0123456789") for text in found["actions"])
            elif plain["most"]:
                more = 4 if "halving" in case else 0  # a loss for each half, which keeps what it divided by
                assert found["most"] - more == found["planned"] <= plain["most"]


def test_every_rank_holds_as_many_bytes(
    zygote: Zygote, tiny: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    ranks = run(zygote, tuple(tiny), tmp_path_factory.getbasetemp() / "recompute 1f1b pp4", "1f1b pp4")
    plain, flat = ([rank[setting]["most"] for rank in ranks] for setting in ("none", "stage-aware"))
    assert max(plain) / min(plain) > 2
    assert max(flat) / min(flat) == ranks[0]["stage-aware"]["spread"] <= 1.1
    assert flat[-1] == plain[-1]
