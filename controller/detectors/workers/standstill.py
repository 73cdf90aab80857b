"""What the graph of waiting workers is made of, from the table of ranks; and the graph's verdict, once a standstill."""

import math
from collections.abc import Iterator

import numpy as np

from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.graph import Group, HangVerdict, WaitState, judge
from holdfast.diagnostics.hang.stillness import STILL
from holdfast.wire import types as t
from holdfast.wire.rank_sets import expand

_AXES = ("pp", "dp", "tp")


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
               spins.tobytes(), late)  # fmt: skip
        if key != self._key:
            self._key, self._verdict = key, judge(states(ranks, is_alive))
        return self._verdict


def states(ranks: RankTable, is_alive: np.ndarray) -> list[WaitState]:
    """The workers that are expected to run, frozen as they are."""
    groups: dict[tuple[str, int, str], Group | None] = {}
    lines: dict[tuple[int, ...], tuple[int, ...]] = {}
    running, spins = ranks.is_in(RankState.RUNNING), _spinning(ranks)
    return [_state(ranks, int(r), bool(is_alive[r]), bool(spins[r]), groups, lines) for r in np.flatnonzero(running)]


def _state(
    ranks: RankTable,
    rank: int,
    is_alive: bool,
    spins: bool,
    groups: dict[tuple[str, int, str], Group | None],
    lines: dict[tuple[int, ...], tuple[int, ...]],
) -> WaitState:
    standing = ranks.pending[rank] or t.PendingCollective()
    own = [_group(count, groups) for count in standing.groups]
    begun = {group: count.begun for group, count in zip(own, standing.groups, strict=True) if group is not None}
    sizes = {group: count.sizes for group, count in zip(own, standing.groups, strict=True) if group is not None}
    operation = ranks.operation[rank]
    group = own[standing.group] if standing.group >= 0 else None
    if group is not None and rank in group.members:
        return WaitState(
            rank,
            is_alive,
            operation,
            standing.kind,
            group,
            standing.number,
            standing.is_handed,
            begun,
            size=standing.size,
            sizes=sizes,
        )
    is_at_gpu, activity = bool(ranks.at_gpu[rank]), ranks.activity[rank]
    others = _line(ranks, rank, operation, lines)
    return WaitState(
        rank,
        is_alive,
        operation,
        begun=begun,
        sizes=sizes,
        others=others,
        waits_for_gpu=is_at_gpu,
        spins=spins,
        is_behind=activity is not None and bool(activity.behind),
    )


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


def _group(count: t.GroupCount, known: dict[tuple[str, int, str], Group | None]) -> Group | None:
    key = (count.label, count.ident, count.members)
    if key not in known:
        try:
            members = expand(count.members)
        except ValueError:
            members = ()
        known[key] = Group(count.label, count.ident, members) if members else None
    return known[key]


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
