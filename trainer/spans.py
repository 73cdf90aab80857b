"""Spans and operations for the probe, whose time also adds up here: where a step's time went.

A block's own time is what passed in it less what passed in blocks inside it, so that the parts of a step
never count a moment twice. Times are the host's: on a GPU they say when work was handed over.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import AbstractContextManager
from types import TracebackType

from holdfast.agent import probe

COMPUTE, COMMUNICATION, BUBBLE, DATA, OPTIMIZER = "compute", "communication", "bubble", "data", "optimizer"
PARTS = (COMPUTE, COMMUNICATION, BUBBLE, DATA, OPTIMIZER)
_SPANS = {
    "forward": COMPUTE,
    "backward": COMPUTE,
    "backward_weight": COMPUTE,
    "data_wait": DATA,
    "optimizer": OPTIMIZER,
}
# Waiting for a neighbour stage is a bubble; all other operations that ranks do together are communication
# that nothing hides, or the block would not be waiting for it.
_WAITS = ("pp:recv", "pp:wait")


class Stopwatch:
    """Own time of blocks by part of the step. For the thread that trains, and those that it waits for."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.open: list[_Block] = []

    def take(self) -> dict[str, float]:
        """Seconds by part since the last call."""
        taken = {part: self.seconds.get(part, 0.0) for part in PARTS}
        self.seconds.clear()
        return taken


clock = Stopwatch()


class _Block:
    """Runs one of the probe's blocks, and the clock with it."""

    __slots__ = ("inner", "part", "started", "within")

    def __init__(self, part: str, inner: AbstractContextManager[None]) -> None:
        self.part, self.inner = part, inner
        self.within = 0.0

    def __enter__(self) -> None:
        clock.open.append(self)
        self.inner.__enter__()
        self.started = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        passed = time.perf_counter() - self.started
        self.inner.__exit__(kind, error, trace)
        clock.seconds[self.part] += passed - self.within
        while clock.open and clock.open.pop() is not self:
            pass
        if clock.open:
            clock.open[-1].within += passed


def span(kind: str, stage: int = -1, micro_batch: int = -1, turn: int = 0) -> _Block:
    """As the probe's."""
    return _Block(_SPANS.get(kind, kind), probe.span(kind, stage, micro_batch, turn))


def operation(name: str) -> _Block:
    """As the probe's, as a block."""
    return _Block(BUBBLE if name in _WAITS else COMMUNICATION, probe.operation(name))
