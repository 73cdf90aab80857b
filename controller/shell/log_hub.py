"""Live log lines of the jobs' workers: a bounded tail for late subscribers, a bounded queue for each subscriber."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from holdfast.wire import messages as msg

_TAIL_BYTES = 1 << 20
_JOBS = 64
"""Jobs whose tails are kept; the one that began first goes first, unless it still runs."""
_QUEUE = 2000
_QUEUE_CHARACTERS = 8 << 20
"""What waits for one listener, at most."""


class _Listener(asyncio.Queue[msg.LogChunk | None]):
    """A slow reader loses the oldest, never holds up the rest."""

    held = 0

    def offer(self, chunk: msg.LogChunk | None) -> None:
        self.held += _size(chunk)
        while self.full() or (self.held > _QUEUE_CHARACTERS and not self.empty()):
            self.held -= _size(self.get_nowait())
        self.put_nowait(chunk)

    async def take(self) -> msg.LogChunk | None:
        chunk = await self.get()
        self.held -= _size(chunk)
        return chunk


def _size(chunk: msg.LogChunk | None) -> int:
    return 0 if chunk is None else len(chunk.text) + 100


class _JobLog:
    def __init__(self) -> None:
        self.tail: deque[msg.LogChunk] = deque()
        self._held = 0
        self.listeners: set[_Listener] = set()
        self.over = False

    def add(self, chunk: msg.LogChunk) -> None:
        self.tail.append(chunk)
        self._held += _size(chunk)
        while self._held > _TAIL_BYTES and len(self.tail) > 1:
            self._held -= _size(self.tail.popleft())
        for queue in self.listeners:
            queue.offer(chunk)

    def end(self) -> None:
        self.over = True
        for queue in self.listeners:
            queue.offer(None)


class LogHub:
    def __init__(self) -> None:
        self._jobs: dict[str, _JobLog] = {}

    def begin(self, job: str) -> None:
        self._jobs[job] = _JobLog()
        over = [name for name, log in self._jobs.items() if log.over]
        for name in over[: max(0, len(self._jobs) - _JOBS)]:
            del self._jobs[name]

    def add(self, chunk: msg.LogChunk) -> None:
        log = self._jobs.get(chunk.job)
        if log is not None:
            log.add(chunk)

    def end(self, job: str) -> None:
        """The job is over: listeners end after what they have not read yet."""
        log = self._jobs.get(job)
        if log is not None and not log.over:
            log.end()

    def close(self) -> None:
        """The controller ends, and with it all subscriptions."""
        for log in self._jobs.values():
            log.end()

    async def lines(self, job: str) -> AsyncIterator[dict[str, Any]]:
        log = self._jobs.get(job)
        if log is None:
            return
        queue = _Listener(_QUEUE)
        tail, over = list(log.tail), log.over
        if not over:
            log.listeners.add(queue)
        try:
            for chunk in tail:
                yield _line(chunk)
            while not over:
                item = await queue.take()
                if item is None:
                    return
                yield _line(item)
        finally:
            log.listeners.discard(queue)


def _line(chunk: msg.LogChunk) -> dict[str, Any]:
    return {
        "rank": chunk.rank,
        "stream": chunk.stream,
        "text": chunk.text,
        "generation": chunk.generation,
        "dropped": chunk.dropped,
    }
