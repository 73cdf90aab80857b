"""Which snapshots stay, and what a crash leaves at any place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.stores.file import FileStore
from holdfast.trainer.embeddings.servers import snapshots

FIXED = {"dim": 4}


def take(url: str, step: int, run: str = "r") -> None:
    files = snapshots.write_file(url, step, run, snapshots.MODEL, f"parameters {step}".encode())
    snapshots.commit(url, step, run, FIXED, files)


def names(url: str) -> list[str]:
    return sorted(path.name for path in Path(url).iterdir())


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 40), st.booleans()), st.integers(0, 5))
def test_the_newest_whole_ones_stay(found: dict[int, bool], keep: int) -> None:
    gone = snapshots.expired(found.items(), keep)
    whole = sorted(step for step, is_whole in found.items() if is_whole)
    kept = whole[-max(keep, 1) :]
    assert gone == sorted(gone)
    assert [step for step in whole if step not in gone] == kept
    # What is broken goes when it is older than all that stay.
    assert {step for step in gone if not found[step]} == {s for s in found if kept and not found[s] and s < kept[0]}


def test_old_ones_go_and_so_does_what_dead_runs_left(tmp_path: Path) -> None:
    url = str(tmp_path)
    for step in (5, 10, 15, 20):
        take(url, step)
    for step, run in ((15, "dead"), (20, "dead"), (25, "dead"), (20, "r"), (25, "r")):
        snapshots.write_file(url, step, run, snapshots.MODEL, b"half")
    (tmp_path / "trash-1").mkdir()
    (tmp_path / "notes").mkdir()
    snapshots.prune(url, 2, "r")
    assert names(url) == [
        "notes", "step-00000015", "step-00000020", "work-00000020-r", "work-00000025-dead", "work-00000025-r",
    ]  # fmt: skip


def test_a_snapshot_that_lacks_a_file_is_passed_over_and_taken_again(tmp_path: Path) -> None:
    url = str(tmp_path)
    take(url, 5)
    take(url, 10)
    (tmp_path / "step-00000010" / snapshots.MODEL).unlink()
    assert snapshots.newest(url) == 5
    snapshots.prune(url, 1, "r")
    assert "step-00000005" in names(url), "the newest whole one stays, whatever is broken behind it"
    (tmp_path / "step-00000015").mkdir()
    assert snapshots.newest(url) == 5
    take(url, 10)
    assert snapshots.newest(url) == 10
    assert snapshots.read_file(url, 10, snapshots.MODEL) == b"parameters 10"
    assert not [name for name in names(url) if name.startswith("work")]


def test_a_whole_one_is_not_replaced(tmp_path: Path) -> None:
    url = str(tmp_path)
    take(url, 5)
    files = snapshots.write_file(url, 5, "later", snapshots.MODEL, b"others")
    snapshots.commit(url, 5, "later", FIXED, files)
    assert snapshots.read_file(url, 5, snapshots.MODEL) == b"parameters 5"
    assert names(url) == ["step-00000005"]


class Crash(Exception):
    pass


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "half"])
def test_a_crash_at_any_place_leaves_the_newest_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    """Each change of the store is the last one once: it does not happen, or of a removal only a part does."""
    changes = 0
    crash_at = -1

    def crashing(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(self: FileStore, path: str, *rest: Any) -> Any:
            nonlocal changes
            if (changes := changes + 1) == crash_at:
                if is_done and name == "remove":
                    (self.root / path / snapshots.MANIFEST).unlink(missing_ok=True)
                raise Crash
            return original(self, path, *rest)

        return call

    for name in ("create", "replace", "rename", "remove", "make_folder"):
        monkeypatch.setattr(FileStore, name, crashing(getattr(FileStore, name), name))
    for place in range(1, 40):
        url = str(tmp_path / str(place))
        crash_at = -1
        for step in (5, 10, 15):
            take(url, step)
        changes, crash_at = 0, place
        try:
            take(url, 20)
            snapshots.prune(url, 2, "r")
        except Crash:
            newest = snapshots.newest(url)
            assert newest in (15, 20)
            assert snapshots.read_file(url, newest, snapshots.MODEL) == f"parameters {newest}".encode()
        else:
            assert place > 8, "the last place is behind all changes"
            assert names(url) == ["step-00000015", "step-00000020"]
            return
        # The next run goes on, and removes what this one left.
        crash_at = -1
        take(url, 25, "next")
        snapshots.prune(url, 2, "next")
        assert names(url) == [f"step-{step:08d}" for step in ((20, 25) if newest == 20 else (15, 25))]
    raise AssertionError("it crashed in vain")
