"""Live log lines of the job's workers: a bounded tail for who comes late, a bounded queue for each who listens."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

from holdfast.wire import messages as msg

_TAIL_BYTES = 1 << 20
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


class LogHub:
    def __init__(self) -> None:
        self._job = ""
        self._tail: deque[msg.LogChunk] = deque()
        self._held = 0
        self._listeners: set[_Listener] = set()
        self._over = False

    def begin(self, job: str) -> None:
        """A new job: who listened to the last one is done."""
        self.end()
        self._job, self._tail, self._held, self._over = job, deque(), 0, False

    def add(self, chunk: msg.LogChunk) -> None:
        if chunk.job != self._job:
            return
        self._tail.append(chunk)
        self._held += len(chunk.text) + 100
        while self._held > _TAIL_BYTES and len(self._tail) > 1:
            self._held -= len(self._tail.popleft().text) + 100
        for queue in self._listeners:
            queue.offer(chunk)

    def end(self) -> None:
        """The job is over: listeners end after what they have not read yet."""
        self._over = True
        for queue in self._listeners:
            queue.offer(None)

    async def lines(self, job: str) -> AsyncIterator[dict[str, Any]]:
        if job != self._job:
            return
        queue = _Listener(_QUEUE)
        tail, over = list(self._tail), self._over
        if not over:
            self._listeners.add(queue)
        try:
            for chunk in tail:
                yield _line(chunk)
            while not over:
                item = await queue.take()
                if item is None:
                    return
                yield _line(item)
        finally:
            self._listeners.discard(queue)


def _line(chunk: msg.LogChunk) -> dict[str, Any]:
    return {
        "rank": chunk.rank,
        "stream": chunk.stream,
        "text": chunk.text,
        "generation": chunk.generation,
        "dropped": chunk.dropped,
    }
