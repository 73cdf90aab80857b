"""Puts what workers print through the rules, a bounded share of a processor at a time: the rest waits for its turn.

A worker may print megabytes that every rule has to look at. The loop that reads them is also the agent's heartbeat.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

from holdfast.agent.logs.printed_losses import PrintedLosses
from holdfast.agent.logs.rules import MOST_OF_LINE, LogRule, RateLimit, Rules, clip
from holdfast.agent.logs.streaks import Streaks
from holdfast.base import log
from holdfast.wire.types import LogMatched

Key = tuple[str, int, int]

WORK_S = 0.03
"""Processor time of one turn, which comes 4 to 20 times a second. One piece more may be begun."""
FINISH_S = 0.1
"""The same for what is left when a worker has ended ..."""
LAST = 64 << 10
"""... which is so many characters at the end."""
MOST_WAITING = 8 << 20
"""Characters that wait; beyond them the oldest are passed over."""


class Scanner:
    def __init__(
        self,
        rules: Rules,
        on_match: Callable[[LogMatched, LogRule | None], None],
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self._rules, self._on_match = rules, on_match
        self._clock, self._wall, self._cpu = clock, wall_ns, cpu
        self._limit: RateLimit[tuple[Key, LogRule]] = RateLimit()
        self._streaks: Streaks[Key] = Streaks(rules.all)
        self._losses = PrintedLosses(lambda event: on_match(event, None), wall_ns) if rules.all else None
        self._waiting: deque[tuple[Key, str]] = deque()
        self._held = 0
        self._is_over = False  # reported that lines were skipped, since all was last read

    @property
    def is_behind(self) -> bool:
        """Whether something waits to be looked at."""
        return bool(self._waiting)

    @property
    def holds(self) -> bool:
        """Whether `work` may have anything to do yet."""
        return bool(self._waiting) or self._limit.holds

    def add(self, key: Key, text: str) -> None:
        """Whole lines that this worker printed."""
        for piece in cut(text):
            self._waiting.append((key, piece))
            self._held += len(piece)
        while self._held > MOST_WAITING:
            (job, generation, rank), piece = self._waiting.popleft()
            self._held -= len(piece)
            if not self._is_over:
                self._is_over = True
                log.warning("lines.unread", job=job, generation=generation, rank=rank, waiting=self._held)

    def work(self) -> None:
        """Look at what waits, for as long as a turn may last."""
        if self._waiting:
            end = self._cpu() + WORK_S
            while self._waiting:
                key, piece = self._waiting.popleft()
                self._held -= len(piece)
                self._look(key, piece)
                if self._cpu() >= end:
                    break
            self._is_over = self._is_over and bool(self._waiting)
        for (key, rule), line, count in self._limit.flush(self._clock()):
            self._report(key, rule, line, count)

    def finish(self, key: Key) -> None:
        """The worker is gone: look at the end of what it printed now."""
        mine = [piece for whose, piece in self._waiting if whose == key]
        if mine:
            self._waiting = deque(waits for waits in self._waiting if waits[0] != key)
            self._held -= sum(map(len, mine))
            size, first = 0, len(mine)
            while first and size < LAST:
                first -= 1
                size += len(mine[first])
            end = self._cpu() + FINISH_S
            for at, piece in enumerate(mine[first:], first + 1):
                if self._cpu() < end or at == len(mine):  # its very last words in any case
                    self._look(key, piece)
        self._streaks.forget(key)
        if self._losses is not None:
            self._losses.forget(key)
        self.work()

    def _look(self, key: Key, piece: str) -> None:
        if self._losses is not None:
            self._losses.look(key, piece)
        for line, rule in self._streaks.look(key, piece, list(self._rules.scan(piece))):
            count = self._limit.admit((key, rule), line, self._clock())
            if count:
                self._report(key, rule, line, count)

    def _report(self, key: Key, rule: LogRule, line: str, count: int) -> None:
        if count > 1:
            line = f"{line} [{count} times]"
        self._on_match(LogMatched(*key, self._wall(), rule.name, rule.kind, rule.severity, line), rule)


def cut(text: str, most: int = MOST_OF_LINE) -> Iterator[str]:
    """The lines of a text, in pieces of about `most` characters. Of one that is longer, the lines that a progress bar
    writes over each other; where there are none, its beginning and its end.
    """
    text, at = text.removesuffix("\n"), 0
    while len(text) - at > most:
        end = text.rfind("\n", at, at + most + 1)
        if end >= 0:
            yield text[at:end]
        else:
            end = text.find("\n", at + most)
            end = end if end >= 0 else len(text)
            line = text[at:end]
            if "\r" in line:
                yield from cut(line.replace("\r", "\n"), most)
            else:
                yield clip(line)
        at = end + 1
    if at < len(text):
        yield text[at:]
