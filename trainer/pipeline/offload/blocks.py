"""Which activations of a rank's list leave the device for host memory, and when they come back. Pure.

A block is what the graph of one micro-batch in one stage has saved. The list says when each is made, needed and over,
so the one that is needed last leaves first: of blocks of one size, no other choice moves fewer (Belady, IBM Systems
Journal 1966).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.plan.cache.arena import Arena
from holdfast.plan.cache.cache import Cache, Copy
from holdfast.plan.cache.policy import Belady
from holdfast.plan.cache.uses import Trace
from holdfast.plan.plan import LAST_BACKWARDS, Action, Op, Order
from holdfast.trainer.pipeline.pieces import Piece

Block = tuple[int, int, Piece]
"""(pipe, stage, piece)."""


@dataclass(frozen=True, slots=True)
class Uses:
    """Blocks that one action makes, goes back through, and is the last to need."""

    made: tuple[Block, ...] = ()
    needed: tuple[Block, ...] = ()
    over: tuple[Block, ...] = ()


def uses_of(order: Order, pieces: Callable[[Action], Sequence[Piece]]) -> list[Uses]:
    """Of each action of a list.

    A forward whose stage is computed again makes none: its recompute does. The first stage has nothing to do in the
    first half of a backward.
    """
    again = {(a.pipe, a.stage, m) for a in order if a.op is Op.RECOMPUTE for m in a.micro_batches}
    found = []
    for action in order:
        blocks = tuple((action.pipe, action.stage, piece) for piece in pieces(action))
        is_kept = (action.pipe, action.stage, action.micro_batch) not in again
        if (action.op is Op.FORWARD and is_kept) or action.op is Op.RECOMPUTE:
            found.append(Uses(made=blocks))
        elif action.op in LAST_BACKWARDS:
            found.append(Uses(needed=blocks, over=blocks))
        elif action.op is Op.BACKWARD_INPUT and action.stage:
            found.append(Uses(needed=blocks))
        else:
            found.append(Uses())
    return found


def trace_of(uses: Sequence[Uses]) -> Trace[Block]:
    """One moment for each action."""
    return Trace(one.made + one.needed for one in uses)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a step moves and holds, in bytes."""

    out: int
    back: int
    device: int
    """The most on the device..."""
    host: int
    """... and in host memory, where a copy stays until its block is over."""
    leaving: frozenset[Block]
    """Blocks that go to the host."""


def traffic(uses: Sequence[Uses], sizes: Mapping[Block, int], capacity: int) -> Traffic:
    """Of a step with `capacity` bytes on the device, when each block is brought back where it is needed.

    Raises ArenaFullError where an action alone needs more.
    """
    arena, host = Arena("activations", capacity), Arena("host")
    cache: Cache[Block] = Cache(sizes, arena, Belady(trace_of(uses)), kind="activations")
    there: set[Block] = set()
    left: set[Block] = set()

    def note(copies: Sequence[Copy[Block]]) -> None:
        for copy in copies:
            if copy.op is Op.EVICT and copy.size:
                host.take("activations", copy.size)
                there.add(copy.key)
                left.add(copy.key)

    for now, one in enumerate(uses):
        if one.made or one.needed:
            note(cache.need(one.made + one.needed, now, created=one.made))
        for block in one.over:
            cache.forget(block)
            if block in there:
                there.remove(block)
                host.release("activations", sizes[block])
    return Traffic(cache.evicted, cache.fetched, arena.peak, host.peak, frozenset(left))


def spare(uses: Sequence[Uses], sizes: Mapping[Block, int], capacity: int) -> int:
    """Bytes of `capacity` that are kept free for a block on its way back before it is needed: as many as the largest
    one has, or 0 where an action needs them or nothing has to leave."""
    largest = max(sizes.values(), default=0)
    at_once = max((sum(sizes[block] for block in one.made + one.needed) for one in uses), default=0)
    if at_once + largest > capacity or not traffic(uses, sizes, capacity).out:
        return 0
    return largest


def next_back(uses: Sequence[Uses], now: int, on_host: Callable[[Block], bool]) -> Block | None:
    """The first block that an action behind `now` needs and that is in host memory alone."""
    return next((block for one in uses[now + 1 :] for block in one.needed if on_host(block)), None)
