"""Fake GPU events: counted as they complete, by another thread, and only where that does no harm."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agent import probe
from holdfast.agent.probe_file import events as device_events
from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.events import MOST_ASKED, MOST_OPEN, YOUNG_S, DeviceEvents
from holdfast.agent.probe_file.memory import Memory
from holdfast.agent.probe_file.reader import ProbeReader
from tests.agent.support.processes import until


class Event:
    """Comes when its GPU has passed it."""

    def __init__(self) -> None:
        self.has_come, self.asked = False, 0
        self.error: Exception | None = None

    def query(self) -> bool:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.has_come


class Gpu:
    def __init__(self) -> None:
        self.now = 0.0
        self.words: dict[int, int] = {}
        self.events = DeviceEvents(self.words, lambda: False, lambda: self.now)
        self.events._is_started = True  # the test is the thread

    def record(self, count: int = 1) -> list[Event]:
        found = [Event() for _ in range(count)]
        self.recorded = [self.events.add(event) for event in found]
        return found

    def ask(self, after: float = 1.0) -> tuple[int, int]:
        self.now += after
        self.goes_on = self.events.ask()
        return self.words[layout.WORD_EVENTS], self.words[layout.WORD_EVENTS_DONE]


def test_events_are_counted_in_order_as_they_come() -> None:
    gpu = Gpu()
    first, second, third = gpu.record(3)
    assert gpu.ask() == (3, 0)
    first.has_come = third.has_come = True
    assert gpu.ask() == (3, 1)  # the third is behind one that has not come
    second.has_come = True
    assert gpu.ask() == (3, 3)
    assert gpu.ask() == (3, 3)
    assert third.asked == 1


def test_a_timer_that_saw_its_event_come_says_so_and_uses_the_event_again() -> None:
    gpu = Gpu()
    (event,) = gpu.record()
    gpu.recorded[0].done = True
    again = gpu.events.add(event)
    assert gpu.ask() == (2, 1)
    again.done = True
    assert gpu.ask() == (2, 2)
    assert event.asked == 1


def test_in_steps_that_go_by_nothing_is_asked() -> None:
    gpu = Gpu()
    for _ in range(50):
        (event,) = gpu.record()
        gpu.ask(YOUNG_S / 2)
        gpu.recorded[0].done = True
        assert event.asked == 0


def test_one_turn_asks_for_some_and_keeps_some() -> None:
    gpu = Gpu()
    many = gpu.record(MOST_OPEN + 10)
    for event in many:
        event.has_come = True
    begun, done = gpu.ask()
    assert (begun, done) == (MOST_OPEN + 10, 10 + MOST_ASKED)
    assert len(gpu.events._open) == MOST_OPEN - MOST_ASKED


def test_a_gpu_that_is_lost_is_no_evidence_for_good() -> None:
    gpu = Gpu()
    one, other = gpu.record(2)
    one.has_come = True
    assert gpu.ask() == (2, 1)
    other.error = RuntimeError("CUDA error: device-side assert triggered")
    assert gpu.ask() == (0, 0)
    assert not gpu.goes_on


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProbeReader]:
    path = str(tmp_path / "probe")
    memory = Memory(path, 0, 0)
    memory.words[layout.WORD_PID] = os.getpid()
    memory.write_state()
    monkeypatch.setattr(probe, "_live", memory)
    reader = ProbeReader(path)
    yield reader
    reader.close()


def read(reader: ProbeReader) -> tuple[int, int]:
    reader.sample(time.monotonic_ns())
    return reader.events


def test_the_agent_reads_both_counts(watched: ProbeReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_events, "spoils_no_capture", lambda: True)
    assert read(watched) == (0, 0)
    one, other = Event(), Event()
    assert probe.recorded(one) is not None
    probe.recorded(other)
    until(lambda: read(watched) == (2, 0))
    one.has_come = True
    until(lambda: read(watched) == (2, 1))


def test_counts_that_cannot_be_leave_those_before(watched: ProbeReader) -> None:
    put: Callable[[int, int], None] = watched._map.put_word
    put(layout.WORD_EVENTS, 5)
    put(layout.WORD_EVENTS_DONE, 4)
    assert read(watched) == (5, 4)
    for begun, done in ((3, 4), (-1, -2), (1 << 62, 4)):
        put(layout.WORD_EVENTS, begun)
        put(layout.WORD_EVENTS_DONE, done)
        assert read(watched) == (5, 4)


def test_where_it_could_spoil_a_capture_or_no_agent_watches_nothing_is_asked(
    watched: ProbeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def refused() -> bool:
        asked.append(True)
        return False

    monkeypatch.setattr(device_events, "spoils_no_capture", refused)
    event = Event()
    probe.recorded(event)
    until(lambda: asked)
    assert (event.asked, read(watched)) == (0, (0, 0))
    monkeypatch.setattr(probe, "_live", None)
    assert probe.recorded(event) is None


def test_without_cudas_driver_a_capture_could_be_spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_events, "_DRIVER", "libno-such-driver.so.1")
    assert not device_events.spoils_no_capture()
    monkeypatch.setattr(device_events, "_DRIVER", "libc.so.6")  # a library that lacks the call
    assert not device_events.spoils_no_capture()
