"""Ports for servers that are started in a moment, and again at the same port when they have died."""

import random
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from holdfast.base.errors import HoldfastError

FIRST, LAST = 12_000, 32_767
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FEWEST = 1_000
_random = random.SystemRandom()  # programs with a seed, side by side, would all get the same


def free_port() -> int:
    """A port on which nothing listens, at any address."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many different ones."""
    found: list[int] = []
    with ExitStack() as taken:
        for port in _candidates():
            probe = taken.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("", port))
                found.append(int(probe.getsockname()[1]))
            if len(found) == count:
                return found
    raise HoldfastError(f"no {count} free ports: end what listens on this host, or name the ports")


def _candidates(range_file: Path = _RANGE) -> list[int]:
    """The kernel gives ports of its own range to whoever connects: while a server is down it may give that server's to
    another process, even to a client. So they are below it, and the kernel's (0) only where that leaves too few."""
    try:
        below = min(int(range_file.read_text().split()[0]), LAST + 1)
    except (OSError, ValueError, IndexError):
        below = LAST + 1
    own = range(FIRST, below)
    return _random.sample(own, _FEWEST) if len(own) >= _FEWEST else [0] * _FEWEST
