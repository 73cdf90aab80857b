"""Processes that load at another layout than the one that saved: each byte is read once, and goes on to its holders."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.support.remesh_ranks import layout_of, whole
from tests.trainer.support.forked import Zygote

pytestmark = pytest.mark.aside

TASKS = "tests.checkpoint.support.remesh_ranks"
UNIQUE = sum(math.prod(tensor.shape) * 4 for tensor in whole().values())


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    warm = Zygote()
    yield warm
    warm.close()


@pytest.fixture(scope="module")
def kept(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint that four stages wrote."""
    folder = tmp_path_factory.mktemp("kept")
    (folder / "store").mkdir()
    args = {"store": str(folder / "store"), "mesh": [4, 1, 1]}
    done = zygote.run(f"{TASKS}:saved", 4, folder / "save", args=args, deadline_s=60.0)
    assert [one["ok"] for one in done["results"]] == [True] * 4
    return args["store"]


def load(zygote: Zygote, kept: str, mesh: list[int], folder: Path, **job: Any) -> dict[str, Any]:
    args = {"store": kept, "mesh": mesh, **job.pop("args", {})}
    return zygote.run(f"{TASKS}:loaded", math.prod(mesh), folder, args=args, deadline_s=120.0, **job)


def held_bytes(mesh: list[int]) -> int:
    """What all ranks hold together, replicas counted."""
    return sum(4 * shard.count for held in layout_of(*mesh).held for shards in held.values() for shard in shards)


@pytest.mark.parametrize("mesh", [[2, 2, 1], [1, 2, 2], [1, 4, 1], [1, 1, 3], [1, 2, 1]])
def test_each_byte_is_read_once_by_all_and_the_state_is_that_of_a_plain_load(
    zygote: Zygote, kept: str, tmp_path: Path, mesh: list[int]
) -> None:
    ranks = load(zygote, kept, mesh, tmp_path)["results"]
    assert [rank["differ"] for rank in ranks] == [[]] * math.prod(mesh)
    assert UNIQUE <= sum(rank["given"] for rank in ranks) <= 1.01 * UNIQUE  # headers
    assert [rank["read"] for rank in ranks] == [rank["given"] for rank in ranks]
    # Each by itself, replicas read what others read too.
    assert sum(rank["plain"] for rank in ranks) >= held_bytes(mesh)
    # Every element goes to each of its holders, but for the one of them, if any, that read it.
    sends = [rank["sent"] for rank in ranks]
    assert held_bytes(mesh) - UNIQUE <= sum(sends) < held_bytes(mesh)
    if mesh == [1, 4, 1]:  # parameters are the half of the state that all four have, moments that of one each
        assert held_bytes(mesh) == UNIQUE // 2 * 5
    reads = [rank["read"] for rank in ranks]
    for rank in ranks:
        assert rank["traffic"] == [sum(reads), sum(sends), max(reads), max(sends)]
    assert ranks[0]["line"].startswith(f"{sum(reads) / 1e6:.1f} MB read (at most {max(reads) / 1e6:.1f} MB by one rank")


def test_a_sender_that_dies_while_it_loads_costs_nothing(zygote: Zygote, kept: str, tmp_path: Path) -> None:
    """Its peers end with an error, long before any timeout, and the next attempt reads all from the store."""
    killed = load(zygote, kept, [1, 4, 1], tmp_path / "killed", args={"block": {"1": 1}}, kill={1: 1})
    assert killed["exits"][1] == -9
    assert all(code not in (0, None) for code in killed["exits"]), "no rank may go on with half a state"
    assert killed["results"] == [None] * 4
    assert killed["seconds"] < 120, "a peer's end is noticed, not waited for: the timeout is 300 s"
    ranks = load(zygote, kept, [1, 3, 1], tmp_path / "again", generation=1)["results"]
    assert [rank["differ"] for rank in ranks] == [[]] * 3
    assert UNIQUE <= sum(rank["given"] for rank in ranks) <= 1.01 * UNIQUE
