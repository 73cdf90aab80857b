"""Pipelines in both directions over the same ranks, which fill each other's bubbles (Li and Hoefler, SC 2021).

With P pipes on D ranks each rank holds P stages, one replica of each pipe, and gradients of a stage are added up over
P ranks. Half of the pipes go down the ranks and half go up, each turned by 2D/P ranks against the next. The bubble
falls from D-1 to D/P-1 forwards and as many backwards, for P times the weights; what is held is balanced.

Three ways to do more micro-batches than ranks. Direct: one unit of D after the other. Backwards that take twice a
forward leave gaps at the joints; doubled forwards (two micro-batches at once, twice the activations) and halved
backwards (smaller kernels) have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from holdfast.plan.plan import Action, Op, Order

T = TypeVar("T")
Item = tuple[int, ...]
"""Micro-batches that go forward at once."""


def pipe_ranks(ranks: int, pipes: int) -> list[tuple[int, ...]]:
    """By pipe, the rank of each stage. Even pipes go down the ranks, odd ones up.

    ValueError unless pipes come in pairs that divide the ranks evenly.
    """
    if pipes < 2 or pipes % 2 or ranks % pipes:
        near = max(2, pipes // 2 * 2)
        raise ValueError(
            f"cannot have {pipes} pipes on {ranks} ranks: pipes are 2 or more, even, and divide the ranks, "
            f"as {near} on {-(-ranks // near) * near}"
        )
    apart = 2 * ranks // pipes
    return [
        tuple(((ranks - 1 - s if pipe % 2 else s) + pipe // 2 * apart) % ranks for s in range(ranks))
        for pipe in range(pipes)
    ]


def chimera(ranks: int, pipes: int, micro_batches: int) -> list[Order]:
    """Units of `ranks` micro-batches, one after the other; one list of forwards and backwards a rank.

    Every action of a unit has a slot of its own, so a rank's list is its actions by slot.
    """
    places = pipe_ranks(ranks, pipes)
    slots: list[list[tuple[int, Action]]] = [[] for _ in range(ranks)]
    for first in range(0, micro_batches, ranks):
        for pipe, shared in enumerate(_dealt(range(first, min(first + ranks, micro_batches)), pipes)):
            for j, m in enumerate(shared):
                for stage, rank in enumerate(places[pipe]):
                    forward, backward = 2 * j + stage, 2 * j + 2 * ranks - 1 - stage
                    slots[rank].append((2 * first + forward, Action(Op.FORWARD, stage, m, pipe=pipe)))
                    slots[rank].append((2 * first + backward, Action(Op.BACKWARD, stage, m, pipe=pipe)))
    return [tuple(action for _, action in sorted(mine, key=lambda one: one[0])) for mine in slots]


def forward_doubling(ranks: int, pipes: int, micro_batches: int) -> list[Order]:
    """Each forward does two micro-batches, each backward one."""
    return _greedy(ranks, pipes, [tuple(range(m, min(m + 2, micro_batches))) for m in range(0, micro_batches, 2)], 1)


def backward_halving(ranks: int, pipes: int, micro_batches: int) -> list[Order]:
    """Each forward does a micro-batch, each backward half of one: at least two samples a micro-batch."""
    return _greedy(ranks, pipes, [(m,) for m in range(micro_batches)], 2)


class _Replica:
    """A pipe's replica of a stage: its computations in order, and how far it is."""

    def __init__(self, pipe: int, stage: int, items: Sequence[Item], parts: int) -> None:
        self.forwards = [Action(Op.FORWARD, stage, ms[0], pipe=pipe, also=ms[1:]) for ms in items]
        self.backwards = [
            (item, Action(Op.BACKWARD, stage, m, part, pipe, parts=parts))
            for item, ms in enumerate(items)
            for m in ms
            for part in range(parts)
        ]
        self.forward = self.backward = 0

    def ready(self, before: _Replica | None, after: _Replica | None, limit: int) -> Iterator[tuple[bool, int, Action]]:
        """What it can do next: (is forward, item, action)."""
        oldest = self.backwards[self.backward][0] if self.backward < len(self.backwards) else self.forward
        if oldest < self.forward and (after is None or after.backward > self.backward):
            yield False, oldest, self.backwards[self.backward][1]
        is_there = before is None or before.forward > self.forward
        if is_there and self.forward < min(len(self.forwards), oldest + limit):
            yield True, self.forward, self.forwards[self.forward]


def _greedy(ranks: int, pipes: int, items: Sequence[Item], parts: int) -> list[Order]:
    """Slot by slot, each rank does what is ready: a backward before a forward, the one due first in a unit first.

    `items` go forward at once, and each micro-batch back in so many `parts`; every one of these takes a slot. A rank
    begins no more than `ranks / pipes` items of a pipe before their backwards, so that it holds no more than a unit
    does. Forwards of a pipe keep their order. With two pipes D - 2 slots are idle, however many items there are.
    """
    places = pipe_ranks(ranks, pipes)
    dealt: list[list[Item]] = [[] for _ in places]
    for first in range(0, len(items), ranks):
        for pipe, some in enumerate(_dealt(items[first : first + ranks], pipes)):
            dealt[pipe] += some
    replicas = [[_Replica(pipe, s, dealt[pipe], parts) for s in range(ranks)] for pipe in range(pipes)]
    orders: list[list[Action]] = [[] for _ in range(ranks)]
    left = sum(len(r.forwards) + len(r.backwards) for row in replicas for r in row)
    while left:
        chosen: dict[int, tuple[tuple[bool, int], Action]] = {}
        for pipe, row in enumerate(replicas):
            for stage, replica in enumerate(row):
                before = row[stage - 1] if stage else None
                after = row[stage + 1] if stage + 1 < ranks else None
                rank = places[pipe][stage]
                for is_forward, item, action in replica.ready(before, after, ranks // pipes):
                    turn = (is_forward, 2 * item + (stage if is_forward else -stage))  # the slots of a unit
                    if rank not in chosen or turn < chosen[rank][0]:
                        chosen[rank] = turn, action
        for rank, ((is_forward, _), action) in chosen.items():
            orders[rank].append(action)
            replica = replicas[action.pipe][action.stage]
            replica.forward += is_forward
            replica.backward += not is_forward
        assert chosen, "a rank always has something to do: the lists are acyclic"
        left -= len(chosen)
    return [tuple(order) for order in orders]


def _dealt(unit: Sequence[T], pipes: int) -> list[Sequence[T]]:
    """A unit's items in a row for each pipe, as evenly as can be."""
    size, extra = divmod(len(unit), pipes)
    ends = [size * (pipe + 1) + min(extra, pipe + 1) for pipe in range(pipes)]
    return [unit[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
