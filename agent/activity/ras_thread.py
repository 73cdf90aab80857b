"""What NCCL's RAS has open in a worker: its sockets always move, whatever the worker does.

RAS threads keep each other alive once a second, and answer whoever asks about the job, the agents among them. Neither
is a movement of the worker. All that such a thread has open, it polls; so its sockets are those of its system call.
"""

import os
import struct
from contextlib import suppress

from holdfast.agent.processes.proc_files import parse_call, read

NAME = "NCCL RAS"
"""Of the thread, since NCCL 2.24, with NCCL_SET_THREAD_NAME=1, which workers are started with."""
_MOST = 4096
_POLLFD = struct.Struct("<ihh")


class RasThread:
    """Of one process."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._folder = f"{proc}/{pid}"
        self.tid = 0
        """Set by the code that reads the threads; 0: none was seen."""
        self._last: frozenset[int] = frozenset()
        self._older: frozenset[int] = frozenset()

    def fds(self, main_state: str) -> frozenset[int]:
        """Descriptors that it has open, or had at the look before. In state D of the main thread those known before:
        the memory of such a process is not to be touched."""
        if self.tid and main_state != "D":
            call = parse_call(read(f"{self._folder}/task/{self.tid}/syscall", 512))
            if call is not None and call.name in ("poll", "ppoll") and call.args[1] > 0:
                raw = self._memory(call.args[0], _POLLFD.size * min(call.args[1], _MOST))
                found = [fd for fd, _, _ in _POLLFD.iter_unpack(raw[: len(raw) // 8 * 8]) if fd >= 0]
                self._older, self._last = self._last, frozenset(found)
        return self._last | self._older

    def _memory(self, address: int, size: int) -> bytes:
        with suppress(OSError, OverflowError):
            fd = os.open(f"{self._folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, size, address)
            finally:
                os.close(fd)
        return b""
