"""Live log lines of the jobs' workers: a bounded tail for late subscribers, a bounded queue for each subscriber."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from holdfast.controller.shell.log_tail import KeptChunk, LogTail, size
from holdfast.controller.state.log_wanted import EVERY_LINE, LogWanted
from holdfast.wire import messages as msg

_JOBS = 32
"""Jobs whose tails are kept, up to 3 MiB each; the one that began first goes first, unless it still runs."""
_QUEUE = 2000
_QUEUE_CHARACTERS = 8 << 20
"""What waits for one listener, at most."""


class _Listener(asyncio.Queue[KeptChunk | None]):
    """A slow reader loses the oldest, never holds up the rest."""

    held = 0

    def offer(self, kept: KeptChunk | None) -> None:
        self.held += _size(kept)
        while self.full() or (self.held > _QUEUE_CHARACTERS and not self.empty()):
            self.held -= _size(self.get_nowait())
        self.put_nowait(kept)

    async def take(self) -> KeptChunk | None:
        kept = await self.get()
        self.held -= _size(kept)
        return kept


def _size(kept: KeptChunk | None) -> int:
    return 0 if kept is None else size(kept.chunk)


class _JobLog:
    def __init__(self) -> None:
        self.tail = LogTail()
        self.listeners: dict[_Listener, LogWanted] = {}
        self.over = False

    def add(self, kept: KeptChunk) -> None:
        if not kept.chunk.unfinished:
            self.tail.add(kept)
        for queue, wanted in self.listeners.items():
            if _takes(wanted, kept):
                queue.offer(kept)

    def end(self) -> None:
        self.over = True
        for queue in self.listeners:
            queue.offer(None)


class LogHub:
    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._jobs: dict[str, _JobLog] = {}

    def begin(self, job: str) -> None:
        self._jobs[job] = _JobLog()
        over = [name for name, log in self._jobs.items() if log.over]
        for name in over[: max(0, len(self._jobs) - _JOBS)]:
            del self._jobs[name]

    def add(self, chunk: msg.LogChunk, node: str = "") -> None:
        log = self._jobs.get(chunk.job)
        if log is not None:
            log.add(KeptChunk(self._clock(), node, chunk))

    def end(self, job: str) -> None:
        """The job is over: listeners end after what they have not read yet."""
        log = self._jobs.get(job)
        if log is not None and not log.over:
            log.end()

    def close(self) -> None:
        """The controller ends, and with it all subscriptions."""
        for log in self._jobs.values():
            log.end()

    async def lines(self, job: str, wanted: LogWanted = EVERY_LINE) -> AsyncIterator[dict[str, Any]]:
        log = self._jobs.get(job)
        if log is None:
            return
        queue = _Listener(_QUEUE)
        since = -1.0 if wanted.seconds is None else self._clock() - wanted.seconds
        tail = [kept for kept in log.tail if kept.at >= since and _takes(wanted, kept)]
        over = log.over or not wanted.follow
        if not over:
            log.listeners[queue] = wanted
        try:
            for kept in tail:
                yield _line(kept)
            while not over:
                item = await queue.take()
                if item is None:
                    return
                yield _line(item)
        finally:
            log.listeners.pop(queue, None)


def _takes(wanted: LogWanted, kept: KeptChunk) -> bool:
    return wanted.takes(kept.chunk.rank, kept.node, kept.chunk.generation)


def _line(kept: KeptChunk) -> dict[str, Any]:
    chunk = kept.chunk
    return {
        "at": kept.at,
        "node": kept.node,
        "rank": chunk.rank,
        "stream": chunk.stream,
        "text": chunk.text,
        "generation": chunk.generation,
        "dropped": chunk.dropped,
        "unfinished": chunk.unfinished,
    }
