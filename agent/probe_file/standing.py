"""Open operations of a worker that stands: the rows of its threads joined with torch's own record."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.open_rows import OpenRow
from holdfast.agent.probe_file.past_rows import PastRow
from holdfast.agent.probe_file.torch_record import Recorded, TorchRecord
from holdfast.wire.standing import OpenOperation, PastOperation
from holdfast.wire.types import GroupCount, PendingCollective


def exact_groups(groups: Sequence[GroupCount], record: TorchRecord, moved: int) -> tuple[GroupCount, ...]:
    """By slot, from 1 on: torch's numbers in the place of the probe's, where they were read after the last move."""
    if record.counted_at <= moved:
        return tuple(groups)
    return tuple(
        replace(group, begun=number, is_exact=True)
        # A probe that has counted more than torch counts something else: a coalesced group of operations is one.
        if not group.is_exact and number >= group.begun
        else group
        for group, number in zip(groups, record.numbers[1:], strict=False)
    )


def open_operations(
    rows: Sequence[OpenRow], record: TorchRecord, moved: int, groups: int
) -> tuple[tuple[OpenOperation, ...], bool]:
    """The operations, and whether that is all of them. `moved`: when a thread last began or ended one, or a wait.

    A row that torch's record contradicts is of unknown kind, so that nothing follows from it. A wait for all of a
    group's collectives is one only while some are under way: a callback of the user that sleeps there waits for nobody.
    """
    is_fresh = min(record.counted_at, record.read_at) > moved
    is_complete = is_fresh and record.is_complete
    known = {(one.slot, one.number): one for one in record.under_way if 0 < one.slot <= groups} if is_fresh else {}
    is_complete = is_complete and len(known) == len(record.under_way)
    found: list[OpenOperation] = []
    waited: set[tuple[int, int]] = set()
    for row in rows:
        if not 0 < row.slot <= groups or not row.thread:
            is_complete = False
            continue
        if row.flags & layout.OPEN_IS_ALL:
            continue
        seen = known.get((row.slot, row.number))
        waited.add((row.slot, row.number))
        if seen is None and row.flags & layout.OPEN_IS_RECORDED:
            is_complete = False
            if is_fresh:  # it has ended already, or is another one than the probe takes it for
                row = row._replace(kind=0, size=0)
        found.append(_of_row(row, seen, record))
    left = [one for key, one in known.items() if key not in waited]
    all_of = {row.slot: row.thread for row in rows if row.flags & layout.OPEN_IS_ALL}
    found += [_under_way(one, all_of.get(one.slot, 0), record) for one in left]
    return tuple(found), is_complete


def past_operations(rows: Sequence[PastRow], record: TorchRecord, moved: int, groups: int) -> tuple[PastOperation, ...]:
    """Those with a root as the hooks saw them begin, joined with those that torch's record says are over. Of one that
    the two call by different kinds nothing is known."""
    found = {
        (row.slot, row.number): PastOperation(kind_name(row.kind), row.slot - 1, row.number, row.root) for row in rows
    }
    for one in record.over if record.read_at > moved else ():
        if not 0 < one.slot <= groups or not (kind := kind_name(one.kind)):
            continue
        key = one.slot, one.number
        seen = found.pop(key, PastOperation(kind, one.slot - 1, one.number))
        if seen.kind == kind:
            found[key] = replace(seen, size=one.size)
    return tuple(found.values())


def pending_of(
    main: int, rows: Sequence[OpenRow], begun: tuple[int, int, int], groups: tuple[GroupCount, ...]
) -> PendingCollective:
    """The operation of the main thread, whose id is `main`: what it waits for, else what it began last (slot, kind and
    number; slot 0: nothing)."""
    own = [
        row for row in rows if row.thread == main and 0 < row.slot <= len(groups) and not row.flags & layout.OPEN_IS_ALL
    ]
    if own:
        row = max(own, key=lambda row: row.since)
        return PendingCollective(kind_name(row.kind), row.slot - 1, row.number, True, groups, row.size)
    slot, kind, number = begun
    if not 0 < slot <= len(groups):
        return PendingCollective(groups=groups)
    return PendingCollective(kind_name(kind), slot - 1, number, False, groups)


def _of_row(row: OpenRow, seen: Recorded | None, record: TorchRecord) -> OpenOperation:
    """torch's kind and size, where it has them: of an operation that nobody here waits for there is nothing else."""
    kind, size = (seen.kind, seen.size) if seen is not None else (row.kind, row.size)
    is_timed = bool(row.flags & layout.OPEN_IS_TIMED or record.timed >> row.slot & 1)
    return OpenOperation(row.thread, kind_name(kind), row.slot - 1, max(row.number, 0), size, row.root, is_timed)


def _under_way(one: Recorded, thread: int, record: TorchRecord) -> OpenOperation:
    is_timed = bool(record.timed >> one.slot & 1)
    return OpenOperation(thread, kind_name(one.kind), one.slot - 1, one.number, one.size, is_timed=is_timed)


def kind_name(kind: int) -> str:
    return layout.OPERATION_KINDS[kind] if 0 <= kind < len(layout.OPERATION_KINDS) else ""
