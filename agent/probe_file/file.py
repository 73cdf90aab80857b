"""A probe file as its reader sees it: copied out with pread, never mapped.

Any process of the user can write into the file, and can cut it short: to touch a page of a mapping that lies beyond
its end is a SIGBUS, which would end the agent. What is beyond the end reads as zeros here.
"""

import os
import stat
import struct

from holdfast.agent.probe_file import layout
from holdfast.base.errors import ProtocolError, Unavailable

_WORD = struct.Struct("<q")


class ProbeFile:
    """Raises Unavailable where there is no such file and ProtocolError where it is no probe file of this version."""

    __slots__ = ("_fd", "generation", "rank")

    def __init__(self, path: str) -> None:
        self._fd = -1
        try:
            # A link is not followed and a pipe is not waited for, whoever put it there.
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise Unavailable(f"cannot open the probe file {path}: {error.strerror}") from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ProtocolError(f"{path} is no probe file, not even a regular file")
            self.rank, self.generation = layout.read_header(path, fd, found.st_size)
        except OSError as error:
            os.close(fd)
            raise Unavailable(f"cannot read the probe file {path}: {error.strerror}") from None
        except ProtocolError:
            os.close(fd)
            raise
        self._fd = fd

    def __getitem__(self, where: slice) -> bytes:
        """The bytes from `where.start` to `where.stop`."""
        size = where.stop - where.start
        raw = os.pread(self._fd, size, where.start) if self._fd >= 0 else b""
        return raw if len(raw) == size else raw.ljust(size, b"\0")

    def word(self, index: int) -> int:
        """One of the `WORD_*`, or any other 8 bytes: signed."""
        raw = os.pread(self._fd, 8, 8 * index) if self._fd >= 0 else b""
        number: int = _WORD.unpack(raw if len(raw) == 8 else raw.ljust(8, b"\0"))[0]
        return number

    def put_word(self, index: int, value: int) -> None:
        os.pwrite(self._fd, _WORD.pack(value), 8 * index)

    def close(self) -> None:
        """Harmless to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
