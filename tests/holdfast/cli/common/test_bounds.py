"""The limits are what the documentation says that they are."""

import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import bounds
from holdfast.base.errors import UsageError
from holdfast.cli.common.bounds import check_world
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.model import JobSpec
from holdfast.wire.messages import Program

WIRE = Path(__file__).parents[4] / "docs" / "wire.md"


def test_every_limit_stands_in_the_table() -> None:
    reported = dict(re.findall(r"^\| `(MAX_\w+)` \| ([\d.e]+) \|", WIRE.read_text(), re.MULTILINE))
    known = {name: value for name, value in vars(bounds).items() if name.startswith("MAX_")}
    assert {name: float(text) for name, text in reported.items()} == {
        name: float(value) for name, value in known.items()
    }


def test_a_million_workers_of_the_most_tokens_fit_into_the_journal() -> None:
    assert bounds.MAX_RANKS * bounds.MAX_TOKENS < 1 << 63


@given(st.floats())
def test_an_amount_is_within_or_unknown(value: float) -> None:
    kept = bounds.amount(value)
    assert math.isnan(kept) == math.isnan(value)
    assert not kept < 0
    assert not kept > bounds.MAX_SECONDS
    assert kept == value or not 0 <= value <= bounds.MAX_SECONDS


@given(st.text(st.characters()))
def test_a_text_can_always_be_sent(value: str) -> None:
    kept = bounds.text(value + "\ud800", 10)
    kept.encode()
    assert len(kept) <= 10


def test_a_limit_is_set_in_one_place() -> None:
    root = WIRE.parent.parent
    folders = ("agent", "checkpoint", "controller", "diagnostics", "holdfast", "trainer")
    set_by = {
        str(path.relative_to(root))
        for folder in folders
        for path in (root / folder).rglob("*.py")
        if re.search(r"^_?MAX_(?:RANKS|NODES|GENERATION) = (?!bounds\.)", path.read_text(), re.MULTILINE)
    }
    assert set_by == {"holdfast/base/bounds.py"}


def test_the_command_line_and_the_controller_refuse_the_same_size() -> None:
    for nodes, nproc in ((bounds.MAX_RANKS, 1), (bounds.MAX_RANKS // 8, 8)):
        check_world(nodes, nproc)
        check_size(JobSpec("j1", "job", Program("x"), nodes, nproc))
        with pytest.raises(UsageError, match="262,144"):
            check_world(nodes + 1, nproc)
        with pytest.raises(UsageError, match="262,144"):
            check_size(JobSpec("j1", "job", Program("x"), nodes + 1, nproc))
