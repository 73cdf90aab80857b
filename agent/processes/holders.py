"""Who holds a process so that it neither runs nor ends: a tracer, a frozen cgroup, the kernel. Reads /proc and the
cgroup file systems, and changes nothing."""

import os
from contextlib import suppress
from dataclasses import dataclass

from holdfast.agent.processes.proc_files import TICK_S, parse_stat, parse_status, read
from holdfast.wire.holds import Hold

CGROUPS = "/sys/fs/cgroup"
_FREEZING = (b"FROZEN", b"FREEZING")
_MOST_THREADS = 64
_SERVERS = (("nfs", "an NFS server"), ("rpc_wait", "an NFS server"), ("fuse", "a FUSE file system"),
            ("request_wait_answer", "a FUSE file system"), ("ceph", "a Ceph server"), ("ptlrpc", "a Lustre server"),
            ("cifs", "an SMB server"))  # fmt: skip
"""By a part of the wait channel's name: what waits there for another host or another process."""
_LEAST_S = 2 * TICK_S


def tracer(pid: int, proc: str = "/proc") -> str:
    """Who traces it: "gdb (pid 7) traces it". Empty: nobody, or not readable."""
    number = parse_status(read(f"{proc}/{pid}/status"), "TracerPid") or 0
    if not number:
        return ""
    name = read(f"{proc}/{number}/comm").decode("utf-8", "replace").strip()
    return f"{name or 'a process'} (pid {number}) traces it"


def frozen_cgroup(pid: int, proc: str = "/proc", cgroups: str = CGROUPS) -> tuple[str, bool]:
    """Path of the frozen cgroup that it is in, and whether SIGKILL waits until that is thawed: it does in version 1.

    A process in a frozen cgroup of version 1 shows no other sign: it is in state D in the call where it was.
    """
    for line in read(f"{proc}/{pid}/cgroup", 16384).splitlines():
        number, _, rest = line.partition(b":")
        controllers, _, path = rest.partition(b":")
        where = path.decode("utf-8", "replace").strip("/")
        if b"freezer" in controllers.split(b","):
            if read(f"{cgroups}/freezer/{where}/freezer.state", 64).strip() in _FREEZING:
                return f"/{where}", True
        elif number == b"0" and not controllers:
            for root in (cgroups, f"{cgroups}/unified"):
                if b"frozen 1" in read(f"{root}/{where}/cgroup.events", 256).splitlines():
                    return f"/{where}", False
    return "", False


@dataclass(frozen=True, slots=True)
class Unending:
    hold: Hold
    words: str


class ExitWatch:
    """Whether processes that were sent SIGKILL get on with their end. `look` often, then ask `why`."""

    def __init__(self, proc: str = "/proc", cgroups: str = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._seen: dict[int, tuple[int, int, float]] = {}  # threads, resident pages, seconds on a processor
        self._moved_at: dict[int, float] = {}

    def look(self, pid: int, now: float) -> None:
        stat = parse_stat(read(f"{self._proc}/{pid}/stat"))
        if stat is None:
            return
        statm = read(f"{self._proc}/{pid}/statm", 256).split()
        pages = int(statm[1]) if len(statm) > 1 and statm[1].isdigit() else 0
        seen = (stat.threads, pages, stat.cpu)
        before = self._seen.get(pid)
        if before is None or seen[:2] != before[:2] or seen[2] - before[2] >= _LEAST_S:
            self._seen[pid] = seen
            if before is not None:
                self._moved_at[pid] = now

    def why(self, pid: int, now: float, lately: float) -> Unending:
        """Why it is still there. `lately`: seconds within which it moved if it gets on with its end."""
        if words := tracer(pid, self._proc):
            return Unending(Hold.HELD, words)
        path, waits = frozen_cgroup(pid, self._proc, self._cgroups)
        if path and waits:
            return Unending(Hold.HELD, f"its cgroup {path} is frozen")
        if now - self._moved_at.get(pid, -lately) < lately:
            return Unending(Hold.EXITING, "it is still exiting")
        for channel in self._blocked(pid):
            server = next((text for part, text in _SERVERS if part in channel), "")
            where = f"D state in {channel}" if channel else "D state"
            if server:
                return Unending(Hold.SERVER, f"it waits for {server} ({where})")
            return Unending(Hold.KERNEL, f"the kernel does not let it go ({where})")
        return Unending(Hold.KERNEL, "it is not known why")

    def _blocked(self, pid: int) -> list[str]:
        """Wait channels of its threads in state D."""
        found = []
        with suppress(OSError):
            for name in os.listdir(f"{self._proc}/{pid}/task")[:_MOST_THREADS]:
                task = f"{self._proc}/{pid}/task/{name}"
                stat = parse_stat(read(f"{task}/stat"))
                if stat is not None and stat.state == "D":
                    text = read(f"{task}/wchan", 128).decode("ascii", "replace").strip()
                    found.append("" if text == "0" else text)
        return found


def ended_under_tracer(pid: int, proc: str = "/proc") -> tuple[int, int, bool] | None:
    """How a process has ended whose tracer has not taken note: exit status (-1 for a signal), signal, whether it dumped
    core. None where it runs, or where nobody traces it.

    Such a process has let go of its memory and files, but its parent learns of its end only when the tracer detaches.
    """
    raw = read(f"{proc}/{pid}/stat")
    stat = parse_stat(raw)
    if stat is None or stat.state not in "ZX" or not parse_status(read(f"{proc}/{pid}/status"), "TracerPid"):
        return None
    with suppress(OSError):
        for name in os.listdir(f"{proc}/{pid}/task"):
            task = parse_stat(read(f"{proc}/{pid}/task/{name}/stat"))
            if task is not None and task.state not in "ZX":
                return None
    status = int(raw.split()[-1])
    if os.WIFEXITED(status):
        return os.WEXITSTATUS(status), 0, False
    return -1, os.WTERMSIG(status), os.WCOREDUMP(status)
