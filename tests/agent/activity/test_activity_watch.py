"""The watch of a stalled worker: when it begins and ends, what it costs, what it must not treat as idle."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.activity.close_look import CloseLook, Sighting
from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.standstill import DISTURBED, ActivityWatch
from holdfast.agent.activity.watch import STANDS, Activities
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.processes.aside import Aside
from holdfast.diagnostics.hang.stillness import Liveness, look
from holdfast.wire import types as t
from holdfast.wire.standing import KNOWN_AFTER
from tests.agent.support.processes import until
from tests.agent.support.standing import LOCK, READY, SLEEP, Eye, standing

TICKS = """
from holdfast.agent import probe
probe.attach()
print("ready", flush=True)
import time; time.sleep(60)
"""


def test_the_probes_own_thread_is_no_movement_and_is_not_named(tmp_path: Path) -> None:
    env = os.environ | {ENV_PATH: str(tmp_path / "probe")}
    with standing(TICKS, env=env) as (eye, process):
        reader = ProbeReader(str(tmp_path / "probe"))
        until(lambda: reader.tick_thread)
        assert Path(f"/proc/{process.pid}/task/{reader.tick_thread}").is_dir()

        def frame() -> t.Activity | None:
            now_ns = time.monotonic_ns()
            sample = reader.sample(now_ns)
            seen = eye.activities.attach(sample, reader.path, reader.tick_thread, now_ns / 1e9).activity
            eye.activities.settle()
            return seen

        eye.frame = frame  # type: ignore[method-assign]
        seen = eye.after(1.6)
        assert seen.thread == ""
        assert seen.cpu < 0.02
        reader.close()


def test_a_watch_begins_when_a_worker_stands_and_ends_when_it_moves() -> None:
    with standing(LOCK) as (_, process):
        until(lambda: "futex" in Path(f"/proc/{process.pid}/wchan").read_text())
        now = [100.0]
        activities = Activities(clock=lambda: now[0])
        worker = t.WorkerSample(0, 0, process.pid, progress_age=0.1, still_age=5.0)
        assert activities.attach(worker).activity is None
        now[0] += 0.2
        seen = activities.attach(worker._replace(progress_age=0.3)).activity
        assert seen == t.Activity(state="S")
        now[0] += 1.0
        seen = activities.attach(worker._replace(progress_age=1.3)).activity
        assert seen is not None
        assert seen.watched == pytest.approx(1.0)
        assert seen.quiet == 0  # no close look was taken: its children may move
        now[0] += 1.0  # it has moved since, and is stalled again
        seen = activities.attach(worker._replace(progress_age=STANDS + 0.01)).activity
        assert seen is not None
        assert seen.watched == 0
        assert activities.attach(worker._replace(progress_age=0.0)).activity is None
        assert activities.standing == []
        activities.attach(worker._replace(progress_age=9.0))
        activities.settle()
        assert activities.standing == [process.pid]
        activities.settle()  # a frame without it
        assert activities.standing == []
        activities.close()


def test_one_that_never_moved_is_watched_from_when_it_was_first_seen() -> None:
    with standing(LOCK) as (_, process):
        until(lambda: "futex" in Path(f"/proc/{process.pid}/wchan").read_text())
        now = [100.0]
        activities = Activities(clock=lambda: now[0])
        worker = t.WorkerSample(0, 0, process.pid)
        assert activities.attach(worker).activity is None
        now[0] += 0.3
        assert activities.attach(worker).activity == t.Activity(state="S")
        assert activities.attach(worker._replace(pid=0)).activity is None
        activities.close()


@pytest.mark.parametrize("fails", ["raises", "never comes", "comes no more"])
def test_what_cannot_be_looked_at_closely_is_unknown_and_not_quiet(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may upload meanwhile: only a close look sees its sockets and children."""
    with standing(SLEEP) as (_, process):
        now = [100.0]
        activities = Activities(clock=lambda: now[0])

        def seen_after(seconds: float) -> t.Activity:
            for _ in range(round(seconds / 0.25)):
                now[0] += 0.25
                found = activities.attach(t.WorkerSample(0, 0, process.pid, progress_age=now[0] - 99.9)).activity
                activities.settle()
                until(lambda: activities._aside.is_free)  # while its look lasts, no time passes
            assert found is not None
            return found

        if fails == "comes no more":
            until(lambda: seen_after(0.5).quiet > 1.0)
            assert seen_after(0.25).state == "S"
        if fails == "raises":
            monkeypatch.setattr(CloseLook, "look", lambda *_: 1 / 0)
        else:
            monkeypatch.setattr(Activities, "_look", lambda *_: None)
        assert look(seen_after(25.0), silent=True).life is Liveness.UNKNOWN
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        # The kernel's state needs no close look; how soon it is read depends on what a reading costs.
        until(lambda: look(seen_after(0.5)).life is Liveness.HELD)
        activities.close()


def test_waking_to_write_stacks_is_no_next_attempt() -> None:
    """A close look whose window begins before the disturbance is over says nothing new, either way."""
    for moved in (False, True):
        watch = ActivityWatch(os.getpid(), 0.0, 0.0, CloseLook(os.getpid(), HostLook()), "/proc", False)
        watch.take(Sighting(1.0, looks=2, moves=moved))
        watch.disturb(1.1)
        for at in (1.6, 2.6):
            watch.take(Sighting(at, looks=3, moves=not moved))
            assert watch.seen is not None
            assert watch.seen.moves is moved
        watch.take(Sighting(3.6, looks=5, moves=not moved))
        assert watch.seen.moves is not moved
        watch.close()


DUMPS = f"""
import faulthandler, signal, sys, time
file = open("/dev/null", "w")
def write(*_):
    for _ in range(50): file.write("x" * 8192); file.flush()
    print("written", flush=True)
signal.signal(signal.SIGUSR1, write)
{READY}
while True: time.sleep(60)
"""


def test_what_a_worker_does_for_its_stacks_is_no_movement_of_its_own() -> None:
    with standing(DUMPS) as (eye, process):
        assert process.stdout is not None
        took = DISTURBED
        deadline = time.monotonic() + 120
        while took > 0.7 * DISTURBED:  # on a busy machine it may write too late for what this is about
            assert time.monotonic() < deadline
            before = eye.after(0.7)
            began = time.monotonic()
            eye.activities.disturb()
            os.kill(process.pid, signal.SIGUSR1)
            assert process.stdout.readline() == b"written\n"
            eye.frame()
            took = time.monotonic() - began
        seen = eye.when(lambda a: a.watched >= before.watched + 1.1)
        assert seen.quiet == pytest.approx(before.quiet + seen.watched - before.watched - DISTURBED)
        os.kill(process.pid, signal.SIGUSR1)  # and without our asking it is
        eye.when(lambda a: a.quiet < seen.quiet)


def test_a_process_that_is_gone_is_no_error() -> None:
    seen = Eye(2**22 + 1).after(0.8)
    assert (seen.state, seen.waits_for, seen.quiet) == ("", "", seen.watched)


def test_a_set_of_many_threads_and_descriptors_does_not_take_the_agents_time() -> None:
    code = f"""
import resource, threading, os
resource.setrlimit(resource.RLIMIT_NOFILE, (6000, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for _ in range(5000): os.dup(0)
threading.stack_size(65536)
lock = threading.Lock(); lock.acquire()
for _ in range(400): threading.Thread(target=lock.acquire, daemon=True).start()
{READY}lock.acquire()
"""
    with standing(code) as (eye, _):
        eye.after(0.8)
        began = time.process_time(), time.monotonic()
        seen = eye.after(1.8)
        share = (time.process_time() - began[0]) / (time.monotonic() - began[1])
        assert seen.waits_for == "a lock"
        assert share < 0.15, f"{share:.0%} of a core in the first seconds"


class Lane:
    at, is_left = "", False


class Inline(Aside):
    """Jobs run at once."""

    is_free = True

    def begin(self, job: Callable[[Any], None]) -> None:
        job(Lane())


def test_a_state_is_known_with_the_first_frame_after_two_windows() -> None:
    """Not with the one after it, as when there is one look a frame."""
    with standing(LOCK) as (_, process):
        until(lambda: "futex" in Path(f"/proc/{process.pid}/wchan").read_text())
        now, host = [100.0], HostLook("/proc")
        host.sleep = lambda seconds: now.__setitem__(0, now[0] + seconds)  # type: ignore[method-assign]
        activities = Activities(clock=lambda: now[0], host=host, aside=Inline("test"))
        worker = t.WorkerSample(0, 0, process.pid)
        activities.attach(worker._replace(progress_age=0.1, still_age=0.1))
        activities.settle()  # once an agent's life: a first look at the host
        seconds = []
        for number in range(4):
            now[0] = 100.25 + 0.25 * number
            age = 0.35 + 0.25 * number
            standing_now = activities.attach(worker._replace(progress_age=age, still_age=age)).standing
            assert standing_now is not None
            seconds.append([one.seconds for one in standing_now.threads])
            activities.settle()
        assert seconds[0] == []
        assert seconds[2][0] < KNOWN_AFTER <= seconds[3][0]
