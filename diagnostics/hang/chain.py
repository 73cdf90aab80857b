"""The chain of a proof: for one dead rank, the links that show that its main thread can't move. Pure.

Each link needs one reason only: of several members that an operation lacks, the chain follows the one that is nearest
to an end. So it is short, and each fact that it lists is used.
"""

from collections.abc import Iterator

from holdfast.diagnostics.hang.can_move import CanMove, Opened, Wait
from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.operations import Lack, Role, SharedOperation
from holdfast.diagnostics.hang.proof import Fact, FactKind, Link
from holdfast.diagnostics.hang.wait_graph import WaitGraph
from holdfast.wire.operation_size import words
from holdfast.wire.standing import ThreadSight

_Step = tuple[int, int, int]
"""A rank, a thread's index, and the index of an operation that no thread waits for; -1 for what it is not about."""


class ChainBuilder:
    def __init__(self, closed: CanMove, graph: WaitGraph) -> None:
        self._closed, self._graph = closed, graph
        self._left: list[_Step] = []
        self._known: set[_Step] = set()

    def of(self, rank: int) -> Iterator[Link]:
        """The links of its main thread, each once."""
        self._left, self._known = [], set()
        self._follow(rank, 0)
        for step in self._left:  # grows
            yield from self._links(*step)

    def _follow(self, rank: int, thread: int = -1, loose: int = -1) -> None:
        step = rank, thread, loose
        if step not in self._known:
            self._known.add(step)
            self._left.append(step)

    def _links(self, rank: int, index: int, loose: int) -> Iterator[Link]:
        process = self._closed.ranks[rank]
        if loose >= 0:
            yield self._operation(rank, process.operations[loose])
        elif index < 0 or process.waits[index] is Wait.GONE:
            yield _gone(process.facts, index)
        elif process.waits[index] is Wait.OWN:
            for other in range(len(process.threads)):
                self._follow(rank, other)
            for number, one in enumerate(process.operations):
                if one.index < 0:
                    self._follow(rank, loose=number)
            yield _own(process.facts, index, process.threads[index])
        else:
            for one in process.operations:
                if one.index == index:
                    yield self._operation(rank, one)

    def _operation(self, rank: int, opened: Opened) -> Link:
        operation, shared, index = opened.operation, opened.shared, opened.index
        assert shared is not None  # it can't end
        lost = self._closed.passed.lost_sender(operation, rank) if shared.role is Role.PARENT else None
        member = lost if lost is not None else self._nearest(shared)
        why, rests = self._lack(operation, member, shared.blocked[member])
        rests = (
            Fact(FactKind.OPERATION, rank, operation.thread, operation.group, operation.number),
            Fact(FactKind.COUNT, rank, -1, operation.group),
            *rests,
            *(self._of_parent(operation, rank) if shared.role is Role.ROOT else ()),
        )
        if index < 0:
            what = f"has under way, seen by no thread of it, {operation}"
            return Link(rank, "", what, (member,), why, "torch's own record", 0.0, rests)
        sight = self._closed.ranks[rank].threads[index]
        rests = Fact(FactKind.THREAD, rank, index), *rests
        who, known = _thread(index, sight), "the kernel and the probe"
        return Link(rank, who, f"waits in {operation}", (member,), why, known, sight.seconds, rests)

    def _of_parent(self, operation: OpenAt, rank: int) -> Iterator[Fact]:
        """By which it is known that the rank that sends to it in a broadcast sends it nothing for another root."""
        closed, group, number = self._closed, operation.group, operation.number
        parent = closed.passed.parent(operation, rank) if operation.kind == "broadcast" else operation.root
        if parent != operation.root:
            yield Fact(FactKind.COUNT, parent, -1, group)
            for one in closed.under[group, number].get(parent, ()):
                yield Fact(FactKind.OPERATION, parent, one.operation.thread, group, number)
            if parent in closed.passed.at.get((group, number), {}):
                yield Fact(FactKind.PAST, parent, -1, group, number)

    def _nearest(self, shared: SharedOperation) -> int:
        """The member whose absence has the shortest proof."""

        def cost(item: tuple[int, Lack]) -> tuple[int, int]:
            member, lack = item
            if lack in (Lack.GONE, Lack.PASSED):
                return 0, member
            if lack is Lack.OTHER:
                return 1, member
            threads = range(len(self._closed.ranks[member].threads))
            return 2 + max(self._graph.level.get((member, index), 0) for index in threads), member

        return min(shared.blocked.items(), key=cost)[0]

    def _lack(self, operation: OpenAt, member: int, lack: Lack) -> tuple[str, tuple[Fact, ...]]:
        """Why the member does not come, and what that rests on besides the member's own links."""
        process = self._closed.ranks[member]
        group, begun = operation.group, process.facts.begun.get(operation.group, 0)
        counted = Fact(FactKind.COUNT, member, -1, group)
        if lack is Lack.GONE:
            self._follow(member)
            return f"rank {member} is gone and has begun {begun} operations of {group.label}", (counted,)
        if lack is Lack.PASSED:
            past = Fact(FactKind.PAST, member, -1, group, operation.number)
            return f"rank {member} has left that number in {self._in_what(operation, member)}", (counted, past)
        if lack is Lack.OTHER:
            facts, said = [counted], ""
            for number, one in enumerate(process.operations):
                if (one.operation.group, one.operation.number) == (group, operation.number):
                    self._follow(member, one.index, number if one.index < 0 else -1)
                    facts.append(Fact(FactKind.OPERATION, member, one.operation.thread, group, operation.number))
                    said = str(one.operation)
            return f"rank {member} is in another one under that number, {said}", tuple(facts)
        for index in range(len(process.threads)):
            self._follow(member, index)
        why = f"rank {member} has begun {begun} operations of {group.label}, and none of its threads can move"
        return why, (counted,)

    def _in_what(self, operation: OpenAt, member: int) -> str:
        done = self._closed.passed.at[operation.group, operation.number][member]
        if done.kind != operation.kind:
            return f"another one, {done.kind}"
        if done.kind != "broadcast":
            return f"one of {words(done.size)}"
        return f"a broadcast with root {done.root}, and no message went between the two"


def _thread(index: int, sight: ThreadSight) -> str:
    if index == 0:
        return "main thread"
    if sight.count > 1:
        return f"{sight.count} more threads"
    return f"thread {sight.tid}" if sight.tid else "another thread"


def _gone(facts: RankFacts, index: int) -> Link:
    how = f" ({facts.how})" if facts.how else ""
    if index < 0:
        fact, who = Fact(FactKind.GONE, facts.rank), ""
    else:
        fact, who = Fact(FactKind.THREAD, facts.rank, index), _thread(index, facts.threads[index])
    return Link(facts.rank, who, f"is gone{how}", (), "it never comes", "its exit", 0.0, (fact,))


def _own(facts: RankFacts, index: int, sight: ThreadSight) -> Link:
    what = f"waits for a thread of its own process ({sight.words})" if sight.words else "waits for its own process"
    ends = f" with a deadline in {sight.ends_in:.0f} s" if sight.ends_in > 0 else ""
    if facts.is_complete:
        why, known = "no other thread of it can move, and it has no other operation under way", "torch's own record"
    else:
        why, known = "the interpreter's lock is held, and no other thread of it can move", "the interpreter's ticks"
    rests = Fact(FactKind.THREAD, facts.rank, index), Fact(FactKind.COMPLETE, facts.rank)
    known, who = f"the kernel and {known}", _thread(index, sight)
    return Link(facts.rank, who, what + ends, (facts.rank,), why, known, sight.seconds, rests)
