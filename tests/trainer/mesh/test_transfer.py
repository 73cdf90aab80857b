"""Transfer plans on real processes: what every rank holds afterwards is what slicing the whole tensor gives."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import REPOSITORY, Zygote

WORLD = 8


def test_parts_move_between_random_layouts_over_gloo(zygote: Zygote, tmp_path: Path) -> None:
    args = {"seeds": list(range(60)), "world": WORLD}
    found = zygote.run("moving:moved", WORLD, tmp_path / "ranks", args=args)
    assert found["exits"] == [0] * WORLD
    assert [result["wrong"] for result in found["results"]] == [[]] * WORLD
    assert sum(result["messages"] for result in found["results"]) > 1000, "most of it moved"
    assert sum(result["received"] for result in found["results"]) > 1000


def measured(only: list[str]) -> dict[tuple[str, int | None], float]:
    """Time on throttled links by name and chunks: in units of one sending, or of the lower bound for an order."""
    command = [sys.executable, "benchmarks/resharding.py", "--json", "--repeats", "3", "--only", *only]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    return {(case["name"], case["chunks"]): case["measured"] for case in json.loads(done.stdout)["cases"]}


@pytest.mark.slow
@pytest.mark.calm
@pytest.mark.timeout(600)
def test_measured_times_are_those_of_the_formulas() -> None:
    """Four receiving hosts of two ranks. The orders: 3 parts of 2 replicas become 5, relative to the lower bound."""
    expected = {
        ("local_all_gather", None): 4.0,
        ("global_all_gather", None): 2 - 1 / 8,
        ("ring", 8): 1 + 3 / 8,
        ("ring", 64): 1 + 3 / 64,
        # By hand, in fifteenths of the tensor: every receiver gets 3, which is the bound. In the given order rank 1
        # sends its second unit from 3 to 4, for which the next one, of 2, waits at the same receiver.
        ("order: exact", None): 1.0,
        ("order: load", None): 2.0,
    }
    found: dict[tuple[str, int | None], float] = {}
    # A busy machine makes every time longer, never shorter: those that came out too long get two more attempts.
    for _ in range(3):
        again = [key for key, factor in expected.items() if found.get(key, math.inf) > 1.05 * factor]
        if again:
            found |= measured([name for name, _ in again])
    off = {key: found[key] / factor for key, factor in expected.items()}
    print(off)
    assert all(abs(ratio - 1) <= 0.05 for ratio in off.values()), off
