"""Which ranks of a job are dead: the smallest set of threads that can move, and a proof that the others can't. Pure.

*Can move* is the smallest set of threads with:

1. every free thread. A thread is free unless its state is known (`KNOWN_AFTER`) and is a wait for its own process
   (OWN), for ranks (an open operation in this thread, the thread in OWN or TIMED), or an end (GONE). What runs, waits
   for the outside, is held, or waits with a deadline is free. So is a thread in an operation whose own timeout is
   shorter than torch's default;
2. a thread that waits for its own process, if another of its threads can move, or an operation can end that no thread
   is seen to wait for (compiled code waits in C++). Where operations may be missing from the record, the thread is
   free: it may wait in one of those. A held interpreter lock makes up for the record if none is open in it;
3. a thread in an operation, if each needed member has come (it is in flight: the network's limit, not death); or if any
   thread of any member's process can move: it may begin the operation, or end its process or the group, and so the
   operation with an error.

A member has come to operation n of a group if it has begun more than n there and is in no *other* operation (kind,
size, root) under that number. It comes out of another one only if that one can be left. A member that has left the
number in an operation of another kind or size has not come, nor has one that has left a broadcast of another root there
if no message went between the two (`passed`). Counts hold only where those of both ranks are exact. A member that is
gone never comes. Which thread began the earlier operations of a group says nothing of the next one: a checkpoint starts
a thread for each save, and pools have several.

A rank is dead if and only if its main thread can't move. One addition to the rule: while the interpreter lock is held,
a wait for the own process with a deadline after the pause limit (`longest_s`) is one without, since the job would be
ended before: OWN with `ends_in`.
TIMED is free however late it ends: bytes may end a poll, a signal a sleep.
"""

from collections.abc import Iterable

from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.chain import ChainBuilder
from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.forgetting import MOST_FACTS, fewest
from holdfast.diagnostics.hang.proof import Cause, Link, Proof
from holdfast.diagnostics.hang.reasons import ends_of
from holdfast.diagnostics.hang.wait_graph import WaitGraph

__all__ = ["Cause", "OpenAt", "Proof", "RankFacts", "judge"]


def judge(facts: Iterable[RankFacts], *, longest_s: float) -> Proof | None:
    """The ranks that are dead, with the proof. None: each main thread may go on, for all that is known.

    `longest_s`: the pause limit. The chain is that of the dead rank that is nearest to the reason.
    """
    facts = list(facts)
    closed = CanMove(facts, longest_s)
    dead = sorted(rank for rank, process in closed.ranks.items() if process.is_dead)
    if not dead:
        return None
    graph = WaitGraph(closed, dead)
    first = min(dead, key=lambda rank: (graph.level[rank, 0], rank))
    link, *more = _chain(closed, graph, first, facts, longest_s)
    end, *others = ends_of(closed, graph, longest_s)
    return Proof(tuple(dead), (end, *others), (link, *more))


def _chain(closed: CanMove, graph: WaitGraph, rank: int, facts: list[RankFacts], longest_s: float) -> list[Link]:
    """One that can't be made shorter: built again from the fewest facts that the first one needs."""
    links = list(ChainBuilder(closed, graph).of(rank))
    rests = dict.fromkeys(fact for link in links for fact in link.facts)
    if len(rests) > MOST_FACTS:
        return links
    known = CanMove(fewest(facts, rests, rank, longest_s), longest_s, by_error=False)
    return list(ChainBuilder(known, WaitGraph(known, [rank])).of(rank))
