"""Network interfaces, and the choice of which byte counters are sampled every millisecond."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.agent.collectors import rdma
from holdfast.agent.collectors.ethtool import Ethtool
from holdfast.agent.collectors.files import CounterFiles, leading_number, list_dir, read_text
from holdfast.wire.types import Nic

UP = frozenset({"up", "unknown"})
"""`unknown` is what drivers without carrier detection say of a working link (lo, tun, some virtual NICs)."""


@dataclass(frozen=True, slots=True)
class BytePair:
    """The two byte counters of one NIC. A file's value times `scale` is bytes."""

    name: str
    kind: str  # "rdma" | "ethernet" | "loopback"
    tx_path: str
    rx_path: str
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Interface:
    """One entry of /sys/class/net. `speed_bps` 0 if unknown; `physical` when a device backs it."""

    name: str
    path: str
    operstate: str
    speed_bps: int
    physical: bool
    numa_node: int

    @property
    def loopback(self) -> bool:
        return self.name == "lo"


def interfaces(sysfs_root: str = "/sys") -> tuple[Interface, ...]:
    """All network interfaces by name. Never raises."""
    root = os.path.join(sysfs_root, "class/net")
    found = []
    for name in list_dir(root):
        path = os.path.join(root, name)
        if not os.path.isdir(f"{path}/statistics"):
            continue  # bonding_masters and the like
        speed = leading_number(read_text(f"{path}/speed"))
        numa = leading_number(read_text(f"{path}/device/numa_node"))
        found.append(
            Interface(
                name=name,
                path=path,
                operstate=read_text(f"{path}/operstate"),
                speed_bps=int(speed * 1e6) if speed and speed > 0 else 0,  # -1: link down or virtual
                physical=os.path.exists(f"{path}/device"),
                numa_node=int(numa) if numa is not None else -1,
            )
        )
    return tuple(found)


def nics(sysfs_root: str = "/sys") -> tuple[Nic, ...]:
    """RDMA ports, then network interfaces, for the node's identity."""
    fabric = tuple(Nic(p.name, "rdma", p.rate_bps, p.numa_node, p.state, p.link_layer) for p in rdma.ports(sysfs_root))
    return fabric + tuple(
        Nic(i.name, "loopback" if i.loopback else "ethernet", i.speed_bps, i.numa_node, i.operstate)
        for i in interfaces(sysfs_root)
    )


def choose(sysfs_root: str = "/sys", names: Iterable[str] = ()) -> tuple[BytePair, ...]:
    """The NICs worth sampling: those in `names` if any, else RDMA ports whose byte counters can be read, and beside
    them, unless one of these ports is active, interfaces that are up and physical, else up, else lo.

    A name that does not exist is left out."""
    wanted = frozenset(names)
    ports = rdma.ports(sysfs_root)
    plain = interfaces(sysfs_root)
    if wanted:
        pairs = tuple(pair for port in ports if (pair := _rdma_pair(port)) is not None)
        pairs += tuple(_net_pair(i) for i in plain)
        return tuple(pair for pair in pairs if pair.name in wanted)
    # A port that is down now may come up: it is sampled, but does not stand for the node's network.
    usable = [(port, pair) for port in ports if (pair := _rdma_pair(port)) is not None and _counts(pair)]
    fabric = tuple(pair for _, pair in usable)
    if any(port.state == "ACTIVE" for port, _ in usable):
        return fabric
    up = [i for i in plain if i.operstate in UP and not i.loopback]
    chosen = [i for i in up if i.physical] or up or [i for i in plain if i.loopback]
    return fabric + tuple(_net_pair(i) for i in chosen)


def uncounted(sysfs_root: str = "/sys") -> tuple[str, ...]:
    """Names of the RDMA ports without byte counters that can be read: their traffic is not seen."""
    pairs = {port.name: _rdma_pair(port) for port in rdma.ports(sysfs_root)}
    return tuple(name for name, pair in pairs.items() if pair is None or not _counts(pair))


def _counts(pair: BytePair) -> bool:
    """Whether both files hold a number now. A file may be there and refuse, or say that there is none."""
    return read_text(pair.tx_path).isdecimal() and read_text(pair.rx_path).isdecimal()


def _net_pair(interface: Interface) -> BytePair:
    base = f"{interface.path}/statistics"
    kind = "loopback" if interface.loopback else "ethernet"
    return BytePair(interface.name, kind, f"{base}/tx_bytes", f"{base}/rx_bytes")


_RDMA_PAIRS = (
    # Where a driver has both, those without _64 have 32 bits and stop at their end.
    ("counters_ext/port_xmit_data_64", "counters_ext/port_rcv_data_64", rdma.WORD_BYTES),
    ("counters/port_xmit_data", "counters/port_rcv_data", rdma.WORD_BYTES),
    ("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1),  # EFA and bnxt_re have no IB counters, but count bytes
)


def _rdma_pair(port: rdma.Port) -> BytePair | None:
    """The best pair of counters that the port has: one that can be read, where there is one."""
    found = [
        BytePair(port.name, "rdma", f"{port.path}/{tx}", f"{port.path}/{rx}", scale)
        for tx, rx, scale in _RDMA_PAIRS
        if os.path.exists(f"{port.path}/{tx}")
    ]
    return next((pair for pair in found if _counts(pair)), next(iter(found), None))


class NicCollector:
    """Statistics of all interfaces but lo, as `net/<interface>/<statistic>`.

    Plus `up` (1 or 0), `speed_bps` where known, `carrier_changes` (a flapping cable counts up), and of physical ones
    what only the driver counts (`rx_pause` ..., see `ethtool.NAMES`).
    """

    name = "nic"

    def __init__(self, sysfs_root: str = "/sys", interval: float = 1.0) -> None:
        self.interval = interval
        self._sysfs_root = sysfs_root
        self._root = os.path.join(sysfs_root, "class/net")
        self._files = CounterFiles()
        self._drivers = Ethtool()
        self._physical: list[str] = []
        self._known: list[str] = []
        self.available = bool(self._names())
        self.absent_reason = "" if self.available else f"no interface but lo in {self._root}"

    def _names(self) -> list[str]:
        return [n for n in list_dir(self._root) if n != "lo" and os.path.isdir(f"{self._root}/{n}/statistics")]

    def collect(self) -> dict[str, float]:
        if not self.available:
            return {}
        names = self._names()
        if names != self._known:
            self._known = names
            # The ioctl asks the machine's own interfaces: of another sysfs it would know nothing.
            own = os.path.realpath(self._sysfs_root) == "/sys"
            self._physical = [name for name in names if own and os.path.exists(f"{self._root}/{name}/device")]
            for name in names:
                self._add(name)
        values = self._files.read(time.monotonic())
        for name in names:
            # Not through CounterFiles: `speed` answers EINVAL while a link is down and must be asked again.
            values[f"net/{name}/up"] = float(read_text(f"{self._root}/{name}/operstate") in UP)
            speed = leading_number(read_text(f"{self._root}/{name}/speed"))
            if speed is not None and speed > 0:
                values[f"net/{name}/speed_bps"] = speed * 1e6
        for name in self._physical:
            values |= {f"net/{name}/{counter}": value for counter, value in self._drivers.read(name).items()}
        return values

    def _add(self, name: str) -> None:
        base = f"{self._root}/{name}"
        self._files.add(f"net/{name}/carrier_changes", f"{base}/carrier_changes")
        for statistic in list_dir(f"{base}/statistics"):
            self._files.add(f"net/{name}/{statistic}", f"{base}/statistics/{statistic}")

    def close(self) -> None:
        self._files.close()
        self._drivers.close()
