"""Stores by URL, and what of the package needs no torch and no numpy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import CheckpointError, StoreUnsupported
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.opening import open_store


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("s3://h/p", "no such scheme 's3'"),
        ("file://host/p", "three slashes"),
        ("file:///", "names no folder"),
        ("hdfs:///p", "write hdfs://host:port/folder"),
        ("webhdfs://h:1/", "write webhdfs://host:port/folder"),
    ],
)
def test_urls_that_name_no_store(url: str, says: str) -> None:
    with pytest.raises(StoreUnsupported, match=says):
        open_store(url)


def test_urls_come_back(tmp_path: Path) -> None:
    plain = open_store(str(tmp_path / "a b"))
    again = open_store(plain.url)
    assert isinstance(again, FileStore)
    assert again.root == tmp_path / "a b"


def test_paths_cannot_leave_the_store(store: FileStore) -> None:
    for path in ("../x", "/etc/passwd", "a/../../b"):
        with pytest.raises(CheckpointError):
            store.read(path)


def test_saving_needs_no_torch_and_looking_no_numpy() -> None:
    for modules, heavy in (
        ("commit.save, restore.restore, commit.fence, stores.throttle", "torch"),
        # All that looking at a store needs.
        ("restore.inspect, commit.retention, stores.folder, stores.store, stores.file", "numpy"),
    ):
        imports = "; ".join(f"import holdfast.checkpoint.{module}" for module in modules.split(", "))
        code = f"import sys; {imports}; sys.exit({heavy!r} in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
