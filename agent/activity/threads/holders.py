"""Names who can let a stopped, traced or frozen process go on. In words; read from the kernel's files.

A process that is alone in state T, with nothing that holds it, has no holder: nobody is known to let it go on.
"""

import os
from collections.abc import Collection, Iterator
from contextlib import suppress

from holdfast.agent.activity.process_look import channel_of
from holdfast.agent.activity.waits import FREEZER_CHANNELS
from holdfast.agent.processes.descendants import names
from holdfast.agent.processes.proc_files import Stat, parse_stat, parse_status, read

_STOPPED = ("T", "t")
_MOST_OTHERS = 256
_Mount = tuple[str, str]
"""Where a hierarchy is mounted, and which of its cgroups is the root there: empty for the topmost."""


class Holders:
    """Tracers, frozen cgroups and stops of processes of this host."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._mounts: tuple[_Mount, _Mount] | None = None

    def tracer(self, status: bytes) -> str:
        """`status`: of /proc/PID/status."""
        tracer = parse_status(status, "TracerPid") or 0
        if not tracer:
            return ""
        stat = parse_stat(read(f"{self._proc}/{tracer}/stat"))
        name = stat.name if stat is not None else "a process"
        # gcore is a shell script around gdb.
        if stat is not None and names([stat.parent], self._proc).get(stat.parent) == "gcore":
            name = "gcore"
        return f"{name} (pid {tracer}) traces it"

    def freezer(self, pid: int) -> str:
        """The frozen cgroup in which a process is; empty: none is."""
        for mount, path, is_unified in self._cgroups(pid):
            folder = os.path.normpath(f"{mount}/{path}")
            if ".." in path.split("/") or not _is_frozen(folder, is_unified):
                continue
            own = "cgroup.freeze" if is_unified else "freezer.self_freezing"
            at = folder
            while at.startswith(mount) and at != mount and read(f"{at}/{own}", 64).strip() != b"1":
                at = os.path.dirname(at)
            return f"the cgroup freezer ({at if at != mount else folder})"
        return ""

    def company(self, children: Collection[int], workers: Collection[int]) -> str:
        """Who is stopped together with a process that is. `children`: all that it has started. `workers`: other ones of
        this node."""
        own = [state for pid in list(children)[:_MOST_OTHERS] if (state := self._state(pid)) not in ("", "Z", "X")]
        # All or none: a signal to the process alone leaves its children as they are.
        together = len(own) if all(state in _STOPPED for state in own) else 0
        together += sum(self._is_held(pid) for pid in list(workers)[:_MOST_OTHERS])
        if not together:
            return ""
        return f"stopped together with {together} other process{'es' if together > 1 else ''} of its node"

    def of(self, stat: Stat, status: bytes, pid: int, channel: str) -> tuple[str, bool]:
        """Its tracer or freezer, and whether it is frozen. A frozen thread may be in any wait, in state D."""
        if by_tracer := self.tracer(status):
            return by_tracer, False
        is_asked = stat.state in ("D", *_STOPPED) or channel in (*FREEZER_CHANNELS, "get_signal")
        by_freezer = self.freezer(pid) if is_asked else ""
        if not by_freezer and channel in FREEZER_CHANNELS:
            return "the cgroup freezer", True
        return by_freezer, bool(by_freezer)

    def _state(self, pid: int) -> str:
        stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
        return stat.state if stat is not None else ""

    def _is_held(self, pid: int) -> bool:
        state = self._state(pid)
        if state in _STOPPED:
            return True
        is_asked = state == "D" or channel_of(f"{self._proc}/{pid}") in (*FREEZER_CHANNELS, "get_signal")
        return is_asked and bool(self.freezer(pid))

    def _cgroups(self, pid: int) -> Iterator[tuple[str, str, bool]]:
        """Where the hierarchies with a freezer are mounted, and the process's path there."""
        if self._mounts is None:
            self._mounts = _mounts(read(f"{self._proc}/self/mountinfo"))
        (unified, unified_root), (freezer, freezer_root) = self._mounts
        for line in read(f"{self._proc}/{pid}/cgroup").decode("utf-8", "replace").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if number == "0" and not controllers and unified:
                yield unified, path.removeprefix(unified_root), True
            elif "freezer" in controllers.split(",") and freezer:
                yield freezer, path.removeprefix(freezer_root), False


def _is_frozen(folder: str, is_unified: bool) -> bool:
    if not is_unified:
        return read(f"{folder}/freezer.state", 64).strip() == b"FROZEN"
    return b"frozen 1" in read(f"{folder}/cgroup.events", 4096).splitlines()


def _mounts(raw: bytes) -> tuple[_Mount, _Mount]:
    """The mounts of version 2, and of version 1 with a freezer; empty: not mounted."""
    unified = freezer = ("", "")
    for line in raw.decode("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        with suppress(IndexError, ValueError):
            root, where = before.split()[3:5]
            kind, *_, options = after.split()
            mount = where, root.rstrip("/")
            if kind == "cgroup2":
                unified = mount
            elif kind == "cgroup" and "freezer" in options.split(","):
                freezer = mount
    return unified, freezer
