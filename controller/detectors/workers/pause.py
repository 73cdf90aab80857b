"""A job that stands still and may go on by itself: which ranks hold it up, since when, and how that is worded."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.diagnostics.hang.graph import HangVerdict, Reason
from holdfast.diagnostics.hang.stillness import Liveness, Sight
from holdfast.wire.rank_sets import compact


@dataclass(frozen=True, slots=True)
class Pause:
    """A job that stands still and may go on by itself."""

    life: Liveness
    """Busy if any of `ranks` is."""
    ranks: tuple[int, ...]
    """The ranks that hold up the others; all where no rank waits for another."""
    waiting: tuple[int, ...]
    """Those that wait for them."""
    still: float
    """Seconds without a move of any rank."""
    quiet: float
    """Seconds that nothing of any of `ranks` has moved; NaN: not measured."""
    ends_in: float
    """Seconds until the last of their system calls ends by itself, where those have deadlines; else NaN."""
    sights: tuple[Sight, ...]
    """What the first of `ranks` do."""
    is_training: bool
    """Whether steps are expected: the script reported no other phase."""
    verdict: HangVerdict | None = None
    behind: tuple[tuple[int, str], ...] = ()
    """Ranks that have begun fewer operations of NCCL than their peers, and which: the first of them."""

    @property
    def is_in_flight(self) -> bool:
        """Whether all ranks wait in an operation that no rank is missing from: how long it takes is the network's."""
        return self.verdict is not None and self.verdict.reason in (Reason.TRANSFER, Reason.STACK)

    @property
    def text(self) -> str:
        """What holds up the job, as readable text."""
        if not self.behind or any(said in sight.text for _, said in self.behind for sight in self.sights):
            return self._text
        rank, said = self.behind[0]
        return f"{self._text}; of rank {rank}: {said}"

    @property
    def _text(self) -> str:
        who = named(self.ranks) if self.waiting or len(self.ranks) == 1 else f"all {len(self.ranks)} ranks"
        parts = list(dict.fromkeys(sight.text for sight in self.sights))
        if len(self.ranks) > 1:
            parts = [f"{len(parts)} kinds of waits, the first: {parts[0]}" if len(parts) > 2 else " or ".join(parts)]
            return f"{who}, each: {parts[0]}{self._others()}"
        return f"{who} {parts[0]}{self._others()}"

    def _others(self) -> str:
        if not self.waiting:
            return ""
        where = self.verdict.waits[0].operation if self.verdict is not None and self.verdict.waits else "an operation"
        wait = "waits" if len(self.waiting) == 1 else "wait"
        return f"; {len(self.waiting)} {wait} for {'it' if len(self.ranks) == 1 else 'them'} in {where}"


def named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + compact(ranks)
