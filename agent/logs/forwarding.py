"""What of the workers' output is forwarded: so many characters a second for the whole node; the rest is counted."""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.wire.messages import LogChunk

Key = tuple[str, int, int]


@dataclass(slots=True)
class Backlog:
    """Whole lines of one stream of a worker, not yet forwarded, and the number of those that are left out."""

    key: Key
    stream: str
    lines: list[str] = field(default_factory=list)
    dropped: int = 0
    unfinished: str = ""
    """What its last line shows that has no end yet, if that is news."""

    def __bool__(self) -> bool:
        """Whether there is anything to report."""
        return bool(self.lines or self.dropped or self.unfinished)


class Forwarder:
    """Allows `rate` characters a second, with one second's worth of burst."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._allowance, self._filled_at = rate, clock()

    def refill(self) -> None:
        now = self._clock()
        self._allowance = min(self._rate, self._allowance + (now - self._filled_at) * self._rate)
        self._filled_at = now

    def trim(self, backlog: Backlog) -> None:
        """Keep only the last lines that the allowance has room for."""
        room = self._allowance
        for at in range(len(backlog.lines) - 1, -1, -1):
            room -= _cost(backlog.lines[at])
            if room < 0:
                backlog.dropped += at + 1
                del backlog.lines[: at + 1]
                return

    def forward(self, backlog: Backlog) -> list[LogChunk]:
        """The first lines that the allowance has room for; the backlog is empty afterwards."""
        lines, backlog.lines = backlog.lines, []
        unfinished, backlog.unfinished = backlog.unfinished, ""
        chunks = self._finished(backlog, lines)
        if unfinished and _cost(unfinished) <= self._allowance:  # the next look at the line is as good as this one
            self._allowance -= _cost(unfinished)
            chunks.append(LogChunk(*backlog.key, backlog.stream, unfinished, unfinished=True))
        return chunks

    def _finished(self, backlog: Backlog, lines: list[str]) -> list[LogChunk]:
        sent = 0
        for line in lines:
            if _cost(line) > self._allowance:
                break
            self._allowance -= _cost(line)
            sent += 1
        backlog.dropped += len(lines) - sent
        if not sent:  # counted on, reported with the next line that gets through
            return [_chunk(backlog, "")] if backlog.dropped and not lines else []
        return [_chunk(backlog, "\n".join(lines[:sent]) + "\n")]


def _chunk(backlog: Backlog, text: str) -> LogChunk:
    dropped, backlog.dropped = backlog.dropped, 0
    return LogChunk(*backlog.key, backlog.stream, text, dropped)


def _cost(line: str) -> int:
    """Characters that a forwarded line counts for."""
    return len(line) + 1
