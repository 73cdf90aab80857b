"""What a restore moved: bytes that workers read and bytes that they sent to other hosts. No torch."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass
from typing import Protocol


class Reporting(Protocol):
    """Workers that report to rank 0."""

    def gather(self, payload: bytes) -> list[bytes]:
        """The payloads of all, at rank 0; an empty list elsewhere."""

    def broadcast(self, payload: bytes) -> bytes:
        """Rank 0's payload, everywhere."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Of all workers together, and of the one with the most."""

    read: int = 0
    """Bytes from stores or from snapshots. As many as the state has, and the rest of each chunk: each is read once."""
    sent: int = 0
    """Bytes from host to host: for each host those that it wants and has not read."""
    most_read: int = 0
    most_sent: int = 0

    def __str__(self) -> str:
        """96.0 MB read (at most 24.0 MB by one rank), 288.0 MB sent between hosts (72.0 MB)"""
        read = f"{_mb(self.read)} read (at most {_mb(self.most_read)} by one rank)"
        return f"{read}, {_mb(self.sent)} sent between hosts ({_mb(self.most_sent)})"


def counted(group: Reporting, read: int, sent: int) -> Traffic:
    """The traffic of all workers, known to all. Called by all together, each with its own bytes."""
    everyone = [json.loads(one) for one in group.gather(json.dumps([read, sent]).encode())]
    reads, sends = [one[0] for one in everyone], [one[1] for one in everyone]
    found = Traffic(sum(reads), sum(sends), max(reads, default=0), max(sends, default=0))
    return Traffic(*json.loads(group.broadcast(json.dumps(astuple(found)).encode())))


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"
