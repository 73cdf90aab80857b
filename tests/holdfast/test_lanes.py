"""What `make test` needs of the tests, and what measures them: markers that it can find, processor time."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.conftest import PROCESS_LEFT, pytest_collection_modifyitems, pytest_sessionfinish
from tests.cpu_seconds import consumed_s

ROOT = Path(__file__).parents[2]
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


def lanes(target: str) -> list[list[str]]:
    """The words of the runs of pytest that `make TARGET` has side by side."""
    said = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    (line,) = [line for line in said.stdout.replace("\\\n", " ").splitlines() if "side_by_side" in line]
    runs: list[list[str]] = [[]]
    for word in shlex.split(line.partition("side_by_side.py")[2]):
        if word in ("--then", "--beside"):
            runs.append([])
        else:
            runs[-1].append(word)
    return runs


def files(words: Iterable[str]) -> set[str]:
    return {word for word in words if word.startswith("tests/") and word.endswith(".py")}


def test_every_fast_test_is_in_one_of_the_two_runs() -> None:
    _, other, _, one, _, _ = lanes("test")
    assert lanes("fast") == [other, one]
    own = [word for word in one if word.startswith("tests/")]
    assert len(own) > 20
    assert all((ROOT / folder).is_dir() for folder in own)
    assert own == [word for word in other if word.startswith("tests/")]
    assert other.count("--ignore") == len(own)
    # With the documentation's, for which all rows are measured as well.
    assert "tests/trainer/rows/" not in own


def test_every_slow_test_is_in_a_run() -> None:
    others, _, calm, _, more_calm, aside = map(files, lanes("test"))
    assert not calm & more_calm
    calm |= more_calm
    slow = {
        str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py") if "mark.slow" in path.read_text()
    }
    assert aside | calm | others == slow
    for path in slow - others:
        markers = re.search("^pytestmark = .*$", (ROOT / path).read_text(), re.MULTILINE)
        assert markers is not None, path
        assert "mark.aside" in markers[0] or "mark.calm" in markers[0], path


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


FAILS_ONCE = """
import pathlib
mark = pathlib.Path(__file__).with_suffix(".mark")
def test_one():
    was_there = mark.exists()
    mark.touch()
    assert was_there
"""
FAIL = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_one(n): assert False"
PASSES = "def test_one(): pass"
WORSE = FAILS_ONCE + "import pytest\ndef test_two(): pytest.exit('worse', returncode=3)"


def side_by_side(folder: Path, *codes: str) -> subprocess.CompletedProcess[str]:
    """Runs of one file each."""
    words: list[str] = []
    for n, code in enumerate(codes):
        path = folder / f"test_{n}.py"
        path.write_text(code)
        words += ["--beside"] * bool(n) + ["-q", str(path), "--rootdir", str(folder), "-c", os.devnull]
    command = [sys.executable, str(ROOT / ".ci" / "side_by_side.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)


@pytest.mark.slow
def test_the_few_that_failed_run_again_alone_and_are_named(tmp_path: Path) -> None:
    done = side_by_side(tmp_path, PASSES, FAILS_ONCE)
    assert done.returncode == 0, done.stdout
    assert re.search(r"nothing beside:\n\S*test_1.py::test_one\n", done.stdout)
    assert done.stdout.rstrip().splitlines()[-1].startswith("1 passed")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codes", "code"),
    [([FAIL], 1), ([FAILS_ONCE, "import nowhere"], 1), ([WORSE], 3)],
    ids=["too many", "not collected", "worse than a failure"],
)
def test_what_no_busy_machine_explains_fails_at_once(tmp_path: Path, codes: list[str], code: int) -> None:
    done = side_by_side(tmp_path, *codes)
    assert (done.returncode, "nothing beside" in done.stdout) == (code, False), done.stdout


@pytest.mark.parametrize(("is_left", "code"), [(True, 3), (False, 1)])
def test_a_process_that_is_left_is_worse_than_a_failure(is_left: bool, code: int) -> None:
    session = SimpleNamespace(config=SimpleNamespace(stash=pytest.Stash()), exitstatus=1)
    if is_left:
        session.config.stash[PROCESS_LEFT] = True
    pytest_sessionfinish(cast(Any, session))
    assert session.exitstatus == code
