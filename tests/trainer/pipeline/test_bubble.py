"""The bubble of real processes is that of the formula: their executors and messages are real, time is virtual."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote
from programs import ended, figures


def bubbles(zygote: Zygote, folder: Path, *words: str) -> tuple[dict[str, float], dict[str, float]]:
    """Measured and by formula, by schedule and numbers."""
    found = figures(zygote, folder, "bubble.py", "--repeats", "1", *words)["medians_bubble"]
    assert found["holdfast"].keys() == found["formula"].keys()
    return found["holdfast"], found["formula"]


@pytest.mark.parametrize(
    ("ranks", "schedules"),
    [
        (2, ["gpipe", "1f1b", "eager-1f1b", "interleaved", "bfs"]),
        (4, ["1f1b", "interleaved", "bfs", "chimera", "chimera-halving", "merak-baseline", "merak"]),
    ],
)
def test_the_bubble_is_that_of_the_formula(zygote: Zygote, tmp_path: Path, ranks: int, schedules: list[str]) -> None:
    """With a micro-batch a rank, where bubbles are largest; test_makespans.py has all schedules with more of them."""
    words = ("--virtual", "--ranks", str(ranks), "--micro-batches", str(ranks), "--schedules", *schedules)
    measured, formula = bubbles(zygote, tmp_path, *words)
    assert len(measured) == len(schedules)
    assert measured == pytest.approx(formula, abs=1e-9)


@pytest.mark.parametrize("ahead", ["0", "2"])
def test_messages_that_take_time_cost_what_is_simulated(zygote: Zygote, tmp_path: Path, ahead: str) -> None:
    """Receives that are posted late expose each message of gpipe, those posted ahead the first of each way."""
    words = ("--ranks", "4", "--micro-batches", "4", "--schedules", "gpipe", "1f1b", "--message", "0.5")
    measured, formula = bubbles(zygote, tmp_path, "--virtual", *words, "--ahead", ahead)
    assert measured == pytest.approx(formula, abs=1e-9)


def test_stages_that_sleep_are_measured(zygote: Zygote, tmp_path: Path) -> None:
    """How near the figures come is in benchmarks/RESULTS.md: no test says what a busy machine takes."""
    sizes = ("--ranks", "2", "--micro-batches", "2", "--unit-ms", "1", "--message", "0.5")
    measured, _ = bubbles(zygote, tmp_path, *sizes, "--schedules", "1f1b")
    late, _ = bubbles(zygote, tmp_path, *sizes[:-2], "--late", "0.5", "--schedules", "axonn")
    assert [0 < one < 1 for one in (*measured.values(), *late.values())] == [True, True]


def test_late_messages_need_the_clock(zygote: Zygote, tmp_path: Path) -> None:
    done = ended(zygote, tmp_path, "bubble.py", "--virtual", "--late", "1")
    assert done["code"] == 2
    assert "--late is for the host's clock: leave --virtual out" in done["err"]
