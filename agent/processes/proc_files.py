"""What the kernel's files of a process say: text in, plain values out.

A file that is cut off, damaged or of a kernel that writes it otherwise gives None, never an error: the heartbeat
reads these values. Nothing here opens a file, but for `read`.
"""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass

from holdfast.agent.processes.system_calls import ARCHITECTURES

TICK_S = 1.0 / (os.sysconf("SC_CLK_TCK") or 100)
MOST = 64 * 1024
"""Bytes read of one file."""


def read(path: str, most: int = MOST) -> bytes:
    """What a small file holds; empty when it is gone or may not be read."""
    with suppress(OSError, ValueError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, most)
        finally:
            os.close(fd)
    return b""


def read_all(path: str, most: int) -> bytes:
    """The same of a list that the kernel hands out in pieces."""
    pieces, size = [], 0
    with suppress(OSError, ValueError), open(path, "rb", buffering=0) as file:
        while size < most and (piece := file.read(MOST)):
            pieces.append(piece)
            size += len(piece)
    return b"".join(pieces)


@dataclass(frozen=True, slots=True)
class Stat:
    """/proc/PID/stat or /proc/PID/task/TID/stat. Times in seconds; `reaped` is of children that were waited for."""

    name: str
    state: str
    parent: int
    session: int
    minor_faults: int
    reaped_faults: int
    major_faults: int
    cpu: float
    reaped: float
    threads: int
    start_ticks: int


def parse_stat(raw: bytes) -> Stat | None:
    """None unless whole. The command name may hold blanks and parentheses: fields are counted from its end."""
    begin, end = raw.find(b"("), raw.rfind(b") ")
    if not 0 < begin < end:
        return None
    fields = raw[end + 2 :].split()
    try:
        return Stat(
            name=raw[begin + 1 : end].decode("utf-8", "replace"),
            state=fields[0].decode("ascii", "replace")[:1],
            parent=int(fields[1]),
            session=int(fields[3]),
            minor_faults=int(fields[7]),
            reaped_faults=int(fields[8]),
            major_faults=int(fields[9]),
            cpu=(int(fields[11]) + int(fields[12])) * TICK_S,
            reaped=(int(fields[13]) + int(fields[14])) * TICK_S,
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )
    except (ValueError, IndexError):
        return None


@dataclass(frozen=True, slots=True)
class Io:
    """/proc/PID/io, bytes: what went through system calls, and what reached or came from disks."""

    read: int
    written: int
    disk_read: int
    disk_written: int

    @property
    def taken(self) -> int:
        """A file that is mapped is read without a system call, a cached one without a disk: no byte counts twice."""
        return max(self.read, self.disk_read)

    @property
    def given(self) -> int:
        return max(self.written, self.disk_written)


_IO_KEYS = [b"rchar:", b"wchar:", b"syscr:", b"syscw:", b"read_bytes:", b"write_bytes:"]


def parse_io(raw: bytes) -> Io | None:
    words = raw.split()
    if words[:12:2] == _IO_KEYS:  # as all kernels write it: a third of the time
        with suppress(ValueError, IndexError):
            return Io(int(words[1]), int(words[3]), int(words[9]), int(words[11]))
    found = _numbers(raw)
    try:
        return Io(found[b"rchar"], found[b"wchar"], found[b"read_bytes"], found[b"write_bytes"])
    except KeyError:
        return None


def parse_schedstat(raw: bytes) -> tuple[int, int] | None:
    """Nanoseconds on a processor, and how often it came onto one."""
    try:
        ran, _, slices = raw.split()[:3]
        return int(ran), int(slices)
    except ValueError:
        return None


def parse_runnable(raw: bytes) -> int | None:
    """Of a thread's schedstat: nanoseconds on a processor, or in wait for one."""
    try:
        ran, waited = raw.split()[:2]
        return int(ran) + int(waited)
    except ValueError:
        return None


def parse_status(raw: bytes, key: str) -> int | None:
    """One number of /proc/PID/status: "TracerPid", "voluntary_ctxt_switches"."""
    return _numbers(raw).get(key.encode())


def parse_signals(raw: bytes, key: str) -> int:
    """A set of /proc/PID/status, bit by bit: "SigCgt", signals with a handler; "SigBlk", those that a thread blocks."""
    for line in raw.splitlines():
        if line.startswith(key.encode() + b":"):
            with suppress(ValueError):
                return int(line.partition(b":")[2], 16)
    return 0


def parse_image(raw: bytes) -> tuple[int, ...]:
    """Of /proc/PID/stat: where the program's code, stack, arguments and environment lie, which another image has
    elsewhere. Empty where that may not be read."""
    fields = raw[raw.rfind(b") ") + 2 :].split()
    try:
        found = tuple(int(fields[at]) for at in (23, 24, 25, 45, 46, 47, 48))
    except (ValueError, IndexError):
        return ()
    return found if any(found[2:]) else ()


@dataclass(frozen=True, slots=True)
class Call:
    """A system call in which a thread is. `name` empty: not one of those that `system_calls` knows."""

    number: int
    name: str
    args: tuple[int, ...]


RUNNING = Call(-2, "", ())
"""On a processor, or about to be."""
NO_CALL = Call(-1, "", ())
"""Blocked, but in no system call: a page fault."""


def parse_call(raw: bytes, machine: str = platform.machine()) -> Call | None:
    """/proc/PID/syscall; None when it may not be read or is not understood."""
    words = raw.split()
    if words[:1] == [b"running"]:
        return RUNNING
    try:
        number = int(words[0])
        if number < 0:
            return NO_CALL
        args = tuple(int(word, 16) for word in words[1:7])
    except (ValueError, IndexError):
        return None
    if len(args) < 6:
        return None
    return Call(number, ARCHITECTURES.get(machine, {}).get(number, ""), args)


@dataclass(frozen=True, slots=True)
class FdInfo:
    """/proc/PID/fdinfo/FD."""

    position: int = 0
    flags: int = 0
    watched: tuple[int, ...] = ()
    """Descriptors that an epoll watches."""
    pid: int = 0
    """Process that a pidfd stands for."""

    @property
    def can_write(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY

    @property
    def can_read(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_WRONLY


def parse_fdinfo(raw: bytes) -> FdInfo:
    position, flags, pid, watched = 0, 0, 0, []
    for line in raw.splitlines():
        key, _, value = line.partition(b":")
        with suppress(ValueError, IndexError):
            if key == b"pos":
                position = int(value)
            elif key == b"flags":
                flags = int(value, 8)
            elif key == b"Pid":
                pid = int(value)
            elif key.strip() == b"tfd":
                watched.append(int(value.split()[0]))
    return FdInfo(position, flags, tuple(watched), pid)


def _numbers(raw: bytes) -> dict[bytes, int]:
    found = {}
    for line in raw.splitlines():
        key, _, value = line.partition(b":")
        if (text := value.strip()).isdigit():
            found[key] = int(text)
    return found
