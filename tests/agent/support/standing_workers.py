"""Real processes with a probe that stand still, each seen as the heartbeat does, and what is asked of them."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.agent.activity import watch
from holdfast.agent.activity.watch import Activities
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts, ThreadSight, ThreadState
from tests.agent.support.standing import HEARTBEAT_INTERVAL, READY, standing

HELD, OUTSIDE, OWN, RUNS, TIMED = (
    ThreadState.HELD,
    ThreadState.OUTSIDE,
    ThreadState.OWN,
    ThreadState.RUNS,
    ThreadState.TIMED,
)
WINDOW = 0.6
"""Seconds, of two windows."""
NEW = "import ctypes, os, select, signal, socket, sys, threading, time\n"
NEW += "from holdfast.agent import probe\nprobe.attach()\n"
TAKEN = "lock = threading.Lock(); lock.acquire()\na, b = socket.socketpair()\n"
LOCKED = f"{NEW}{TAKEN}for _ in range(3): threading.Thread(target=lock.acquire, daemon=True).start()\n"
SLEEPS = f"{NEW}{READY}time.sleep(90)"
STUCK = f"{LOCKED}{READY}lock.acquire()"


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Looks as in the first seconds of a standstill: on a busy machine those may be over before much is seen."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "OFTEN", 600.0)
        yield


class Workers:
    """Real processes with a probe, each seen as the heartbeat does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._readers: dict[str, ProbeReader] = {}
        self.pids: dict[str, int] = {}
        self.known: dict[str, StallFacts] = {}
        """Facts that the probe is taken to have written."""
        self.activities = Activities()

    def start(self, name: str, code: str) -> subprocess.Popen[bytes]:
        path = str(self._folder / f"probe-{len(self.pids)}")
        _, process = self._stack.enter_context(standing(code, env=os.environ | {ENV_PATH: path}))
        self.pids[name] = process.pid
        self._readers[name] = ProbeReader(path)
        return process

    def frame(self) -> dict[str, t.WorkerSample]:
        found = {}
        for rank, (name, reader) in enumerate(self._readers.items()):
            now_ns = time.monotonic_ns()
            sample = reader.sample(now_ns)._replace(rank=rank, standing=self.known.get(name))
            what = reader.path, reader.tick_thread, now_ns / 1e9, (0, 0), reader.handlers, reader.services
            found[name] = self.activities.attach(sample, *what)
        self.activities.settle()
        return found

    def when(self, what: Callable[[t.WorkerSample], object], *names: str) -> dict[str, t.WorkerSample]:
        """The last sight of each once all of `names`, or all there are, were seen so."""
        end = time.monotonic() + 60
        found: dict[str, t.WorkerSample] = {}
        while time.monotonic() < end:
            seen = self.frame()
            found |= {name: one for name, one in seen.items() if what(one)}
            if found.keys() >= set(names or seen):
                return found
            time.sleep(HEARTBEAT_INTERVAL)
        raise AssertionError(f"not seen in time, but for {sorted(found)}: {seen}")

    def one(self, what: Callable[[t.WorkerSample], object]) -> t.WorkerSample:
        return next(iter(self.when(what).values()))

    def close(self) -> None:
        self.activities.close()
        self._stack.close()
        for reader in self._readers.values():
            reader.close()


@contextmanager
def working(folder: Path) -> Iterator[Workers]:
    workers = Workers(folder)
    try:
        yield workers
    finally:
        workers.close()


def threads_of(sample: t.WorkerSample) -> tuple[ThreadSight, ...]:
    return sample.standing.threads if sample.standing is not None else ()


def main_of(sample: t.WorkerSample) -> ThreadSight:
    return (*threads_of(sample), ThreadSight(0))[0]


def holder_of(sample: t.WorkerSample) -> str:
    assert sample.standing is not None
    return sample.standing.holder


def is_known(sample: t.WorkerSample) -> bool:
    rows = threads_of(sample)
    own = [one for one in rows if one.state not in (RUNS, ThreadState.UNKNOWN)]
    return bool(rows) and (rows[0].state is RUNS or all(one.seconds >= WINDOW or one.state is TIMED for one in own))
