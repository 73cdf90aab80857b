"""Incidents before one that had the same node, the same rank of the same job, or the same traceback. Pure."""

from collections.abc import Iterable

from holdfast.controller.state.incidents import Finding, Incident
from holdfast.wire.types import FindingKind

MOST = 10
NODE, RANK, TRACEBACK = "node", "rank", "traceback"


def earlier(one: Incident, all_: Iterable[Incident]) -> list[tuple[Incident, tuple[str, ...]]]:
    """The newest first, at most `MOST`, each with what it has in common."""
    mine, found = _first(one), []
    for other in all_:
        if other.id == one.id or other.opened > one.opened:
            continue
        if shared := _shared(mine, _first(other), one.job == other.job != ""):
            found.append((other, shared))
    found.sort(key=lambda pair: -pair[0].opened)
    return found[:MOST]


def _first(one: Incident) -> Finding:
    """What it began with: a want of nodes came of it, and has no node."""
    return next((each for each in one.findings if each.kind is not FindingKind.CAPACITY), one.cause)


def _shared(a: Finding, b: Finding, is_same_job: bool) -> tuple[str, ...]:
    is_raised = a.kind is b.kind is FindingKind.WORKER_EXCEPTION and a.signature == b.signature != ""
    both = (
        (NODE, a.node != "" and a.node == b.node),
        (RANK, is_same_job and a.rank >= 0 and a.rank == b.rank),
        (TRACEBACK, is_raised),
    )
    return tuple(name for name, holds in both if holds)
