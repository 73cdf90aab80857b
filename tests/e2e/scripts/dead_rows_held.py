"""Rows of dead_rows.py in which something else holds the processes, a wait says when it ends, or training is over."""

import os
import select
import subprocess
import threading
import time
from collections.abc import Callable

from dead_rows_loop import FOLDER, RANK, SHORT_S, ddp, on, reads, row


@row
def traced_by_a_debugger() -> None:
    def traced(seconds: float) -> None:
        words = ["gdb", "-nx", "-batch", "-ex", "set auto-solib-add off", "-ex", f"attach {os.getpid()}",
                 "-ex", f"shell sleep {seconds}", "-ex", "detach"]  # fmt: skip
        subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

    ddp(between=on(0, traced, SHORT_S))


@row
def retries_with_backoff() -> None:
    """The last wait is longer than the idle limit of this job (5 s), and says when it ends."""

    def retries(last: float) -> None:
        wait = 1.0
        with select.epoll() as quiet:
            while wait <= last:
                quiet.poll(wait)
                wait *= 2

    ddp(between=on(0, retries, 8.0))


@row
def a_thread_ends_after_the_training() -> None:
    """Rank 1 has ended with 0; rank 0 joins a thread that is no daemon, for longer than the idle limit of this job."""
    ddp()
    if RANK == 0:
        thread = threading.Thread(target=reads, args=(9.0,))
        thread.start()
        thread.join()


@row
def all_workers_stopped() -> None:
    _held_together(lambda pids: (f"kill -STOP {pids}", f"kill -CONT {pids}"))


@row
def whole_node_stopped() -> None:
    """With its agent, whose process the test writes down."""

    def words(pids: str) -> tuple[str, str]:
        while not (FOLDER / "agent").exists():
            time.sleep(0.05)
        every = f"{(FOLDER / 'agent').read_text()} {pids}"
        return f"kill -STOP {every}", f"kill -CONT {every}"

    _held_together(words)


@row
def all_workers_frozen() -> None:
    _held_together(_frozen)


@row
def one_rank_frozen() -> None:
    _held_together(lambda pids: _frozen(str(os.getpid())))


def _frozen(pids: str) -> tuple[str, str]:
    root = "/sys/fs/cgroup/freezer"
    group = f"{root}/dead-rows-{os.getpid()}"
    moves = "; ".join(f"echo {pid} > {group}/cgroup.procs" for pid in pids.split())
    back = "; ".join(f"echo {pid} > {root}/cgroup.procs" for pid in pids.split())
    hold = f"mkdir {group}; {moves}; echo FROZEN > {group}/freezer.state"
    return hold, f"echo THAWED > {group}/freezer.state; {back}; rmdir {group}"


def _held_together(words: Callable[[str], tuple[str, str]]) -> None:
    (FOLDER / f"pid-{RANK}").write_text(str(os.getpid()))

    def hold() -> None:
        if RANK == 0:
            begin, end = words(" ".join(path.read_text() for path in FOLDER.glob("pid-*")))
            subprocess.run(["sh", "-c", f"{begin}; sleep {SHORT_S}; {end}"], check=True, start_new_session=True)

    ddp(between=hold)
