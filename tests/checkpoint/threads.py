"""A group whose ranks are threads, so that saves and restores of several ranks run without processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class ThreadGroup:
    def __init__(self, rank: int, size: int, board: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self._board, self._barrier = board, barrier

    def gather(self, payload: bytes) -> list[bytes]:
        everyone = self._exchange(payload)
        return everyone if self.rank == 0 else []

    def broadcast(self, payload: bytes) -> bytes:
        return self._exchange(payload)[0]

    def all_agree(self, ok: bool) -> bool:
        return all(self._exchange(b"y" if ok else b""))

    def _exchange(self, payload: bytes) -> list[bytes]:
        self._board[self.rank] = payload
        self._barrier.wait(20)
        everyone = list(self._board)
        self._barrier.wait(20)
        return everyone


def on_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """`work` on every rank of a new group; the results in rank order, the first error raised."""
    board, barrier = [b""] * size, threading.Barrier(size)
    with ThreadPoolExecutor(size) as pool:
        started = [pool.submit(work, ThreadGroup(rank, size, board, barrier)) for rank in range(size)]
        return [one.result(30) for one in started]
