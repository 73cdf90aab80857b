"""Bytes that a host moves for which no process is charged: pages that are written back, a file system over the network.

A thread in fsync, msync or a write to NFS blocks in the kernel without a byte of its own while the kernel writes what
was written long ago. Host-wide figures are weak evidence, so they are used only for a thread in such a call.
"""

import os
from contextlib import suppress

from holdfast.agent.processes.proc_files import read, read_all

_PAGE = os.sysconf("SC_PAGE_SIZE")
_VMSTAT = {b"nr_written": _PAGE, b"pgpgin": 1024, b"pgpgout": 1024}
_CHANNELS = (
    "fuse",
    "request_wait_answer",
    "nfs",
    "rpc_",
    "cifs",
    "smb",
    "ceph",
    "lustre",
    "ptlrpc",
    "gpfs",
    "p9_client",
)
_CALLS = ("the disk", "fsync of", "sync of", "a sync of", "allocation of", "truncation of", "an NFS", "a FUSE")
FLOW_LEAK, FLOW_AMOUNT = 200_000.0, 1_000_000.0
"""Bytes a second that a host moves in any case, and what must come beyond."""


def is_asked(words: str, channel: str, states: str) -> bool:
    """Whether what a thread waits for (`waits`) may be bytes of the host. `states`: letters of all threads."""
    return "D" in states or any(part in channel for part in _CHANNELS) or words.startswith(_CALLS)


def disk_bytes(proc: str = "/proc") -> float:
    """Read and written back by all file systems since the start."""
    total = 0.0
    for line in read_all(f"{proc}/vmstat", 1 << 20).splitlines():
        name, _, value = line.partition(b" ")
        if (unit := _VMSTAT.get(name)) is not None:
            with suppress(ValueError):
                total += int(value) * unit
    return total


def network_bytes(proc: str = "/proc") -> float:
    """Received and sent by all interfaces but the loopback."""
    total = 0.0
    for line in read_all(f"{proc}/net/dev", 1 << 20).splitlines()[2:]:
        name, _, rest = line.partition(b":")
        values = rest.split()
        if name.strip() != b"lo" and len(values) >= 9:
            with suppress(ValueError):
                total += int(values[0]) + int(values[8])
    return total


def rdma_bytes(sysfs: str = "/sys") -> float:
    """Received and sent by all RDMA ports, which bypass the kernel: the host's, whichever process it was."""
    total = 0.0
    root = f"{sysfs}/class/infiniband"
    with suppress(OSError):
        for device in os.listdir(root):
            for port in os.listdir(f"{root}/{device}/ports"):
                for counter in ("port_xmit_data", "port_rcv_data"):
                    with suppress(ValueError):
                        total += 4.0 * int(read(f"{root}/{device}/ports/{port}/counters/{counter}", 64) or 0)
    return total
