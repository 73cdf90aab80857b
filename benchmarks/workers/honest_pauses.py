"""Honest pauses of an unmodified script: each ends by itself, and so does the script, with exit code 0.

torchrun --nproc-per-node 3 benchmarks/workers/honest_pauses.py CASE FOLDER SECONDS
"""

import asyncio
import gc
import io
import json
import multiprocessing
import os
import pdb
import pty
import queue
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import honest_saving  # noqa: F401  # whose pauses are in the same tables
import torch
import torch.distributed as dist
from pausing import ALONE, FIRST, FIRST_ALL, ON_ALL, ON_RANK_0, ON_RANK_1, ON_SOME, RANK_0_ALONE, on, server, until
from standing import AFTER, BEFORE, RANK, WORLD, Trainer, arguments, mark

# --- the network ---------------------------------------------------------------------------------------------------


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


@on(ON_RANK_0, ON_RANK_1, ON_SOME, ON_ALL)
def evaluation(folder: Path, seconds: float) -> None:
    a, more = torch.randn(400, 400), until(seconds)
    with torch.no_grad():
        while more():
            a @ a


@on(ON_ALL)
def evaluation_of_40_s(folder: Path, seconds: float) -> None:
    evaluation(folder, 40.0)


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


def torch_compile(folder: Path, seconds: float) -> None:
    """Into an empty cache, as on a new host or after a change of shapes."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"inductor-{RANK}")
    layers = [torch.nn.Linear(64 + n, 64 + n + 1) for n in range(4)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))
    torch.compile(model)(torch.randn(8, 64)).square().mean().backward()


if shutil.which(os.environ.get("CXX", "g++")):
    on(ON_RANK_1, ON_ALL, FIRST_ALL)(torch_compile)


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
    """A debugger's prompt that is answered after 75 seconds."""
    ours, theirs = pty.openpty()
    if not os.fork():
        time.sleep(75.0)
        os.write(ours, b"continue\n")
        os._exit(0)
    with io.TextIOWrapper(io.FileIO(theirs, "r")) as terminal:
        terminal.readline()


@on(ON_RANK_0)
def prompt_of_a_debugger(folder: Path, seconds: float) -> None:
    """pdb at a terminal, where `continue` is typed after 75 seconds."""
    ours, theirs = pty.openpty()
    if not os.fork():
        time.sleep(75.0)
        os.write(ours, b"continue\n")
        time.sleep(5.0)
        os._exit(0)
    with os.fdopen(theirs, "r") as terminal, open(os.devnull, "w") as nowhere:
        pdb.Pdb(stdin=terminal, stdout=nowhere).set_trace()


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
    **{f"ranks 0 and 1: {name}": ("some", pause) for name, pause in ON_SOME.items()},
    **{f"rank 0, no barrier: {name}": ("rank0-alone", pause) for name, pause in RANK_0_ALONE.items()},
    **{f"all: {name}": ("all", pause) for name, pause in ON_ALL.items()},
    **{f"first, rank 0: {name}": ("first", pause) for name, pause in FIRST.items()},
    **{f"first, all: {name}": ("first-all", pause) for name, pause in FIRST_ALL.items()},
    **{f"alone: {name}": ("alone", pause) for name, pause in ALONE.items()},
}

PAUSED = {"rank0": (0,), "rank0-alone": (0,), "rank1": (1,), "some": (0, 1)}
"""Which ranks pause, where it is not all."""


def main() -> None:
    case, folder, seconds = arguments()
    where, pause = CASES[case]
    if where == "first-all" or (where == "first" and RANK == 0):
        pause(folder, seconds)
    trainer = Trainer(folder, where != "alone")
    trainer.steps(BEFORE)
    mark(folder, "begun")
    if RANK in PAUSED.get(where, range(WORLD if where in ("all", "alone") else 0)):
        pause(folder, seconds)
    if where in ("rank0", "some"):
        dist.barrier()
    mark(folder, "over")
    trainer.steps(AFTER)
    mark(folder, "ended")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
