"""Spans by a GPU's events, on a made-up GPU: on the host's clock, in order, without waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent import probe
from holdfast.agent.probe_file import layout as probe_layout
from holdfast.agent.probe_file.events import Recorded
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.trainer.telemetry.device_spans import DeviceSpans
from holdfast.wire.span_rows import THREAD

MS = 1_000_000


class Gpu:
    """Does `work` one after the other; its clock began at another moment than the host's."""

    def __init__(self) -> None:
        self.host_ms = 1000.0
        self.busy_until = 0.0
        self.made = 0

    def work(self, ms: float) -> None:
        self.busy_until = max(self.busy_until, self.host_ms) + ms

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = max(self.gpu.busy_until, self.gpu.host_ms)

    def query(self) -> bool:
        return self.gpu.host_ms >= self.at

    def elapsed_time(self, end_event: Event) -> float:
        assert self.query(), "asked of an event that is still to come: a real GPU would refuse"
        assert end_event.query(), "asked of an event that is still to come: a real GPU would refuse"
        return end_event.at - self.at


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProbeReader]:
    monkeypatch.setenv(probe_layout.ENV_PATH, str(tmp_path / "probe"))
    assert probe.attach()
    reader = ProbeReader(str(tmp_path / "probe"))
    yield reader
    reader.close()
    probe._forget()


def test_times_are_those_of_the_gpu_on_the_hosts_clock(reader: ProbeReader) -> None:
    gpu = Gpu()
    spans = DeviceSpans(gpu.event, lambda: round(gpu.host_ms * MS))
    with spans.span("forward", stage=0):
        gpu.work(5)
    gpu.host_ms = gpu.busy_until
    spans.align()
    assert reader.new_spans() == [], "before the clocks were compared, nothing is known"
    with spans.span("forward", stage=1, micro_batch=2):
        gpu.work(5)
        with spans.span("tp:all_reduce", group="tp", seq=7):
            gpu.work(2)
    began = gpu.host_ms
    spans.resolve()
    assert reader.new_spans() == [], "handed over is not done"
    gpu.host_ms += 6
    spans.resolve()
    assert reader.new_spans() == []
    gpu.host_ms += 10
    spans.align()
    inner, outer = reader.new_spans()
    assert (inner.kind, inner.group, inner.seq) == ("tp:all_reduce", "tp", 7)
    assert (outer.kind, outer.stage, outer.micro_batch) == ("forward", 1, 2)
    assert (outer.start_ns, outer.end_ns) == (round(began * MS), round((began + 7) * MS))
    assert (inner.start_ns, inner.end_ns) == (round((began + 5) * MS), round((began + 7) * MS))


def test_events_are_used_again(reader: ProbeReader) -> None:
    gpu = Gpu()
    spans = DeviceSpans(gpu.event, lambda: round(gpu.host_ms * MS))
    spans.align()
    for step in range(50):
        for _ in range(4):
            with spans.span("forward"):
                gpu.work(1)
        gpu.host_ms = gpu.busy_until
        spans.align()
        probe.step(step)
    found = [span for span in reader.new_spans() if span.kind != THREAD]
    assert len(found) == 200
    assert [span.step for span in found] == [n // 4 for n in range(200)]
    assert all(span.end_ns - span.start_ns == MS for span in found)
    assert gpu.made <= 10


def test_the_agent_is_notified_of_the_ends_and_of_those_that_have_come(
    reader: ProbeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Recorded] = []

    def recorded(event: Event) -> Recorded:
        reported.append(Recorded(event, 0.0))
        return reported[-1]

    monkeypatch.setattr(probe, "recorded", recorded)
    gpu = Gpu()
    spans = DeviceSpans(gpu.event, lambda: round(gpu.host_ms * MS))
    spans.align()
    for _ in range(3):
        with spans.span("forward"):
            gpu.work(10)
    gpu.host_ms += 25
    spans.resolve()
    assert [one.done for one in reported] == [True, True, False]
    gpu.host_ms += 25
    spans.align()
    assert all(one.done for one in reported)


def test_unwatched_it_does_nothing() -> None:
    gpu = Gpu()
    spans = DeviceSpans(gpu.event)
    spans.align()
    with spans.span("forward"):
        pass
    spans.resolve()
    assert gpu.made == 0
