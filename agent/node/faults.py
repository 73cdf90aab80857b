"""Faults of a node that its agent injects on request: what a driver would report, what a port would count.

Nothing real is broken but a disk that is small. A kernel line is handed to the reader of the kernel's log as though
the kernel had written it; counters are changed only under a sysfs root that is not the machine's own.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.agent.collectors import rdma
from holdfast.agent.collectors.files import leading_number, read_text
from holdfast.agent.logs.rules import Rules
from holdfast.base import private
from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest
from holdfast.facts import xid
from holdfast.wire.types import Gpu

_SOME_PCI = "0000:3b:00"  # of a node without GPUs
_GROWTH = 1000
_SMALL = 1 << 30
_LEFT = 0.002  # of a disk that was filled
FILL = "injected-fill"


class NodeFaults:
    def __init__(
        self, say: Callable[[str], None], rules: Rules, sysfs_root: Path, state_dir: Path, gpus: Sequence[Gpu]
    ) -> None:
        """`say`: takes a line of the kernel's log."""
        self._say, self._rules, self._sysfs, self._state_dir = say, rules, sysfs_root, state_dir
        self._pci = next((gpu.pci for gpu in gpus if gpu.pci), _SOME_PCI)

    def inject(self, kind: str) -> bool:
        """False for a kind that is not of these. UsageError when it cannot be injected here."""
        name, _, value = kind.partition("=")
        match name:
            case "xid":
                self._say(xid.kernel_line(int(value), self._pci))
            case "log":
                self._say(self._sample(value))
            case "counter":
                path = self._port() / value
                before = leading_number(read_text(str(path)))
                if before is None:
                    raise UsageError(f"{path}: no such counter")
                path.write_text(f"{int(before) + _GROWTH}\n")
            case "link-down":
                (self._port().parent / "state").write_text("1: DOWN\n")
            case "disk-full":
                self._fill()
            case _:
                return False
        return True

    def _sample(self, rule: str) -> str:
        samples = {one.name: one.sample for one in self._rules.all if one.host}
        if rule not in samples:
            raise UsageError(f"no log rule of the host is called {rule!r}{nearest(rule, samples)}")
        return samples[rule]

    def _port(self) -> Path:
        """The counters of the first RDMA port, of a sysfs that is not the machine's."""
        if self._sysfs.resolve() == Path("/sys"):
            raise UsageError("the counters of the machine's own sysfs cannot be changed: give the agent a --sysfs-root")
        found = rdma.ports(str(self._sysfs))
        if not found:
            raise UsageError(f"no RDMA port under {self._sysfs}")
        return Path(found[0].path) / "counters"

    def _fill(self) -> None:
        """Fill the state folder's file system, if it is so small that no other program needs it."""
        status = os.statvfs(self._state_dir)
        total = status.f_blocks * status.f_frsize
        if total > _SMALL:
            raise UsageError(f"{self._state_dir} is on a disk of {total >> 30} GiB: only one up to 1 GiB is filled")
        size = status.f_bavail * status.f_frsize - int(_LEFT * total)
        with open(self._state_dir / FILL, "wb", opener=private.opener) as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
