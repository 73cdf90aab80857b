"""Where the honest pauses of `honest_pauses.py` are kept, by the ranks that make them, and what several of them use."""

import io
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Pause = Callable[[Path, float], None]
ON_RANK_0: dict[str, Pause] = {}
"""By name: what rank 0 does while the others wait in a barrier."""
ON_RANK_1: dict[str, Pause] = {}
"""What rank 1 does on its way to the next step, in which the others wait for it."""
ON_SOME: dict[str, Pause] = {}
"""What ranks 0 and 1 do while the others wait in a barrier."""
RANK_0_ALONE: dict[str, Pause] = {}
"""What rank 0 does on its way to the next step, without a barrier."""
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


class SlowFile(io.RawIOBase):
    """A file on a disk that takes so many bytes a second."""

    def __init__(self, path: Path | str, bytes_per_s: float) -> None:
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115  # closed with this
        self.bytes_per_s = bytes_per_s

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        piece = max(1, int(self.bytes_per_s / 10))
        for start in range(0, len(view), piece):
            self.file.write(view[start : start + piece])
            time.sleep(len(view[start : start + piece]) / self.bytes_per_s)
        return len(view)

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def report(self) -> int:
        return self.file.tell()

    def fileno(self) -> int:
        return self.file.fileno()

    def close(self) -> None:
        self.file.close()
        super().close()
