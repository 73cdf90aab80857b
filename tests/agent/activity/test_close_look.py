"""A look at a worker of a made-up /proc: whose threads may hold the interpreter's lock."""

from pathlib import Path

import pytest

from holdfast.agent.activity.close_look import CloseLook
from holdfast.agent.activity.host import HostLook
from holdfast.agent.processes.sockets import Sockets

WORKER, TICK, OTHER = 7, 8, 9


def _thread(task: Path, name: str, ran_s: float, waits: int) -> None:
    """As the kernel shows one that is on a processor."""
    task.mkdir(parents=True, exist_ok=True)
    ticks = round(ran_s * 100)
    (task / "stat").write_text(f"{task.name} ({name}) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 3 0 100\n")
    (task / "schedstat").write_text(f"{round(ran_s * 1e9)} 0 {waits}\n")
    (task / "status").write_text(f"Name:\t{name}\nvoluntary_ctxt_switches:\t{waits}\n")
    (task / "syscall").write_text("running\n")


def _look_for(folder: Path, other: str, seconds: float) -> list[bool]:
    """Ten times a second at a main thread that runs all the time, as does one called `other`; the probe's thread has to
    wait for the interpreter's lock. Whether each look saw the worker move."""
    look = CloseLook(WORKER, HostLook(str(folder), lambda: Sockets(), str(folder / "sys")), tick_thread=TICK)
    found = []
    for count in range(round(seconds * 10)):
        at = count / 10
        for thread, name, ran, waits in (
            (WORKER, "python3", at, 0), (TICK, "probe", 0.0, round(37 * at)), (OTHER, other, at, 0)
        ):  # fmt: skip
            _thread(folder / str(WORKER) / "task" / str(thread), name, ran, waits)
        (folder / str(WORKER) / "stat").write_text((folder / str(WORKER) / "task" / str(WORKER) / "stat").read_text())
        found.append(look.look(100.0 + at).moves)
    return found


@pytest.mark.parametrize(("other", "computes"), [("NCCL Progress 0", True), ("NCCL I/O Thr", True), ("python3", False)])
def test_a_thread_of_nccl_that_spins_holds_no_lock(tmp_path: Path, other: str, computes: bool) -> None:
    """With another thread that computes, nobody knows which of the two holds it; NCCL's never do."""
    assert set(_look_for(tmp_path, other, 4.0)[20:]) == {computes}
