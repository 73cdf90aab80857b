"""Ports for servers that are started in a moment, and again at the same port when they have died."""

import random
import socket
from pathlib import Path

FIRST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BELOW = min(int(_RANGE.read_text().split()[0]), 32_768) if _RANGE.exists() else 32_768
"""From here on the kernel gives ports to whoever connects, or asks for any: while a server is down it may give this one
to another process, even to a client of that server."""
_random = random.SystemRandom()  # programs with a seed, side by side, would all get the same


def free_port() -> int:
    """A port on which nothing listens, at any address."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    found: list[int] = []
    for port in _random.sample(range(FIRST, _BELOW), 50 * count):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"of {50 * count} ports not {count} are free")
