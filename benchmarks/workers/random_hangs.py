"""The true hangs of random scripts, by the names of `random_catalog.LOCAL` and `.SHARED`: none ends by itself.

A local one is entered by its rank alone, a shared one by all ranks, which are told who is the odd one. Each says
`begun()` right before it stands still.
"""

import ctypes
import fcntl
import multiprocessing
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from random_frameworks import RANK, WORLD

Begun = Callable[[], None]
_UNTIL_PARENT_ENDS = "import ctypes, signal; ctypes.CDLL(None).prctl(1, signal.SIGKILL)"
"""In a child: nobody may be there to end it. A sleep would say when its parent's wait ends."""
_ENDLESS = f"{_UNTIL_PARENT_ENDS}; signal.pause()"


# --- one rank ------------------------------------------------------------------------------------------------------


def lock_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def lock_of_ended_thread() -> None:
    lock = threading.Lock()
    holder = threading.Thread(target=lock.acquire)
    holder.start()
    holder.join()
    lock.acquire()


def two_locks() -> None:
    """Two threads take them in different orders; the main thread waits for both."""
    first, second, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            other.acquire()

    orders = ((first, second), (second, first))
    threads = [threading.Thread(target=take, args=order, daemon=True) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def empty_queue() -> None:
    queue.Queue().get()


def condition() -> None:
    never = threading.Condition()
    with never:
        never.wait()


def endless_thread() -> None:
    thread = threading.Thread(target=threading.Event().wait, daemon=True)
    thread.start()
    thread.join()


def native_lock() -> None:
    """In a C call that keeps the interpreter's lock."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def lock_with_company() -> None:
    """Another thread, which could release it for all that anybody can know, wakes now and then."""
    threading.Thread(target=sleep_loop, daemon=True).start()
    lock_twice()


def sleep_loop() -> None:
    while True:
        time.sleep(0.5)


def long_sleep() -> None:
    time.sleep(10**8)


def quiet_socket() -> None:
    """A child has the other end, and never replies."""
    listener = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        exec(_UNTIL_PARENT_ENDS)
        _peer = listener.accept()[0]
        signal.pause()
        os._exit(0)
    with socket.create_connection(listener.getsockname()) as request:
        request.recv(1)


def file_lock_of_a_child() -> None:
    path = str(Path(tempfile.gettempdir()) / f"random-pauses-{os.getpid()}")
    code = f"import fcntl; f = open({path!r}, 'w'); fcntl.flock(f, 2); print(1, flush=True); {_ENDLESS}"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    with open(path, "w") as file:
        Path(path).unlink()
        fcntl.flock(file, fcntl.LOCK_EX)


def endless_child() -> None:
    subprocess.run([sys.executable, "-c", _ENDLESS])


def pipe_of_dead_child() -> None:
    """The child is gone, and the end for writing is still open in this process."""
    read, _write = os.pipe()
    subprocess.run(["true"], check=True)
    os.read(read, 1)


def queue_of_dead_child() -> None:
    context = multiprocessing.get_context("fork")
    results: Any = context.SimpleQueue()
    child = context.Process(target=os._exit, args=(0,))
    child.start()
    child.join()
    results.get()


def own_socketpair() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def store_key() -> None:
    dist.distributed_c10d._get_default_store().get("a key that nobody sets")


def recv_alone() -> None:
    dist.recv(torch.zeros(4), src=(RANK + 1) % WORLD)


def barrier_alone() -> None:
    dist.barrier()


def all_gather_alone() -> None:
    dist.all_gather([torch.zeros(4) for _ in range(WORLD)], torch.zeros(4))


def broadcast_alone() -> None:
    dist.broadcast(torch.zeros(4), src=(RANK + 1) % WORLD)


def new_group_alone() -> None:
    dist.new_group(list(range(WORLD)))


def left() -> NoReturn:
    os._exit(0)


def left_with_child() -> NoReturn:
    """A child has its sockets, so that no peer sees that it is gone."""
    subprocess.Popen(["sleep", "90"], close_fds=False)
    os._exit(0)


LOCAL: dict[str, Callable[[], None]] = {
    "lock-twice": lock_twice, "lock-of-ended-thread": lock_of_ended_thread, "two-locks": two_locks,
    "empty-queue": empty_queue, "condition": condition, "endless-thread": endless_thread, "native-lock": native_lock,
    "stop": stop, "lock-with-company": lock_with_company, "sleep-loop": sleep_loop, "long-sleep": long_sleep,
    "quiet-socket": quiet_socket, "file-lock-of-a-child": file_lock_of_a_child, "endless-child": endless_child,
    "pipe-of-dead-child": pipe_of_dead_child, "queue-of-dead-child": queue_of_dead_child,
    "own-socketpair": own_socketpair, "store-key": store_key, "recv-alone": recv_alone,
    "barrier-alone": barrier_alone, "all-gather-alone": all_gather_alone, "broadcast-alone": broadcast_alone,
    "new-group-alone": new_group_alone, "left": left, "left-with-child": left_with_child,
}  # fmt: skip

# --- all ranks -----------------------------------------------------------------------------------------------------


class Prepared:
    """The groups that shared hangs use, created where all is well."""

    def __init__(self) -> None:
        everyone = list(range(WORLD))
        self.first, self.second = dist.new_group(everyone), dist.new_group(everyone)
        self.pairs = [(pair, dist.new_group(list(pair))) for pair in ((0, 1), (1, 2), (0, 2))]
        for group in (self.first, self.second, *(group for pair, group in self.pairs if RANK in pair)):
            dist.all_reduce(torch.ones(1), group=group)


def kind(is_odd: bool, odd: int, groups: Prepared) -> None:
    all_gather_alone() if is_odd else dist.all_reduce(torch.zeros(4))


def kind_of_barrier(is_odd: bool, odd: int, groups: Prepared) -> None:
    dist.broadcast(torch.zeros(4), src=(odd + 1) % WORLD) if is_odd else dist.barrier()


def size(is_odd: bool, odd: int, groups: Prepared) -> None:
    """Twice as much, which gloo cuts into pieces of the same size, but into more of them."""
    dist.all_reduce(torch.zeros((6 if is_odd else 3) << 20))


def order(is_odd: bool, odd: int, groups: Prepared) -> None:
    for group in (groups.second, groups.first) if is_odd else (groups.first, groups.second):
        dist.all_reduce(torch.zeros(4), group=group)


def root(is_odd: bool, odd: int, groups: Prepared) -> None:
    """The odd one expects it from another rank than that which the two others mean."""
    dist.broadcast(torch.zeros(4), src=(odd + (2 if is_odd else 1)) % WORLD)
    dist.barrier()


def group(is_odd: bool, odd: int, groups: Prepared) -> None:
    dist.all_reduce(torch.zeros(4), group=groups.first if is_odd else groups.second)


def object_kind(is_odd: bool, odd: int, groups: Prepared) -> None:
    if is_odd:
        dist.broadcast_object_list([None], src=(odd + 1) % WORLD)
    else:
        dist.all_gather_object([None] * WORLD, {"rank": RANK})


def _skipped(operation: Callable[[], None]) -> Callable[[bool, int, Prepared], None]:
    """The odd one goes on to its next step without it."""
    return lambda is_odd, odd, groups: None if is_odd else operation()


def _broadcast() -> None:
    dist.broadcast(torch.zeros(4), src=0)


def _gather() -> None:
    dist.gather(torch.zeros(4), [torch.zeros(4) for _ in range(WORLD)] if RANK == 0 else None, dst=0)


def tag(is_odd: bool, odd: int, groups: Prepared) -> None:
    """Ranks 0 and 1 mean different messages."""
    if RANK == 0:
        dist.send(torch.zeros(4), dst=1, tag=1)
    elif RANK == 1:
        dist.recv(torch.zeros(4), src=0, tag=2)


def circle(is_odd: bool, odd: int, groups: Prepared) -> None:
    recv_alone()


def overlapping_cycle(is_odd: bool, odd: int, groups: Prepared) -> None:
    """Each rank begins with another of its two groups."""
    mine = [group for pair, group in groups.pairs if RANK in pair]
    for one in mine if RANK == 0 else mine[::-1]:
        dist.all_reduce(torch.zeros(4), group=one)
    dist.barrier()


def pair_kind(is_odd: bool, odd: int, groups: Prepared) -> None:
    """In a group of two."""
    pair = groups.pairs[0][1]
    if RANK == 0:
        dist.all_reduce(torch.zeros(4), group=pair)
    elif RANK == 1:
        dist.all_gather([torch.zeros(4), torch.zeros(4)], torch.zeros(4), group=pair)


SHARED: dict[str, Callable[[bool, int, Prepared], None]] = {
    "kind": kind, "kind-of-barrier": kind_of_barrier, "size": size, "order": order, "root": root, "group": group,
    "object-kind": object_kind, "skip-barrier": _skipped(barrier_alone), "skip-all-gather": _skipped(all_gather_alone),
    "skip-broadcast": _skipped(_broadcast), "skip-gather": _skipped(_gather),
    "skip-monitored": _skipped(lambda: dist.monitored_barrier()), "tag": tag, "circle": circle,
    "overlapping-cycle": overlapping_cycle, "pair-kind": pair_kind,
}  # fmt: skip
