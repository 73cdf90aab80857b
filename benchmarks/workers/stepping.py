"""A worker without torch that makes steps as a training loop would: some work, a wait for its peers, a report.

    stepping.py --seconds 0.1 [--barrier FOLDER]

With --barrier all workers of the job wait for each other in every step, through small files, and say so to the
probe as a collective does: when one of them stops, all do; a new generation goes on where the last one ended. On
SIGUSR2 a worker holds its interpreter for ever; on the realtime signals 1 to 3 it exits with code 3, sleeps for ever
where its next step would begin, or raises an exception there.
"""

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path

from holdfast.agent import probe


def hold_for_ever(*_: object) -> None:
    libc = ctypes.PyDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which would end a sleep
    while True:
        libc.sleep(1_000_000)


asked: list[str] = []
"""What is to happen where the next step begins."""


def wrong() -> None:
    if "asleep" in asked:
        while True:
            time.sleep(0.5)
    raise RuntimeError("asked to fail")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.1, help="of a step")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--barrier", type=Path, help="folder in memory, shared by all workers")
    options = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    wait = Barrier(options.barrier, rank, world) if options.barrier else None
    # PyDLL keeps the interpreter's lock during the call, as a broken C extension would.
    signal.signal(signal.SIGUSR2, hold_for_ever)
    signal.signal(signal.SIGRTMIN + 1, lambda *_: os._exit(3))
    signal.signal(signal.SIGRTMIN + 2, lambda *_: asked.append("asleep"))
    signal.signal(signal.SIGRTMIN + 3, lambda *_: asked.append("exception"))
    probe.phase("train")
    due = time.monotonic()
    for step in range(wait.first if wait else 0, options.steps):
        if asked:
            wrong()
        due = max(due + options.seconds, time.monotonic())
        with probe.span("forward"):
            time.sleep(max(0.0, due - time.monotonic()))
        if wait is not None:
            with probe.operation("dp:all_reduce"):
                wait.step(step)
        probe.step(step, loss=1.0, tokens=1)


class Barrier:
    """Each worker counts its steps in a file of its own and waits until every other has come as far."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.progress = folder / "progress"
        # No step can end before all have come here, so that all read the same.
        self.first = int(self.progress.read_text()) if self.progress.exists() else 0
        # One folder per generation: what an older one counted is not for us.
        folder = folder / os.environ["HOLDFAST_GENERATION"]
        folder.mkdir(parents=True, exist_ok=True)
        self.own = os.open(folder / str(rank), os.O_RDWR | os.O_CREAT)
        self.paths = [folder / str(r) for r in range(world)]
        self.others: list[int] = []
        self.is_first = rank == 0

    def step(self, step: int) -> None:
        os.pwrite(self.own, str(step + 1).zfill(12).encode(), 0)
        while len(self.others) < len(self.paths):
            path = self.paths[len(self.others)]
            if path.exists():
                self.others.append(os.open(path, os.O_RDONLY))
            else:
                time.sleep(0.005)
        for other in self.others:
            while int(os.pread(other, 12, 0) or b"0") <= step:
                time.sleep(0.002)
        if self.is_first:
            new = self.progress.with_suffix(".new")
            new.write_text(str(step + 1))
            new.rename(self.progress)


if __name__ == "__main__":
    main()
