"""What the graph of waiting workers is made of, from the table of ranks; and the graph's verdict, once a standstill."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from holdfast.controller.detectors.workers.facts import facts_of
from holdfast.controller.detectors.workers.pause import named
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.graph import HangVerdict, Reason, WaitState, judge
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.stack_tree import Stack, odd_ranks
from holdfast.diagnostics.hang.stillness import STILL
from holdfast.wire import types as t

_AXES = ("pp", "dp", "tp")
_SET_UP = "init_process_group"


class Standstill:
    """Remembers the last verdict: judging thousands of ranks at every tick would take the controller's time."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] | None = None
        self._verdict: HangVerdict | None = None

    def judge(self, ranks: RankTable, is_alive: np.ndarray, since: float) -> HangVerdict | None:
        """`since`: when the last of them moved, monotonic seconds."""
        spins = _spinning(ranks)
        late = tuple(rank for rank, _ in behind(ranks, spins))
        key = (int(ranks.generation.max(initial=-1)), round(since, 1), int(is_alive.sum()), int(ranks.at_gpu.sum()),
               spins.tobytes(), late, _known_operations(ranks))  # fmt: skip
        if key != self._key:
            self._key, self._verdict = key, judge(states(ranks, is_alive))
        return self._verdict


def _known_operations(ranks: RankTable) -> int:
    """How many are open: torch's record of them may come later than the standstill."""
    return sum(len(one.operations) for one in ranks.standing if one is not None)


def states(ranks: RankTable, is_alive: np.ndarray) -> list[WaitState]:
    """The workers that are expected to run, frozen as they are."""
    lines: dict[tuple[int, ...], tuple[int, ...]] = {}
    running, spins = ranks.is_in(RankState.RUNNING), _spinning(ranks)
    # The first one makes the world: it needs all. Where all are in it, who is missing may be from elsewhere.
    here = [_is_together(ranks.operation[rank]) or ranks.operation[rank] == _SET_UP for rank in np.flatnonzero(running)]
    set_up = _SET_UP if not all(here) else ""
    known = {facts.rank: facts for facts in facts_of(ranks, running, np.zeros(ranks.world, np.bool_))}
    return [
        _state(ranks, rank, bool(is_alive[rank]), bool(spins[rank]), known.get(rank) or RankFacts(rank), lines, set_up)
        for rank in map(int, np.flatnonzero(running))
    ]


def _state(
    ranks: RankTable,
    rank: int,
    is_alive: bool,
    spins: bool,
    facts: RankFacts,
    lines: dict[tuple[int, ...], tuple[int, ...]],
    set_up: str,
) -> WaitState:
    """`set_up`: the name of an operation that needs all ranks, besides those of mesh axes; empty: none does."""
    named = ranks.operation[rank]
    waits = _waits_in(facts, int(ranks.pid[rank]))
    if waits is not None:
        standing = ranks.pending[rank]
        return WaitState(
            rank, is_alive, named or waits.kind, waits.kind, waits.group, waits.number, True, facts.begun,
            size=waits.size, sizes=_sizes(standing, facts),
        )  # fmt: skip
    # Forward, backward, a phase are places, in which no other rank is needed.
    operation = named if _is_together(named) or (named and named == set_up) else ""
    activity = ranks.activity[rank]
    return WaitState(
        rank,
        is_alive,
        operation,
        begun=facts.begun,
        sizes=_sizes(ranks.pending[rank], facts),
        others=_line(ranks, rank, operation, lines),
        waits_for_gpu=bool(ranks.at_gpu[rank]),
        spins=spins,
        is_behind=activity is not None and bool(activity.behind),
    )


def _waits_in(facts: RankFacts, pid: int) -> OpenAt | None:
    """The operation in which the main thread waits, of several the last; or one that no thread is seen to wait for."""
    main = facts.threads[0].tid if facts.threads else pid  # the windows of threads begin anew after each dump of stacks
    mine = [one for one in facts.operations if one.thread == main] or [
        one for one in facts.operations if not one.thread
    ]
    return max(mine, key=lambda one: one.number, default=None)


def _sizes(pending: t.PendingCollective | None, facts: RankFacts) -> dict[Group, int]:
    by_key = {(group.label, group.ident): group for group in facts.begun}
    counts = pending.groups if pending is not None else ()
    return {by_key[key]: one.sizes for one in counts if (key := (one.label, one.ident)) in by_key}


def by_stacks(verdict: HangVerdict, stacks: Sequence[Stack]) -> HangVerdict:
    """All are in the same operation: the one whose stack is another than its peers' may be stuck in a part of it."""
    inside = verdict.waits[0]
    odd = odd_ranks(stacks, inside.ranks)
    if not odd:
        return verdict
    text = f"{named(odd)} is at another place in {inside.operation} than its peers (see the stacks)"
    return HangVerdict(Reason.STACK, odd, text, verdict.waits)


def _is_together(operation: str) -> bool:
    """Whether an operation of which only the name is known is one that ranks of a mesh axis do together."""
    return operation.partition(":")[0] in _AXES


def _spinning(ranks: RankTable) -> np.ndarray:
    """The ranks that spin in a wait for their GPUs: one that moved just now does something else."""
    found: np.ndarray = ranks.spins & (ranks.quiet >= STILL)
    return found


def behind(ranks: RankTable, running: np.ndarray) -> Iterator[tuple[int, str]]:
    """Ranks that have begun fewer operations of NCCL than their peers, and which, as text."""
    for rank in np.flatnonzero(running):
        activity = ranks.activity[rank]
        if activity is not None and activity.behind:
            yield int(rank), activity.behind


def _line(
    ranks: RankTable, rank: int, operation: str, known: dict[tuple[int, ...], tuple[int, ...]]
) -> tuple[int, ...]:
    """The ranks that may take part in an operation of which only the name is known: its mesh axis, else all."""
    axis = operation.partition(":")[0]
    place = ranks.coordinate[rank]
    if axis not in _AXES or place[0] < 0:
        key: tuple[int, ...] = ()
    else:
        # Where pipeline ranks differ in tp, a message concerns all of a pipeline.
        free = (axis, "tp") if axis == "pp" and math.prod(ranks.sizes or ()) != ranks.world else (axis,)
        key = tuple(-1 if name in free else int(at) for name, at in zip(_AXES, place, strict=True))
    if key not in known:
        same = np.ones(ranks.world, np.bool_)
        for i, at in enumerate(key):
            same &= (ranks.coordinate[:, i] == at) if at >= 0 else True
        known[key] = tuple(int(r) for r in np.flatnonzero(same))
    return known[key]
