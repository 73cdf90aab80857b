"""The pauses of random scripts, by the names of `random_catalog.WHATS`: each ends by itself, after about so long.

Those that the own list (honest_pauses.py) has are taken from there.
"""

import ctypes
import fcntl
import multiprocessing
import os
import queue
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path

import honest_pauses
import torch
from pausing import server, until
from random_holders import debugger, freeze_job, freeze_rank, stop_job
from torch.distributed import TCPStore

Pause = Callable[[Path, float], None]


def short_sleeps(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        time.sleep(0.3)


def file_lock(folder: Path, seconds: float) -> None:
    """A child holds it."""
    path = folder / f"lock-{os.getpid()}-{threading.get_native_id()}"
    code = f"import fcntl, time; f = open({str(path)!r}, 'w'); fcntl.flock(f, 2); print(1, flush=True)"
    with (
        subprocess.Popen([sys.executable, "-c", f"{code}; time.sleep({seconds})"], stdout=subprocess.PIPE) as child,
        open(path, "w") as file,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        fcntl.flock(file, fcntl.LOCK_EX)


def pool(folder: Path, seconds: float) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as processes:
        processes.submit(time.sleep, seconds).result()


def lock_and_read(folder: Path, seconds: float) -> None:
    """A driver's call, which holds the interpreter's lock until a byte comes."""

    def serve(peer: socket.socket) -> None:
        time.sleep(seconds)
        peer.sendall(b"x")

    with socket.create_connection(server(serve)) as request:
        ctypes.PyDLL(None).recv(request.fileno(), ctypes.create_string_buffer(1), 1, 0)


def lock_and_sleep(folder: Path, seconds: float) -> None:
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


def epoll(folder: Path, seconds: float) -> None:
    """For a reply that is late; then it is asked for again."""
    ours, theirs = socket.socketpair()
    with ours, theirs, select.epoll() as waits:
        waits.register(ours, select.EPOLLIN)
        for _ in range(2):
            waits.poll(seconds / 2)


def poll(folder: Path, seconds: float) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waits = select.poll()
        waits.register(ours, select.POLLIN)
        waits.poll(seconds * 1000)


def queue_timeouts(folder: Path, seconds: float) -> None:
    more: Callable[[], bool] = until(seconds)
    empty: queue.Queue[int] = queue.Queue()
    while more():
        try:
            empty.get(timeout=seconds / 3)
        except queue.Empty:
            continue


def lock_timeout(folder: Path, seconds: float) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=seconds)


def one_deadline(folder: Path, seconds: float) -> None:
    select.select([], [], [], seconds)


def event_of_a_thread(folder: Path, seconds: float) -> None:
    done = threading.Event()
    threading.Timer(seconds, done.set).start()
    done.wait()


def own_socket(folder: Path, seconds: float) -> None:
    """A thread of this process answers."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        threading.Timer(seconds, theirs.sendall, (b"x",)).start()
        ours.recv(1)


def fifo(folder: Path, seconds: float) -> None:
    path = folder / f"fifo-{os.getpid()}-{threading.get_native_id()}"
    os.mkfifo(path)
    writer = subprocess.Popen(["sh", "-c", f"sleep {seconds}; echo > {path}"])
    with open(path) as file:
        file.read()
    writer.wait()


def _set_later(done: "multiprocessing.synchronize.Event", seconds: float) -> None:
    time.sleep(seconds)
    done.set()


def shared_event(folder: Path, seconds: float) -> None:
    """A semaphore in shared memory, which a child raises."""
    context = multiprocessing.get_context("fork")
    done = context.Event()
    child = context.Process(target=_set_later, args=(done, seconds))
    child.start()
    done.wait()
    child.join()


def file_poll(folder: Path, seconds: float) -> None:
    path = folder / f"there-{os.getpid()}-{threading.get_native_id()}"
    writer = subprocess.Popen(["sh", "-c", f"sleep {seconds}; touch {path}"])
    while not path.exists():
        time.sleep(0.5)
    writer.wait()


def store_wait(folder: Path, seconds: float) -> None:
    """For a key that comes late, with a timeout that is caught."""
    store = TCPStore("127.0.0.1", 0, 1, True, timeout=timedelta(seconds=300), wait_for_workers=False)
    theirs = TCPStore("127.0.0.1", store.port, 1, False, timeout=timedelta(seconds=300), wait_for_workers=False)
    threading.Timer(seconds, theirs.set, ("key", "x")).start()
    while True:
        try:
            store.wait(["key"], timedelta(seconds=max(1.0, seconds / 3)))
            return
        except RuntimeError:
            continue


def slow_pipe(folder: Path, seconds: float) -> None:
    code = f"import os, time\ntime.sleep({seconds})\nwhile os.read(0, 65536): pass"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(bytes(1 << 20))


def writes(folder: Path, seconds: float) -> None:
    more = until(seconds)
    with open(folder / f"written-{os.getpid()}-{threading.get_native_id()}", "wb") as file:
        while more():
            file.seek(0)
            file.write(bytes(1 << 16))
            os.fsync(file.fileno())
            time.sleep(0.2)


def compiles(folder: Path, seconds: float) -> None:
    """Into an empty cache, as after a change of shapes."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"inductor-{os.getpid()}-{time.monotonic_ns()}")
    width = 8 + int(seconds * 10)
    with torch.no_grad():
        torch.compile(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()))(torch.randn(4, width))


PAUSES: dict[str, Pause] = {
    "compute": honest_pauses.evaluation, "python": honest_pauses.python_loop, "sleep": honest_pauses.sleep,
    "short-sleeps": short_sleeps, "late-reply": honest_pauses.server_that_answers_late,
    "down-and-retries": honest_pauses.store_that_is_down_and_retries,
    "growing-retries": honest_pauses.retries_with_growing_waits, "file-lock": file_lock,
    "child": honest_pauses.child_that_sleeps, "busy-child": honest_pauses.child_that_computes, "pool": pool,
    "page-faults": honest_pauses.memory_that_is_touched, "garbage": honest_pauses.garbage_collection,
    "sort": honest_pauses.sort_of_a_long_list, "lock-and-read": lock_and_read, "lock-and-sleep": lock_and_sleep,
    "epoll": epoll, "poll": poll, "queue-timeouts": queue_timeouts, "lock-timeout": lock_timeout,
    "one-deadline": one_deadline, "event-of-a-thread": event_of_a_thread,
    "queue-of-a-thread": honest_pauses.queue_of_a_thread, "own-socket": own_socket, "fifo": fifo,
    "shared-event": shared_event, "alarm": honest_pauses.alarm, "file-poll": file_poll, "store-wait": store_wait,
    "slow-pipe": slow_pipe, "upload": honest_pauses.upload_to_slow_server, "event-loop": honest_pauses.event_loop,
    "writes": writes, "compile": compiles, "debugger": debugger, "stop-job": stop_job,
    "freeze-job": freeze_job, "freeze-rank": freeze_rank,
}  # fmt: skip
