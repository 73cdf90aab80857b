"""ZeRO 3 by layer gathers the next unit while one computes, on the way forward and on the way back."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from forked import Zygote


@pytest.mark.parametrize(("schedule", "layers"), [("1f1b", 1), ("1f1b", 3), ("gpipe", 3)])
def test_the_next_unit_is_gathered_while_one_computes(
    zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str, layers: int
) -> None:
    """Results are the same without, and traffic too: only the order shows it.

    With gpipe the forward before a backward is another micro-batch's: FSDP's own guess would go by that.
    """
    sizes = ["--set", f"model.layers={layers}", "--set", "train.micro_batches=4", "--steps", "2"]
    argv = [*tiny, *sizes, "--dp", "2", "--set", "parallel.zero=3", "--set", f"parallel.schedule={schedule}"]
    done = zygote.run("gathering:gathers", 2, tmp_path, args={"argv": argv})
    assert done["exits"] == [0, 0]
    units = [*range(layers + 2)]  # embedding, layers, head
    forward, backward = passes("forward", units), passes("backward", units[::-1])
    expected = [*forward * 2, *backward * 2] if schedule == "gpipe" else [*forward, *backward] * 2
    for result in done["results"]:
        assert result["notes"] == expected


def passes(way: str, units: list[int]) -> list[str]:
    """The first unit is gathered, then each next one before the one in front of it has computed."""
    notes = [f"gather {units[0]}"]
    for unit, following in itertools.pairwise(units):
        notes += [f"gather {following}", f"{way} {unit}"]
    return [*notes, f"{way} {units[-1]}"]
