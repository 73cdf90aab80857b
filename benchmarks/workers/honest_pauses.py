"""Honest pauses of an unmodified script: each ends by itself, and so does the script, with exit code 0.

torchrun --nproc-per-node 3 benchmarks/workers/honest_pauses.py CASE FOLDER SECONDS
"""

import asyncio
import gc
import hashlib
import io
import json
import mmap
import multiprocessing
import os
import pickle
import pty
import queue
import random
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from standing import AFTER, BEFORE, RANK, WORLD, Trainer, arguments, mark

Pause = Callable[[Path, float], None]
ON_RANK_0: dict[str, Pause] = {}
"""By name: what rank 0 does while the others wait in a barrier."""
ON_RANK_1: dict[str, Pause] = {}
"""What rank 1 does on its way to the next step, in which the others wait for it."""
ON_ALL: dict[str, Pause] = {}
FIRST: dict[str, Pause] = {}
"""Before the first step, on rank 0."""
FIRST_ALL: dict[str, Pause] = {}
ALONE: dict[str, Pause] = {}
"""In one process, or in several that know nothing of torch.distributed."""


def on(*where: dict[str, Pause]) -> Callable[[Pause], Pause]:
    def put(pause: Pause) -> Pause:
        for table in where:
            table[pause.__name__.replace("_", "-")] = pause
        return pause

    return put


def until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


# --- saving --------------------------------------------------------------------------------------------------------


@on(ON_RANK_0)
def save_to_slow_disk(folder: Path, seconds: float) -> None:
    more = until(seconds)
    with open(folder / "slow.bin", "wb") as file:
        while more():
            file.write(os.urandom(1 << 20))
            file.flush()
            time.sleep(0.1)


@on(ON_RANK_0)
def torch_save(folder: Path, seconds: float) -> None:
    state = {f"w{n}": torch.randn(8 << 20) for n in range(8)}
    more = until(seconds)
    while more():
        torch.save(state, folder / "checkpoint.pt")


@on(ON_RANK_0)
def safetensors_save(folder: Path, seconds: float) -> None:
    from safetensors.torch import save_file

    state = {f"w{n}": torch.randn(8 << 20) for n in range(8)}
    more = until(seconds)
    while more():
        save_file(state, folder / "checkpoint.safetensors")


@on(ON_ALL)
def dcp_save(folder: Path, seconds: float) -> None:
    import torch.distributed.checkpoint as dcp

    state = {"weights": torch.randn(16 << 20), "rank": torch.tensor(RANK)}
    for n in range(3):
        dcp.save(state, checkpoint_id=folder / f"dcp{n}")


@on(ON_RANK_0)
def write_into_slow_pipe(folder: Path, seconds: float) -> None:
    reader = "import sys, time\nwhile sys.stdin.buffer.read(65536): time.sleep(0.25)"
    with subprocess.Popen([sys.executable, "-c", reader], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        more = until(seconds)
        while more():
            child.stdin.write(b"x" * 65536)
        child.kill()


@on(ON_RANK_0)
def thread_that_saves(folder: Path, seconds: float) -> None:
    thread = threading.Thread(target=save_to_slow_disk, args=(folder, seconds))
    thread.start()
    thread.join()


@on(ON_RANK_0)
def pickle_of_many_objects(folder: Path, seconds: float) -> None:
    heap = [{"n": n, "text": str(n)} for n in range(400_000)]
    more = until(seconds)
    while more():
        pickle.dumps(heap)


@on(ON_RANK_0)
def compress(folder: Path, seconds: float) -> None:
    data, more = os.urandom(32 << 20), until(seconds)
    while more():
        zlib.compress(data, 6)


@on(ON_RANK_0)
def checksum(folder: Path, seconds: float) -> None:
    data, more = bytes(256 << 20), until(seconds)
    while more():
        hashlib.sha256(data).digest()


@on(ON_RANK_0)
def mapped_file_and_msync(folder: Path, seconds: float) -> None:
    with open(folder / "mapped", "w+b") as file:
        file.truncate(64 << 20)
        with mmap.mmap(file.fileno(), 64 << 20) as view:
            more, n = until(seconds), 0
            while more():
                view[:] = bytes([n % 256]) * (64 << 20)
                view.flush()
                n += 1


@on(ON_RANK_0)
def copy_by_a_tool(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        subprocess.run(["dd", "if=/dev/zero", f"of={folder}/copy", "bs=1M", "count=200"], stderr=subprocess.DEVNULL)


# --- the network ---------------------------------------------------------------------------------------------------


def server(serve: Callable[[socket.socket], None], late: float = 0.0) -> tuple[str, int]:
    """A process that serves one connection, once it listens after so many seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    if late:
        listener.close()
    if os.fork():
        listener.close()
        return str(address[0]), int(address[1])
    if late:
        time.sleep(late)
        listener = socket.create_server(address)
    serve(listener.accept()[0])
    os._exit(0)


@on(ON_RANK_0)
def upload_to_slow_server(folder: Path, seconds: float) -> None:
    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        while peer.recv(32768):
            time.sleep(0.2)

    with socket.create_connection(server(serve)) as upload:
        upload.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        upload.sendall(bytes(int(seconds * 150_000)))
        upload.shutdown(socket.SHUT_WR)
        upload.recv(1)


@on(ON_RANK_0)
def download_from_slow_server(folder: Path, seconds: float) -> None:
    def serve(peer: socket.socket) -> None:
        more = until(seconds)
        while more():
            peer.sendall(bytes(20_000))
            time.sleep(0.2)

    with socket.create_connection(server(serve)) as download:
        while download.recv(65536):
            pass


@on(ON_RANK_0)
def server_that_answers_late(folder: Path, seconds: float) -> None:
    def serve(peer: socket.socket) -> None:
        time.sleep(seconds)
        peer.sendall(b"x")

    with socket.create_connection(server(serve)) as request:
        request.sendall(b"GET")
        request.recv(1)


@on(ON_RANK_0)
def store_that_is_down_and_retries(folder: Path, seconds: float) -> None:
    address = server(lambda peer: None, late=seconds)
    while True:
        try:
            socket.create_connection(address).close()
            return
        except ConnectionRefusedError:
            time.sleep(1.0)


@on(ON_RANK_0)
def retries_with_growing_waits(folder: Path, seconds: float) -> None:
    address, wait = server(lambda peer: None, late=seconds), 0.5
    while True:
        try:
            socket.create_connection(address).close()
            return
        except ConnectionRefusedError:
            time.sleep(wait)
            wait *= 2


@on(ON_RANK_0)
def upload_by_threads(folder: Path, seconds: float) -> None:
    threads = [threading.Thread(target=upload_to_slow_server, args=(folder, seconds)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- computing -----------------------------------------------------------------------------------------------------


@on(ON_RANK_0, ON_RANK_1, ON_ALL)
def evaluation(folder: Path, seconds: float) -> None:
    a, more = torch.randn(400, 400), until(seconds)
    with torch.no_grad():
        while more():
            a @ a


@on(ON_RANK_1)
def python_loop(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        sum(range(1000))


@on(ON_RANK_0, FIRST)
def sort_of_a_long_list(folder: Path, seconds: float) -> None:
    """One C call that holds the interpreter's lock."""
    [random.random() for _ in range(int(400_000 * seconds))].sort()


@on(ON_RANK_0, FIRST)
def json_of_100_mb(folder: Path, seconds: float) -> None:
    text = json.dumps([{"n": n, "text": "x" * 20} for n in range(int(200_000 * seconds))])
    json.loads(text)


@on(ON_RANK_1)
def regular_expression(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        re.match(r"(a+)+$", "a" * 24 + "b")


@on(ON_RANK_0)
def garbage_collection(folder: Path, seconds: float) -> None:
    heap = [[n, [n]] for n in range(1_000_000)]
    more = until(seconds)
    while more():
        gc.collect()
    heap.clear()


@on(ON_RANK_1)
def memory_that_is_touched(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        bytearray(b"\1" * (128 << 20))


@on(FIRST)
def first_step_compiles(folder: Path, seconds: float) -> None:
    source = "\n".join(f"def f{n}(x):\n    return [x + {n} for x in range(x)]" for n in range(3000))
    more = until(seconds)
    while more():
        compile(source, "generated.py", "exec")


@on(FIRST_ALL)
def first_steps_of_90_s(folder: Path, seconds: float) -> None:
    evaluation(folder, 90.0)


# --- data and children ---------------------------------------------------------------------------------------------


@on(ON_RANK_1)
def data_from_a_slow_pipe(folder: Path, seconds: float) -> None:
    writer = f"import os, time\nfor _ in range({int(seconds * 4)}): os.write(1, bytes(30000)); time.sleep(0.25)"
    with subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        while child.stdout.read(4096):
            pass


class Slow(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, seconds: float, is_busy: bool) -> None:
        self.seconds, self.is_busy = seconds, is_busy

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.is_busy:
            python_loop(Path(), self.seconds)
        else:
            time.sleep(self.seconds)
        return torch.zeros(1)


@on(ON_RANK_1)
def loader_whose_worker_computes(folder: Path, seconds: float) -> None:
    list(torch.utils.data.DataLoader(Slow(seconds, True), num_workers=1))


@on(ON_RANK_1, ON_ALL)
def loader_whose_worker_waits(folder: Path, seconds: float) -> None:
    list(torch.utils.data.DataLoader(Slow(seconds, False), num_workers=1))


@on(ON_RANK_0)
def child_that_computes(folder: Path, seconds: float) -> None:
    loop = f"import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: sum(range(1000))"
    subprocess.run([sys.executable, "-c", loop], check=True)


@on(ON_RANK_0)
def child_that_sleeps(folder: Path, seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


@on(ON_RANK_0)
def pool_of_processes(folder: Path, seconds: float) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(time.sleep, [(seconds / 2,)] * 4)


@on(ON_RANK_0)
def queue_of_a_thread(folder: Path, seconds: float) -> None:
    done: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: (python_loop(folder, seconds), done.put(1))).start()
    done.get()


# --- waits that end ------------------------------------------------------------------------------------------------


@on(ON_RANK_0, ON_RANK_1)
def sleep(folder: Path, seconds: float) -> None:
    time.sleep(seconds)


@on(ON_RANK_0)
def sleep_longer_than_the_idle_limit(folder: Path, seconds: float) -> None:
    time.sleep(75.0)


@on(ON_RANK_0)
def event_loop(folder: Path, seconds: float) -> None:
    asyncio.run(asyncio.sleep(seconds))


@on(ON_RANK_1)
def alarm(folder: Path, seconds: float) -> None:
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(round(seconds))
    signal.pause()


@on(ON_RANK_0)
def prompt_at_a_terminal(folder: Path, seconds: float) -> None:
    """A debugger's prompt that somebody answers after 75 seconds."""
    ours, theirs = pty.openpty()
    if not os.fork():
        time.sleep(75.0)
        os.write(ours, b"continue\n")
        os._exit(0)
    with io.TextIOWrapper(io.FileIO(theirs, "r")) as terminal:
        terminal.readline()


@on(ON_RANK_0)
def poll_of_a_file(folder: Path, seconds: float) -> None:
    more = until(seconds)
    while more():
        select.select([], [], [], 0.5)


@on(ALONE)
def evaluation_in_one_process(folder: Path, seconds: float) -> None:
    evaluation(folder, 40.0)


@on(ALONE)
def ranks_that_speak_over_sockets(folder: Path, seconds: float) -> None:
    """Like an MPI program: rank 0 computes, the others wait in a read."""
    meet = folder / f"meet-{os.environ.get('HOLDFAST_GENERATION', '0')}"
    if RANK == 0:
        listener = socket.create_server(("127.0.0.1", 0))
        meet.with_suffix(".part").write_text(str(listener.getsockname()[1]))
        meet.with_suffix(".part").rename(meet)
        peers = [listener.accept()[0] for _ in range(WORLD - 1)]
        evaluation(folder, seconds)
        for peer in peers:
            peer.sendall(b"x")
        return
    while not meet.exists():
        time.sleep(0.1)
    socket.create_connection(("127.0.0.1", int(meet.read_text()))).recv(1)


CASES = {
    **{f"rank 0: {name}": ("rank0", pause) for name, pause in ON_RANK_0.items()},
    **{f"rank 1: {name}": ("rank1", pause) for name, pause in ON_RANK_1.items()},
    **{f"all: {name}": ("all", pause) for name, pause in ON_ALL.items()},
    **{f"first, rank 0: {name}": ("first", pause) for name, pause in FIRST.items()},
    **{f"first, all: {name}": ("first-all", pause) for name, pause in FIRST_ALL.items()},
    **{f"alone: {name}": ("alone", pause) for name, pause in ALONE.items()},
}


def main() -> None:
    case, folder, seconds = arguments()
    where, pause = CASES[case]
    if where == "first-all" or (where == "first" and RANK == 0):
        pause(folder, seconds)
    trainer = Trainer(folder, where != "alone")
    trainer.steps(BEFORE)
    mark(folder, "begun")
    if where == "rank0":
        if RANK == 0:
            pause(folder, seconds)
        dist.barrier()
    elif where in ("all", "alone") or (where == "rank1" and RANK == 1):
        pause(folder, seconds)
    mark(folder, "over")
    trainer.steps(AFTER)
    mark(folder, "ended")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
