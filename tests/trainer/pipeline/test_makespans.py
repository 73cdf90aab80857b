"""Formulas of makespans, and what the executors of real processes take in virtual time."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from forked import Zygote
from programs import ended, figures

from benchmarks import virtual_time
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
def test_what_cannot_be_is_refused(zygote: Zygote, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    done = ended(zygote, tmp_path, "makespans.py", *options)
    assert done["code"] == 2
    assert f"error: {says}" in done["err"].strip().splitlines()[-1]


@pytest.mark.parametrize(("ranks", "count"), [(4, 8), (2, 4)])
def test_real_ranks_take_what_the_formula_says(zygote: Zygote, tmp_path: Path, ranks: int, count: int) -> None:
    """The executors of all schedules, with real messages, in virtual time."""
    words = ("--virtual", "--repeats", "1", "--ranks", str(ranks), "--micro-batches", str(count))
    rows = figures(zygote, tmp_path, "makespans.py", *words)["makespans"]
    assert [one["schedule"] for one in rows] == list(SCHEDULES)
    for one in rows:
        assert one["measured"] == pytest.approx(one["formula"] or one["simulated"], rel=1e-9), one


def test_a_message_that_is_sent_before_its_rank_waits_for_it_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks at the same time go on beside each other: one may send while the other finds nothing to do."""
    monkeypatch.setattr(virtual_time, "WAIT_S", 0.1)
    turns = virtual_time.Turns(2)
    turns.begin(0)
    turns.begin(1)
    assert turns.wait(0, 0.0, waits=False) == (0.0, 0)
    turns.sent(0, 1.0)
    turns.sent(0, 2.0)
    turns.end(1)
    assert turns.wait(0, math.inf, waits=True) == (1.0, 2)
    with pytest.raises(TimeoutError):  # it has seen both
        turns.wait(0, math.inf, waits=True)


def test_second_order_work_in_the_bubbles_takes_what_is_simulated(zygote: Zygote, tmp_path: Path) -> None:
    words = ("--virtual", "--repeats", "1", "--fill", "0.6", "--schedules", "gpipe", "1f1b", "chimera")
    for one in figures(zygote, tmp_path, "makespans.py", *words)["filled"]:
        assert one["without"] == pytest.approx(one["simulated_without"], rel=1e-9)
        assert one["measured"] == pytest.approx(one["simulated"], rel=1e-9)


def test_stages_that_sleep_are_measured(zygote: Zygote, tmp_path: Path) -> None:
    """How near the figures come is in benchmarks/RESULTS.md: no test says what a busy machine takes."""
    sizes = ("--unit-ms", "1", "--repeats", "1", "--ranks", "2", "--micro-batches", "2")
    rows = figures(zygote, tmp_path, "makespans.py", *sizes, "--schedules", "zbv", "axonn")["makespans"]
    assert [one["schedule"] for one in rows] == ["zbv", "axonn"]
    assert all(one["measured"] == one["least"] > 0 for one in rows), rows
