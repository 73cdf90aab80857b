"""A group whose ranks are threads, so that saves and restores of several ranks run without processes."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
PATIENCE_S = 90.0
"""For ranks whose peers wait for a store."""


@dataclass
class Room:
    """What the ranks of a group share."""

    size: int
    board: list[bytes] = field(default_factory=list)
    barrier: threading.Barrier = field(init=False)
    mail: dict[tuple[int, int, int], queue.Queue[bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.board = [b""] * self.size
        self.barrier = threading.Barrier(self.size)
        places = itertools.product(range(self.size), range(self.size), range(2))
        self.mail = {place: queue.Queue() for place in places}


class Sent:
    def wait(self) -> None:
        pass


class ThreadGroup:
    def __init__(self, rank: int, room: Room, host: str = "") -> None:
        """`host`: another one than other ranks', unless it is named."""
        self.rank, self.size, self._room = rank, room.size, room
        self.host = host or f"host{rank}"
        self.bytes_sent = 0

    def gather(self, payload: bytes) -> list[bytes]:
        everyone = self._exchange(payload)
        return everyone if self.rank == 0 else []

    def broadcast(self, payload: bytes) -> bytes:
        return self._exchange(payload)[0]

    def all_agree(self, ok: bool) -> bool:
        return all(vote == b"1" for vote in self._exchange(b"1" if ok else b"0"))

    def send(self, payload: bytes | bytearray | memoryview, to: int, tag: int = 0) -> Sent:
        assert to != self.rank
        self.bytes_sent += len(payload)
        self._room.mail[self.rank, to, tag].put(bytes(payload))
        return Sent()

    def receive(self, num_bytes: int, source: int, tag: int = 0) -> memoryview:
        message = self._room.mail[source, self.rank, tag].get(timeout=PATIENCE_S)
        assert len(message) == num_bytes
        return memoryview(message)

    def _exchange(self, payload: bytes) -> list[bytes]:
        self._room.board[self.rank] = payload
        self._room.barrier.wait(PATIENCE_S)
        everyone = list(self._room.board)
        self._room.barrier.wait(PATIENCE_S)
        return everyone


def on_ranks(size: int, work: Callable[[ThreadGroup], T], hosts: Sequence[str] = ()) -> list[T]:
    """`work` on every rank of a new group; the results in rank order, the first error raised.

    `hosts`: where each rank is; none: each on its own."""
    room = Room(size)
    with ThreadPoolExecutor(size) as pool:
        groups = [ThreadGroup(rank, room, hosts[rank] if hosts else "") for rank in range(size)]
        started = [pool.submit(work, group) for group in groups]
        return [one.result(PATIENCE_S) for one in started]
