"""True hangs of an unmodified script: none ends by itself. In a second life, the script goes on without it.

torchrun --nproc-per-node 3 benchmarks/workers/true_hangs.py CASE FOLDER SECONDS
"""

import ctypes
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from standing import AFTER, BEFORE, RANK, Trainer, arguments, mark

Hang = Callable[[], None]


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def native_sleep_that_holds_the_lock() -> None:
    libc = ctypes.PyDLL(None)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        libc.sleep(1_000_000)


def broadcast() -> None:
    dist.broadcast(torch.zeros(4), src=0)


def receive() -> None:
    dist.recv(torch.zeros(4), src=(RANK + 1) % dist.get_world_size())


def all_gather() -> None:
    dist.all_gather([torch.zeros(4) for _ in range(dist.get_world_size())], torch.zeros(4))


def barrier() -> None:
    dist.barrier()


def lock_taken_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def empty_pipe() -> None:
    read, _write = os.pipe()
    os.read(read, 1)


def empty_queue() -> None:
    queue.Queue().get()


def quiet_socket() -> None:
    a, _b = socket.socketpair()
    a.recv(1)


def sleep_for_ever() -> None:
    while True:
        time.sleep(0.5)


def one_long_sleep() -> None:
    time.sleep(10**8)


def lock_of_a_file() -> None:
    with open(arguments()[1] / "lock", "w") as ours, open(arguments()[1] / "lock", "w") as again:
        fcntl.flock(ours, fcntl.LOCK_EX)
        fcntl.flock(again, fcntl.LOCK_EX)


def child_that_never_ends() -> None:
    subprocess.run(["sleep", "100000"])


def pipe_that_nobody_reads() -> None:
    """The child fills its pipe, we wait for its end before we read."""
    child = subprocess.Popen(["head", "-c", "1000000", "/dev/zero"], stdout=subprocess.PIPE)
    child.wait()


def thread_that_never_ends() -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def new_group() -> None:
    dist.new_group(list(range(dist.get_world_size())))


DEAD = {
    "stop": stop, "native-sleep": native_sleep_that_holds_the_lock, "broadcast": broadcast, "receive": receive,
    "all-gather": all_gather, "barrier": barrier,
}  # fmt: skip
"""A worker that cannot go on by itself, and the evidence says so."""
IDLE = {
    "lock-twice": lock_taken_twice, "empty-pipe": empty_pipe, "empty-queue": empty_queue, "quiet-socket": quiet_socket,
    "sleep-loop": sleep_for_ever, "one-long-sleep": one_long_sleep, "file-lock": lock_of_a_file,
    "endless-child": child_that_never_ends, "full-pipe": pipe_that_nobody_reads, "new-group": new_group,
    "endless-thread": thread_that_never_ends,
}  # fmt: skip


def order(trainer: Trainer) -> None:
    """Two groups of the same ranks, used in two orders."""
    ranks = list(range(dist.get_world_size()))
    first, second = dist.new_group(ranks), dist.new_group(ranks)
    trainer.steps(5)
    mark(trainer.folder, "begun")
    for group in (second, first) if RANK == 1 else (first, second):
        dist.all_reduce(torch.zeros(4), group=group)


def main() -> None:
    case, folder, _ = arguments()
    kind, _, rank = case.partition("@")
    trainer = Trainer(folder)
    trainer.steps(BEFORE)
    if not list(folder.glob("begun-*")):
        if kind == "order":
            order(trainer)
        if int(rank or -1) == RANK:
            mark(folder, "begun")
            {**DEAD, **IDLE}[kind]()
    trainer.steps(AFTER)
    mark(folder, "ended")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
