"""Formulas of makespans, and what real processes need whose computation sleeps."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from forked import REPOSITORY

from benchmarks.formulas import makespan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate

PRINTED = [
    ("1f1b", 4, 1, 16, 57),
    ("gpipe", 8, 1, 32, 117),
    ("interleaved", 4, 2, 16, 52.5),
    ("chimera", 4, 2, 4, 16),
    ("chimera", 8, 2, 8, 36),
    ("chimera", 4, 2, 16, 58),
    ("chimera-doubling", 4, 2, 8, 28),
    ("chimera-doubling", 4, 2, 16, 52),
    ("chimera-halving", 4, 2, 16, 50),
    *((name, 4, 1, 8, m) for name, m in zip(("merak-baseline", "merak-early", "merak"), (44, 41, 38), strict=True)),
    ("merak-last-kept", 8, 1, 16, 83),
    ("interleaved-zero-bubble", 4, 1, 8, 27),
    ("zbv", 4, 2, 8, 25.5),
]
"""Schedule, D, V or pipes, N, and the makespan counted by hand."""


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/makespans.py", *options]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=400)


@pytest.mark.parametrize(("name", "ranks", "chunks", "count", "expected"), PRINTED)
def test_formulas(name: str, ranks: int, chunks: int, count: int, expected: float) -> None:
    assert makespan(name, ranks, chunks, count) == expected


@pytest.mark.parametrize(("ranks", "count"), [(4, 8), (8, 16), (8, 32)])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_takes_what_its_formula_says(name: str, ranks: int, count: int) -> None:
    schedule, expected = SCHEDULES[name], makespan(name, ranks, SCHEDULES[name].chunks, count)
    if expected is None:
        pytest.skip("its source has no formula")
    per_rank = schedule.placement.stages(ranks, schedule.chunks) // ranks
    line = simulate(schedule.plan(ranks, schedule.chunks, count), durations(1, 2, per_rank))
    assert line.makespan == expected


def test_numbers_that_a_formula_is_not_for() -> None:
    assert makespan("chimera-doubling", 4, 2, 12) is None  # no pair for each pipe
    assert makespan("zbv", 4, 2, 7) is None  # never full
    assert makespan("another", 4, 1, 8) is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--schedules", "chimera", "--ranks", "3"), "--ranks 3: cannot have 2 pipes on 3 ranks: "),
        (("--unit-ms", "0"), "--ranks, --micro-batches, --unit-ms and --repeats must be above 0"),
    ],
)
def test_what_cannot_be_is_refused(options: tuple[str, ...], says: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert f"error: {says}" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.calm
@pytest.mark.timeout(900)
@pytest.mark.parametrize("names", [tuple(SCHEDULES)[i::4] for i in range(4)], ids=" ".join)
def test_sleeping_stages_take_what_the_formula_says(names: tuple[str, ...]) -> None:
    """Within 3 %. A busy machine makes every makespan longer, never shorter: the least of the repeats counts, and what
    is too long gets further attempts."""
    found: dict[str, float] = {}
    again = list(names)
    for _ in range(4):
        done = run("--unit-ms", "100", "--repeats", "3", "--json", "--schedules", *again)
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["makespans"]
        found |= {one["schedule"]: one["least"] / (one["formula"] or one["simulated"]) - 1 for one in rows}
        if not (again := [name for name in again if found[name] > 0.03]):
            break
    assert found.keys() == set(names)
    assert all(abs(error) < 0.03 for error in found.values()), found
