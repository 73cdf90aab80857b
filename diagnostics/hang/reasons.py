"""In what the waits of dead ranks end, in words: the reasons of a proof. Pure."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

from holdfast.diagnostics.hang.can_move import CanMove, Wait
from holdfast.diagnostics.hang.facts import OpenAt
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.operations import Lack, SharedOperation
from holdfast.diagnostics.hang.proof import Cause, End
from holdfast.diagnostics.hang.wait_graph import Node, WaitGraph
from holdfast.wire.operation_size import words
from holdfast.wire.rank_sets import compact

_T = TypeVar("_T", bound=Hashable)
_MOST_NAMED = 4
"""Different operations that a text names."""


def named(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0-2,7"."""
    held = set(ranks)
    return ("rank " if len(held) == 1 else "ranks ") + compact(held)


def title(shared: SharedOperation) -> str:
    operation = shared.operation
    return f"{operation.kind} {operation.number} of {operation.group}"


def ends_of(closed: CanMove, graph: WaitGraph, longest_s: float) -> list[End]:
    """At least one: waits that end nowhere run in a cycle."""
    found = []
    gone = {m for node in graph.ends for m in _lacking(node, Lack.GONE)}
    gone |= {node[0] for node in graph.ends if not isinstance(node, SharedOperation) and _is_gone(closed, node)}
    if gone:
        found.append(End(Cause.GONE, tuple(sorted(gone)), _gone(closed, gone) + _waiting(closed, gone)))
    own = [node for node in graph.ends if not isinstance(node, SharedOperation) and not _is_gone(closed, node)]
    timed = {rank for rank, index in own if index == 0 and closed.ranks[rank].threads[0].ends_in > 0}
    locked = {rank for rank, _ in own} - timed
    if locked:
        found.append(End(Cause.LOCK, tuple(sorted(locked)), _locked(closed, locked) + _waiting(closed, locked)))
    if timed:
        text = f"{named(timed)}: the main thread's deadline is after the pause limit of {longest_s:g} s"
        found.append(End(Cause.DEADLINE, tuple(sorted(timed)), text + _waiting(closed, timed)))
    differing = [node for node in graph.ends if _lacking(node, Lack.OTHER) or _lacking(node, Lack.PASSED)]
    keys = {node.key: None for node in differing if isinstance(node, SharedOperation)}
    found += [_mismatch(closed, key) for key in keys]
    return found + [_order(closed, cycle) for cycle in graph.cycles]


def _lacking(node: Node, lack: Lack) -> list[int]:
    if not isinstance(node, SharedOperation):
        return []
    return [member for member, why in node.blocked.items() if why is lack]


def _is_gone(closed: CanMove, node: tuple[int, int]) -> bool:
    return closed.ranks[node[0]].waits[node[1]] is Wait.GONE


def _gone(closed: CanMove, ranks: set[int]) -> str:
    how = {closed.ranks[rank].facts.how for rank in ranks} - {""}
    return f"{named(ranks)} {'is' if len(ranks) == 1 else 'are'} gone" + (f" ({', '.join(sorted(how))})" if how else "")


def _locked(closed: CanMove, ranks: set[int]) -> str:
    if all(closed.ranks[rank].facts.lock_held for rank in ranks):
        text = "a C call holds the interpreter's lock and waits for its own process without a deadline"
        return f"{named(ranks)}: {text}"
    if len(ranks) == 1:
        return f"{named(ranks)}'s main thread waits for a lock that no thread of its process can release"
    return f"the main threads of {named(ranks)} wait for locks that no thread of their processes can release"


def _waiting(closed: CanMove, reasons: set[int]) -> str:
    """Who waits for these ranks, in the operations in which most do."""
    lacking = [one for one in closed.shared.values() if not reasons.isdisjoint(one.blocked)]
    lacking.sort(key=lambda one: -len(one.inside))
    said = []
    for one in lacking[:_MOST_NAMED]:
        ranks = {rank for rank, _ in one.inside}
        verb = "waits" if len(ranks) == 1 else "wait"
        said.append(f"{named(ranks)} {verb} for {'it' if len(reasons) == 1 else 'them'} in {title(one)}")
    more = f" and {len(lacking) - _MOST_NAMED} more operations" if len(lacking) > _MOST_NAMED else ""
    return f"; {', '.join(said)}{more}" if said else ""


def _mismatch(closed: CanMove, key: tuple[Group, int]) -> End:
    """The minority in kind, else in size, else in root; where none is larger, the job, and of sizes all ranks. Ranks
    that have left the number count as well, where it is known in what they were."""
    group, number = key
    held = [(rank, one.operation) for rank, opened in closed.under[key].items() for one in opened]
    left = sorted(closed.passed.at.get(key, {}).items())
    held += [(rank, OpenAt(0, group, one.kind, number, one.size, one.root)) for rank, one in left]
    kinds = _sides((rank, one.kind) for rank, one in held if one.kind)
    sizes = _sides((rank, one.size) for rank, one in held if one.size)
    roots = _sides((rank, one.root) for rank, one in held if one.root >= 0)
    behind, title = _behind(closed, key, held), f"operation {number} of {group} differs"
    if kinds and set(kinds) != {"send", "recv"}:
        return _differing(title, kinds, str, behind)
    if sizes:
        return _differing(f"{title} in size", sizes, words, behind or {r for ranks in sizes.values() for r in ranks})
    return _differing(f"{title} in its root", roots, lambda root: f"root {root}", behind)


def _sides(said: Iterable[tuple[int, _T]]) -> dict[_T, list[int]]:
    """Ranks by what they hold; empty if all hold the same."""
    found: dict[_T, list[int]] = {}
    for rank, value in said:
        found.setdefault(value, []).append(rank)
    return found if len(found) > 1 else {}


def _differing(what: str, sides: dict[_T, list[int]], say: Callable[[_T], str], else_named: set[int]) -> End:
    """`else_named`: the ranks at fault if no side is a majority."""
    usual = max(sides, key=lambda value: len(sides[value]))
    odd = {rank for value, ranks in sides.items() if value != usual for rank in ranks}
    is_majority = 2 * len(sides[usual]) > sum(map(len, sides.values()))
    said = ", ".join(f"{say(value)} ({named(ranks)})" for value, ranks in list(sides.items())[:_MOST_NAMED])
    return End(Cause.MISMATCH, tuple(sorted(odd if is_majority else else_named)), f"{what} between ranks: {said}")


def _behind(closed: CanMove, key: tuple[Group, int], held: Iterable[tuple[int, OpenAt]]) -> set[int]:
    """The one of two equal sides whose operation others of the group are in under a later number: it has left out what
    they did before. Empty if that is true of neither or both."""
    group, number = key
    later = {
        (one.operation.kind, one.operation.size)
        for (other, at), opened_by in closed.under.items()
        if other is group and at > number
        for opened in opened_by.values()
        for one in opened
    }
    sides: dict[tuple[str, int], set[int]] = {}
    for rank, one in held:
        sides.setdefault((one.kind, one.size), set()).add(rank)
    found = [ranks for what, ranks in sides.items() if what in later]
    return found[0] if len(found) == 1 and len(sides) > 1 else set()


def _missing(closed: CanMove, shared: SharedOperation, inside: Sequence[int]) -> list[int]:
    """Members that are not in it, and have not left it."""
    group, number = shared.operation.group, shared.operation.number
    came = {rank for rank, process in closed.ranks.items() if process.facts.begun.get(group, 0) > number}
    came -= {rank for rank in closed.under[shared.key] if rank not in inside}  # in another operation there
    return sorted(set(group.members) - came - set(inside))


def _is_first_message(operation: OpenAt) -> bool:
    return operation.kind in ("send", "recv") and operation.number == 0


def _order(closed: CanMove, cycle: Sequence[Node]) -> End:
    """Who is at fault, in this order: the only rank in a message of a channel that was never used before, which nobody
    sends; those who are missing where most of a group have come; the side to which the smallest share of its group has
    come. Of equal sides, the job."""
    sides = sorted((node for node in cycle if isinstance(node, SharedOperation)), key=lambda one: min(one.inside))
    inside = [sorted({rank for rank, _ in side.inside}) for side in sides]
    missing = [_missing(closed, side, held) for side, held in zip(sides, inside, strict=True)]
    shares = [
        Fraction(len(lack), len(set(one.operation.group.members))) for one, lack in zip(sides, missing, strict=True)
    ]
    new = [held for side, held in zip(sides, inside, strict=True) if _is_first_message(side.operation)]
    left_out = {tuple(lack) for share, lack in zip(shares, missing, strict=True) if share < Fraction(1, 2)}
    at_fault = [held for share, held in zip(shares, inside, strict=True) if share == max(shares)]
    if len(new) == 1 and any(side.operation.number for side in sides):
        at_fault = new
    elif len(left_out) == 1:
        at_fault = [list(left_out.pop())]
    is_one = len(at_fault) == 1 and len(sides) > 1
    said = [f"{title(side)} ({named(held)})" for side, held in zip(sides, inside, strict=True)]
    more = f" and {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
    text = f"ranks wait for each other in a cycle: {', '.join(said[:_MOST_NAMED])}{more}"
    return End(Cause.ORDER, tuple(at_fault[0]) if is_one else (), text)
