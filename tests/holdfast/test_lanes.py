"""What `make test` needs of the tests, and what measures them: markers that it can find, processor time."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.cpu_seconds import consumed_s

BURN_S = 0.3
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass\n"


class Marked:
    """As much of a test as the guard looks at."""

    def __init__(self, path: Path, markers: Iterable[str]) -> None:
        self.path, self._markers = path, set(markers)

    def get_closest_marker(self, name: str) -> bool:
        return name in self._markers


def guard(*tests: Marked) -> None:
    pytest_collection_modifyitems(cast(Any, list(tests)))


@pytest.mark.parametrize("marker", ["slow", "aside", "calm"])
def test_a_slow_test_is_found_by_the_words_of_its_file(tmp_path: Path, marker: str) -> None:
    path = tmp_path / "test_one.py"
    words = {f"pytest.mark.{name}" for name in ("slow", "aside", "calm")}
    path.write_text(" ".join(words))
    guard(Marked(path, {"slow", marker}))
    path.write_text(" ".join(words - {f"pytest.mark.{marker}"}))
    with pytest.raises(pytest.UsageError, match=rf"{marker} tests in files that do not say mark\.{marker}: .*test_one"):
        guard(Marked(path, {"slow", marker}))


def test_a_fast_test_may_have_its_marker_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.touch()
    guard(Marked(path, {"aside"}))


def test_the_time_of_children_counts_while_they_live_and_once_they_have_ended() -> None:
    grandchild = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN!r}], check=True)\n"
    code = f"{grandchild}{BURN}print('burnt', flush=True)\nsys.stdin.read()\n"
    before = consumed_s()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"burnt\n"
        ticks = 4 / os.sysconf("SC_CLK_TCK")  # user and system time, its own and its child's, each rounded down
        alive = consumed_s() - before
        assert alive >= 2 * BURN_S - ticks
    assert consumed_s() - before >= alive - ticks
