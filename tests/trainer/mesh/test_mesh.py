"""What a rank sets before the rendezvous, and the groups it makes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import Zygote

from holdfast.trainer.mesh.mesh import leave, only_deterministic


@pytest.mark.parametrize("given", ["", ":16:8"])
def test_deterministic_is_meant(given: str) -> None:
    """A warning would not do: torch's attention then is what it is without."""
    environ = {"CUBLAS_WORKSPACE_CONFIG": given} if given else {}
    try:
        only_deterministic(environ)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert environ == {"CUBLAS_WORKSPACE_CONFIG": given or ":4096:8"}


@pytest.mark.parametrize(
    ("failed_on", "world", "is_destroyed"), [("", 2, 1), ("cpu", 2, 1), ("cuda", 2, 0), ("cuda", 1, 1)]
)
def test_a_rank_that_failed_does_not_wait_for_what_nccl_has_begun(
    monkeypatch: pytest.MonkeyPatch, failed_on: str, world: int, is_destroyed: int
) -> None:
    """Its peers may never do their part, and its error is printed behind this."""
    destroyed: list[int] = []
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: world)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: destroyed.append(1))
    leave(failed_on=failed_on)
    assert len(destroyed) == is_destroyed


def test_ranks_in_unlike_numbers_of_groups_meet(zygote: Zygote, tmp_path: Path) -> None:
    """torch's own name of a group counts the groups of each rank: under it, such ranks wait for each other for ever."""
    done = zygote.run("meeting:unlike", 3, tmp_path, args={})
    assert done["exits"] == [0] * 3
    assert done["results"] == [[1], [1, 3, 3], [3, 3]]
