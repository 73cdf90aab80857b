"""Live log lines of the jobs' workers: a bounded tail for late subscribers, a bounded queue for each subscriber."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from holdfast.controller.shell.log_tail import KeptChunk, LogTail, size
from holdfast.controller.state.log_levels import masked
from holdfast.controller.state.log_wanted import EVERY_LINE, Budget, LevelFilter, LogWanted
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
        if wanted.rate is not None:  # of more than is sent at once, the newest
            tail = _newest(tail, 10.0 * wanted.rate)
        filter_, budget = LevelFilter(wanted.level), Budget(wanted.rate, self._clock())
        over = log.over or not wanted.follow
        if not over:
            log.listeners[queue] = wanted
        try:
            for kept in tail:
                if (line := self._sent(kept, filter_, budget)) is not None:
                    yield line
            while not over:
                item = await queue.take()
                if item is None:
                    return
                if (line := self._sent(item, filter_, budget)) is not None:
                    yield line
        finally:
            log.listeners.pop(queue, None)

    def _sent(self, kept: KeptChunk, filter_: LevelFilter, budget: Budget) -> dict[str, Any] | None:
        chunk = kept.chunk
        text = filter_.keep(chunk.generation, chunk.rank, chunk.stream, chunk.text)
        if text is None or not budget.takes(chunk.rank, text, self._clock()):
            return None
        line = _line(kept) | {"text": text}
        line["dropped"] += budget.left_out.pop(chunk.rank, 0)
        return line

    def same(self, job: str, text: str, generation: int | None = None) -> Callable[[], dict[str, Any]]:
        """`streams.SaidBy` of a line: which ranks said it, but for its numbers. What is returned runs in any thread."""
        log = self._jobs.get(job)
        tail = list(log.tail) if log is not None else []
        return lambda: said_by(tail, text, generation)


def said_by(tail: Iterable[KeptChunk], text: str, generation: int | None) -> dict[str, Any]:
    wanted = masked(text)
    lines, first = Counter[int](), None
    for kept in tail:
        chunk = kept.chunk
        if generation is not None and chunk.generation != generation:
            continue
        many = sum(masked(line) == wanted for line in chunk.text.split("\n"))
        if many and wanted:
            lines[chunk.rank] += many
            if first is None or kept.at < first.at:
                first = kept
    return {
        "masked": wanted,
        "ranks": sorted(lines),
        "lines": sum(lines.values()),
        "first": None if first is None else {
            "rank": first.chunk.rank, "node": first.node, "at": first.at, "generation": first.chunk.generation,
        },
    }  # fmt: skip


def _newest(tail: list[KeptChunk], characters: float) -> list[KeptChunk]:
    held, first = 0.0, len(tail)
    while first > 0 and held + len(tail[first - 1].chunk.text) <= characters:
        first -= 1
        held += len(tail[first].chunk.text)
    return tail[first:]


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
