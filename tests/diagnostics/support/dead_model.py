"""Steps that ranks which stand still may take: a relation, explored whole. It shares no code with the judge.

A free thread may do anything that program order allows: let go what waits for its process, put the next operation of a
group under way (whichever kind, as it likes), leave what it is in and try again. A thread in an operation goes on when
all whom it needs have put the same under way. A rank is dead if on no path its main thread ever becomes free.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from holdfast.diagnostics.hang.facts import RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.wire.standing import ThreadSight, ThreadState

FREE, OWN, ENDED, INSIDE = range(4)
Sign = tuple[str, int, int]
"""Kind, size, root."""
ANY: Sign = ("", 0, -1)
"""Sign of an operation that is over, or may be tried again: it fits whatever the others do."""
LEFT = "left "
"""In front of the kind of an operation that is over, of which something is known."""
LEFT_BROADCAST = LEFT + "broadcast"
WIDTHS = {0: 1, 1: 4, 4: 8}
"""Bytes of an element by the upper bits of a size, as far as they are used here."""
Ref = tuple[Group, int, Sign]
Thread = tuple[int, tuple[Ref, ...]]
"""Mode, and the operations that it is in."""
State = tuple[tuple[Thread, ...], tuple[tuple[Sign, ...], ...]]
"""All threads; for each rank and group what it has put under way there, in order."""

_T = TypeVar("_T")
_LEGS = {"send", "recv"}
_COUNTED_FROM_FIRST_USE = (*_LEGS, "new_group", "monitored_barrier")
_EVERYONE = {"all_reduce", "barrier", "all_gather", "reduce_scatter", "all_to_all", "new_group", "monitored_barrier"}


def _fits(one: Sign, other: Sign) -> bool:
    if other[0].startswith(LEFT):
        return _is_served_by(one, other[0].removeprefix(LEFT), other[1])
    same_kind = not one[0] or not other[0] or one[0] == other[0] or {one[0], other[0]} == _LEGS
    same_size = 0 in (one[1], other[1]) or one[1] == other[1]
    return same_kind and same_size and (-1 in (one[2], other[2]) or one[2] == other[2])


def _is_served_by(sign: Sign, kind: str, size: int) -> bool:
    """Whether all that an operation wants of a member may have been sent in one that is over: messages carry the kind,
    and as many bytes are the same messages. Of a broadcast there is one, whatever its length."""
    if not kind or not sign[0] or kind != sign[0]:
        return not kind or not sign[0]
    return kind == "broadcast" or 0 in (size, sign[1]) or _volume(size) == _volume(sign[1])


def _volume(size: int) -> int:
    return WIDTHS[size >> 26] * (size & (1 << 26) - 1)


@cache
def _messages(members: tuple[int, ...], root: int) -> frozenset[tuple[int, int]]:
    """Who sends to whom in a broadcast: what each rank does, line by line as gloo's broadcast.cc has it."""
    size, found = len(members), set()
    rounds = (size - 1).bit_length()
    for rank in range(size):
        virtual, mask = (rank + size - members.index(root)) % size, (1 << rounds) - 1
        for bit in range(rounds):
            mask ^= 1 << bit
            peer = virtual ^ (1 << bit)
            if virtual & mask == 0 and peer < size and not virtual & (1 << bit):
                found.add((members[rank], members[(peer + members.index(root)) % size]))
    return frozenset(found)


def _went(sign: Sign, left: Sign, group: Group, rank: int, other: int) -> bool:
    """Whether the message that `rank` waits for, in a broadcast, went between it and `other`, which has left."""
    mine = _messages(group.members, sign[2])
    way = (rank, other) if sign[2] == rank else (other, rank)
    if left[0] != LEFT_BROADCAST or left[2] == sign[2] or left[2] not in group.members or way not in mine:
        return True
    return way in _messages(group.members, left[2])


def _takes(sign: Sign, other: Sign, group: Group, root: int, rank: int) -> bool:
    """Whether a rank in another broadcast takes the message of this one's root for that of its own."""
    is_other = sign[0] == "broadcast" and sign[2] == root and other[0] == "broadcast" and other[2] != root
    return is_other and (other[2] not in group.members or (root, rank) in _messages(group.members, other[2]))


def _wanted(rank: int, group: Group, sign: Sign) -> set[int] | None:
    """Whom an operation can't end without. None: who knows."""
    kind, _, root = sign
    everyone = set(group.members)
    if rank not in everyone:
        return None
    if kind in _LEGS:
        return everyone - {rank} if len(everyone) == 2 else None
    if kind in _EVERYONE:
        return everyone - {rank}
    if root not in everyone:
        return None
    if kind == "broadcast" and root == rank:  # its tree: ranks whose distance from it has one bit
        held = list(group.members)
        return {m for m in held if ((held.index(m) - held.index(root)) % len(held)).bit_count() == 1}
    if kind in ("broadcast", "scatter", "gather", "reduce") and root == rank:
        return everyone - {rank}
    return {"broadcast": {root}, "scatter": {root}, "gather": {root}, "reduce": set()}.get(kind)


@dataclass(slots=True)
class _Rank:
    facts: RankFacts
    threads: list[int]
    """Indices of its threads in the state."""
    logs: dict[Group, int]
    """Indices of its logs in the state."""
    loose: list[tuple[Ref, bool]]
    """Operations that no thread waits for, and whether they are timed."""


class Model:
    """`is_rich`: free threads may also stop being free, begin what does not fit, or wait in what they begin. No path
    more leads out of a wait, but there are many more states."""

    def __init__(self, facts: Iterable[RankFacts], longest_s: float, is_rich: bool = False) -> None:
        self._longest, self._is_rich = longest_s, is_rich
        self._ranks: dict[int, _Rank] = {}
        threads: list[Thread] = []
        logs: list[list[Sign]] = []
        self._rank_of: list[int] = []
        self._timed: set[tuple[int, Ref]] = set()
        self._top: dict[Group, int] = {}
        self._signs: dict[tuple[Group, int], set[Sign]] = {}
        facts = list(facts)
        for one in facts:
            self._add(one, threads, logs)
        for group in self._top:
            for rank in self._ranks.values():
                if rank.facts.rank in group.members and group not in rank.logs and not rank.facts.is_gone:
                    rank.logs[group] = len(logs)
                    logs.append([])
        self.states = 0
        """How many it has explored."""
        self.start: State = (tuple(threads), tuple(tuple(log) for log in logs))

    def _add(self, facts: RankFacts, threads: list[Thread], logs: list[list[Sign]]) -> None:
        rank = _Rank(facts, [], {}, [])
        self._ranks[facts.rank] = rank
        for group, count in facts.begun.items():
            rank.logs[group] = len(logs)
            logs.append([ANY] * count)
        for (group, number), past in facts.past.items():
            if number < facts.begun.get(group, 0):
                logs[rank.logs[group]][number] = (LEFT + past.kind, past.size, past.root)
        if facts.is_gone:
            return
        listed = {sight.tid for sight in facts.threads} - {0}
        refs: dict[int, list[Ref]] = {}
        for one in facts.operations:
            ref = (one.group, one.number, (one.kind, one.size, one.root))
            if one.group not in rank.logs:
                rank.logs[one.group] = len(logs)
                logs.append([])
            log = logs[rank.logs[one.group]]
            log += [ANY] * (one.number + 1 - len(log))
            log[one.number] = ref[2]
            self._top[one.group] = max(self._top.get(one.group, 0), one.number + 1)
            self._signs.setdefault((one.group, one.number), set()).add(ref[2])
            if one.is_timed:
                self._timed.add((facts.rank, ref))
            if one.thread:
                refs.setdefault(one.thread, []).append(ref)
            else:
                rank.loose.append((ref, one.is_timed))
        for sight in facts.threads:
            held = tuple(refs.get(sight.tid, ())) if sight.tid else ()
            self._append(rank, threads, (self._mode(sight, held, facts), held))
        for tid, held_by in refs.items():
            if tid not in listed:
                self._append(rank, threads, (FREE, tuple(held_by)))
        if not facts.threads:
            self._append(rank, threads, (FREE, ()))

    def _append(self, rank: _Rank, threads: list[Thread], thread: Thread) -> None:
        rank.threads.append(len(threads))
        threads.append(thread)
        self._rank_of.append(rank.facts.rank)

    def _mode(self, sight: ThreadSight, held: tuple[Ref, ...], facts: RankFacts) -> int:
        if sight.state is ThreadState.GONE:
            return ENDED
        if sight.seconds < 0.6:
            return FREE  # one window shows nothing
        if sight.state is ThreadState.TIMED:
            return INSIDE if held else FREE
        if sight.state is ThreadState.OWN:
            if held:
                return INSIDE
            is_late = sight.ends_in > self._longest and facts.lock_held
            return OWN if (is_late or sight.ends_in != sight.ends_in) and self._sees_all(facts) else FREE
        return FREE

    @staticmethod
    def _sees_all(facts: RankFacts) -> bool:
        return facts.is_complete or (facts.lock_held and len(facts.operations) == 0)

    def _ends(self, rank: int, ref: Ref, state: State) -> bool:
        """Whether this operation of this rank may end now, for all that is known."""
        threads, logs = state
        group, number, sign = ref
        for member in group.members:
            process = self._ranks.get(member)
            if process is None or any(threads[at][0] == FREE for at in process.threads):
                return True  # it leaves, and the operation fails
        wanted = _wanted(rank, group, sign)
        if (rank, ref) in self._timed or wanted is None or group not in self._ranks[rank].facts.exact:
            return True
        senders = (
            {at for at, to in _messages(group.members, sign[2]) if to == rank} if sign[0] == "broadcast" else set()
        )
        if sign[2] != rank and any(self._may_feed(at, rank, ref, state) for at in senders):
            return True
        for other in wanted | senders:
            peer = self._ranks.get(other)
            if peer is None:
                continue
            is_new = sign[0] in _COUNTED_FROM_FIRST_USE and group not in peer.facts.begun and peer.facts.lists_all
            if group not in peer.facts.exact and not is_new:
                continue
            at = peer.logs.get(group)
            log = logs[at] if at is not None else ()
            has_come = len(log) > number and (_fits(sign, log[number]) or _takes(sign, log[number], group, rank, other))
            if other in wanted and not has_come:
                return False
            if sign[0] == "broadcast" and len(log) > number and not _went(sign, log[number], group, rank, other):
                return False
        return True

    def _may_feed(self, sender: int, rank: int, ref: Ref, state: State) -> bool:
        """Whether the one that sends to `rank` in a broadcast did so, or may, for a broadcast of another root."""
        group, number, sign = ref
        peer = self._ranks[sender]
        if group not in peer.facts.exact:
            return True
        log = state[1][peer.logs[group]] if group in peer.logs else ()
        if sender == sign[2] or len(log) <= number:
            return False
        kind, _, root = log[number]
        if kind == LEFT_BROADCAST and root in group.members:
            return (sender, rank) in _messages(group.members, root)
        if kind.startswith(LEFT):
            return kind in (LEFT, LEFT_BROADCAST)
        is_known = kind and root >= 0 and root != sign[2]
        if is_known and kind == "broadcast":
            return (sender, rank) in _messages(group.members, root)
        return kind in ("", "broadcast") and root != sign[2]

    def steps(self, state: State) -> Iterator[State]:
        threads, logs = state
        for at, (mode, held) in enumerate(threads):
            rank = self._ranks[self._rank_of[at]]
            if mode == INSIDE:
                if any(self._ends(rank.facts.rank, ref, state) for ref in held):
                    yield _put(threads, at, (FREE, held)), logs
            elif mode == FREE:
                for other in rank.threads:
                    if threads[other][0] == OWN:
                        yield _put(threads, other, (FREE, threads[other][1])), logs
                for ref in held:
                    yield from self._again(rank, ref, state)
                yield from self._issues(rank, at, state)
                if self._is_rich:
                    yield _put(threads, at, (ENDED, held)), logs
                    yield _put(threads, at, (OWN, held)), logs
        for rank in self._ranks.values():
            for ref, _ in rank.loose:
                if self._ends(rank.facts.rank, ref, state):
                    for other in rank.threads:
                        if threads[other][0] == OWN:
                            yield _put(threads, other, (FREE, threads[other][1])), logs
                    yield from self._again(rank, ref, state)

    def _again(self, rank: _Rank, ref: Ref, state: State) -> Iterator[State]:
        """It has left the operation, and may try under the same number once more."""
        threads, logs = state
        at = rank.logs[ref[0]]
        if logs[at][ref[1]] != ANY:
            yield threads, _put(logs, at, _put(logs[at], ref[1], ANY))

    def _issues(self, rank: _Rank, at: int, state: State) -> Iterator[State]:
        threads, logs = state
        for group, log_at in rank.logs.items():
            number = len(logs[log_at])
            if number >= self._top.get(group, 0):
                continue
            # What it begins is not known, so that no kind is held against it: one that fits all is among those it may.
            others = sorted(self._signs.get((group, number), ())) if self._is_rich else ()
            for sign in (ANY, *others):
                then = _put(logs, log_at, (*logs[log_at], sign))
                yield threads, then
                if self._is_rich:
                    yield _put(threads, at, (INSIDE, ((group, number, sign),))), then

    def dead(self, most: int = 1 << 40) -> set[int]:
        """Explore all states, or so many: the ranks whose main threads are free in none."""
        left = {rank.threads[0]: number for number, rank in self._ranks.items() if rank.threads}
        left = {at: number for at, number in left.items() if self.start[0][at][0] != ENDED}
        seen, todo = {self.start}, [self.start]
        while todo and left and len(seen) < most:
            state = todo.pop()
            for at in [at for at in left if state[0][at][0] == FREE]:
                del left[at]
            for then in self.steps(state):
                if then not in seen:
                    seen.add(then)
                    todo.append(then)
        self.states = len(seen)
        return set(left.values())


def _put(items: tuple[_T, ...], at: int, item: _T) -> tuple[_T, ...]:
    return (*items[:at], item, *items[at + 1 :])
