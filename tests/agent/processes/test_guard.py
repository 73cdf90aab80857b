"""A bug in one part ends that part for this run only: the rest goes on, and each cause is reported once."""

import asyncio

import pytest

from holdfast.agent.processes import guard
from holdfast.agent.processes.guard import PartGuard


def broken(kind: type[BaseException]) -> None:
    raise kind("why")


def test_each_cause_is_reported_once() -> None:
    reported: list[tuple[str, str]] = []
    part = PartGuard(lambda name, error: reported.append((name, type(error).__name__)))
    for _ in range(5):
        with part("logs"):
            broken(MemoryError)
        with part("logs"):
            broken(ValueError)
        with part("spans"):
            broken(ValueError)
    assert reported == [("logs", "MemoryError"), ("logs", "ValueError"), ("spans", "ValueError")]


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_MOST", 3)
    reported: list[str] = []
    part = PartGuard(lambda name, error: reported.append(name))
    for number in range(10):
        with part(str(number)):
            broken(ValueError)
    assert reported == ["0", "1", "2"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_what_ends_a_process_or_a_task_goes_through(kind: type[BaseException]) -> None:
    with pytest.raises(kind), PartGuard()("logs"):
        broken(kind)
