"""A worker's output in memory that belongs to no file system: it neither blocks nor fails, whether it is read or not.

The worker appends to an anonymous file (memfd). A pipe would block it while it is not read, and end it when the reader
dies; a file on a disk fails when the disk is full. The fork server holds the descriptors, so that a restarted agent
goes on reading. What was read is returned to the kernel: offsets grow without end, memory does not.
"""

import contextlib
import ctypes
import errno
import fcntl
import os

PAGE = os.sysconf("SC_PAGE_SIZE")
MOST = 32 << 20
"""Bytes that one stream may hold unread ..."""
KEPT = 16 << 20
"""... and how many of them, the newest, stay when it has more."""
NAME = "holdfast-output"
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
FULL = (errno.ENOSPC, errno.EDQUOT)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def create() -> int:
    """A descriptor to append to. OSError where the kernel has no such files."""
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


def path(pid: int, fd: int) -> str:
    """Where another process opens what `pid` holds as `fd`."""
    return f"/proc/{pid}/fd/{fd}"


def is_ours(where: str) -> bool:
    """Does this entry of /proc/PID/fd lead to such a file?"""
    try:
        return os.readlink(where).startswith(f"/memfd:{NAME}")
    except OSError:
        return False


def held(fd: int) -> int:
    """Bytes of memory that it takes."""
    return os.fstat(fd).st_blocks * 512


def begin(fd: int, at: int) -> int:
    """The first offset from `at` on of which there is data; the size when there is none."""
    try:
        return os.lseek(fd, at, os.SEEK_DATA)
    except OSError:
        return os.lseek(fd, 0, os.SEEK_END)


def unread(fd: int) -> int:
    """Where a new reader begins: behind what an earlier one has taken (see `take`)."""
    at = begin(fd, 0)
    return at + len(raw) - len(raw.lstrip(b"\0")) if (raw := os.pread(fd, PAGE, at)) else at


def take(fd: int, start: int, end: int) -> None:
    """Give back what lies between: whole pages to the kernel, and the rest of a page is zeroed, so that the next reader
    finds where this one was. `fd` must not be open for appending."""
    edge = end - end % PAGE
    first = start - start % PAGE
    if edge > first:
        give_back(fd, first, edge)
    if (tail := max(start, edge)) < end:
        os.pwrite(fd, bytes(end - tail), tail)


def bound(fd: int) -> tuple[int, int]:
    """The pages that must go, so that the newest KEPT bytes stay; (0, 0) while it holds no more than MOST."""
    if held(fd) <= MOST:
        return 0, 0
    size = os.lseek(fd, 0, os.SEEK_END)
    start, end = begin(fd, 0), size - KEPT
    return start - start % PAGE, end - end % PAGE


def spill(fd: int, where: str, end: int) -> None:
    """What is unread up to `end` goes to the end of a file, as far as there is room: its reader is away."""
    at = unread(fd)
    with contextlib.suppress(OSError), open(where, "ab", buffering=0) as file:
        while at < end and (raw := os.pread(fd, min(end - at, 1 << 20), at)):
            at += file.write(raw)


def give_back(fd: int, start: int, end: int) -> None:
    if _libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, end - start):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def reserve(fd: int, length: int) -> None:
    """Have blocks for the first `length` bytes of a file on a disk, where its file system can."""
    _libc.fallocate(fd, _KEEP_SIZE, 0, length)
