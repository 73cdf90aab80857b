"""What benchmarks take from the tests is there: they run by hand, long after a module has moved."""

import importlib
import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(
    {name for file in BENCHMARKS.rglob("*.py") for name in re.findall(r'from_tests\("([^"]+)"\)', file.read_text())}
)


def test_benchmarks_take_something_from_the_tests() -> None:
    assert len(NAMES) >= 3


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_a_benchmark_takes_from_the_tests_is_there(name: str) -> None:
    importlib.import_module(f"tests.{name}")
