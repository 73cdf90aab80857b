"""What a process has open, and whether that changes: within bounds, however many descriptors it has.

Links and positions are read by descriptor and by turns, so that a process with 50,000 of them costs no more than one
with a few hundred. None of it opens or touches the files themselves: a file system that hangs blocks no thread.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from holdfast.agent.processes.proc_files import parse_fdinfo, read

MOST_NAMES = 1024
"""Descriptors that are looked at."""
MOST_LINKS = 256
"""Links read in one turn, beyond those of new descriptors in the first."""
MOST_POSITIONS = 32
GPU_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""What CUDA and ROCm keep open from the first question on; NVML, which may be asked, does not open these."""
_NO_POSITION = ("/dev/", "/proc/", "/sys/")


class Descriptors:
    """Of one process. `look` says whether something changed since the last call."""

    def __init__(self, pid: int, proc: str = "/proc") -> None:
        self._folder = f"{proc}/{pid}"
        self.links: dict[int, str] = {}
        self._names: frozenset[int] | None = None
        self._positions: dict[int, int] = {}
        self._turn = 0
        self.is_whole = True
        """Whether all descriptors are looked at."""

    def look(self, ignored: frozenset[int] = frozenset()) -> bool:
        """`ignored`: descriptors that may come and go."""
        names = frozenset(self._list())
        changed = self._names is not None and bool((names ^ self._names) - ignored)
        gone = self.links.keys() - names
        for fd in gone:
            del self.links[fd]
            self._positions.pop(fd, None)
        new = sorted(names - self.links.keys())
        turns = sorted(names - set(new))
        start = self._turn % len(turns) if turns else 0
        again = (turns[start:] + turns[:start])[:MOST_LINKS]
        for fd in [*new[:MOST_NAMES], *again]:
            link = self._link(fd)
            before = self.links.get(fd)
            if link and before is not None and link != before:
                changed |= fd not in ignored
                self._positions.pop(fd, None)
            self.links[fd] = link or (before or "")
        changed |= self._moved()
        self._turn += MOST_LINKS
        self._names = names
        return changed

    @property
    def sockets(self) -> set[int]:
        """Inodes."""
        return self.sockets_of(self.links)

    def sockets_of(self, fds: Iterable[int]) -> set[int]:
        """Inodes of those of these that are sockets."""
        found = set()
        for link in (self.links.get(fd, "") for fd in fds):
            if link.startswith("socket:["):
                with suppress(ValueError):
                    found.add(int(link[8:-1]))
        return found

    @property
    def has_gpu(self) -> bool:
        return any(link.startswith(GPU_DRIVERS) for link in self.links.values())

    def _list(self) -> Iterator[int]:
        with suppress(OSError), os.scandir(f"{self._folder}/fd") as entries:
            # Not the whole list: the kernel makes it up piece by piece, as it is asked for.
            yield from (int(entry.name) for entry in islice(entries, MOST_NAMES) if entry.name.isdigit())

    def _link(self, fd: int) -> str:
        with suppress(OSError):
            return os.readlink(f"{self._folder}/fd/{fd}")
        return ""

    def _moved(self) -> bool:
        files = [fd for fd, link in self.links.items() if link.startswith("/") and not link.startswith(_NO_POSITION)]
        start = self._turn % len(files) if files else 0
        moved = False
        for fd in (files[start:] + files[:start])[:MOST_POSITIONS]:
            position = parse_fdinfo(read(f"{self._folder}/fdinfo/{fd}", 4096)).position
            moved |= self._positions.get(fd, position) != position
            self._positions[fd] = position
        return moved
