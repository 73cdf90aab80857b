"""A folder that can never be a store is refused before anything else is done."""

from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.checkpoint.stores.opening import check_place


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for url in (f"file://{tmp_path}/file", f"file://{tmp_path}/file/below/it", str(tmp_path / "file")):
        with pytest.raises(UsageError, match="Not a directory: name a store that can be written"):
            check_place(url)


def test_a_link_to_itself_and_a_name_too_long_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for url, why in (
        (f"{tmp_path}/loop/below", "Too many levels of symbolic links"),
        ("/x" * 3000, "File name too long"),
    ):
        with pytest.raises(UsageError, match=f"{why}: name a store that can be written"):
            check_place(url)


def test_what_can_be_made_may_be_a_store(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "later")  # of a disk that is not mounted yet
    for url in (f"file://{tmp_path}", f"file://{tmp_path}/not/yet", f"file://{tmp_path}/link/below"):
        check_place(url)
    check_place("hdfs://127.0.0.1:9/never/asked")
