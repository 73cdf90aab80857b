"""The processes that workers have started, also those that left their process group, at little cost.

`process_tree` looks at every process of the host each time, which is right for ending them. Here the same is asked
again and again: what a process belongs to is found once, when it is new, and kept until it ends.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agent.processes.proc_files import Stat, parse_stat, read
from holdfast.agent.processes.tree import MARK

REFRESH_S = 10.0
"""Seconds after which all processes are looked at again: an id may have been used twice."""
MOST_NEW = 2_000
"""Processes looked at in one turn; the rest come in the next."""
_ENVIRONMENT = 128 * 1024
_KERNEL = 2  # kthreadd, the parent of kernel threads


@dataclass(frozen=True, slots=True)
class _Known:
    parent: int
    session: int
    start_ticks: int
    marked: str


class Descendants:
    """Of any number of workers, found by the process id of each and, where known, its mark (`process_tree.MARK`)."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._owners: dict[int, int] = {}  # process -> worker, for as long as both run
        self._children: dict[int, list[int]] = {}
        self._sessions: dict[int, list[int]] = {}
        self._marked: dict[str, list[int]] = {}
        self._refreshed = -REFRESH_S

    def look(self, now: float) -> None:
        """See which processes there are now. Never raises."""
        try:
            present = {int(name) for name in os.listdir(self._proc) if name.isdigit()}
        except OSError:
            return
        before = self._known
        new = present if now - self._refreshed >= REFRESH_S else present - before.keys()
        if new is present:
            self._refreshed = now
        known = {pid: one for pid, one in before.items() if pid in present}
        for pid in sorted(new)[:MOST_NEW]:
            stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
            if stat is None:
                known.pop(pid, None)
                continue
            old = known.get(pid)
            is_same = old is not None and old.start_ticks == stat.start_ticks
            if not is_same:
                self._owners.pop(pid, None)
            marked = old.marked if old is not None and is_same else self._mark(pid, stat)
            known[pid] = _Known(stat.parent, stat.session, stat.start_ticks, marked)
        self._owners = {pid: owner for pid, owner in self._owners.items() if pid in known}
        if known != before:
            self._known = known
            self._index()

    def _index(self) -> None:
        self._children, self._sessions, self._marked = {}, {}, {}
        for pid, one in self._known.items():
            self._children.setdefault(one.parent, []).append(pid)
            self._sessions.setdefault(one.session, []).append(pid)
            if one.marked:
                self._marked.setdefault(one.marked, []).append(pid)

    @property
    def began(self) -> dict[int, int]:
        """All processes of the host, and when each began (clock ticks)."""
        return {pid: one.start_ticks for pid, one in self._known.items()}

    def of(self, worker: int, mark: str = "") -> list[int]:
        """Running processes that this worker has started, without itself, oldest first."""
        own = self._known.get(worker)
        stack = [worker, *(pid for pid, owner in self._owners.items() if owner == worker)]
        if own is not None and own.session == worker:
            stack += self._sessions.get(worker, ())
        stack += self._marked.get(mark, ()) if mark else ()
        found: set[int] = set()
        while stack:
            pid = stack.pop()
            if pid not in found:
                found.add(pid)
                stack += self._children.get(pid, ())
        found -= {worker, os.getpid()}
        for pid in found:
            self._owners[pid] = worker
        return sorted(found, key=lambda pid: (self._known[pid].start_ticks if pid in self._known else 0, pid))

    def forget(self, worker: int) -> None:
        self._owners = {pid: owner for pid, owner in self._owners.items() if owner != worker}

    def _mark(self, pid: int, stat: Stat) -> str:
        """The worker's mark in its environment. That is memory of the process: not where reading it could block."""
        if stat.parent == _KERNEL or pid == _KERNEL or stat.state in "DXZ":
            return ""
        return mark_in(read(f"{self._proc}/{pid}/environ", _ENVIRONMENT))


def mark_in(environment: bytes) -> str:
    wanted = f"{MARK}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(wanted):
            return entry[len(wanted) :].decode("utf-8", "replace")
    return ""


def names(pids: Iterable[int], proc: str = "/proc") -> dict[int, str]:
    """Commands of processes, as far as they can be had."""
    found = {}
    for pid in pids:
        if text := read(f"{proc}/{pid}/comm").decode("utf-8", "replace").strip():
            found[pid] = text
    return found
