"""Daemons as processes, and a claimed store for what they upload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.commit.fence import Fence, claim
from holdfast.checkpoint.stores.file import FileStore
from tests.checkpoint.support.daemons import DaemonProcess, Start, close_all


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons; all of them end with the test."""
    started: list[DaemonProcess] = []

    def make(node: str = "n0", **limits: Any) -> DaemonProcess:
        started.append(DaemonProcess(tmp_path / node, node, **limits))
        return started[-1]

    yield make
    close_all()
    for daemon in started:
        daemon.close()


@pytest.fixture
def fence(store: FileStore) -> Fence:
    store.root.mkdir(exist_ok=True)
    return claim(store, "job", 1)
