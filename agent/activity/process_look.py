"""Questions about one process whose thread waits, put to the kernel's files: `waits.Look` at a real process."""

import os
from contextlib import suppress
from itertools import islice

from holdfast.agent.activity.host import HostLook
from holdfast.agent.processes import sockets
from holdfast.agent.processes.descendants import names
from holdfast.agent.processes.proc_files import FdInfo, parse_fdinfo, read

MOST_CHILDREN = 64
"""Descendants whose counters are read in one turn, and threads."""
MOST_THREADS = 1024
_NAMED = 3


def channel_of(task: str) -> str:
    """The wait channel; empty where the kernel does not report it ("0")."""
    text = read(f"{task}/wchan", 128).decode("ascii", "replace").strip()
    return "" if text == "0" else text


class ProcessLook:
    def __init__(self, pid: int, host: HostLook, state: str, now: float, relatives: list[int]) -> None:
        self._pid, self._host, self._state, self._now = pid, host, state, now
        self._relatives = relatives
        self._folder = f"{host.proc}/{pid}"

    def link(self, fd: int) -> str:
        with suppress(OSError):
            # Names of files are bytes, words are text that goes over the wire.
            return os.fsencode(os.readlink(f"{self._folder}/fd/{fd}")).decode("utf-8", "replace")
        return ""

    def info(self, fd: int) -> FdInfo:
        return parse_fdinfo(read(f"{self._folder}/fdinfo/{fd}"))

    def memory(self, address: int, size: int) -> bytes:
        if self._state == "D" or not 0 < address < 1 << 62 or size <= 0:
            return b""
        with suppress(OSError, OverflowError):
            fd = os.open(f"{self._folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, min(size, 4096), address)
            finally:
                os.close(fd)
        return b""

    def name(self, pid: int) -> str:
        return names([pid], self._host.proc).get(pid, "")

    def holders(self, link: str, writes: bool) -> str:
        """Looks among the worker's own relatives only: the whole host's descriptors would take too long."""
        found = []
        for pid in [self._pid, *self._relatives[:MOST_CHILDREN]]:
            if self._holds(pid, link, writes):
                if pid == self._pid:
                    found.append("it holds itself")
                else:
                    found.append(f"pid {pid} ({self.name(pid) or 'no name'}) holds")
        others = [one for one in found if one.startswith("pid ")] or found
        if len(others) > _NAMED:
            return f"{len(others)} of its children hold"
        return " and ".join(others)

    def _holds(self, pid: int, link: str, writes: bool) -> bool:
        folder = f"{self._host.proc}/{pid}"
        with suppress(OSError), os.scandir(f"{folder}/fd") as entries:
            for entry in islice(entries, MOST_THREADS):
                with suppress(OSError):
                    if os.readlink(entry.path) == link:
                        info = parse_fdinfo(read(f"{folder}/fdinfo/{entry.name}", 4096))
                        if info.can_write if writes else info.can_read:
                            return True
        return False

    def socket(self, inode: str) -> str:
        number = int(inode) if inode.isdigit() else 0
        known = self._host.sockets(self._now)
        if (tcp := known.tcp.get(number)) is not None:
            return tcp.words
        if number in known.unix:
            return "a unix socket"
        found = sockets.of_namespace(self._pid, self._host.proc).get(number)
        return found.words if found is not None else ""
