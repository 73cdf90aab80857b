"""The agent's report of real workers that somebody holds: a debugger, a freezer, a stop of several at once."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from holdfast.wire import types as t
from tests.agent.support.processes import until
from tests.agent.support.standing import READY
from tests.agent.support.standing_workers import (
    HELD,
    NEW,
    OWN,
    SLEEPS,
    STUCK,
    holder_of,
    is_known,
    main_of,
    often,
    threads_of,
    working,
)

__all__ = ["often"]


@contextmanager
def debugger(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_debugger_holds_all_threads(tmp_path: Path) -> None:
    if shutil.which("gdb") is None:
        pytest.skip("no gdb")
    with working(tmp_path) as workers:
        worker = workers.start("stuck", STUCK)
        with debugger("gdb", "-nx", "-p", str(worker.pid), "-batch", "-ex", "shell sleep 90") as gdb:
            seen = workers.one(lambda sample: main_of(sample).state is HELD and len(threads_of(sample)) == 2)
            assert holder_of(seen) == f"gdb (pid {gdb.pid}) traces it"
            assert [(one.state, one.count) for one in threads_of(seen)] == [(HELD, 1), (HELD, 3)]
        seen = workers.one(lambda sample: main_of(sample).state is OWN and is_known(sample))
        assert holder_of(seen) == ""


@pytest.mark.parametrize("hierarchy", ["freezer", "unified"])
def test_a_frozen_cgroup_holds_all_threads(hierarchy: str, tmp_path: Path) -> None:
    folder = Path(f"/sys/fs/cgroup/{hierarchy}/holdfast-test-{os.getpid()}")
    unified = hierarchy == "unified"
    file, freeze, thaw = ("cgroup.freeze", "1", "0") if unified else ("freezer.state", "FROZEN", "THAWED")
    try:
        (folder / "leaf").mkdir(parents=True)
    except OSError:
        pytest.skip("no freezer to write to")
    try:
        with working(tmp_path) as workers:
            worker = workers.start("stuck", STUCK)
            (folder / "leaf" / "cgroup.procs").write_text(str(worker.pid))
            (folder / file).write_text(freeze)
            seen = workers.one(lambda sample: main_of(sample).state is HELD and len(threads_of(sample)) == 2)
            assert holder_of(seen) == f"the cgroup freezer ({folder})"
            assert [(one.state, one.count) for one in threads_of(seen)] == [(HELD, 1), (HELD, 3)]
            assert seen.activity is not None
            assert seen.activity.waits_for == t.FROZEN
            (folder / file).write_text(thaw)
            seen = workers.one(lambda sample: main_of(sample).state is OWN and is_known(sample))
            assert holder_of(seen) == ""
    finally:
        (folder / file).write_text(thaw)
        for path in (folder / "leaf", folder):
            until(partial(_removed, path))


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


WITH_CHILD = f"import subprocess\n{NEW}child = subprocess.Popen(['sleep', '90'])\n{READY}time.sleep(90)"


def test_who_is_stopped_alone_has_no_holder_and_who_is_stopped_with_others_has(tmp_path: Path) -> None:
    def is_held(sample: t.WorkerSample) -> bool:
        return main_of(sample).state is HELD

    with working(tmp_path) as workers:
        first = workers.start("first", WITH_CHILD)
        second = workers.start("second", SLEEPS)
        os.kill(first.pid, signal.SIGSTOP)
        seen = workers.when(is_held, "first")
        assert holder_of(seen["first"]) == ""
        os.killpg(first.pid, signal.SIGSTOP)  # its child too
        alone = "stopped together with 1 other process of its node"
        workers.when(lambda sample: is_held(sample) and holder_of(sample) == alone, "first")
        os.kill(second.pid, signal.SIGSTOP)
        both = "stopped together with 2 other processes of its node"
        workers.when(lambda sample: is_held(sample) and holder_of(sample) == both, "first")
        workers.when(lambda sample: is_held(sample) and holder_of(sample) == alone, "second")
