"""With batches read ahead, a restart and a dead loader change nothing either: losses equal, bit for bit."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote

from holdfast.trainer.data.ring import PREFIX, Ring, folder

pytestmark = pytest.mark.aside

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=4", "--set", "model.dropout=0.1", "--steps", "8"]
SHARED = ["--set", "data.loader=shared", "--set", "data.prefetch=2"]
AHEAD = ["--set", "data.prefetch=3"]


def losses(done: dict[str, Any]) -> list[float]:
    """The losses that every rank agrees on."""
    first, *others = [result["losses"] for result in done["results"]]
    assert all(other == first for other in others)
    return list(first)


def rings(argv: list[str]) -> set[Path]:
    """Rings of batches out of these arguments' cache that no process holds any more: others on this machine are those
    of other jobs, which may have been killed as well."""
    (cache,) = (word.partition("=")[2] for word in argv if word.startswith("data.cache_dir="))
    dead = set()
    for path in folder().glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
            if all(Path(one).is_relative_to(cache) for one in read_by(path)):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                dead.add(path)
    return dead


def read_by(path: Path) -> list[str]:
    """The files that a ring's loader reads. Nothing of the ring, and no lock, is left behind."""
    ring = Ring.open(path)
    try:
        return list(ring.settings()["paths"])
    finally:
        ring.close()


@pytest.fixture(scope="module")
def layout() -> list[str]:
    return ["--pp", "2", "--tp", "2"]


@pytest.fixture(scope="module")
def whole(zygote: Zygote, tiny: list[str], layout: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Losses of a run in which every rank reads for itself and nothing happens."""
    argv = [*tiny, *SMALL, *layout]
    return losses(zygote.run("train", 4, tmp_path_factory.mktemp("whole"), args={"argv": argv}))


@pytest.mark.slow
@pytest.mark.parametrize("how", [SHARED, AHEAD], ids=["shared", "ahead"])
def test_kill_a_rank_and_restore(
    zygote: Zygote, tiny: list[str], layout: list[str], whole: list[float], how: list[str], tmp_path: Path
) -> None:
    before = rings(tiny)
    store = ["--store", (tmp_path / "store").as_uri(), "--checkpoint-every", "3"]
    argv = [*tiny, *SMALL, *layout, *how, *store]
    # Rank 0 is the one that holds the loader.
    first = zygote.run("feeding:train", 4, tmp_path / "run", args={"argv": argv}, kill={0: 5})
    assert first["exits"][0] == -9
    second = zygote.run("feeding:train", 4, tmp_path / "run", args={"argv": argv}, generation=1)
    assert second["exits"] == [0] * 4
    assert second["results"][0]["first"] == 3
    assert losses(second) == whole[3:]
    assert rings(tiny) <= before


@pytest.mark.slow
def test_kill_the_loader(
    zygote: Zygote, tiny: list[str], layout: list[str], whole: list[float], tmp_path: Path
) -> None:
    before = rings(tiny)
    argv = [*tiny, *SMALL, *layout, *SHARED]
    done = zygote.run("feeding:train", 4, tmp_path, args={"argv": argv, "kill_loader_at": 2})
    assert done["exits"] == [0] * 4
    assert [result["killed"] for result in done["results"]] == [1, 0, 0, 0]
    assert [result["left"] for result in done["results"]] == [0] * 4
    assert losses(done) == whole
    assert rings(tiny) <= before


@pytest.mark.slow
@pytest.mark.parametrize("layout", [["--dp", "2", "--tp", "2"], ["--tp", "4"], ["--dp", "4"]], ids=" ".join)
def test_every_layout_reads_the_same(zygote: Zygote, tiny: list[str], layout: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *SMALL, *layout, "--steps", "4"]
    runs = [
        losses(zygote.run("train", 4, tmp_path / str(number), args={"argv": [*argv, *how]}))
        for number, how in enumerate(([], SHARED, AHEAD))
    ]
    assert runs[0] == runs[1] == runs[2]
