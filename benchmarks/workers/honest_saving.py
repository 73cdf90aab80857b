"""Honest pauses in which an unmodified script saves: by the libraries of the field, to slow disks and pipes."""

import contextlib
import hashlib
import mmap
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from pausing import ON_ALL, ON_RANK_0, RANK_0_ALONE, SlowFile, on, server, until
from standing import RANK


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
def torch_save_for_20_s(folder: Path, seconds: float) -> None:
    torch_save(folder, 20.0)


@on(ON_RANK_0)
def one_torch_save_to_a_slow_disk(folder: Path, seconds: float) -> None:
    """One call, 20 seconds."""
    with SlowFile(folder / "slow.pt", 4e6) as file:
        torch.save({f"w{n}": torch.randn(1 << 20) for n in range(20)}, file)


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


@on(ON_ALL)
def dcp_save_to_a_slow_disk(folder: Path, seconds: float) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter

    class SlowDisk(FileSystem):
        @contextlib.contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            if "w" not in mode:
                with super().create_stream(path, mode) as stream:
                    yield stream
                return
            with SlowFile(path, 16e6 / seconds) as stream:
                yield stream

    writer = FileSystemWriter(folder / "dcp-slow", sync_files=False)
    writer.fs = SlowDisk()
    dcp.save({f"w{RANK}": torch.randn(4 << 20), "all": torch.randn(16)}, storage_writer=writer)


class Callbacks:
    """What the Trainer of Hugging Face's transformers does after a step, without the library: it calls each callback,
    and those of which only the first process is to do something look for themselves."""

    def __init__(self, *callbacks: Any) -> None:
        self.callbacks = callbacks

    def call(self, event: str, **state: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event, lambda **_: None)(**state)


class Upload:
    """The last checkpoint goes to a hub that takes 8 seconds."""

    def on_save(self, is_world_process_zero: bool, folder: Path) -> None:
        if not is_world_process_zero:
            return
        torch.save({"w": torch.randn(1 << 16)}, folder / "last.pt")
        content = (folder / "last.pt").read_bytes()
        with socket.create_connection(server(_take_slowly)) as hub:
            hub.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
            hub.sendall(content * 5)
            hub.shutdown(socket.SHUT_WR)
            hub.recv(1)


def _take_slowly(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    while peer.recv(32768):
        time.sleep(0.2)


@on(RANK_0_ALONE)
def callback_that_uploads(folder: Path, seconds: float) -> None:
    Callbacks(object(), Upload()).call("on_save", is_world_process_zero=RANK == 0, folder=folder)
