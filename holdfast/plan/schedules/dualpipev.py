"""DualPipeV: DualPipe folded in half, so that weights are there once (DeepSeek-V3, arXiv 2412.19437; "cut-in-half").

Each rank holds a stage of the way out and one of the way back, as with ZBV. In the main part a forward of one stage and
a whole backward of the other are neighbours, which torch has as one action (OVERLAP_F_B). Here they are two actions in
that order: neither hides collectives within the layers of the other. Only the ends of the pipeline cut a backward in
halves.
"""

from __future__ import annotations

from collections import Counter, deque

from holdfast.plan.plan import Action, Op, Order


def dualpipev(ranks: int, chunks: int, micro_batches: int) -> list[Order]:
    """By rank, the computations of DualPipeV. ValueError for fewer micro-batches than stages."""
    if micro_batches < 2 * ranks:
        raise ValueError(f"dualpipev needs a micro-batch for each stage: {micro_batches} for {2 * ranks} stages")
    return [_rank(rank, ranks, micro_batches) for rank in range(ranks)]


class _Writer:
    """The order of one rank as it grows: each operation takes its stage's next micro-batch."""

    def __init__(self, out: int, back: int) -> None:
        self.out, self.back = out, back
        self.order: list[Action] = []
        self._next: Counter[tuple[Op, int]] = Counter()
        self._weights: deque[tuple[int, int]] = deque()

    def forward(self, stage: int) -> None:
        self.order.append(Action(Op.FORWARD, stage, self._take(Op.FORWARD, stage)))

    def backward(self, stage: int, *, halved: bool = False) -> None:
        # Whole and halved backwards of a stage share one count.
        micro_batch = self._take(Op.BACKWARD, stage)
        self.order.append(Action(Op.BACKWARD_INPUT if halved else Op.BACKWARD, stage, micro_batch))
        if halved:
            self._weights.append((stage, micro_batch))

    def weight(self) -> None:
        """The oldest half that is left, if there is one."""
        if self._weights:
            self.order.append(Action(Op.BACKWARD_WEIGHT, *self._weights.popleft()))

    def _take(self, op: Op, stage: int) -> int:
        self._next[op, stage] += 1
        return self._next[op, stage] - 1


def _rank(rank: int, ranks: int, micro_batches: int) -> Order:
    after = ranks - rank - 1
    write = _Writer(out=rank, back=2 * ranks - 1 - rank)
    for _ in range(2 * after):
        write.forward(write.out)
    for _ in range(rank + 1):
        write.forward(write.out)
        write.forward(write.back)
    for _ in range(after):
        write.backward(write.back, halved=True)
        write.weight()
        write.forward(write.back)
    for _ in range(micro_batches - 2 * ranks + rank + 1):
        write.forward(write.out)
        write.backward(write.back)
        write.forward(write.back)
        write.backward(write.out)
    for _ in range(after):
        write.backward(write.back)
        write.forward(write.back)
        write.backward(write.out)
    # In the second half of these 2 (rank + 1) backwards, weights wait: they fill the idle time at the end.
    for turn in range(rank + 1):
        write.backward(write.back, halved=2 * turn > rank)
        write.backward(write.out, halved=2 * turn + 1 > rank)
    for _ in range(after):
        write.weight()
        write.backward(write.out, halved=True)
    for _ in range(rank + 1):
        write.weight()
    return tuple(write.order)
