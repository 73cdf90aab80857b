"""Ranks that ended with exit code 0 while others were still at work: no fault in itself, but the cause of theirs when
they then lose their connections. Pure: instants are passed in."""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.facts import tracebacks
from holdfast.wire import types as t

WITHIN_S = 120.0
"""A rank that lost a connection later than this after another had left did not need that one."""
_SKEW_S = 2.0  # between the clocks of hosts
_STEPS = 1  # that the others may have done beyond the leaver's last: the one that they were in


@dataclass(frozen=True, slots=True)
class Left:
    """A rank that ended with 0."""

    rank: int
    node: str
    wall: float
    step: int
    """Its last one; -1 unknown."""
    others: int
    """Ranks that were still running then."""


class Leavers:
    """Of the running generation."""

    def __init__(self) -> None:
        self._generation = -1
        self._left: dict[int, Left] = {}

    def note(self, exited: t.WorkerExited, node: str, ranks: RankTable) -> None:
        """A rank ended with 0; `ranks` says so already."""
        if exited.generation != self._generation:
            self._generation, self._left = exited.generation, {}
        others = int(ranks.is_in(RankState.RUNNING).sum())
        step = int(ranks.counted[exited.rank])
        self._left[exited.rank] = Left(exited.rank, node, exited.wall_ns / 1e9, step, others)

    def cause_of(
        self, echo: Finding, job: Job, ranks: RankTable, leaving: Iterable[str], now: Instant
    ) -> Finding | None:
        """The rank whose exit made another fail, as a finding; None where no rank had left, or it was not needed.

        `echo`: what the other failed with. `leaving`: nodes that were asked to end.
        """
        if self._generation != job.generation or not echo.secondary or not _is_of_its_peers(echo):
            return None
        if 2 * len(self._left) > ranks.world:
            return None  # the job was ending, and what failed is a late rank
        since = [left for left in self._left.values() if -_SKEW_S <= echo.since - left.wall <= WITHIN_S]
        if not since:
            return None
        first = min(since, key=lambda left: left.wall)
        reached = int(ranks.counted[echo.rank]) if echo.rank >= 0 else -1
        if first.step >= 0 and reached > first.step + _STEPS:
            return None  # it went on without
        at = f" after step {first.step}" if first.step >= 0 else ""
        reported = first.node in set(leaving)
        why = "; its agent was stopping" if reported else ""
        return finding(
            t.FindingKind.WORKER_PREEMPTED if reported else t.FindingKind.WORKER_LEFT,
            f"rank{first.rank}",
            f"rank {first.rank} ended with exit code 0{at} while {first.others} ranks were still training{why}; "
            f"then {echo.text}",
            now,
            seconds=max(0.0, now.wall - first.wall),
            node=first.node,
            rank=first.rank,
            evidence={
                "code": 0,
                "step": first.step if first.step >= 0 else None,
                "still_training": first.others,
                "lost_by": echo.subject,
            },
        )


def _is_of_its_peers(echo: Finding) -> bool:
    """Did it lose a connection to another rank, and not to a store or a service of its own?"""
    said = "\n".join(str(echo.evidence.get(key, "")) for key in ("error", "tail"))
    return tracebacks.is_between_ranks(said)
