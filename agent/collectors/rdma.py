"""RDMA devices from sysfs: ports, their state, and every counter they offer.

`port_{xmit,rcv}_data`, and their copies of 64 bits under `counters_ext`, count words of four octets (InfiniBand
specification, PortCountersExtended); they leave this module as bytes. Which counters a device has is its driver's
choice: soft-RoCE has none in bytes, a virtual function's may refuse, and older kernels write "N/A (no PMA)" into them.
"""

import os
import re
import time
from dataclasses import dataclass

from holdfast.agent.collectors.files import CounterFiles, leading_number, list_dir, read_text

WORDS = re.compile(r"(?:\w+_)?port_\w+_data(?:_64)?")
"""Counters of words: port_xmit_data, port_rcv_data_64 and the like, whatever stands before."""
WORD_BYTES = 4
NOT_COUNTERS = frozenset({"lifespan"})
"""`hw_counters/lifespan` is the age in ms at which the kernel refreshes its copies, not a count."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port of an RDMA device. `state` as the kernel writes it ("ACTIVE"); `rate_bps` 0 if unknown."""

    device: str
    number: int
    path: str
    state: str
    phys_state: str
    rate_bps: int
    link_layer: str
    numa_node: int

    @property
    def name(self) -> str:
        """`mlx5_0` for a device's first port, `mlx5_0/2` for the second."""
        return self.device if self.number == 1 else f"{self.device}/{self.number}"


def ports(sysfs_root: str = "/sys") -> tuple[Port, ...]:
    """All RDMA ports of the node, by device and number. Empty without RDMA. Never raises."""
    root = os.path.join(sysfs_root, "class/infiniband")
    found: list[Port] = []
    for device in sorted(list_dir(root), key=_natural):
        base = os.path.join(root, device)
        numa = leading_number(read_text(f"{base}/device/numa_node"))
        for number in sorted(int(n) for n in list_dir(f"{base}/ports") if n.isdigit()):
            path = f"{base}/ports/{number}"
            rate = leading_number(read_text(f"{path}/rate"))
            found.append(
                Port(
                    device=device,
                    number=number,
                    path=path,
                    state=_word(read_text(f"{path}/state")),
                    phys_state=_word(read_text(f"{path}/phys_state")),
                    rate_bps=int(rate * 1e9) if rate else 0,
                    link_layer=read_text(f"{path}/link_layer"),
                    numa_node=int(numa) if numa is not None else -1,
                )
            )
    return tuple(found)


def _word(text: str) -> str:
    """`4: ACTIVE` -> `ACTIVE`."""
    return text.partition(":")[2].strip() or text


def _natural(name: str) -> tuple[str, int, str]:
    """Sort key under which mlx5_10 comes after mlx5_9."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits else -1, name


class RdmaCollector:
    """Port state and all counters of all RDMA ports, as `rdma/<device>/<port>/<counter>`.

    Byte counters end in `_bytes`; `state`, `phys_state` are the kernel's numbers (4 ACTIVE, 5 LinkUp);
    `rate_bps` is bits per second; everything else is a plain count since the driver was loaded.
    """

    name = "rdma"

    def __init__(self, sysfs_root: str = "/sys", interval: float = 1.0) -> None:
        self.interval = interval
        self._root = os.path.join(sysfs_root, "class/infiniband")
        self._files = CounterFiles()
        self._known: list[str] = []
        self.available = os.path.isdir(self._root) and bool(list_dir(self._root))
        self.absent_reason = "" if self.available else f"no RDMA device in {self._root}"

    @property
    def refused(self) -> dict[str, str]:
        """Counters given up for good, and why."""
        return self._files.refused

    def collect(self) -> dict[str, float]:
        if not self.available:
            return {}
        devices = list_dir(self._root)
        if devices != self._known:  # hot plug: add new ports; removed ones drop out by themselves
            self._known = devices
            for device in devices:
                self._add(device)
        return self._files.read(time.monotonic())

    def _add(self, device: str) -> None:
        for number in list_dir(f"{self._root}/{device}/ports"):
            port, key = f"{self._root}/{device}/ports/{number}", f"rdma/{device}/{number}"
            self._files.add(f"{key}/state", f"{port}/state")
            self._files.add(f"{key}/phys_state", f"{port}/phys_state")
            self._files.add(f"{key}/rate_bps", f"{port}/rate", 1e9)
            for folder in ("counters", "counters_ext", "hw_counters"):
                for counter in list_dir(f"{port}/{folder}"):
                    if WORDS.fullmatch(counter):
                        self._files.add(f"{key}/{counter}_bytes", f"{port}/{folder}/{counter}", WORD_BYTES)
                    elif counter not in NOT_COUNTERS:
                        self._files.add(f"{key}/{counter}", f"{port}/{folder}/{counter}")

    def close(self) -> None:
        self._files.close()
