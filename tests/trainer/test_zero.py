"""ZeRO stages: what replicas share out changes memory and traffic, and nothing that is computed."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote
from test_equality import compare, mesh

STAGES = {
    "0": ["parallel.zero=0"],
    "1": ["parallel.zero=1"],
    "2": ["parallel.zero=2"],
    "3 by layer": ["parallel.zero=3"],
}
SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=4", "--set", "train.dtype=float64"]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.mark.parametrize("stage", STAGES)
def test_replicas_compute_what_one_process_computes(
    zygote: Zygote, tiny: list[str], tmp_path: Path, stage: str
) -> None:
    more = words([*STAGES[stage], "model.dropout=0.1", f"model.tied={'true' if '3' in stage else 'false'}"])
    compare(zygote, [*tiny, *SMALL, *more, *mesh(1, 2, 1)], tmp_path, world=2, steps=3, within=1e-9)
