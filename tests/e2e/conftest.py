"""Commands for end-to-end tests: all processes that they start are gone when a test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemons import Commands, commands


@pytest.fixture
def holdfast(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path / "commands") as one:
        yield one
