"""A restart changes nothing whatever replicas share out, in every schedule, with batches read ahead."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from holdfast.plan.schedules.table import SCHEDULES
from tests.trainer.run.test_pairs import ZERO
from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

CASES = [
    ("0", "1f1b", "float32"),
    ("0", "zbv", "float32"),
    ("1", "interleaved", "float32"),
    ("1", "gpipe", "bfloat16"),
    ("2", "eager-1f1b", "bfloat16"),
    ("2", "zbv", "float32"),
    ("2", "bfs", "float32"),
    ("3L", "1f1b", "float32"),
    ("3L", "bfs", "bfloat16"),
    ("3L", "interleaved", "float32"),
    ("3S", "bfs", "bfloat16"),
    ("3S", "interleaved-zero-bubble", "float32"),
    ("0", "chimera", "float32"),
    ("0", "chimera-doubling", "float32"),
    ("0", "chimera-halving", "bfloat16"),
    ("1", "chimera", "float32"),
    ("2", "chimera-doubling", "bfloat16"),
    ("0", "merak-last-kept", "bfloat16"),
    ("1", "merak-baseline", "float32"),
    ("2", "merak-early", "float32"),
    ("3L", "merak", "float32"),
    ("1", "axonn", "bfloat16"),
    ("3S", "dualpipev", "float32"),
]
FAST = CASES[7]


def check(zygote: Zygote, tiny: list[str], folder: Path, zero: str, schedule: str, dtype: str) -> None:
    # A loader is a process more, and the same to every schedule: some of them have it.
    is_shared = dtype == "bfloat16" or (zero, schedule, dtype) == FAST
    values = [
        *ZERO[zero],
        f"parallel.schedule={schedule}",
        f"model.layers={2 * SCHEDULES[schedule].chunks}",
        f"train.dtype={dtype}",
        f"train.micro_batches={8 if schedule == 'dualpipev' else 4}",
        *("data.prefetch=2", f"data.loader={'shared' if is_shared else 'inline'}"),
        "train.micro_batch_size=2" if SCHEDULES[schedule].parts > 1 else "model.dropout=0.1",
    ]
    argv = [*tiny, "--pp", "2", "--dp", "2", *(word for value in values for word in ("--set", value))]
    strike(zygote, argv, folder, victim=3, world=4)


def test_the_cases_hold_every_stage_and_every_schedule() -> None:
    assert {zero for zero, _, _ in CASES} == set(ZERO)
    assert {schedule for _, schedule, _ in CASES} == set(SCHEDULES)


@pytest.mark.slow
def test_kill_and_restore(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    check(zygote, tiny, tmp_path, *FAST)


@pytest.mark.slow
@pytest.mark.parametrize(("zero", "schedule", "dtype"), [case for case in CASES if case != FAST])
def test_kill_and_restore_in_other_forms(
    zygote: Zygote, tiny: list[str], tmp_path: Path, zero: str, schedule: str, dtype: str
) -> None:
    check(zygote, tiny, tmp_path, zero, schedule, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [("0", "3L"), ("2", "0")])
def test_another_stage_goes_on_from_a_checkpoint(
    zygote: Zygote, tiny: list[str], tmp_path: Path, before: str, after: str
) -> None:
    small = ["model.layers=2", "train.micro_batches=4", "train.dtype=float64"]
    store = ["--store", (tmp_path / "store").as_uri(), "--checkpoint-every", "2"]
    argv = [*tiny, "--dp", "2", *(word for value in small for word in ("--set", value)), *store]
    stages = {name: [word for value in ZERO[name] for word in ("--set", value)] for name in (before, after)}
    whole = zygote.run("train", 2, tmp_path / "whole", args={"argv": [*argv[:-4], *stages[after], "--steps", "4"]})
    first = zygote.run("train", 2, tmp_path / "run", args={"argv": [*argv, *stages[before], "--steps", "2"]})
    assert first["exits"] == [0, 0]
    again = {"argv": [*argv, *stages[after], "--steps", "4"]}
    second = zygote.run("train", 2, tmp_path / "run", args=again, generation=1)
    assert second["exits"] == [0, 0]
    assert second["results"][0]["first"] == 2
    assert losses(second) == pytest.approx(losses(whole)[2:], abs=1e-12)
