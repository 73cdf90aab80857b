"""The trainer's executor does what torch's pipelining runtime does with the same lists, bit for bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote

from holdfast.plan.plan import SPANS, Op

pytestmark = pytest.mark.aside

SCHEDULES = ("1f1b", "eager-1f1b", "gpipe", "interleaved", "bfs", "zbv", "interleaved-zero-bubble", "dualpipev")
"""Those that torch's runtime can execute."""
UNLIKE = ("1f1b", "interleaved", "zbv", "dualpipev")
"""One of each kind of list: a stage or two on a rank, halves of a backward, a forward beside a backward."""
CASES: dict[str, tuple[int, list[str]]] = {
    **{f"{name} pp4": (4, ["pp=4", f"schedule={name}"]) for name in SCHEDULES},
    **{f"{name} pp2 dp2 zero1": (4, ["pp=2", "dp=2", "zero=1", f"schedule={name}"]) for name in UNLIKE},
    **{f"{name} pp2 dp2 zero2": (4, ["pp=2", "dp=2", "zero=2", f"schedule={name}"]) for name in ("1f1b", "zbv")},
    **{f"{name} pp2 dp2 zero0": (4, ["pp=2", "dp=2", "zero=0", f"schedule={name}"]) for name in ("bfs", "zbv")},
    **{f"1f1b pp2 dp2 zero3 {n}": (4, ["pp=2", "dp=2", "zero=3", f"zero_reduce={n}"]) for n in ("each", "last")},
    "bfs pp2 dp2 zero3 stage": (4, ["pp=2", "dp=2", "zero=3", "zero_unit=stage", "schedule=bfs"]),
    "zbv pp2 dp2 zero3 stage": (4, ["pp=2", "dp=2", "zero=3", "zero_unit=stage", "schedule=zbv"]),
    "dp4 zero0": (4, ["dp=4", "zero=0"]),
    "dp4 zero3": (4, ["dp=4", "zero=3"]),
    "1f1b pp2 tp2 recompute": (4, ["pp=2", "tp=2", "train.recompute=full"]),
    "1f1b pp2 dp2 tp2 zero0": (8, ["pp=2", "dp=2", "tp=2", "zero=0"]),
    "zbv pp2 dp2 tp2 sequence": (8, ["pp=2", "dp=2", "tp=2", "sequence=true", "schedule=zbv"]),
    "interleaved pp2 tp2 selective": (4, ["pp=2", "tp=2", "schedule=interleaved", "train.recompute=selective"]),
}  # fmt: skip
FAST = ("1f1b pp4", "zbv pp2 dp2 zero1")
STEPS = 2


def settings(named: list[str]) -> list[str]:
    return [w for one in named for w in ("--set", one if one.partition("=")[0].count(".") else f"parallel.{one}")]


def run(zygote: Zygote, tiny: list[str], folder: Path, world: int, named: list[str]) -> list[Any]:
    layers = 8 if "pp=4" in named else 4  # of each stage one or more
    small = ["--set", f"model.layers={layers}", "--set", "model.dropout=0.1", "--set", "train.micro_batches=8"]
    argv = [*tiny, *small, *settings(named)]
    done = zygote.run("executing:both", world, folder, args={"argv": argv, "steps": STEPS})
    assert done["exits"] == [0] * world
    results: list[Any] = done["results"]
    return results


@pytest.mark.parametrize("case", [pytest.param(c, marks=[] if c in FAST else pytest.mark.slow) for c in CASES])
def test_losses_gradients_and_spans_are_those_of_torch_s_runtime(
    zygote: Zygote, tiny: list[str], tmp_path: Path, case: str
) -> None:
    for rank in run(zygote, tiny, tmp_path, *CASES[case]):
        own, theirs = rank["own"], rank["torch"]
        assert own["losses"] == theirs["losses"]
        assert own["digests"] == theirs["digests"]
        assert own["spans"] == theirs["spans"]
        listed = Counter(tuple(action) for action in own["order"] if Op(action[0]) in SPANS and action[0] != Op.STEP)
        for spans in own["spans"]:
            assert Counter(tuple(span[:4]) for span in spans) == listed
