"""What the tests of this folder share lies beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.stores.file import FileStore

sys.path.insert(0, str(Path(__file__).parent / "support"))


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")
