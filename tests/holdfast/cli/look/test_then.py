"""A job at a time of its past: which time is meant, and what is shown of it."""

import io
from datetime import UTC, datetime

import pytest
from rich.console import Console

from holdfast.base.errors import UsageError
from holdfast.cli.look.then import picture, time_of
from tests.controller.support.fake_facade import FakeFacade

NOW = datetime(2026, 11, 25, 3, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("02:10", datetime(2026, 11, 25, 2, 10, tzinfo=UTC)),
        ("02:10:05", datetime(2026, 11, 25, 2, 10, 5, tzinfo=UTC)),
        ("23:50", datetime(2026, 11, 24, 23, 50, tzinfo=UTC)),
        ("2026-11-01 04:00", datetime(2026, 11, 1, 4, 0, tzinfo=UTC)),
        ("2026-11-01T04:00:30", datetime(2026, 11, 1, 4, 0, 30, tzinfo=UTC)),
        ("90s", datetime(2026, 11, 25, 2, 58, 30, tzinfo=UTC)),
        ("3h ago", datetime(2026, 11, 25, 0, 0, tzinfo=UTC)),
    ],
)
def test_a_clock_time_is_the_last_one(text: str, meant: datetime) -> None:
    assert time_of(text, NOW) == meant


@pytest.mark.parametrize("text", ["", "late", "25:00", "2026-13-01 00:00", "1e400h", "-5s"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"such as 02:10|yet to come"):
        time_of(text, NOW)


def test_the_future_is_refused() -> None:
    with pytest.raises(UsageError, match="yet to come: it is 2026-11-25 03:00:00 now"):
        time_of("2026-11-25 04:00", NOW)


@pytest.mark.parametrize("width", [80, 200])
def test_it_begins_with_the_health_of_that_time(width: int) -> None:
    facade = FakeFacade()
    facade.warm_up(20)
    console = Console(width=width, file=io.StringIO(), highlight=False)
    console.print(picture(facade.then(facade.now - 7000.0)(), console))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("at 20")
    assert lines[1].startswith("recovering  Recovering: rank 3 was killed.")
    assert any(line.startswith("job  running, step 0 of 5,000, generation 2") for line in lines)
    assert "nodes  node0 lost" in lines
