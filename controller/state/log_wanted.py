"""Which lines of a job's log a reader wants. Pure."""

from dataclasses import dataclass


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

    def takes(self, rank: int, node: str, generation: int) -> bool:
        return (
            (not self.ranks or rank in self.ranks)
            and (not self.node or node == self.node)
            and (self.generation is None or generation == self.generation)
        )


EVERY_LINE = LogWanted()
