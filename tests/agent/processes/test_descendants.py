"""Which processes are a worker's, and what its open files show of movement."""

from pathlib import Path

from holdfast.agent.processes import descriptors
from holdfast.agent.processes.descendants import Descendants


def _process(proc: Path, pid: int, parent: int, session: int, start: int = 5, environ: bytes = b"") -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    head = f"{pid} (x) S {parent} {pid} {session} 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0"
    (folder / "stat").write_text(head)
    (folder / "environ").write_bytes(environ)


def test_descendants_are_found_by_parent_session_and_mark_and_kept_when_they_lose_them(tmp_path: Path) -> None:
    marked = b"A=b\0HOLDFAST_WORKER=job/1/0\0"
    for pid, parent, session in ((10, 1, 10), (11, 10, 10), (12, 11, 12), (13, 1, 10), (15, 1, 15), (16, 15, 15)):
        _process(tmp_path, pid, parent, session, start=pid)
    _process(tmp_path, 14, 1, 14, 14, marked)
    tree = Descendants(str(tmp_path))
    tree.look(0.0)
    assert tree.of(10, "job/1/0") == [11, 12, 13, 14]
    assert tree.of(15) == [16]
    _process(tmp_path, 12, 1, 12, start=12)  # its parent has ended
    (tmp_path / "11" / "stat").unlink()
    for name in ("11",):
        (tmp_path / name / "environ").unlink()
        (tmp_path / name).rmdir()
    tree.look(20.0)
    assert tree.of(10, "job/1/0") == [12, 13, 14]
    _process(tmp_path, 12, 1, 12, start=99)  # the same id, another process
    tree.look(40.0)
    assert tree.of(10, "job/1/0") == [13, 14]


def test_new_links_and_positions_are_changes(tmp_path: Path) -> None:
    for folder in ("fd", "fdinfo"):
        (tmp_path / "7" / folder).mkdir(parents=True)
    (tmp_path / "7" / "fd" / "3").symlink_to("/data/x")
    (tmp_path / "7" / "fdinfo" / "3").write_text("pos:\t1\n")
    look = descriptors.Descriptors(7, str(tmp_path)).look
    assert (look(), look()) == (False, False)
    (tmp_path / "7" / "fdinfo" / "3").write_text("pos:\t2\n")
    assert (look(), look()) == (True, False)
    (tmp_path / "7" / "fd" / "4").symlink_to("socket:[5]")
    assert (look(), look()) == (True, False)
    (tmp_path / "7" / "fd" / "4").unlink()
    (tmp_path / "7" / "fd" / "4").symlink_to("socket:[6]")
    assert (look(), look()) == (True, False)
    (tmp_path / "7" / "fd" / "4").unlink()
    assert (look(), look()) == (True, False)
