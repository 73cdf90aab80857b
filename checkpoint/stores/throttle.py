"""A store that is written to no faster than so many bytes a second, to leave the network to training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from holdfast.checkpoint.format.checksum import Buffer
from holdfast.checkpoint.stores.store import Content, Store

_PIECE = 1 << 20


@dataclass(slots=True)
class Budget:
    """A bucket of bytes that fills at a rate and holds a tenth of a second's worth. Pure: time comes in."""

    bytes_per_s: float
    _debt_until: float = 0.0

    def wait(self, num_bytes: int, now: float) -> float:
        """Take `num_bytes`; seconds to wait before they may go."""
        begin = max(self._debt_until, now - 0.1)
        self._debt_until = begin + num_bytes / self.bytes_per_s
        return max(0.0, begin - now)


class Throttled(Store):
    """Another store, written to at most at `bytes_per_s` by this process; 0: at any rate."""

    def __init__(
        self,
        store: Store,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = store
        self._budget = Budget(bytes_per_s) if bytes_per_s > 0 else None
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()

    @property
    def url(self) -> str:
        return self.inner.url

    def list(self, path: str = "") -> list[str]:
        return self.inner.list(path)

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return self.inner.read(path, start, length)

    def size(self, path: str) -> int:
        return self.inner.size(path)

    def make_folder(self, path: str) -> None:
        self.inner.make_folder(path)

    def create(self, path: str, content: Content) -> None:
        self.inner.create(path, content if self._budget is None else lambda: self._slowly(content))

    def claim(self, path: str, content: bytes) -> None:
        self.inner.claim(path, content)

    def replace(self, path: str, content: bytes) -> None:
        self.inner.replace(path, content)

    def rename(self, old: str, new: str) -> None:
        self.inner.rename(old, new)

    def remove(self, path: str) -> None:
        self.inner.remove(path)

    def _slowly(self, content: Content) -> Iterator[Buffer]:
        assert self._budget is not None
        for piece in content():
            view = memoryview(piece)
            for at in range(0, len(view), _PIECE):
                part = view[at : at + _PIECE]
                with self._lock:
                    pause = self._budget.wait(len(part), self._clock())
                if pause:
                    self._sleep(pause)
                yield part
