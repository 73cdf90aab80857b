"""The smallest set of threads that can move. Pure. The rule stands in `closure`; here it is computed, in one pass."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.operations import (
    Lack,
    Place,
    Role,
    SharedOperation,
    differ,
    is_listed_when_used,
    needed,
    role_of,
)
from holdfast.diagnostics.hang.passed import Passed
from holdfast.wire.standing import KNOWN_AFTER, ThreadSight, ThreadState

MOST_VARIANTS = 32
"""Different operations under one number of one group; with more, what is known of it does not fit."""


class Wait(StrEnum):
    FREE = "free"
    GONE = "gone"
    RANKS = "ranks"
    OWN = "own"


@dataclass(slots=True)
class Opened:
    """An open operation of one rank."""

    index: int
    """Index of the thread that waits for its end; -1: none does."""
    operation: OpenAt
    shared: SharedOperation | None = None
    """None: it may end whatever the other ranks do."""


@dataclass(slots=True)
class Process:
    """One rank, as the closure sees it."""

    facts: RankFacts
    threads: tuple[ThreadSight, ...]
    """With one more of unknown state if there are none, or an operation is open in a thread that is not among them."""
    waits: list[Wait] = field(default_factory=list)
    moves: list[bool] = field(default_factory=list)
    operations: list[Opened] = field(default_factory=list)

    @property
    def is_dead(self) -> bool:
        """Its main thread is there and can't move."""
        return bool(self.moves) and not self.moves[0] and self.waits[0] is not Wait.GONE


class CanMove:
    """All threads that can move, as `ranks[r].moves`. What is not among them never moves again."""

    def __init__(self, facts: Iterable[RankFacts], longest_s: float, by_error: bool = True) -> None:
        """`by_error`: whether operations end with an error where a process of the group may end. Without it the result
        holds too few threads: it says why what can't move can't, in the fewest words."""
        self._longest_s, self._by_error = longest_s, by_error
        self.ranks: dict[int, Process] = {}
        self.under: dict[tuple[Group, int], dict[int, list[Opened]]] = {}
        """Open operations by number and rank."""
        self.shared: dict[tuple[object, ...], SharedOperation] = {}
        self._by_rank: dict[int, list[_Item]] = {}
        self._by_thread: dict[Place, list[_Item]] = {}
        self._by_end: dict[SharedOperation, list[_Item]] = {}
        self._of_member: dict[int, list[SharedOperation]] = {}
        self._moved: list[Place] = []
        for one in facts:
            self.ranks[one.rank] = _process(one)
        self._take_operations()
        self._take_threads()
        self._take_members()
        self._spread()

    def _take_operations(self) -> None:
        for rank, process in self.ranks.items():
            for opened in process.operations:
                key = opened.operation.group, opened.operation.number
                self.under.setdefault(key, {}).setdefault(rank, []).append(opened)
        self.passed = Passed((process.facts for process in self.ranks.values()), self.under)
        members: dict[Group, frozenset[int]] = {}
        for rank, process in self.ranks.items():
            for opened in process.operations:
                operation, group = opened.operation, opened.operation.group
                key = group, operation.number
                if group not in members:
                    members[group] = frozenset(group.members)
                role = role_of(operation, rank, members[group])
                if _may_end(operation, role, process.facts):
                    continue
                if role is Role.ROOT and self.passed.lost_sender(operation, rank) is not None:
                    role = Role.PARENT
                elif role is Role.ROOT and self._may_be_fed(operation, rank):
                    continue
                same = (*key, operation.kind, operation.size, operation.root, role, rank if role is Role.PEER else -1)
                opened.shared = self.shared.setdefault(same, SharedOperation(operation, role))
                opened.shared.inside.append((rank, opened.index))

    def _take_threads(self) -> None:
        for rank, process in self.ranks.items():
            inside = {opened.index for opened in process.operations}
            can_end = {opened.index for opened in process.operations if opened.shared is None}
            process.moves = [False] * len(process.threads)
            for index, sight in enumerate(process.threads):
                wait = self._wait_of(sight, process.facts, index in inside)
                process.waits.append(wait)
                # A thread with several operations may wait for any of them.
                is_open = (wait is Wait.RANKS and index in can_end) or (wait is Wait.OWN and -1 in can_end)
                if wait is Wait.FREE or is_open:
                    self._move((rank, index))

    def _wait_of(self, sight: ThreadSight, facts: RankFacts, is_inside: bool) -> Wait:
        if sight.state is ThreadState.GONE:
            return Wait.GONE
        if sight.seconds < KNOWN_AFTER or sight.state not in (ThreadState.OWN, ThreadState.TIMED):
            return Wait.FREE
        if is_inside:
            return Wait.RANKS
        if sight.state is not ThreadState.OWN or not facts.is_alone:
            return Wait.FREE
        has_end = sight.ends_in == sight.ends_in
        return Wait.FREE if has_end and not (facts.lock_held and sight.ends_in > self._longest_s) else Wait.OWN

    def _take_members(self) -> None:
        variants = Counter(shared.key for shared in self.shared.values() if shared.role is not Role.PARENT)
        for shared in self.shared.values():
            if variants[shared.key] > MOST_VARIANTS:
                continue
            if shared.role is Role.PARENT:
                lost = {self.passed.lost_sender(shared.operation, rank) for rank, _ in shared.inside}
                shared.blocked = {member: Lack.PASSED for member in lost if member is not None}
                continue
            at = self.under[shared.key]
            for member in needed(shared.operation, shared.role, shared.inside[0][0]):
                if shared.role is Role.CHILDREN and self.passed.is_lost(shared.operation, member):
                    shared.blocked[member] = Lack.PASSED
                    continue
                if shared.role is Role.CHILDREN and self._takes(shared.operation, at.get(member, ()), member):
                    continue
                lack = self._lack(shared.operation, member, at.get(member, ()))
                if lack is not None:
                    shared.blocked[member] = lack
                    self._listen(shared, member, lack)
        for shared in self.shared.values():
            members = shared.operation.group.members if self._by_error else ()
            for member in members:
                self._of_member.setdefault(member, []).append(shared)
            if not shared.blocked or any(member not in self.ranks for member in members):
                self._end(shared)

    def _may_be_fed(self, operation: OpenAt, rank: int) -> bool:
        """Whether a broadcast's message may come to a rank without its root: from its parent in the tree, which is
        another rank and may be, or have been, in a broadcast of another root under that number."""
        group, number = operation.group, operation.number
        parent = self.passed.parent(operation, rank) if operation.kind == "broadcast" else operation.root
        if parent == operation.root:
            return False
        process = self.ranks.get(parent)
        if process is None or group not in process.facts.exact:
            return True
        if here := self.under[group, number].get(parent, ()):
            ways = [(one.operation.kind, one.operation.root) for one in here if one.operation.root != operation.root]
            return any(self.passed.leads(group, *way, parent, rank) for way in ways)
        if process.facts.begun.get(group, 0) <= number:
            return False
        left = self.passed.at.get((group, number), {}).get(parent)
        return left is None or self.passed.leads(group, left.kind, left.root, parent, rank)

    def _takes(self, operation: OpenAt, here: Collection[Opened], member: int) -> bool:
        """Whether a rank that is in another broadcast under that number may take the message of this one's root for
        that of its own."""
        others = [one.operation for one in here if one.operation.root != operation.root]
        return any(self.passed.leads(one.group, one.kind, one.root, operation.root, member) for one in others)

    def _lack(self, operation: OpenAt, member: int, here: Collection[Opened]) -> Lack | None:
        """Why a needed member does not come. None: it has come, or may come for all that is known."""
        process = self.ranks.get(member)
        if process is None:
            return None
        facts, group = process.facts, operation.group
        is_unused = facts.lists_all and group not in facts.begun and is_listed_when_used(operation)
        if group not in facts.exact and not is_unused:
            return None
        has_begun = facts.begun.get(group, 0) > operation.number
        if has_begun and self.passed.is_another(operation, member):
            return Lack.PASSED
        if facts.is_gone:
            return None if has_begun else Lack.GONE
        if any(not differ(operation, opened.operation) for opened in here):
            return None
        if here:
            return None if any(one.index < 0 and one.shared is None for one in here) else Lack.OTHER
        return None if has_begun else Lack.STILL

    def _listen(self, shared: SharedOperation, member: int, lack: Lack) -> None:
        """Note what would let the member come."""
        item = shared, member
        if lack is Lack.STILL:
            self._by_rank.setdefault(member, []).append(item)
        elif lack is Lack.OTHER:
            for opened in self.under[shared.key][member]:
                if opened.index >= 0:
                    self._by_thread.setdefault((member, opened.index), []).append(item)
                elif opened.shared is not None:
                    self._by_end.setdefault(opened.shared, []).append(item)

    def _spread(self) -> None:
        """Until nothing more comes to move."""
        while self._moved:
            rank, index = self._moved.pop()
            self._wake(rank)
            # A thread that can move may end its process, or its group: then the operation ends with an error, which the
            # script of another rank may catch.
            for shared in self._of_member.pop(rank, ()):
                self._end(shared)
            for item in self._by_rank.pop(rank, []) + self._by_thread.pop((rank, index), []):
                self._come(*item)

    def _come(self, shared: SharedOperation, member: int) -> None:
        if shared.blocked.pop(member, None) is not None and not shared.blocked:
            self._end(shared)

    def _end(self, shared: SharedOperation) -> None:
        if shared.is_over:
            return  # each member that moves ends it again: of 12,288 in one operation that took minutes
        shared.is_over = True
        for rank, index in shared.inside:
            if index < 0:
                self._wake(rank)
            elif self.ranks[rank].waits[index] is Wait.RANKS:
                self._move((rank, index))
        for item in self._by_end.pop(shared, ()):
            self._come(*item)

    def _wake(self, rank: int) -> None:
        """One thread of it, or an operation that no thread waits for, may let those go on that wait for the process."""
        for index, wait in enumerate(self.ranks[rank].waits):
            if wait is Wait.OWN:
                self._move((rank, index))

    def _move(self, place: Place) -> None:
        process = self.ranks[place[0]]
        if not process.moves[place[1]]:
            process.moves[place[1]] = True
            self._moved.append(place)


_Item = tuple[SharedOperation, int]
"""An operation and a member that it lacks."""


def _may_end(operation: OpenAt, role: Role, facts: RankFacts) -> bool:
    """Whatever the other ranks do, as far as is known."""
    return operation.is_timed or role in (Role.NOBODY, Role.UNKNOWN) or operation.group not in facts.exact


def _process(facts: RankFacts) -> Process:
    if facts.is_gone:
        return Process(facts, ())
    threads, operations = facts.threads, []
    index_of = {sight.tid: index for index, sight in enumerate(threads) if sight.tid}
    if not threads or any(one.thread and one.thread not in index_of for one in facts.operations):
        threads = (*threads, ThreadSight(0, ThreadState.UNKNOWN))
    for one in facts.operations:
        operations.append(Opened(index_of.get(one.thread, len(facts.threads)) if one.thread else -1, one))
    return Process(facts, threads, operations=operations)
