"""A worker with a GPU that computes in Python moves, also where it shares a core; one that spins as CUDA does, does
not."""

import os
import time
from pathlib import Path

import pytest

from holdfast.agent.activity.interpreter import InterpreterLock
from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire import types as t
from tests.agent.support.processes import until
from tests.agent.support.standing import READY, SLEEP, standing

WORKER = f"""
import hashlib, threading, time
from holdfast.agent import probe
probe.attach()
def now_and_then():
    while True:
        end = time.monotonic() + 0.03
        while time.monotonic() < end: pass
        time.sleep(0.07)
if {{other}}:
    threading.Thread(target=now_and_then, daemon=True).start()
{READY}
{{does}}
"""
BURNS = f"{READY}while True: pass"
CORE = [min(os.sched_getaffinity(0))]
COMPUTES, SPINS = "while True: pass", "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("does", "other", "moves"), [(COMPUTES, 0, True), (SPINS, 0, False), (SPINS, 1, False)])
def test_computing_in_python_is_distinguished_from_spinning_without_its_lock(
    does: str, other: int, moves: bool, shared: bool, tmp_path: Path
) -> None:
    """With a fake GPU. `other`: another thread of it computes in Python now and then."""
    code = WORKER.format(does=does, other=other)
    with (
        standing(code, env=os.environ | {ENV_PATH: str(tmp_path / "probe")}) as (eye, process),
        standing(BURNS if shared else SLEEP) as (_, neighbour),
    ):
        if shared:
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                os.sched_setaffinity(int(thread), CORE)
            os.sched_setaffinity(neighbour.pid, CORE)
        eye.activities._gpus[process.pid] = True
        reader = ProbeReader(str(tmp_path / "probe"))
        until(lambda: reader.tick_thread)

        def frame() -> t.Activity | None:
            now_ns = time.monotonic_ns()
            sample = t.WorkerSample(0, 0, process.pid)
            seen = eye.activities.attach(sample, reader.path, reader.tick_thread, now_ns / 1e9).activity
            eye.activities.settle()
            return seen

        eye.frame = frame  # type: ignore[method-assign]
        if moves:
            eye.when(lambda a: a.watched > 1.2 and a.quiet < 0.3 and a.has_gpu)
        else:
            assert eye.after(1.5).cpu > 0
        reader.close()


def _counted(folder: Path, thread: int, waits: int) -> None:
    task = folder / "task" / str(thread)
    task.mkdir(parents=True, exist_ok=True)
    (task / "status").write_text(f"Name:\tpython\nvoluntary_ctxt_switches:\t{waits}\n")


@pytest.mark.parametrize(
    ("what", "ran", "given", "asked", "others", "computes"),
    [
        ("holds the lock", 1.0, 10, 0, 0.0, True),
        ("holds it, on one core with others", 1.0, 0, 37, 0.0, True),
        ("spins in CUDA", 1.0, 0, 10, 0.0, False),
        ("spins, and the probe's thread was put off", 1.0, 0, 6, 0.0, False),
        ("spins, and another thread holds the lock", 1.0, 0, 40, 1.0, False),
        ("spins, and another thread holds it now and then", 1.0, 0, 21, 0.3, False),
        ("holds it beside another that does little", 1.0, 0, 36, 0.2, True),
        ("spins with the lock, which nobody gets", 1.0, 0, 200, 0.0, False),
        ("sleeps, and other threads compute", 0.01, 3, 40, 1.0, False),
        ("computes a twelfth of the time", 0.1, 3, 12, 0.0, True),
    ],
)
@pytest.mark.parametrize("seconds", [0.25, 1.0, 5.0])
def test_what_the_counters_mean(
    what: str, ran: float, given: int, asked: int, others: float, computes: bool, seconds: float, tmp_path: Path
) -> None:
    """All of them a second."""
    folder = tmp_path / "7"
    lock = InterpreterLock(str(folder), 8)
    for now in (100.0, 100.0 + seconds, 100.0 + 2 * seconds):
        _counted(folder, 7, round(given * now))
        _counted(folder, 8, round(asked * now))
        found = lock.is_handed_over(now, round(ran * now * 1e9), others * now)
        assert found == (computes and now > 100.0), what


def test_a_single_wait_between_two_looks_is_no_computation(tmp_path: Path) -> None:
    """Looks ten times a second at a thread that spins in CUDA: once it waits for a lock of the driver, once the probe's
    thread wakes three times between two looks. At its door, and in the first half second, little is enough."""
    folder = tmp_path / "7"
    lock, found = InterpreterLock(str(folder), 8), []
    for look in range(40):
        _counted(folder, 7, int(look >= 20))
        _counted(folder, 8, look + 2 * (look >= 25))
        found.append(lock.is_handed_over(100.0 + look / 10, look * 10**8, 0.0))
    assert found == [False] * 40
    lock = InterpreterLock(str(folder), 8)
    for look, given in enumerate((0, 0, 1)):
        _counted(folder, 7, given)
        assert lock.is_handed_over(200.0 + look / 10, look * 10**8, 0.0) == (given == 1)


def test_a_thread_that_stops_computing_is_seen_to_within_a_second(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    lock = InterpreterLock(str(folder), 8)
    for look in range(50):
        _counted(folder, 7, min(look, 20))
        _counted(folder, 8, look)
        found = lock.is_handed_over(100.0 + look / 10, look * 10**8, 0.0)
        assert found if 0 < look <= 20 else look < 30 or not found


def test_nothing_is_known_of_a_thread_that_is_gone_or_never_was(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    _counted(folder, 7, 5)
    lock = InterpreterLock(str(folder), 0)
    assert not lock.is_handed_over(1.0, 0, 0.0)
    assert not lock.is_handed_over(1.0, 10**9, 0.0)  # no time has passed
    (folder / "task" / "7" / "status").unlink()
    assert not lock.is_handed_over(2.0, 2 * 10**9, 0.0)
