"""torch's own record of its collectives, as the probe file has it: how many were begun, which are under way or over.

It counts those that no hook sees (DDP's reducer, compiled code), and is written only while the worker stands.
"""

import mmap
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.agent.probe_file import layout
from holdfast.base import bounds


class Recorded(NamedTuple):
    """A collective that was begun."""

    number: int
    size: int
    slot: int
    kind: int


class TorchRecord(NamedTuple):
    counted_at: int = 0
    """When the numbers were read, as `read_at` CLOCK_MONOTONIC in ns."""
    read_at: int = 0
    """When the collectives under way were read."""
    timed: int = 0
    """Mask of the slots of groups whose timeout is shorter than torch's default."""
    is_complete: bool = False
    """Whether `under_way` was all that there is, at `read_at`."""
    numbers: tuple[int, ...] = (-1,) * layout.GROUPS
    """By slot: collectives that were begun, by whomever; -1: not known."""
    under_way: tuple[Recorded, ...] = ()
    over: tuple[Recorded, ...] = ()
    """The last few of each group that have ended."""


def write_record(
    buffer: mmap.mmap,
    counted_at: int,
    read_at: int,
    timed: int,
    is_complete: bool,
    numbers: Sequence[int],
    under_way: Sequence[tuple[int, int, int, int]],
    over: Sequence[tuple[int, int, int, int]] = (),
) -> None:
    """`under_way`, `over`: as `Recorded`. What is more than the block holds is left out; with more under way it is not
    complete."""
    is_complete = is_complete and len(under_way) <= layout.RECORD_ROWS
    held, left = under_way[: layout.RECORD_ROWS], over[: layout.RECORD_OVER]
    flags = layout.RECORD_IS_COMPLETE if is_complete else 0
    head = layout.RECORD_HEAD.pack(counted_at, read_at, timed, flags, len(held), len(left), *numbers)
    rows = b"".join(layout.RECORD_ROW.pack(*row) for row in (*held, *left))
    payload = (head + rows).ljust(layout.RECORD_BYTES, b"\0")
    buffer[layout.AT_RECORD : layout.AT_RECORD + layout.SEAL.size + layout.RECORD_BYTES] = layout.seal(payload)


def understand(payload: bytes) -> TorchRecord:
    """The block, whatever its bytes are."""
    counted_at, read_at, timed, flags, count, over, *numbers = layout.RECORD_HEAD.unpack_from(payload)
    raw = payload[layout.RECORD_HEAD.size :][: (count + over) * layout.RECORD_ROW.size]
    rows = [
        Recorded(bounds.whole(number, 0, bounds.MAX_COUNT), max(size, 0), slot, kind)
        for number, size, slot, kind in layout.RECORD_ROW.iter_unpack(raw)
    ]
    return TorchRecord(
        counted_at,
        read_at,
        timed,
        bool(flags & layout.RECORD_IS_COMPLETE) and count <= layout.RECORD_ROWS,
        tuple(bounds.whole(number, -1, bounds.MAX_COUNT) for number in numbers),
        tuple(rows[:count]),
        tuple(rows[count:]),
    )
