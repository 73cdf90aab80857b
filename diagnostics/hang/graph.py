"""The wait-for graph, when nothing moves any more: the workers that the others wait for and that wait for none.

Pure. A worker in an operation waits for those of the operation's group that have not begun it; the group's sequence
numbers show which ones those are. A worker that itself waits for none is at fault: one that is dead or stopped, is in
no operation, or is on its way into one in which its peers are already (MegaScale, arXiv 2402.15627, section 5.2: the
culprits are those that say nothing). Where all wait, two orders of operations contradict each other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.diagnostics.hang.group import Group as Group  # for those that import it from here
from holdfast.wire.operation_size import words
from holdfast.wire.rank_sets import compact

MOST_WAITS = 8
"""Operations that a verdict's evidence lists."""


@dataclass(frozen=True, slots=True)
class WaitState:
    """One worker, frozen. `number` counts the operations of its group from 0, `begun` those that it began of each."""

    rank: int
    is_alive: bool = True
    operation: str = ""
    """Its name; empty: in none."""
    kind: str = ""
    group: Group | None = None
    """None where only the name is known: then its peers are those of `others`."""
    number: int = -1
    is_handed: bool = False
    """Issued and waited for; else the worker may still be on its way into the operation."""
    begun: Mapping[Group, int] = field(default_factory=dict)
    others: tuple[int, ...] = ()
    """The ranks that an operation without a known group may be with, itself included."""
    size: int = 0
    """Of its operation (operation_size), where it must be the same for all; 0: not known."""
    sizes: Mapping[Group, int] = field(default_factory=dict)
    """Of each group: what stands for the sizes of all operations that it began there, in order; 0: not known."""
    waits_for_gpu: bool = False
    """It is in no operation and waits for its GPU, which waits for peers: it has begun what they have not."""
    spins: bool = False
    """It is in no operation and spins in a wait for its GPU: likely for the same reason, but no event shows it."""
    is_behind: bool = False
    """It has begun fewer operations of a communicator than a peer, by NCCL's own count."""


class Reason(StrEnum):
    STOPPED = "stopped"
    OUTSIDE = "outside"
    """In no operation, while the others wait."""
    ENTERING = "entering"
    """In the operation in which its peers wait, but it was never issued."""
    WITHIN = "within"
    """In a pass that does unseen operations of its own, and computes as well."""
    ORDER = "order"
    """Operations begun in different orders, or different ones, or of different sizes, under the same number."""
    STACK = "stack"
    """In the same operation as its peers, but elsewhere in its code."""
    TRANSFER = "transfer"
    """All ranks are there, and still nothing moves."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An operation in which ranks wait, and the ranks they wait for."""

    operation: str
    ranks: tuple[int, ...]
    missing: tuple[int, ...]

    def __str__(self) -> str:
        absent = f"without {compact(self.missing)}" if self.missing else "complete"
        return f"{self.operation}: ranks {compact(self.ranks)}, {absent}"


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """`suspects` in ascending order; none for `TRANSFER`, which may be the network's fault."""

    reason: Reason
    suspects: tuple[int, ...]
    text: str
    waits: tuple[Wait, ...]
    is_guess: bool = False
    """Likely, but without proof: it names the suspects, and ends no job sooner than without it."""


_Key = tuple[Group | str, int]
"""An operation: its group and number, or, where these are unknown, its name and -1."""


@dataclass(slots=True)
class _Meeting:
    """One operation: the ranks in it, and those still missing."""

    name: str
    inside: list[WaitState]
    missing: list[int]
    is_handed: bool = False
    """By any of those inside."""


def judge(states: Iterable[WaitState]) -> HangVerdict | None:
    """The ranks that hold up the job while no rank enters or leaves an operation. None if no rank waits."""
    known = {state.rank: state for state in states}
    meetings = _meetings(known)
    if not meetings:
        return _without_operations(known)
    waits = tuple(
        Wait(m.name, tuple(sorted(s.rank for s in m.inside)), tuple(sorted(m.missing)))
        for m in sorted(meetings.values(), key=lambda m: -len(m.inside))[:MOST_WAITS]
    )
    return (
        _differing_kinds(meetings.values(), waits)
        or _differing_sizes(meetings.values(), waits)
        or _sinks(known, meetings, waits)
        or _within(meetings, waits)
        or _circle(known, meetings, waits)
        or _past_sizes(known, waits)
        or HangVerdict(Reason.TRANSFER, (), f"all ranks have entered {waits[0].operation}, and it does not end", waits)
    )


def _meetings(known: Mapping[int, WaitState]) -> dict[_Key, _Meeting]:
    found: dict[_Key, _Meeting] = {}
    for state in known.values():
        if state.operation and state.is_alive:
            meeting = found.setdefault(_key(state), _Meeting(_name(state), [], []))
            meeting.inside.append(state)
            meeting.is_handed |= state.is_handed
    for key, meeting in found.items():
        meeting.missing = [rank for rank in _members(meeting) if not _has_come(known.get(rank), key, meeting)]
    return found


def _key(state: WaitState) -> _Key:
    if state.group is None:
        return f"{state.operation} {compact(state.others)}", -1
    return state.group, state.number


def _name(state: WaitState) -> str:
    if state.group is None:
        return state.operation
    kind = state.operation if state.operation.endswith(state.kind) else f"{state.operation}, {state.kind}"
    return f"{kind} {state.number} of {state.group}"


def _members(meeting: _Meeting) -> Sequence[int]:
    first = meeting.inside[0]
    return first.others if first.group is None else first.group.members


def _has_come(state: WaitState | None, key: _Key, meeting: _Meeting) -> bool:
    if state is None or not state.is_alive:
        return False  # what it has begun may still need it
    group, number = key
    is_inside = bool(state.operation) and _key(state) == key
    if is_inside or isinstance(group, str):
        return is_inside and not _is_entering(state, meeting)
    return state.begun.get(group, 0) > number


def _is_entering(state: WaitState, meeting: _Meeting) -> bool:
    """Others have issued theirs, it has not."""
    return not state.is_handed and meeting.is_handed


def _is_held_up(state: WaitState, meeting: _Meeting) -> bool:
    """On its way into an operation that only lacks this rank."""
    is_complete = state.group is not None and not set(meeting.missing) - {state.rank}
    have_left = len(meeting.inside) < len(_members(meeting))
    return _is_entering(state, meeting) or (is_complete and have_left and not state.is_handed)


def _differing_kinds(meetings: Iterable[_Meeting], waits: tuple[Wait, ...]) -> HangVerdict | None:
    for meeting in meetings:
        kinds = Counter(state.kind for state in meeting.inside if state.kind)
        # The two ends of a message have different names for it.
        if len(kinds) < 2 or set(kinds) == {"send", "recv"}:
            continue
        usual, count = kinds.most_common(1)[0]
        is_majority = count * 2 > kinds.total()
        odd = tuple(sorted(s.rank for s in meeting.inside if s.kind and (s.kind != usual or not is_majority)))
        group, number = meeting.inside[0].group, meeting.inside[0].number
        said = ", ".join(f"{kind} (ranks {_ranks(s for s in meeting.inside if s.kind == kind)})" for kind in kinds)
        return HangVerdict(Reason.ORDER, odd, f"operation {number} of {group} differs between ranks: {said}", waits)
    return None


def _differing_sizes(meetings: Iterable[_Meeting], waits: tuple[Wait, ...]) -> HangVerdict | None:
    """The same operation, of another size: it never ends, or it spoils memory. Sizes that are not known say nothing."""
    for meeting in meetings:
        known = [state for state in meeting.inside if state.size and state.group is not None and state.number >= 0]
        sizes = Counter(state.size for state in known)
        if len(sizes) < 2:
            continue
        usual, count = sizes.most_common(1)[0]
        is_majority = count * 2 > sizes.total()
        odd = tuple(sorted(s.rank for s in known if s.size != usual or not is_majority))
        said = ", ".join(f"{words(size)} (ranks {_ranks(s for s in known if s.size == size)})" for size in sizes)
        return HangVerdict(Reason.ORDER, odd, f"{meeting.name} differs in size between ranks: {said}", waits)
    return None


def _past_sizes(known: Mapping[int, WaitState], waits: tuple[Wait, ...]) -> HangVerdict | None:
    """All ranks are there, but an operation that is over was not of the same size everywhere: what one rank sent too
    much or too little is taken for a part of the next. Only where all began as many: else their histories differ."""
    groups = {group for state in known.values() for group in state.sizes}
    for group in sorted(groups, key=lambda one: (one.label, one.ident)):
        states = [known[r] for r in group.members if r in known and known[r].sizes.get(group)]
        begun = Counter(state.begun.get(group, 0) for state in states)
        if len(states) < len(group.members) or len(begun) != 1:
            continue
        usual, count = Counter(state.sizes[group] for state in states).most_common(1)[0]
        odd = tuple(sorted(s.rank for s in states if s.sizes[group] != usual or count * 2 <= len(states)))
        if count < len(states):
            named = ("rank " if len(odd) == 1 else "ranks ") + compact(odd)
            where = waits[0].operation
            text = f"all ranks are in {where}, but an earlier operation of {group} had another size on {named}"
            return HangVerdict(Reason.ORDER, odd, text, waits)
    return None


def _sinks(
    known: Mapping[int, WaitState], meetings: Mapping[_Key, _Meeting], waits: tuple[Wait, ...]
) -> HangVerdict | None:
    """Those that some rank misses, and that wait for none themselves."""
    missed = {rank for meeting in meetings.values() for rank in meeting.missing}
    stopped = [rank for rank in missed if rank not in known or not known[rank].is_alive]
    entering = [
        rank
        for rank in missed - set(stopped)
        if known[rank].operation and _is_held_up(known[rank], meetings[_key(known[rank])])
    ]
    outside = _behind(known, [rank for rank in missed - set(stopped) if not known[rank].operation])
    for reason, ranks, what in (
        (Reason.STOPPED, stopped, "does not run"),
        (Reason.ENTERING, entering, "is in the operation in which its peers wait, but stopped before it began"),
        (Reason.OUTSIDE, outside, "is in no operation"),
    ):
        if ranks:
            waiting = sum(len(meeting.inside) for meeting in meetings.values()) - (reason is Reason.ENTERING)
            named = ("rank " if len(ranks) == 1 else "ranks ") + compact(ranks)
            return HangVerdict(reason, tuple(sorted(ranks)), f"{named} {what}, and {waiting} wait for it", waits)
    return None


def _without_operations(known: Mapping[int, WaitState]) -> HangVerdict | None:
    """Hosts that have left their operations to their GPUs: those that wait for them lack those that do not."""
    seen = {rank for rank, state in known.items() if state.waits_for_gpu}
    likely = seen | {rank for rank, state in known.items() if state.spins and state.is_alive}
    behind = {rank for rank in likely if known[rank].is_behind}
    if known.keys() - likely:
        # Few that spin while most sleep may each be in an endless kernel of their own, for which the others wait.
        waiting = likely if 2 * len(likely) >= len(known) else seen
    elif seen and seen != likely:
        waiting = seen
    else:
        waiting = likely - behind if 2 * len(behind) <= len(known) else likely
    others = tuple(sorted(known.keys() - waiting))
    if not waiting or not others:
        return None
    wait = Wait("work of their GPUs", tuple(sorted(waiting)), others)
    if set(others) <= behind:
        named = ("rank " if len(others) == 1 else "ranks ") + compact(others)
        text = f"{named} began fewer operations than {len(waiting)} peers, by NCCL's count, and all wait for their GPUs"
    else:
        named = f"rank {others[0]} does" if len(others) == 1 else f"ranks {compact(others)} do"
        text = f"{named} not wait for a GPU, and the GPUs of {len(waiting)} wait for their peers'"
    return HangVerdict(Reason.OUTSIDE, others, text, (wait,), is_guess=not waiting <= seen or set(others) <= behind)


def _behind(known: Mapping[int, WaitState], ranks: Sequence[int]) -> list[int]:
    """Of several that are in no operation, those that do not wait for their GPU and have begun fewer than a peer has;
    all if that excludes none."""
    ranks = [rank for rank in ranks if not known[rank].waits_for_gpu] or ranks
    if len(ranks) < 2:
        return list(ranks)
    most: Counter[Group] = Counter()
    for state in known.values():
        for group, begun in state.begun.items():
            most[group] = max(most[group], begun)
    behind = [
        rank
        for rank in ranks
        if any(rank in group.members and known[rank].begun.get(group, 0) < count for group, count in most.items())
    ]
    return behind or list(ranks)


def _within(meetings: Mapping[_Key, _Meeting], waits: tuple[Wait, ...]) -> HangVerdict | None:
    """Some miss a worker of whose operation only the name is known: it may be computing in there."""
    loose = {s.rank: s for m in meetings.values() for s in m.inside if s.group is None}
    missed = {rank for m in meetings.values() for rank in m.missing if m.inside[0].group is not None}
    found = tuple(sorted(missed & set(loose)))
    if not found:
        return None
    named = ("rank " if len(found) == 1 else "ranks ") + compact(found)
    return HangVerdict(Reason.WITHIN, found, f"{named} does not finish {loose[found[0]].operation}", waits)


def _circle(
    known: Mapping[int, WaitState], meetings: Mapping[_Key, _Meeting], waits: tuple[Wait, ...]
) -> HangVerdict | None:
    """All wait: follow the missing ranks until one comes a second time."""
    rank = next((s.rank for m in meetings.values() if m.missing for s in m.inside), None)
    if rank is None:
        return None
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        missing = meetings[_key(known[rank])].missing
        if not missing:
            return None  # the way ends in an operation that is complete, and does not end
        rank = min(missing)
    circle = path[path.index(rank) :]
    sides = [meetings[key] for key in dict.fromkeys(_key(known[one]) for one in circle)]
    fewest = min(len(side.inside) for side in sides)
    smaller = [side for side in sides if len(side.inside) == fewest]
    suspects = tuple(sorted(s.rank for side in smaller for s in side.inside)) if len(smaller) == 1 else circle
    said = ", ".join(f"{side.name} (ranks {_ranks(side.inside)})" for side in sides)
    return HangVerdict(Reason.ORDER, tuple(sorted(suspects)), f"ranks wait for each other in a cycle: {said}", waits)


def _ranks(states: Iterable[WaitState]) -> str:
    return compact(state.rank for state in states)
