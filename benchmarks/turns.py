"""Jobs of the same ranks that take turns: all are started, one computes at a time, and all others wait at a gate.

Each system has as many ranks, forked from one fork server, in a rendezvous of its own. A turn is so many steps; the
first, in which processes wake up, does not count. Noise of the host thereby hits all systems alike.
"""

import ctypes
import functools
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

DEADLINE_S = 300.0
Json = dict[str, Any]
_PR_SET_PDEATHSIG = 1  # of Linux' prctl.h


class Gate:
    """The side of a rank: waits at the start of each turn, and reports how long the steps of the last one took."""

    def __init__(self, where: str, system: str, steps: int) -> None:
        """`where`: the benchmark's socket. `steps` of a turn."""
        self.line = socket.socket(socket.AF_UNIX)
        self.line.connect(where)
        self.orders = self.line.makefile("r")
        self.steps, self.times, self.used = steps, list[float](), 0.0
        self.order = ""
        """What the present turn is for."""
        self.notes: Json = {}
        """What else the rank reports at the end of a turn."""
        self.before = resident("VmRSS")
        """Bytes that were resident before the rank made anything."""
        self.report({"system": system})

    def report(self, what: Json) -> None:
        self.line.sendall(json.dumps(what).encode() + b"\n")

    def __call__(self, step: int) -> None:
        """Before step `step`, counted from 0 in this process."""
        if step % self.steps == 0:
            if self.times:
                took, used = time.perf_counter() - self.times[1], time.process_time() - self.used
                resident_bytes = resident("VmHWM") - self.before
                self.report({"seconds": took, "used": used, "resident": resident_bytes, **self.notes})
            self.order = self.orders.readline().strip()
            if not self.order:
                os._exit(0)
            if not self.times:
                forget_peak()
            self.times.clear()
        if len(self.times) == 1:
            self.used = time.process_time()
        self.times.append(time.perf_counter())


class System:
    """The side of the benchmark: all ranks of one system."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.lines: list[tuple[socket.socket, Any]] = []
        self.used: list[float] = []
        """Of each turn, seconds of the processors over all ranks."""
        self.answers: list[Json] = []
        """Of each rank, at the end of the last turn."""

    def turn(self, order: str = "go") -> float:
        """Seconds of the steps after the first, as the slowest rank saw it. SystemExit when a rank has ended."""
        with suppress(BrokenPipeError):
            for line, _ in self.lines:
                line.sendall(f"{order}\n".encode())
        read = [answers.readline() for _, answers in self.lines]
        if not all(read):
            raise SystemExit(f"a rank of {self.name} ended in its turn; what it printed is above")
        self.answers = [json.loads(text) for text in read]
        self.used.append(sum(float(answer["used"]) for answer in self.answers))
        return max(float(answer["seconds"]) for answer in self.answers)


def resident(field: str) -> int:
    """Bytes of this process: `VmRSS` now, `VmHWM` the most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak() -> None:
    """The most resident memory counts from here on. No-op where the kernel does not let a process do it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def forked(work: Callable[[], None]) -> int:
    """The child runs `work` and ends, at the latest with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        work()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def store() -> tuple[int, int]:
    """A rendezvous store in a process of its own, and its port: the fork server must have no threads."""
    reader, writer = os.pipe()

    def serve() -> None:
        import torch.distributed as dist

        held = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, str(held.port).encode())
        os.close(writer)
        while True:
            time.sleep(60)

    pid = forked(serve)
    os.close(writer)
    port = int(os.read(reader, 16))
    os.close(reader)
    return pid, port


@contextmanager
def started(
    workers: Mapping[str, Callable[[Gate], None]], ranks: int, steps: int, folder: Path
) -> Iterator[dict[str, System]]:
    """All systems, each with so many ranks, warm: they have done one turn.

    `workers`: what each rank of a system runs, in a process of its own that knows its rank from the environment.
    """
    listener = socket.socket(socket.AF_UNIX)
    where = str(folder / f"gate{ranks}")
    listener.bind(where)
    listener.listen(128)
    listener.settimeout(DEADLINE_S)
    systems = {name: System(name) for name in workers}
    pids: list[int] = []

    def rank_of(name: str, rank: int, port: int) -> None:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
        }  # fmt: skip
        workers[name](Gate(where, name, steps))

    try:
        for name in workers:
            pid, port = store()
            pids.append(pid)
            for rank in range(ranks):
                pids.append(forked(functools.partial(rank_of, name, rank, port)))
        for _ in range(ranks * len(systems)):
            line, _ = listener.accept()
            line.settimeout(DEADLINE_S)
            answers = line.makefile("r")
            systems[json.loads(answers.readline())["system"]].lines.append((line, answers))
        for system in systems.values():
            system.turn()
        yield systems
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        listener.close()
        os.unlink(where)


def order_of(names: Sequence[str], turn: int) -> list[str]:
    """In which order systems take turn `turn`: there and back, and each pair of turns begins one further."""
    shift = turn // 2 % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if turn % 2 else order
