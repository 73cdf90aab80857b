"""What earlier layouts left in memory goes, but nothing newer than what is safe."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.worker.stale_files import current_files, sweep
from tests.checkpoint.restore.test_memory import HALVES, put


def test_files_belong_to_their_node_and_to_its_peer() -> None:
    ranks = [("a", "own-w00000-1.snap"), ("b", "own-w00001-2.snap")]
    assert current_files(ranks, {"a": "b", "b": "a"}) == {
        "a": {"own-w00000-1.snap", "peer-b-w00001-2.snap"},
        "b": {"own-w00001-2.snap", "peer-a-w00000-1.snap"},
    }
    assert current_files(ranks[:1], {}) == {"a": {"own-w00000-1.snap"}}


def test_only_what_is_older_goes(tmp_path: Path) -> None:
    mine = put(tmp_path, HALVES, 0, 5)
    older = put(tmp_path, HALVES, 1, 4, prefix="peer-n1")
    newer = put(tmp_path, HALVES, 1, 6, prefix="peer-n2")
    assert sweep(tmp_path, {mine.name}, 5) == ([older.name], False)
    assert sweep(tmp_path, {mine.name}, 6) == ([newer.name], True)
    assert [path.name for path in tmp_path.glob("*.snap")] == [mine.name]
