"""`parallel.timeout_s` holds in every group: a rank that stops without ending is found out after it, and not later."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=2", "--steps", "50"]
TIMEOUT_S = 8
"""Ranks on a busy machine are seconds apart when they meet: with less they would lose each other before one stops."""
SLACK_S = 20.0
"""For a machine that is busy. A group that waits ten times too long is far beyond it."""


@pytest.mark.parametrize(
    ("before", "layout"),
    [
        ("pp", ["--pp", "2", "--dp", "2"]),
        ("dp", ["--dp", "2", "--tp", "2"]),
        ("tp", ["--dp", "2", "--tp", "2"]),
        ("world", ["--dp", "2", "--tp", "2"]),
    ],
)
def test_a_stopped_rank_fails_its_peers_within_the_timeout(
    zygote: Zygote, tiny: list[str], tmp_path: Path, before: str, layout: list[str]
) -> None:
    """The last rank's peer in that group waits for it there, and in no other group."""
    argv = [*tiny, *SMALL, *layout, "--set", f"parallel.timeout_s={TIMEOUT_S}"]
    args = {"argv": argv, "rank": 3, "before": before}
    done = zygote.run("stopping:stopped", 4, tmp_path, args=args, deadline_s=120.0)
    assert done["exits"] == [0, 0, 0, None], f"a peer still waits after {done['seconds']:.0f} s"
    for rank, result in enumerate(done["results"][:3]):
        assert result["code"] == 1
        assert result["stderr"].startswith(f"holdfast train: rank {rank} lost a peer: ")
    assert max(done["ends_s"].values()) < TIMEOUT_S + SLACK_S
    # Its peers may have waited for it before it stopped, and that it stopped may be noticed late.
    assert min(done["ends_s"].values()) > TIMEOUT_S / 2, "a peer gave up before the timeout"


def test_every_group_of_a_job_has_the_timeout(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """Those of the mesh, of the two ends of tied embeddings, and of all holders of a stage, for lamb."""
    layout = ["--pp", "2", "--dp", "2", "--tp", "2", "--set", "model.tied=true", "--set", "optim.name=lamb"]
    argv = [*tiny, *SMALL, *layout, "--set", "parallel.timeout_s=17"]
    done = zygote.run("stopping:timeouts", 8, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 8
    for found in done["results"]:
        assert {"world", "pp", "dp", "tp", "tied", "stage"} <= found.keys()
        assert {seconds for group in found.values() for seconds in group} == {17.0}


def test_the_group_of_all_pipes_has_the_timeout(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    layout = ["--pp", "2", "--dp", "2", "--set", "parallel.schedule=chimera", "--set", "parallel.zero=0"]
    argv = [*tiny, *SMALL, *layout, "--set", "parallel.timeout_s=17"]
    done = zygote.run("stopping:timeouts", 4, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 4
    for found in done["results"]:
        assert "pipes" in found
        assert {seconds for group in found.values() for seconds in group} == {17.0}
