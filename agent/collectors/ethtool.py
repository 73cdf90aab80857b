"""Counters that only a NIC's driver has, by the ethtool ioctl: pause frames, errors of the physical layer.

sysfs has none of them, and no privilege is needed. Every driver calls them its own names: what means the same is added
up under one name.
"""

import ctypes
import fcntl
import os
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

_SIOCETHTOOL = 0x8946
_GSSET_INFO, _GSTRINGS, _GSTATS = 0x37, 0x1B, 0x1D
_SET_STATS = 1  # ETH_SS_STATS
_NAME = 32
_MOST = 16_384  # counters of one NIC that are believed

NAMES: tuple[tuple[str, re.Pattern[str]], ...] = (
    # mlx5 rx_prio3_pause; ice rx_priority_3_xoff.nic; bnxt rx_pfc_ena_frames_pri3; flow control of the whole link.
    # How long a pause took, and that there were many, says nothing in frames.
    ("rx_pause", re.compile(r"rx_(?!.*(?:duration|storm|transition|xon)).*(?:pause|pfc|xoff)")),
    ("tx_pause", re.compile(r"tx_(?!.*(?:duration|storm|transition|xon)).*(?:pause|pfc|xoff)")),
    ("link_downed", re.compile(r"link_down_events_phy")),
    ("symbol_error", re.compile(r"rx_(?:symbol_err|pcs_symbol_err|crc_errors)_phy|rx_pcs_symbol_err")),
    ("port_xmit_discards", re.compile(r"tx_discards_phy")),
)
"""Our name -> the drivers' names that count into it."""

Ioctl = Callable[[int, int, bytes], object]


def common_name(theirs: str) -> str:
    """Under which name a driver's counter is kept; empty if it is of no interest."""
    return next((ours for ours, pattern in NAMES if pattern.match(theirs)), "")


class Ethtool:
    """The drivers' counters of network interfaces. An interface that refuses once is not asked again."""

    def __init__(self, ioctl: Ioctl = fcntl.ioctl) -> None:
        self._ioctl = ioctl
        self._fd = -1  # of a socket, which the ioctl wants; made when it is first needed
        self._wanted: dict[str, tuple[int, dict[int, str]]] = {}  # interface -> counters in all; index -> our name

    def read(self, interface: str) -> dict[str, float]:
        """Its counters by common name; empty where there are none. Never raises."""
        if interface not in self._wanted:
            self._wanted[interface] = (0, {})
            with suppress(OSError):
                self._wanted[interface] = self._strings(interface)
        count, wanted = self._wanted[interface]
        if not wanted:
            return {}
        request = ctypes.create_string_buffer(struct.pack("=II", _GSTATS, count), 8 + 8 * count)
        try:
            self._ask(interface, request)
        except OSError:
            del self._wanted[interface]  # it went away, or is another one now
            return {}
        values: dict[str, float] = {}
        for index, name in wanted.items():
            (value,) = struct.unpack_from("=Q", request, 8 + 8 * index)
            values[name] = values.get(name, 0.0) + float(value)
        return values

    def _strings(self, interface: str) -> tuple[int, dict[int, str]]:
        size = ctypes.create_string_buffer(struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SET_STATS, 0), 20)
        self._ask(interface, size)
        (count,) = struct.unpack_from("=I", size, 16)
        if not 0 < count <= _MOST:
            return 0, {}
        request = ctypes.create_string_buffer(struct.pack("=III", _GSTRINGS, _SET_STATS, count), 12 + _NAME * count)
        self._ask(interface, request)
        names = [request.raw[12 + _NAME * i : 12 + _NAME * (i + 1)].split(b"\0")[0].decode("ascii", "replace")
                 for i in range(count)]  # fmt: skip
        return count, {index: ours for index, name in enumerate(names) if (ours := common_name(name))}

    def _ask(self, interface: str, request: "ctypes.Array[ctypes.c_char]") -> None:
        if self._fd < 0:
            self._fd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
        ifreq = struct.pack("16sP", interface.encode()[:15], ctypes.addressof(request))
        self._ioctl(self._fd, _SIOCETHTOOL, ifreq.ljust(40, b"\0"))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._wanted.clear()
