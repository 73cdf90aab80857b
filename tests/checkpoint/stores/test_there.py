"""A store whose folder does not exist is not a store without checkpoints."""

from pathlib import Path

import pytest

from holdfast.checkpoint.errors import StoreMissing, StoreUnsupported
from holdfast.checkpoint.stores import reach
from holdfast.checkpoint.stores.reach import check_there


def test_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "file").touch()
    for there in (str(tmp_path), tmp_path.as_uri(), (tmp_path / "a b").as_uri()):
        check_there(there)
    with pytest.raises(StoreMissing, match="there is no such folder"):
        check_there(str(tmp_path / "gone"))
    with pytest.raises(StoreMissing, match="is no folder"):
        check_there(str(tmp_path / "file"))


class Listed:
    """A store behind a network, of which only listings are known."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def list(self, path: str) -> list[str]:
        return self.names


@pytest.mark.parametrize(
    ("url", "is_there"),
    [
        ("hdfs://h:1/data/full", True),
        ("hdfs://h:1/data/empty", True),
        ("hdfs://h:1/data/empty/", True),
        ("hdfs://h:1/data/a%20b", True),
        ("hdfs://h:1/data/gone", False),
        ("hdfs://h:1/data/file", False),
        ("hdfs://h:1/top", True),  # the root is no store: it cannot be asked
    ],
)
def test_behind_a_network_its_parent_is_asked(monkeypatch: pytest.MonkeyPatch, url: str, is_there: bool) -> None:
    folders = {"hdfs://h:1/data": ["a b/", "empty/", "file", "full/"], "hdfs://h:1/data/full": ["x/"]}

    def opened(url: str) -> Listed:
        if url == "hdfs://h:1":
            raise StoreUnsupported("names no folder")
        return Listed(folders.get(url.rstrip("/"), []))

    monkeypatch.setattr(reach, "open_store", opened)
    if is_there:
        check_there(url)
    else:
        with pytest.raises(StoreMissing, match=f"{url}: there is no such folder"):
            check_there(url)
