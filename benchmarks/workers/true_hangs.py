"""True hangs of an unmodified script: none ends by itself. After a restart, the script goes on without it.

torchrun --nproc-per-node 3 benchmarks/workers/true_hangs.py CASE FOLDER SECONDS

CASE is KIND@RANK, or KIND where no rank is to blame; `first:` before it: before the first step; `start:`: before the
ranks have met.
"""

import contextlib
import ctypes
import fcntl
import os
import queue
import signal
import socket
import stat
import struct
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


def cut_off() -> None:
    """From now on this process receives nothing from its peers: its sockets drop every packet, without notice."""
    instruction = struct.pack("HBBI", 0x06, 0, 0, 0)  # BPF: return 0, which is to keep no byte of the packet
    code = ctypes.create_string_buffer(instruction, len(instruction))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # one that is gone, or listens
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type == socket.SOCK_STREAM and one.family in (socket.AF_INET, socket.AF_INET6):
                    one.getpeername()
                    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def receive_in_a_circle() -> None:
    """All of them: no rank sends."""
    dist.recv(torch.zeros(4), src=(RANK + 1) % dist.get_world_size())


def all_reduce_of_another_size(is_odd: bool) -> None:
    """Twice as much, which gloo cuts into pieces of the same size, but into more of them."""
    dist.all_reduce(torch.zeros((6 if is_odd else 3) << 20))


def gather() -> None:
    everything = [torch.zeros(4) for _ in range(dist.get_world_size())]
    dist.gather(torch.zeros(4), everything if RANK == 0 else None, dst=0)


SO_ATTACH_FILTER = 26
ALONE: dict[str, Hang] = {
    "stop": stop, "native-sleep": native_sleep_that_holds_the_lock, "broadcast": broadcast, "receive": receive,
    "all-gather": all_gather, "barrier": barrier, "new-group": new_group,
    "lock-twice": lock_taken_twice, "empty-pipe": empty_pipe, "empty-queue": empty_queue, "quiet-socket": quiet_socket,
    "sleep-loop": sleep_for_ever, "one-long-sleep": one_long_sleep, "file-lock": lock_of_a_file,
    "endless-child": child_that_never_ends, "full-pipe": pipe_that_nobody_reads,
    "endless-thread": thread_that_never_ends,
}  # fmt: skip
"""What one rank does on its way to the next step, while the others go on."""
SKIPPED: dict[str, Hang] = {
    "skip-barrier": barrier, "skip-all-gather": all_gather, "skip-broadcast": broadcast, "skip-gather": gather,
}  # fmt: skip
"""A collective that all do but one rank, which goes on to its next step."""


def order(trainer: Trainer) -> None:
    """Two groups of the same ranks, used in two orders."""
    ranks = list(range(dist.get_world_size()))
    first, second = dist.new_group(ranks), dist.new_group(ranks)
    trainer.steps(5)
    mark(trainer.folder, "begun")
    for group in (second, first) if RANK == 1 else (first, second):
        dist.all_reduce(torch.zeros(4), group=group)


def hang(kind: str, rank: str, folder: Path) -> None:
    """What goes wrong, at this place. Returns on those that are not in it, and where the wrong comes with the next
    step."""
    is_odd = int(rank or -1) == RANK
    if kind in ALONE:
        if is_odd:
            mark(folder, "begun")
            ALONE[kind]()
    elif kind in SKIPPED:
        if is_odd:
            mark(folder, "begun")
        else:
            SKIPPED[kind]()
    elif kind == "size":
        if is_odd:
            mark(folder, "begun")
        all_reduce_of_another_size(is_odd)
    elif kind == "cut-off":
        if is_odd:
            cut_off()
            mark(folder, "begun")
    elif kind == "circle":
        mark(folder, "begun")
        receive_in_a_circle()


def main() -> None:
    case, folder, _ = arguments()
    kind, _, rank = case.partition("@")
    is_first_life, where = not list(folder.glob("begun-*")), kind.rpartition(":")[0]
    if where == "start" and is_first_life:
        hang(kind.removeprefix("start:"), rank, folder)
    trainer = Trainer(folder)
    if where == "first" and is_first_life:
        hang(kind.removeprefix("first:"), rank, folder)
    trainer.steps(BEFORE)
    if not where and is_first_life:
        if kind == "order":
            order(trainer)
        hang(kind, rank, folder)
    trainer.steps(AFTER)
    mark(folder, "ended")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
