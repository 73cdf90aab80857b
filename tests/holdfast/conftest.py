"""A scripted controller for tests of the commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.holdfast.support.fake_controller import FakeController


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeController]:
    """A controller with preset answers; the commands find it by the environment."""
    controller = FakeController()
    monkeypatch.setenv("HOLDFAST_CONTROLLER", controller.address)
    monkeypatch.setenv("HOLDFAST_CONFIG", "")
    monkeypatch.setenv("COLUMNS", "200")
    yield controller
    controller.close()


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)
