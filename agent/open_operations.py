"""Groups of a training process, the operations begun in them, and which thread waits for which.

A part of `probe`, for hooks: a step has hundreds of these. Without an agent everything here does nothing.
"""

import threading
import time
from collections.abc import Sequence
from types import TracebackType

from holdfast.agent import probe
from holdfast.agent.probe_file import layout

_monotonic_ns = time.monotonic_ns
_get_ident = threading.get_ident
_get_native_id = threading.get_native_id
_begun_word = layout.begun_word
_WORD_MOVED, _WORD_BEGUN = layout.WORD_MOVED, layout.WORD_BEGUN
NO_ROW = -2
"""For `waited`: there is no agent, or no group."""


def group(label: str, ident: int, members: Sequence[int], is_seen: bool = False, is_whole: bool = True) -> int:
    """The slot of a group of ranks that do operations together: the same label and `ident` (32 bits) at each of them.

    0 when no agent watches, or no slot is left. Registering it again restarts its sequence numbers. `is_seen`: all its
    operations come through `begin` (messages); else torch counts them. Not `is_whole`: nobody counts all of them.
    """
    live = probe._live
    if live is None:
        return 0
    counted = layout.COUNTED_HERE if is_seen else layout.COUNTED_BY_TORCH
    slot = live.groups.register(label, ident, members, counted if is_whole else layout.COUNTED_IN_PART)
    live.past.forget(slot)
    return slot


def counts_in_part(slots: Sequence[int]) -> None:
    """From now on not all operations of these groups are counted."""
    live = probe._live
    if live is not None:
        for slot in slots:
            live.groups.count_in_part(slot)


def begin(kind: int, group: int, size: int = 0, number: int = -1) -> int:
    """An operation of this kind (see OPERATION_KINDS) begins in a group: its sequence number, which is how many were
    counted here before where `number` is not given. `size`: as operation_size packs it, where it is the same at all.
    """
    live = probe._live
    if live is None or not group:
        return -1
    counted = live.groups.count(group, size)
    if number < 0:
        number = counted
    words = live.words
    if live.operation[0] and _get_ident() == live.main:
        words[_WORD_BEGUN] = _begun_word(live.numbered, group, kind, number)
    words[_WORD_MOVED] = _monotonic_ns()
    return number


def rooted(kind: int, group: int, number: int, root: int) -> None:
    """The operation of this number, which was begun in the group just now, has this root, a rank of the job. What its
    other ranks can expect of this one follows from that, also after it has ended here."""
    live = probe._live
    if live is not None and group:
        live.past.add(group, number, kind, root)


def waits(kind: int, group: int, number: int, size: int = 0, root: int = -1, flags: int = 0) -> int:
    """This thread waits from now on for what `begin` began: what `waited` wants when that is over.

    `root`: the rank that sends or receives for all. `flags`: of `layout.OPEN_*`.
    """
    live = probe._live
    if live is None or not group:
        return NO_ROW
    live.words[_WORD_MOVED] = now = _monotonic_ns()
    thread = live.pid if _get_ident() == live.main else _get_native_id()
    return live.open.begin(now, number, thread, size, root, group, kind, flags)


def waited(row: int) -> None:
    """The wait of this thread that began with `waits` is over."""
    live = probe._live
    if live is None or row == NO_ROW:
        return
    live.open.end(row)
    words = live.words
    if _get_ident() == live.main:
        words[_WORD_BEGUN] = 0
    words[_WORD_MOVED] = _monotonic_ns()


class Wait:
    """A wait as a block, which begins before the block is entered."""

    __slots__ = ("_row",)

    def __init__(self, row: int) -> None:
        self._row = row

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waited(self._row)


def wait(kind: int, group: int, number: int, size: int = 0, root: int = -1, flags: int = 0) -> Wait:
    """As `waits`, over in the end of the block that follows."""
    return Wait(waits(kind, group, number, size, root, flags))


def wait_for_all(group: int) -> Wait:
    """This thread waits, from now until the block that this returns is left, for all collectives of the group that
    are under way; torch's own record says which."""
    return Wait(waits(0, group, -1, flags=layout.OPEN_IS_ALL))
