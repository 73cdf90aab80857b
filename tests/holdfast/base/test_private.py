"""Folders and files for their owner only: new ones under any umask, those that are there, those of others."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.base import private
from holdfast.base.errors import UsageError

is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_closed_under_any_umask(tmp_path: Path, umask: int) -> None:
    private.state_folder(tmp_path / "a" / "b" / "c")
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert mode(path) == 0o700
    private.shared_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o700
    private.write_text(tmp_path / "text", "x")
    private.make_file(tmp_path / "file")
    with open(tmp_path / "opened", "ab", opener=private.opener):
        pass
    assert {mode(tmp_path / name) for name in ("text", "file", "opened")} == {0o600}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=60)
@given(before=st.integers(0o700, 0o777), what=st.sampled_from([None, "logs", "controller.sqlite", "thesis.tex"]))
def test_one_that_is_there_is_closed_where_it_is_ours(tmp_path_factory: pytest.TempPathFactory, before: int,
                                                      what: str | None) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("state")
    if what is not None:
        (path / what).touch()
    path.chmod(before)
    if what == "thesis.tex" and before & 0o002:
        with pytest.raises(UsageError, match="other things lie in it; give another --state-dir"):
            private.state_folder(path)
    else:
        private.state_folder(path)
    assert mode(path) == (before if what == "thesis.tex" else 0o700)
    private.make_folder(path)  # one that is ours beyond doubt
    assert mode(path) == 0o700


def test_files_of_ours_that_are_open_are_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    path.chmod(0o666)
    private.make_file(path)
    assert (mode(path), path.read_text()) == (0o600, "kept")
    path.chmod(0o644)
    private.write_text(path, "new")
    assert (mode(path), path.read_text()) == (0o600, "new")


def test_a_device_keeps_its_mode() -> None:
    before = mode(Path("/dev/null"))
    private.make_file(Path("/dev/null"))
    private.write_text(Path("/dev/null"), "x")
    assert mode(Path("/dev/null")) == before


def test_a_folder_that_all_share_is_not_taken(tmp_path: Path) -> None:
    """Root with `--state-dir /tmp` must not lock all other users out."""
    tmp_path.chmod(0o1777)
    with pytest.raises(UsageError, match="it is shared by all users; give another --state-dir"):
        private.state_folder(tmp_path)
    assert mode(tmp_path) == 0o1777


@is_root
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    path.mkdir(0o777)
    os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match=r"theirs: it belongs to .*; give another --state-dir"):
        private.state_folder(path)
    with pytest.raises(UsageError, match=r"belongs to .*, not to us"):
        private.shared_folder(path)
    assert path.stat().st_uid == 65534
    file = tmp_path / "file"
    file.touch()
    os.chown(file, 65534, 65534)
    with pytest.raises(PermissionError, match="it belongs to"):
        private.make_file(file)


def test_what_is_shared_is_a_real_folder(tmp_path: Path) -> None:
    """Another user could lead us, by a link of theirs, to write where we would not."""
    (tmp_path / "real").mkdir(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "file").touch()
    for name in ("link", "nowhere", "file"):
        with pytest.raises(UsageError, match=f"{name} is no folder that we may use"):
            private.shared_folder(tmp_path / name)
    assert mode(tmp_path / "real") == 0o755
    assert not (tmp_path / "gone").exists()
    private.shared_folder(tmp_path / "real")
    assert mode(tmp_path / "real") == 0o700
    with pytest.raises(FileNotFoundError):
        private.check_shared(tmp_path / "gone")


def test_a_state_folder_may_be_a_link_of_ours(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(0o755)
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    private.state_folder(tmp_path / "state")
    assert mode(tmp_path / "disk") == 0o700


def test_what_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError) as caught:
            private.state_folder(path)
        assert "\n" not in str(caught.value)
        assert "give another --state-dir" in str(caught.value)
