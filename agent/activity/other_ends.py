"""Who holds the other end of what a worker waits on, where that is no process of its own: a daemon behind a socket.

A worker that waits for a database, a checkpoint daemon or a proxy does nothing itself, and still goes on by
itself: what counts is whether the process at the other end moves. Shared memory has no other end that could be seen.
"""

import os
import time
from collections.abc import Collection
from contextlib import suppress
from itertools import islice

from holdfast.agent.processes.proc_files import parse_fdinfo, read
from holdfast.agent.processes.sockets import Sockets

AGAIN_S = 5.0
"""Seconds between searches for an end that was not found."""
BUDGET_S = 0.004
"""Of processor time for one turn of a search: the descriptors of all processes of a host are many."""
MOST_FDS = 512
MOST_ENDS = 8


def far_links(links: Collection[str], known: Sockets) -> list[str]:
    """What the other end of each of these descriptors is open on, as /proc/PID/fd shows it.

    A pipe's ends look the same; a socket's is another socket, of this host or of none.
    """
    found = []
    by_place: dict[tuple[str, str], int] | None = None
    for link in list(links)[:MOST_ENDS]:
        if link.startswith("pipe:"):
            found.append(link)
        elif link.startswith("socket:[") and link[8:-1].isdigit():
            inode = int(link[8:-1])
            if (unix := known.unix.get(inode)) is not None and unix.peer:
                found.append(f"socket:[{unix.peer}]")
            elif (tcp := known.tcp.get(inode)) is not None and tcp.remote:
                if by_place is None:
                    by_place = {(one.local, one.remote): number for number, one in known.tcp.items()}
                if (other := by_place.get((tcp.remote, tcp.local))) is not None:
                    found.append(f"socket:[{other}]")
    return found


class Holders:
    """Finds processes by what they have open: a piece of the host at each call, until all wanted are found."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._wanted: frozenset[str] = frozenset()
        self._left: list[int] = []
        self._found: dict[str, set[int]] = {}
        self._begun = 0.0

    def look(self, links: Collection[str], without: Collection[int], now: float) -> set[int]:
        """Processes that hold one of these, but for `without`. What is not found yet may come with a later call."""
        wanted = frozenset(links)
        if wanted != self._wanted:
            self._wanted, self._found, self._left, self._begun = wanted, {}, [], 0.0
        if not wanted:
            return set()
        if not self._left and (not self._begun or (now - self._begun > AGAIN_S and wanted - self._found.keys())):
            self._begun = now
            # The youngest first: what a job needs is started with it.
            self._left = sorted(int(name) for name in os.listdir(self._proc) if name.isdigit())
        deadline = time.thread_time() + BUDGET_S
        while self._left and time.thread_time() < deadline:
            pid = self._left.pop()
            if pid not in without:
                self._search(pid)
        return {pid for pids in self._found.values() for pid in pids if os.path.isdir(f"{self._proc}/{pid}")}

    def _search(self, pid: int) -> None:
        with suppress(OSError), os.scandir(f"{self._proc}/{pid}/fd") as entries:
            for entry in islice(entries, MOST_FDS):
                with suppress(OSError):
                    link = os.readlink(entry.path)
                    if link in self._wanted and (link.startswith("socket:") or self._is_pipes_end(pid, entry.name)):
                        self._found.setdefault(link, set()).add(pid)

    def _is_pipes_end(self, pid: int, fd: str) -> bool:
        info = parse_fdinfo(read(f"{self._proc}/{pid}/fdinfo/{fd}", 4096))
        return info.can_read or info.can_write
