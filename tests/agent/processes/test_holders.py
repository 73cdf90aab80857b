"""Who holds a process that does not end: from files as the kernel writes them, and of real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.agent.processes.holders import ExitWatch, Unending, ended_under_tracer, frozen_cgroup, tracer
from holdfast.agent.workers.unended import UnendedError
from holdfast.wire.holds import Hold
from tests.agent.support.processes import until
from tests.agent.support.tracing import traced

STAT = "7 (python) {state} 1 7 7 0 -1 0 0 0 0 0 {cpu} 0 0 0 20 0 {threads} 0 5 0 0" + " 0" * 27 + " {code}"


class Proc:
    """A made-up process 7 under /proc, and cgroup file systems."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        for name in ("7/task/7", "9"):
            (self.proc / name).mkdir(parents=True)
        (self.proc / "9/comm").write_text("gdb\n")
        self.write()

    def write(self, state: str = "S", cpu: int = 0, threads: int = 1, code: int = 0, wchan: str = "0",
              tracer: int = 0, pages: int = 100, cgroup: str = "") -> None:  # fmt: skip
        stat = STAT.format(state=state, cpu=cpu, threads=threads, code=code)
        for name in ("7", "7/task/7"):
            (self.proc / name / "stat").write_text(stat)
        (self.proc / "7/task/7/wchan").write_text(wchan)
        (self.proc / "7/status").write_text(f"Name:\tpython\nTracerPid:\t{tracer}\n")
        (self.proc / "7/statm").write_text(f"1000 {pages} 0 0 0 0 0\n")
        (self.proc / "7/cgroup").write_text(cgroup)

    def freeze(self, name: str, text: str) -> None:
        path = self.cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def why(self, **more: object) -> Unending:
        self.write(**more)  # type: ignore[arg-type]
        return ExitWatch(str(self.proc), str(self.cgroups)).why(7, 100.0, 3.0)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_tracer_is_named(proc: Proc) -> None:
    assert proc.why(tracer=9) == Unending(Hold.HELD, "gdb (pid 9) traces it")
    assert proc.why(tracer=8) == Unending(Hold.HELD, "a process (pid 8) traces it")
    assert tracer(7, str(proc.proc)) != ""
    assert tracer(99, str(proc.proc)) == ""


@pytest.mark.parametrize("text", ["FROZEN\n", "FREEZING\n"])
def test_a_frozen_cgroup_of_version_1_is_named(proc: Proc, text: str) -> None:
    """Its state and wait channel are those of the call in which it was frozen."""
    proc.freeze("freezer/batch/job1/freezer.state", text)
    lines = "9:name=systemd:/\n6:freezer:/batch/job1\n0::/\n"
    assert proc.why(state="D", wchan="hrtimer_nanosleep", cgroup=lines) == Unending(
        Hold.HELD, "its cgroup /batch/job1 is frozen"
    )
    proc.freeze("freezer/batch/job1/freezer.state", "THAWED\n")
    assert proc.why(state="D", wchan="hrtimer_nanosleep", cgroup=lines).hold is Hold.KERNEL


@pytest.mark.parametrize("root", ["", "unified/"])
def test_one_of_version_2_is_known_and_holds_no_process_that_was_killed(proc: Proc, root: str) -> None:
    proc.freeze(f"{root}batch/job1/cgroup.events", "populated 1\nfrozen 1\n")
    assert proc.why(cgroup="0::/batch/job1\n").hold is Hold.KERNEL
    assert frozen_cgroup(7, str(proc.proc), str(proc.cgroups)) == ("/batch/job1", False)
    proc.freeze(f"{root}batch/job1/cgroup.events", "populated 1\nfrozen 0\n")
    assert frozen_cgroup(7, str(proc.proc), str(proc.cgroups)) == ("", False)


@pytest.mark.parametrize(
    ("channel", "hold", "text"),
    [
        ("rpc_wait_bit_killable", Hold.SERVER, "it waits for an NFS server (D state in rpc_wait_bit_killable)"),
        ("request_wait_answer", Hold.SERVER, "it waits for a FUSE file system (D state in request_wait_answer)"),
        ("os_acquire_rwlock_write", Hold.KERNEL, "the kernel does not let it go (D state in os_acquire_rwlock_write)"),
        ("0", Hold.KERNEL, "the kernel does not let it go (D state)"),
    ],
)
def test_what_it_waits_for_in_the_kernel_is_reported(proc: Proc, channel: str, hold: Hold, text: str) -> None:
    assert proc.why(state="D", wchan=channel) == Unending(hold, text)
    assert proc.why(state="S", wchan=channel) == Unending(Hold.KERNEL, "it is not known why")


@pytest.mark.parametrize("more", [{"pages": 50}, {"threads": 3}, {"cpu": 20}])
def test_a_process_that_gets_on_with_its_end_is_exiting(proc: Proc, more: dict[str, int]) -> None:
    watch = ExitWatch(str(proc.proc), str(proc.cgroups))
    watch.look(7, 0.0)
    assert watch.why(7, 1.0, 3.0).hold is Hold.KERNEL
    proc.write(**more)  # type: ignore[arg-type]
    watch.look(7, 2.0)
    assert watch.why(7, 4.0, 3.0) == Unending(Hold.EXITING, "it is still exiting")
    assert watch.why(7, 6.0, 3.0).hold is Hold.KERNEL


def test_a_zombie_counts_as_ended_if_somebody_traces_it(proc: Proc) -> None:
    def ended(**more: object) -> tuple[int, int, bool] | None:
        proc.write(**more)  # type: ignore[arg-type]
        return ended_under_tracer(7, str(proc.proc))

    assert ended(state="Z", tracer=9, code=9) == (-1, 9, False)
    assert ended(state="Z", tracer=9, code=11 | 0x80) == (-1, 11, True)
    assert ended(state="Z", tracer=9, code=3 << 8) == (3, 0, False)
    assert ended(state="Z", tracer=0, code=9) is None  # its parent will learn of it
    assert ended(state="t", tracer=9) is None
    proc.write(state="Z", tracer=9, code=9)
    (proc.proc / "7/task/8").mkdir()
    (proc.proc / "7/task/8/stat").write_text(STAT.format(state="D", cpu=0, threads=2, code=0))
    assert ended_under_tracer(7, str(proc.proc)) is None  # another thread has not ended


def test_a_real_process_under_a_real_tracer() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
                               stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    with traced(process.pid) as by:
        assert f"(pid {by.pid}) traces it" in tracer(process.pid)
        assert ended_under_tracer(process.pid) is None
        process.send_signal(signal.SIGKILL)
        until(lambda: ended_under_tracer(process.pid) == (-1, signal.SIGKILL, False))
        assert os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG) is None
    assert process.wait(60) == -signal.SIGKILL
    process.stdout.close()


def test_of_several_the_one_that_nothing_explains_counts() -> None:
    gdb, exiting, stuck = (Unending(hold, hold.value) for hold in (Hold.HELD, Hold.EXITING, Hold.KERNEL))
    assert UnendedError({0: (7, gdb)}, 3.0).hold is Hold.HELD
    assert UnendedError({0: (7, gdb), 1: (8, exiting)}, 15.0).hold is Hold.EXITING
    error = UnendedError({rank: (7 + rank, gdb) for rank in range(4)} | {9: (16, stuck)}, 15.2)
    assert error.hold is Hold.KERNEL
    assert str(error) == (
        "still there 15 s after SIGKILL: rank 0 (pid 7): held; rank 1 (pid 8): held; rank 2 (pid 9): held, and 2 more"
    )
