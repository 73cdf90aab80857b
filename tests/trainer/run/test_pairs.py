"""Every pair of ways to lay a job over eight ranks computes, in float64, what one plain process computes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote
from pairwise import cover, pairs_of, wanted

from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.trainer.__main__ import parse
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from tests.trainer.run.test_equality import LAYOUTS, compare, mesh

pytestmark = pytest.mark.aside

ZERO = {
    "0": ["parallel.zero=0"],
    "1": ["parallel.zero=1"],
    "2": ["parallel.zero=2"],
    "3L": ["parallel.zero=3"],
    "3S": ["parallel.zero=3", "parallel.zero_unit=stage"],
}
# Those that forbid each other come first, in the order in which they are chosen.
AXES: dict[str, list[Any]] = {
    "layout": LAYOUTS,
    "schedule": list(SCHEDULES),
    "zero": list(ZERO),
    "sequence": ["false", "true"],
    "optimizer": ["adamw", "lamb", "adamw host"],
    "block": ["parallel", "serial"],
    "mlp": ["gelu", "swiglu"],
    "window": [0, 5],
    "tied": ["false", "true"],
    "recompute": ["none", "selective", "full"],
}
LAID = ("layout", "schedule", "zero", "sequence")


def settings(case: Mapping[str, Any]) -> list[str]:
    pp, dp, tp = case["layout"]
    stages = pp * SCHEDULES[case["schedule"]].chunks
    one = SCHEDULES[case["schedule"]]
    values = [
        *ZERO[case["zero"]],
        f"parallel.schedule={case['schedule']}",
        f"parallel.sequence={case.get('sequence', 'false')}",
        f"optim.name={case.get('optimizer', 'adamw').split()[0]}",
        f"optim.state={'host' if case.get('optimizer') == 'adamw host' else 'device'}",
        "optim.bucket=3001",
        f"model.block={case.get('block', 'parallel')}",
        f"model.mlp={case.get('mlp', 'gelu')}",
        f"model.window={case.get('window', 0)}",
        f"model.tied={case.get('tied', 'false')}",
        f"model.layers={max(2, stages)}",
        f"model.heads={max(2, tp)}",
        f"train.recompute={case.get('recompute', 'none')}",
        f"train.micro_batches={dp * max(4 if pp > 1 and dp < 4 else 2, 2 * pp * one.fills_stages)}",
        f"train.micro_batch_size={one.parts}",
        "train.dtype=float64",
    ]
    return [*mesh(pp, dp, tp), *(word for value in values for word in ("--set", value))]


@functools.cache
def _is_taken(layout: tuple[int, int, int], schedule: str, zero: str) -> bool:
    try:
        plan(parse(settings({"layout": layout, "schedule": schedule, "zero": zero})), world=8, vocab=256)
    except ConfigError:
        return False
    return True


def _matters(layout: tuple[int, int, int], schedule: str, zero: str, sequence: str) -> bool:
    """Whether each of them makes a difference, so that a pair is not met by something that is off."""
    pp, dp, tp = layout
    return (pp > 1 or schedule == "1f1b") and (dp > 1 or zero == "1") and (tp > 1 or sequence == "false")


@functools.cache
def _possible(*fixed: Any) -> bool:
    options = [AXES[axis] if value is None else [value] for axis, value in zip(LAID, fixed, strict=True)]
    return any(_matters(*laid) and _is_taken(*laid[:3]) for laid in itertools.product(*options))


def possible(case: Mapping[str, Any]) -> bool:
    """Whether the trainer takes some case with these values, in which they all make a difference."""
    return _possible(*(case.get(axis) for axis in LAID))


CASES = cover(AXES, possible)


def name(case: dict[str, Any]) -> str:
    return "-".join(str(case[axis]).replace(" ", "") for axis in AXES)


def test_the_cases_hold_every_pair_that_can_be() -> None:
    print(*map(name, CASES), sep="\n")
    assert wanted(AXES, possible) <= set().union(*(pairs_of(case) for case in CASES))
    assert all(possible(case) for case in CASES)
    # Of any two values both of which are for this many ranks, only these are never together.
    never = wanted(AXES, lambda case: True) - wanted(AXES, possible)
    assert {frozenset((x[1], y[1])) for x, y in never if "layout" not in (x[0], y[0])} == {
        *(frozenset(("3L", schedule)) for schedule in SCHEDULES if SCHEDULES[schedule].halves_backward),
        *(frozenset(("3S", schedule)) for schedule in SCHEDULES if SCHEDULES[schedule].chunks == 1),
        *(
            frozenset((other, schedule))
            for other in ("3L", "true")  # ranks that compute together, each of which decides by itself
            for schedule in SCHEDULES
            if SCHEDULES[schedule].is_message_driven
        ),
        *(
            frozenset((zero, schedule))
            for zero in ZERO
            for schedule in SCHEDULES
            if zero in ("3L", "3S") and SCHEDULES[schedule].placement is Placement.BOTH_WAYS
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=name)
def test_every_pair_equals_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, case: dict[str, Any]) -> None:
    # The loss of the last step has seen two updates; test_optimizers.py does more of them.
    compare(zygote, [*tiny, *settings(case)], tmp_path, steps=3, within=1e-9)
