"""Which lines of a job's log a reader wants. Pure."""

from dataclasses import dataclass

from holdfast.controller.state.log_levels import Level, LevelJudge


@dataclass(frozen=True, slots=True)
class LogWanted:
    ranks: frozenset[int] = frozenset()
    """Empty: all."""
    node: str = ""
    """Empty: all."""
    generation: int | None = None
    """None: all that are kept."""
    seconds: float | None = None
    """Only what was received in so many seconds before the question, and after it."""
    follow: bool = True
    """False: only what is kept."""
    level: Level = Level.DEBUG
    """Only lines of this level or a worse one."""
    rate: float | None = None
    """Characters a second that are sent at most, after a first burst; what is too much is left out and counted."""

    def takes(self, rank: int, node: str, generation: int) -> bool:
        return (
            (not self.ranks or rank in self.ranks)
            and (not self.node or node == self.node)
            and (self.generation is None or generation == self.generation)
        )


EVERY_LINE = LogWanted()


class LevelFilter:
    """Of the lines of all streams of a job those of a level or a worse one."""

    def __init__(self, least: Level) -> None:
        self._least = least
        self._judges: dict[tuple[int, int, str], LevelJudge] = {}

    def keep(self, generation: int, rank: int, stream: str, text: str) -> str | None:
        """What is left of a chunk's lines; None: nothing."""
        if self._least is Level.DEBUG:
            return text
        judge = self._judges.setdefault((generation, rank, stream), LevelJudge())
        lines = [line for line in text.removesuffix("\n").split("\n") if judge.level(line) >= self._least]
        return "\n".join(lines) + "\n" * text.endswith("\n") if lines else None


class Budget:
    """A bucket that fills at `rate` characters a second up to ten seconds' worth; None: without a bound."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._left, self._at = rate, 10.0 * (rate or 0.0), now
        self.left_out: dict[int, int] = {}
        """Lines by rank, not reported yet."""

    def takes(self, rank: int, text: str, now: float) -> bool:
        if self._rate is None:
            return True
        self._left = min(10.0 * self._rate, self._left + self._rate * max(0.0, now - self._at))
        self._at = now
        if len(text) > self._left:
            self.left_out[rank] = self.left_out.get(rank, 0) + text.removesuffix("\n").count("\n") + 1
            return False
        self._left -= len(text)
        return True
