"""What a frame holds: samples, gauges at their own pace, and each worker as its probe shows it."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from holdfast.agent.stream.heartbeat import Heartbeat
from holdfast.base.errors import Unavailable
from holdfast.wire import frames as wire
from holdfast.wire import types as t
from tests.agent.support.processes import probed, until


class Gauge:
    def __init__(self, name: str, interval: float, available: bool = True) -> None:
        self.name, self.interval, self.available, self.asked = name, interval, available, 0

    def collect(self) -> Any:
        self.asked += 1
        return {self.name: float(self.asked)} if self.name != "gpu" else (t.GpuGauges(0, {"used": 1.0}),)


class Sampler:
    def take(self, now: float) -> tuple[bytes, tuple[t.NicSamples, ...], int, int]:
        return b"\0\0\0\0", (t.NicSamples("eth0", 1, 2, b"\1\0\0\0", b"\2\0\0\0"),), 5, 6


class Reader:
    """A worker of which the agent was away for too long."""

    job, rank, lost, path, tick_thread, events, handlers, services = "j", 3, 7, "", 0, (0, 0), 0, frozenset[int]()

    def new_steps(self) -> list[t.StepRecord]:
        return []

    def sample(self, now_ns: int) -> t.WorkerSample:
        return t.WorkerSample(3, 1, 99)


class Torn(Reader):
    def sample(self, now_ns: int) -> t.WorkerSample:
        raise Unavailable("its file is gone")


def make(*gauges: Gauge, gpu: Gauge | None = None, readers: Any = list, **more: Any) -> Heartbeat:
    sampler: Any = Sampler()
    cards: Any = gpu or Gauge("gpu", 1.0, available=False)
    collectors: Any = gauges
    return Heartbeat(sampler, collectors, cards, readers, **more)


def test_a_frame_holds_what_was_sampled() -> None:
    frame = make().frame(0.1)
    assert (frame.seq, frame.wall_ns, frame.mono_ns, frame.heartbeat_interval) == (0, 5, 6, 0.1)
    assert frame.offsets == b"\0\0\0\0"
    assert frame.nics[0].name == "eth0"
    assert (frame.host, frame.gpus, frame.workers, frame.steps) == ({}, (), (), ())


def test_gauges_go_with_the_next_frame_and_with_that_alone() -> None:
    one, absent, gpu = Gauge("one", 0.5), Gauge("absent", 0.5, available=False), Gauge("gpu", 1.0)
    heart = make(one, absent, gpu=gpu)
    assert heart.frame(0.1).host == {}
    heart.read_host()
    asyncio.run(heart.read_gpus())
    frame = heart.frame(0.1)
    assert (frame.host, frame.gpus) == ({"one": 1.0}, (t.GpuGauges(0, {"used": 1.0}),))
    assert (heart.frame(0.1).host, heart.frame(0.1).gpus) == ({}, ())
    assert absent.asked == 0


def test_a_driver_that_does_not_answer_holds_up_no_frame() -> None:
    answers = threading.Event()

    class Sick(Gauge):
        def collect(self) -> Any:
            answers.wait(20)
            return super().collect()

    async def story() -> None:
        heart = make(gpu=Sick("gpu", 1.0))
        asking = asyncio.create_task(heart.read_gpus())
        await asyncio.sleep(0.05)
        assert heart.frame(0.1).gpus == ()
        answers.set()
        await asking
        assert len(heart.frame(0.1).gpus) == 1

    asyncio.run(story())


def test_lost_steps_are_reported_once() -> None:
    lost: list[tuple[int, int]] = []
    reader = Reader()
    heart = make(readers=lambda: [reader], on_lost_steps=lambda rank, count: lost.append((rank, count)))
    heart.frame(0.1)
    heart.frame(0.1)
    reader.lost = 9
    heart.frame(0.1)
    assert lost == [(3, 7), (3, 2)]


def test_a_worker_that_cannot_be_read_hides_no_other() -> None:
    frame = make(readers=lambda: [Torn(), Reader()]).frame(0.1)
    assert [worker.pid for worker in frame.workers] == [99]


def test_a_real_worker(tmp_path: Path) -> None:
    steps = "for n in range(3): probe.step(n, loss=2.0 - n, tokens=8)"
    code = f"{steps}\nprobe.phase('checkpoint')\nimport time; time.sleep(60)"
    with probed(code, tmp_path / "probe", RANK="5", HOLDFAST_GENERATION="2") as (process, reader):
        heart = make(readers=lambda: [reader])
        until(lambda: reader.sample(0).phase is t.Phase.CHECKPOINT)
        frame = heart.frame(0.1)
        [worker] = frame.workers
        assert (worker.pid, worker.step, worker.generation, worker.rank) == (process.pid, 2, 2, 5)
        assert [(r.step, r.loss, r.tokens) for r in frame.steps] == [(0, 2.0, 8), (1, 1.0, 8), (2, 0.0, 8)]
        assert heart.frame(0.1).steps == ()


def test_a_worker_that_stands_is_seen_from_outside_in_every_frame(tmp_path: Path) -> None:
    code = "probe.step(0)\nimport threading; threading.Event().wait(60)"
    with probed(code, tmp_path / "probe", RANK="5") as (_, reader):
        heart = make(readers=lambda: [reader])
        seen: list[t.Activity] = []

        def stands() -> bool:
            frame = wire.frame_from(wire.frame_message(heart.frame(0.1)))
            seen[:] = [worker.activity for worker in frame.workers if worker.activity is not None]
            return bool(seen) and seen[0].quiet > 0.3 and seen[0].waits_for == "a lock"

        until(stands)
        assert 0 < seen[0].ends_in <= 60
        assert seen[0].state == "S"
        heart.activities.close()
