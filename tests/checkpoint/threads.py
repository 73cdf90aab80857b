"""A group whose ranks are threads, so that saves and restores of several ranks run without processes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Room:
    """What the ranks of a group share."""

    size: int
    board: list[bytes] = field(default_factory=list)
    barrier: threading.Barrier = field(init=False)
    mail: dict[tuple[int, int], queue.Queue[bytes]] = field(init=False)

    def __post_init__(self) -> None:
        self.board = [b""] * self.size
        self.barrier = threading.Barrier(self.size)
        pairs = ((a, b) for a in range(self.size) for b in range(self.size))
        self.mail = {pair: queue.Queue() for pair in pairs}


class Sent:
    def wait(self) -> None:
        pass


class ThreadGroup:
    def __init__(self, rank: int, room: Room) -> None:
        self.rank, self.size, self._room = rank, room.size, room
        self.bytes_sent = 0

    def gather(self, payload: bytes) -> list[bytes]:
        everyone = self._exchange(payload)
        return everyone if self.rank == 0 else []

    def broadcast(self, payload: bytes) -> bytes:
        return self._exchange(payload)[0]

    def all_agree(self, ok: bool) -> bool:
        return all(vote == b"1" for vote in self._exchange(b"1" if ok else b"0"))

    def send(self, payload: bytes | bytearray | memoryview, to: int) -> Sent:
        assert to != self.rank
        self.bytes_sent += len(payload)
        self._room.mail[self.rank, to].put(bytes(payload))
        return Sent()

    def receive(self, num_bytes: int, source: int) -> memoryview:
        message = self._room.mail[source, self.rank].get(timeout=20)
        assert len(message) == num_bytes
        return memoryview(message)

    def _exchange(self, payload: bytes) -> list[bytes]:
        self._room.board[self.rank] = payload
        self._room.barrier.wait(20)
        everyone = list(self._room.board)
        self._room.barrier.wait(20)
        return everyone


def on_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """`work` on every rank of a new group; the results in rank order, the first error raised."""
    room = Room(size)
    with ThreadPoolExecutor(size) as pool:
        started = [pool.submit(work, ThreadGroup(rank, room)) for rank in range(size)]
        return [one.result(30) for one in started]
