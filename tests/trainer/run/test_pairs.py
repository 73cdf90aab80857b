"""Every pair of ways to lay a job over ranks computes, in float64, what one plain process computes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote
from pairwise import Pair, cover, pairs_of, wanted

from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.trainer.__main__ import parse
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from tests.trainer.run.test_equality import compare, mesh
from tests.trainer.run.test_restart import losses

pytestmark = pytest.mark.aside

ZERO = {
    "0": ["parallel.zero=0"],
    "1": ["parallel.zero=1"],
    "2": ["parallel.zero=2"],
    "3L": ["parallel.zero=3"],
    "3S": ["parallel.zero=3", "parallel.zero_unit=stage"],
}
LAYOUTS = [(4, 1, 1), (2, 2, 1), (2, 2, 2), (1, 4, 1), (1, 1, 4), (1, 2, 2)]
"""A pipeline with stages in the middle, each axis beside each other one, all three, and each alone with ranks that are
not neighbours. test_equality.py has all layouts of eight ranks."""
# Those that forbid each other come first, in the order in which they are chosen.
AXES: dict[str, list[Any]] = {
    "layout": LAYOUTS,
    "schedule": list(SCHEDULES),
    "zero": list(ZERO),
    "sequence": ["false", "true"],
    "optimizer": ["adamw", "lamb", "adamw host", "sgd pieces", "kfac fill"],
    "memory": ["whole", "activations", "chunks"],
    "block": ["parallel", "serial"],
    "mlp": ["gelu", "swiglu"],
    "window": [0, 5],
    "tied": ["false", "true"],
    "recompute": ["none", "selective", "full"],
}
LAID = ("layout", "schedule", "zero", "sequence", "optimizer", "memory", "tied")
BASE = {"sequence": "false", "optimizer": "adamw", "memory": "whole", "tied": "false"}
OPTIMIZER = {
    "adamw": ["optim.name=adamw"],
    "lamb": ["optim.name=lamb"],
    "adamw host": ["optim.name=adamw", "optim.state=host", "optim.bucket=3001"],
    # Its changes follow the size of gradients, which those of adamw do not.
    "sgd pieces": [
        *("optim.name=sgd", "optim.lr=0.1", "optim.state=host", "optim.bucket=3001"),
        *("optim.reduce_pieces=2", "optim.clip_norm=0"),
    ],
    # Inverted once, at the first step: later inverses may be used a step later than by one process.
    "kfac fill": ["optim.name=dp-kfac", "optim.lr=0.02", "optim.kfac_fill=true"],
}
MEMORY = {
    "whole": [],
    "activations": ["train.activations=host"],
    "chunks": ["memory.policy=chunks", "memory.device_bytes=3000000"],
}


def settings(case: Mapping[str, Any]) -> list[str]:
    pp, dp, tp = case["layout"]
    stages = pp * SCHEDULES[case["schedule"]].chunks
    one = SCHEDULES[case["schedule"]]
    many = max(4 if pp > 1 and dp < 4 else 2, 2 * pp * one.fills_stages)
    recompute = case.get("recompute", "none")
    if case.get("optimizer") == "kfac fill" and one.halves_backward and recompute == "full":
        recompute = "selective"  # full is refused: test_preflight.py
    values = [
        *ZERO[case["zero"]],
        f"parallel.schedule={case['schedule']}",
        f"parallel.sequence={case.get('sequence', 'false')}",
        *OPTIMIZER[case.get("optimizer", "adamw")],
        *MEMORY[case.get("memory", "whole")],
        f"train.activation_bytes={400_000 * one.parts if case.get('memory') == 'activations' else 0}",
        f"model.block={case.get('block', 'parallel')}",
        f"model.mlp={case.get('mlp', 'gelu')}",
        f"model.window={case.get('window', 0)}",
        f"model.tied={case.get('tied', 'false')}",
        f"model.layers={max(2, stages)}",
        f"model.heads={max(2, tp)}",
        f"train.recompute={recompute}",
        f"train.micro_batches={dp * (1 if case.get('memory') == 'chunks' and not one.fills_stages else many)}",
        f"train.micro_batch_size={one.parts}",
        "train.dtype=float64",
    ]
    return [*mesh(pp, dp, tp), *(word for value in values for word in ("--set", value))]


def refusal(case: Mapping[str, Any]) -> str:
    """What the trainer says before it starts; empty if it starts."""
    try:
        plan(parse(settings(case)), world=math.prod(case["layout"]), vocab=256)
    except ConfigError as error:
        return str(error)
    return ""


@functools.cache
def _is_taken(layout: tuple[int, int, int], schedule: str, zero: str) -> bool:
    return not refusal({"layout": layout, "schedule": schedule, "zero": zero})


def _matters(layout: tuple[int, int, int], schedule: str, zero: str, sequence: str) -> bool:
    """Whether each of them makes a difference, so that a pair is not met by something that is off."""
    pp, dp, tp = layout
    return (pp > 1 or schedule == "1f1b") and (dp > 1 or zero == "1") and (tp > 1 or sequence == "false")


def _fits(
    layout: tuple[int, int, int], schedule: str, zero: str, sequence: str, optimizer: str, memory: str, tied: str
) -> bool:
    """Whether these make a difference, and the trainer should take them, as docs/trainer.md says."""
    pp, dp, tp = layout
    pipes = SCHEDULES[schedule].placement is Placement.BOTH_WAYS
    driven = SCHEDULES[schedule].is_message_driven
    if optimizer == "sgd pieces" and not (zero == "0" and dp > 1 and tp == 1 and not pipes and (tied, pp > 1) != YES):
        return False
    # Replicas have factors of their own data: with several, no process alone does the same.
    if optimizer == "kfac fill" and not (pp > 1 and dp == tp == 1 and not pipes and not driven and memory == "whole"):
        return False
    if memory == "activations" and not (pp > 1 and zero in ("0", "1", "2") and not driven):
        return False
    if memory == "chunks" and (pp, tp, schedule, zero, optimizer) != (1, 1, "1f1b", "3L", "adamw"):
        return False
    return _matters(layout, schedule, zero, sequence) and _is_taken(layout, schedule, zero)


YES = ("true", True)


@functools.cache
def _possible(*fixed: Any) -> bool:
    options = [AXES[axis] if value is None else [value] for axis, value in zip(LAID, fixed, strict=True)]
    return any(_fits(*laid) for laid in itertools.product(*options))


def possible(case: Mapping[str, Any]) -> bool:
    """Whether the trainer takes some case with these values, in which they all make a difference."""
    return _possible(*(case.get(axis) for axis in LAID))


def matters(pair: Pair) -> bool:
    """Whether the two could meet in the code: lamb sees slices with their sums, whatever the order they came in."""
    values = dict(pair)
    return values.get("optimizer") != "lamb" or "schedule" not in values


CASES = cover(AXES, possible, matters)


def name(case: dict[str, Any]) -> str:
    return "-".join(str(case[axis]).replace(" ", "") for axis in AXES)


def test_the_cases_hold_every_pair_that_can_be() -> None:
    print(*map(name, CASES), sep="\n")
    met = set().union(*(pairs_of(case) for case in CASES))
    assert {pair for pair in wanted(AXES, possible) if matters(pair)} <= met
    assert all(possible(case) for case in CASES)
    # Of any two values both of which are for this many ranks, only these are never together.
    assert {frozenset((x[1], y[1])) for x, y in NEVER} == {
        *(frozenset(("3L", schedule)) for schedule in SCHEDULES if SCHEDULES[schedule].halves_backward),
        *(frozenset(("3S", schedule)) for schedule in SCHEDULES if SCHEDULES[schedule].chunks == 1),
        *(
            frozenset((other, schedule))
            # Ranks that compute together, each of which decides by itself; and what is planned ahead.
            for other in ("3L", "true", "activations", "kfac fill")
            for schedule in SCHEDULES
            if SCHEDULES[schedule].is_message_driven
        ),
        *(
            frozenset((other, schedule))
            for other in ("3L", "3S", "sgd pieces", "kfac fill")
            for schedule in SCHEDULES
            if SCHEDULES[schedule].placement is Placement.BOTH_WAYS
        ),
        *(frozenset(("sgd pieces", other)) for other in ("1", "2", "3L", "3S", "true")),
        *(frozenset(("kfac fill", other)) for other in (*UNLIKE_ALONE, "true", "activations")),
        *(frozenset(("activations", zero)) for zero in ("3L", "3S")),
        *(frozenset(("chunks", other)) for other in ("0", "1", "2", "3S", "true")),
        *(frozenset(("chunks", schedule)) for schedule in SCHEDULES if schedule != "1f1b"),
        *(frozenset(("chunks", optimizer)) for optimizer in OPTIMIZER if optimizer != "adamw"),
    }


NEVER = {(x, y) for x, y in wanted(AXES, lambda case: True) - wanted(AXES, possible) if "layout" not in (x[0], y[0])}
UNLIKE_ALONE = ("0", "2", "3L", "3S")
"""Stages that make a difference with replicas only."""


@pytest.mark.parametrize(("x", "y"), sorted(NEVER), ids=lambda one: f"{one[0]} {one[1]}")
def test_what_never_goes_together_is_refused_in_one_line(x: tuple[str, Any], y: tuple[str, Any]) -> None:
    """In each layout in which neither of the two alone is refused."""
    pair = dict((x, y))
    if pair.get("optimizer") == "kfac fill" and pair.get("zero") in UNLIKE_ALONE:
        pytest.skip("refused or trained: test_dp_kfac.py")
    refused = 0
    for layout, schedule, zero in itertools.product(AXES["layout"], AXES["schedule"], AXES["zero"]):
        case = {**BASE, "layout": layout, "schedule": schedule, "zero": zero, **pair}
        if (schedule, zero) != (case["schedule"], case["zero"]) or not _matters(
            layout, schedule, zero, case["sequence"]
        ):
            continue
        if all(_alone({**case, one: BASE.get(one, LEAST.get(one))}) for one in pair if one in BASE):
            refused += 1
            text = refusal(case)
            assert text, case
            assert "\n" not in text
            assert any(word in text for word in ("set ", "choose ", "leave ")), text
        if refused == 3:
            return
    assert refused or frozenset(pair.values()) in APART


APART = [frozenset(one) for one in (
    ("chunks", "kfac fill"), ("chunks", "sgd pieces"), ("chunks", "true"), ("kfac fill", "true"),
    ("sgd pieces", "true"), ("axonn", "true"),
)]  # fmt: skip
"""No layout takes either of the two."""
LEAST = {"schedule": "1f1b", "zero": "1"}


def _alone(case: Mapping[str, Any]) -> bool:
    return _fits(*(case[axis] for axis in LAID))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_pair_equals_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, case: dict[str, Any]) -> None:
    # The loss of the last step has seen two updates; test_optimizers.py does more of them.
    argv, world = [*tiny, *settings(case)], math.prod(case["layout"])
    if case["optimizer"] == "kfac fill":
        argv = [*argv, "--steps", "3"]
        plain = ["--pp", "1", *mesh(1, 1, 1), "--set", "optim.kfac_fill=false", "--set", "parallel.schedule=1f1b"]
        one = zygote.run("train", 1, tmp_path / "one", args={"argv": [*argv, *plain, "--set", "train.recompute=none"]})
        done = zygote.run("train", world, tmp_path / "ranks", args={"argv": argv})
        assert done["exits"] == [0] * world
        assert losses(done) == pytest.approx(losses(one), rel=0, abs=1e-8)
        return
    # Gradients that are summed beside the update, or where parameters were, are not there to compare.
    are_there = case["optimizer"] != "sgd pieces" and case["memory"] != "chunks"
    compare(zygote, argv, tmp_path, world, steps=3, within=1e-9, task="gradients" if are_there else "train")
