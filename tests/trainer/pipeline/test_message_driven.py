"""What is ready runs: in whatever order it comes, ranks learn what they learn under 1F1B, bit for bit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import Zygote

from holdfast.plan.plan import Action, Op
from holdfast.trainer.__main__ import parse
from holdfast.trainer.pipeline.message_driven import MessageDrivenExecutor
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan
from tests.trainer.run.test_equality import compare, mesh
from tests.trainer.run.test_restart import strike

pytestmark = pytest.mark.aside

SMALL = ["model.layers=4", "model.dropout=0.1", "train.micro_batches=8"]


def settings(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


def late(
    zygote: Zygote,
    tiny: list[str],
    folder: Path,
    schedule: str,
    shape: tuple[int, int, int],
    seed: int,
    *more: str,
    held_until: int = 0,
) -> list[Any]:
    argv = [*tiny, *mesh(*shape), *settings(*SMALL, f"parallel.schedule={schedule}", *more)]
    args = {"argv": argv, "steps": 2, "seed": seed, "most_s": 0.004, "held_until": held_until}
    done = zygote.run("jittering:late", shape[0] * shape[1], folder, args=args)
    assert done["exits"] == [0] * (shape[0] * shape[1])
    results: list[Any] = done["results"]
    return results


@pytest.mark.parametrize(
    ("forwards", "backwards", "here", "expected"),
    [
        (6, 8, {(Op.RECV_FORWARD, 2), (Op.RECV_BACKWARD, 0)}, Op.BACKWARD),  # it frees activations
        (6, 8, {(Op.RECV_FORWARD, 2)}, Op.FORWARD),
        (6, 8, {(Op.RECV_FORWARD, 3), (Op.RECV_BACKWARD, 1)}, None),  # each kind in its order
        (6, 6, {(Op.RECV_FORWARD, 2), (Op.RECV_BACKWARD, 2)}, Op.FORWARD),  # nothing is under way to go back
        (0, 1, {(Op.RECV_BACKWARD, 7)}, Op.BACKWARD),
    ],
)
def test_of_what_is_ready_a_backward_goes_first(
    forwards: int, backwards: int, here: set[tuple[Op, int]], expected: Op | None
) -> None:
    """A stage in the middle, which has so many of eight micro-batches left of each kind."""
    one = MessageDrivenExecutor.__new__(MessageDrivenExecutor)
    one._stage, one._here, one.limit = SimpleNamespace(is_first=False, is_last=False), here, 8  # type: ignore[assignment]
    left = {
        op: deque((Action(op, 1, m), list[Callable[[], object]]()) for m in range(8 - count, 8))
        for op, count in ((Op.FORWARD, forwards), (Op.BACKWARD, backwards))
    }
    assert one._choose(left) is expected


def test_it_equals_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *mesh(2, 1, 1), *settings(*SMALL, "parallel.schedule=axonn", "train.dtype=float64")]
    compare(zygote, argv, tmp_path, world=2, steps=3, within=1e-12)


@pytest.mark.slow
def test_the_order_of_arrival_changes_nothing_but_the_order(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    fixed = late(zygote, tiny, tmp_path / "fixed", "1f1b", (4, 1, 1), 0)
    runs = [late(zygote, tiny, tmp_path / f"{seed}", "axonn", (4, 1, 1), seed) for seed in (1, 2)]

    for run in runs:
        for rank, expected in zip(run, fixed, strict=True):
            assert rank["losses"] == expected["losses"]
            assert rank["digests"] == expected["digests"]
            for step in rank["done"]:
                for op in "FB":  # of each kind one after the other
                    assert [m for o, m in step if o == op] == list(range(8))
    orders = [[rank["done"] for rank in run] for run in (*runs, fixed)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2])
def test_replicas_need_not_come_in_one_order(zygote: Zygote, tiny: list[str], tmp_path: Path, zero: int) -> None:
    more = (f"parallel.zero={zero}", "train.recompute=full")
    fixed = late(zygote, tiny, tmp_path / "fixed", "1f1b", (2, 2, 1), 0, *more)
    found = late(zygote, tiny, tmp_path / "late", "axonn", (2, 2, 1), 1, *more)

    for rank, expected in zip(found, fixed, strict=True):
        assert rank["losses"] == expected["losses"]
        assert rank["digests"] == expected["digests"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_are_under_way_than_the_limit(zygote: Zygote, tiny: list[str], tmp_path: Path, limit: int) -> None:
    # The first gradient waits: else the first stage may be so late that fewer are ever under way.
    found = late(zygote, tiny, tmp_path, "axonn", (2, 1, 1), 1, f"parallel.in_flight={limit}", held_until=limit)

    assert found[0]["most"] == limit
    assert found[1]["most"] == 1  # the last stage goes back at once


@pytest.mark.slow
def test_a_limit_that_nothing_reaches_costs_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    found = late(zygote, tiny, tmp_path, "axonn", (2, 1, 1), 1, "parallel.in_flight=1000000000000")

    assert found[0]["most"] <= 8  # all there are; it ends at all: to post a receive for each would take hours


@pytest.mark.slow
def test_a_restart_changes_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *mesh(2, 2, 1), *settings(*SMALL, "parallel.schedule=axonn")]
    strike(zygote, argv, tmp_path, victim=3, world=4)


@pytest.mark.parametrize(
    ("shape", "values", "reason"),
    [
        ((2, 1, 2), [], r"tp ranks decide together \(set tp = 1\)"),
        ((2, 2, 1), ["parallel.zero=3"], r"replicas gather parameters together \(set parallel.zero to 2 or less\)"),
        ((2, 2, 1), ["parallel.in_flight=-1"], "parallel.in_flight = -1 needs .* 1 or more"),
        ((2, 2, 1), ["parallel.schedule=1f1b", "parallel.in_flight=4"], "needs parallel.schedule = axonn"),
        ((2, 2, 1), ["parallel.chunks=2"], "parallel.chunks = 2 needs parallel.schedule to be one of"),
    ],
)
def test_what_it_cannot_do_is_refused(shape: tuple[int, int, int], values: list[str], reason: str) -> None:
    config = parse([*mesh(*shape), *settings("parallel.schedule=axonn", *values)])
    with pytest.raises(ConfigError, match=reason):
        plan(config, shape[0] * shape[1] * shape[2], 256)
