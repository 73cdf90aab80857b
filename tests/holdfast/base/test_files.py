"""Files that another program wrote: whatever they are, so much of them is read and nothing is waited for."""

import os
from pathlib import Path

import pytest

from holdfast.base import files


def test_no_more_is_read_than_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 50_000)
    assert files.head(path, 5) == b"abcab"
    assert files.head(path, 1 << 30) == path.read_bytes()
    os.truncate(path, 1 << 40)  # with hardly anything on the disk
    assert len(files.head(path, 100_000)) == 100_000


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name, why in (("pipe", "no regular"), ("link", "symbolic links"), (".", "no regular"), ("missing", "No such")):
        with pytest.raises(OSError, match=why):
            files.head(tmp_path / name, 10)
