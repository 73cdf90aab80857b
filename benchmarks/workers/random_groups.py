"""Operations that random scripts have beside those of their framework: in other groups, of other kinds, in a thread.

`SIDES[name](at, steps)` is entered by all ranks; what it returns is called after each step. A rank may pause inside: at
the place of the same name.
"""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from random_frameworks import RANK, WORLD, At

Side = Callable[[int], None]


def none(at: At, steps: int) -> Side:
    return lambda number: None


def sub(at: At, steps: int) -> Side:
    """Ranks 0 and 1 have a group of their own."""
    pair = dist.new_group([0, 1])

    def side(number: int) -> None:
        at("sub")
        if RANK < 2:
            dist.all_reduce(torch.ones(4), group=pair)

    return side


def overlap(at: At, steps: int) -> Side:
    groups = [dist.new_group(ranks) for ranks in ([0, 1], [1, 2], [0, 2])]

    def side(number: int) -> None:
        at("overlap")
        for members, group in zip(((0, 1), (1, 2), (0, 2)), groups, strict=True):
            if RANK in members:
                dist.all_reduce(torch.ones(4), group=group)

    return side


class _Pickled:
    """Pauses where it is unpickled."""

    at: At

    def __setstate__(self, state: Any) -> None:
        _Pickled.at("unpickle")

    def __getstate__(self) -> dict[str, int]:
        return {"rank": RANK}


def unpickle(at: At, steps: int) -> Side:
    """Object collectives."""
    _Pickled.at = at

    def side(number: int) -> None:
        dist.all_gather_object([None] * WORLD, _Pickled())
        dist.broadcast_object_list([{"step": number}], src=0)

    return side


def monitored(at: At, steps: int) -> Side:
    def side(number: int) -> None:
        at("monitored")
        dist.monitored_barrier(timeout=timedelta(minutes=20))

    return side


def asynchronous(at: At, steps: int) -> Side:
    """Between the start of an operation and the wait for its end."""

    def side(number: int) -> None:
        work = dist.all_reduce(torch.ones(4), async_op=True)
        at("async")
        work.wait()

    return side


def thread(at: At, steps: int) -> Side:
    """A thread of each rank has operations in a group of its own, while the main thread trains."""
    group = dist.new_group(list(range(WORLD)))

    def run() -> None:
        for number in range(steps):
            at(f"thread:{number}")
            dist.all_reduce(torch.ones(4), group=group)

    worker = threading.Thread(target=run)
    worker.start()

    def side(number: int) -> None:
        if number == steps - 1:
            worker.join()

    return side


def ring(at: At, steps: int) -> Side:
    """Each sends to the next."""

    def side(number: int) -> None:
        at("ring")
        ahead, behind = (RANK + 1) % WORLD, (RANK - 1) % WORLD
        sends = dist.P2POp(dist.isend, torch.ones(4), ahead)
        receives = dist.P2POp(dist.irecv, torch.ones(4), behind)
        for work in dist.batch_isend_irecv([sends, receives]):
            work.wait()

    return side


SIDES: dict[str, Callable[[At, int], Side]] = {
    "none": none, "sub": sub, "overlap": overlap, "unpickle": unpickle, "object": unpickle, "monitored": monitored,
    "async": asynchronous, "thread": thread, "ring": ring,
}  # fmt: skip
