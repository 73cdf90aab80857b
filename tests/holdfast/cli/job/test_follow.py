"""The log after a reconnection: what was printed before is not printed again, however slow the controller answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.cli.common.client import Client, Json
from holdfast.cli.job import follow
from holdfast.cli.job.follow import Follower
from tests.holdfast.support.fake_controller import FakeController


def line(text: str) -> Json:
    return {"rank": 0, "stream": "out", "text": text, "generation": 1, "dropped": 0}


class Slow(Client):
    """It answers after a minute of `clock`, and sends all that it has at once."""

    def __init__(self, clock: list[float], *texts: str) -> None:
        super().__init__(ClientConfig())
        self._clock, self._texts = clock, texts

    def log_events(self, job: str = "", **params: Any) -> Iterator[tuple[str, Json]]:
        self._clock[0] += 60.0
        yield "", {}
        yield from (("line", line(text)) for text in self._texts)
        yield "end", {}


def test_a_controller_that_is_slow_to_answer_repeats_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(follow.time, "monotonic", lambda: clock[0])
    follower = Follower(Slow(clock, "a", "b", "c"), "j1")
    for text in ("a", "b"):
        follower._seen.add(line(text))
    assert [one["text"] for one in follower._connection(reconnected=True)] == ["c"]


def test_it_is_known_that_the_controller_answered_before_it_has_a_line(fake: FakeController) -> None:
    with Client(ClientConfig(controller=fake.address)) as client:
        events = client.log_events("j1")
        assert next(events) == ("", {})
        fake.line(0, "first")
        name, found = next(events)
        assert (name, found["text"]) == ("line", "first")
        fake.log.put("cut")
        assert list(events) == []
