"""Which NICs, RDMA devices and memory nodes this host has, from sysfs and the interfaces' addresses."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import psutil

from holdfast.diagnostics.measure import perftest


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """`rate` in bytes per second, NaN when unknown. `gid`: RoCE v2 address to use, None on InfiniBand."""

    device: str
    rate: float
    gid: int | None


def rdma_ports(sysfs: Path) -> list[RdmaPort]:
    """The first active port of every RDMA device."""
    found = []
    for device in sorted((sysfs / "class" / "infiniband").glob("*")):
        for port in sorted((device / "ports").glob("*")):
            if "ACTIVE" in _read(port / "state"):
                gid = perftest.roce_gid(_indexed(port / "gid_attrs" / "types"), _indexed(port / "gids"))
                found.append(RdmaPort(device.name, perftest.rate(_read(port / "rate")), gid))
                break
    return found


def nic_addresses() -> list[tuple[str, str]]:
    """(interface, address) of every interface that is up, IPv4 before IPv6; loopback only where there is no other."""
    states = psutil.net_if_stats()
    found = []
    for name, entries in sorted(psutil.net_if_addrs().items()):
        addresses = sorted(
            (e.family, e.address) for e in entries
            if e.family in (socket.AF_INET, socket.AF_INET6) and not e.address.startswith("fe80:")
        )  # fmt: skip
        if addresses and name in states and states[name].isup:
            found.append((name, addresses[0][1]))
    return [entry for entry in found if entry[0] != "lo"] or found


def memory_nodes(sysfs: Path) -> dict[int, set[int]]:
    """Processors of each NUMA node that has some which we may use; one node with all of them where nothing says."""
    mine = os.sched_getaffinity(0)
    nodes = {}
    for folder in sorted((sysfs / "devices" / "system" / "node").glob("node[0-9]*")):
        cpus = parse_cpus(_read(folder / "cpulist")) & mine
        if cpus:
            nodes[int(folder.name[4:])] = cpus
    return nodes or {0: mine}


def parse_cpus(text: str) -> set[int]:
    """ "0-3,8,10-11" as the kernel writes lists of processors; what is not a number is left out."""
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            found.update(range(int(first), int(last or first) + 1))
    return found


def _indexed(folder: Path) -> dict[int, str]:
    return {int(file.name): text for file in folder.glob("[0-9]*") if (text := _read(file))}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # a single attribute may refuse: EINVAL of restricted functions, or not there
        return ""
