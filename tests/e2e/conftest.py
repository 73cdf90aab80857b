"""Commands for end-to-end tests: all processes that they start are gone when a test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, commands


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that share a cluster come last: it ends with the session, and costs the others nothing."""
    items.sort(key=lambda item: "one_node" in getattr(item, "fixturenames", ()))


@pytest.fixture
def holdfast(tmp_path: Path) -> Iterator[Commands]:
    with commands(tmp_path / "commands") as one:
        yield one


@pytest.fixture(scope="session")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of one node, which has no other to replace it: however many jobs have failed there, what is decided
    about the next is the same."""
    # Steps of milliseconds on a machine that other tests keep busy: half a second without a step means nothing here.
    patient = ("--hang-floor", "5s", "--silence-floor", "8s")
    with LocalCluster(tmp_path_factory.mktemp("one_node"), nodes=1, slots=4, controller_flags=patient) as one:
        yield one
