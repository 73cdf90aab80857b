"""Spans and operations for the probe, whose time also adds up here: where a step's time went.

A block's own time is what passed in it less what passed in blocks inside it, so that the parts of a step
never count a moment twice. Those times are the host's; spans of what a GPU does are the GPU's own (`device_spans`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch

from holdfast.agent import probe
from holdfast.plan.plan import COMPUTE as COMPUTES
from holdfast.plan.plan import RECEIVES, SECOND_ORDER, SPANS, Op
from holdfast.trainer.telemetry.device_spans import DeviceSpans
from holdfast.wire.types import STEP_PARTS

COMPUTE, COMMUNICATION, BUBBLE, DATA, OPTIMIZER = STEP_PARTS
PARTS = STEP_PARTS
_PARTS = {op: COMPUTE if op in COMPUTES else BUBBLE if op in RECEIVES else COMMUNICATION for op in SPANS}
_PARTS |= {Op.LOAD: DATA, **dict.fromkeys(SECOND_ORDER | {Op.STEP}, OPTIMIZER)}
_WORK = COMPUTES | SECOND_ORDER | {Op.STEP, Op.REDUCE_GRAD}  # loading waits for disks, whatever the processor does
# Waiting for an adjacent stage is a bubble; all other operations that ranks do together are communication
# that nothing hides, or the block would not be waiting for it.
_WAITS = ("pp:recv",)


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


class _All:
    """Several blocks around one."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: list[AbstractContextManager[None]]) -> None:
        self.blocks = blocks

    def __enter__(self) -> None:
        for block in self.blocks:
            block.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for block in self.blocks:
            block.__exit__(kind, error, trace)


_device: DeviceSpans | None = None


def watch_device(device: torch.device) -> None:
    """Time what a GPU does by its own clock from now on. Nothing changes on a CPU."""
    global _device
    if device.type == "cuda":
        _device = DeviceSpans(lambda: torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]  # torch's


def step_done() -> None:
    """The host has just waited for the device: hand over the spans that it has passed."""
    if _device is not None:
        _device.align()


def _span(kind: str, cpu: bool, **named: Any) -> AbstractContextManager[None]:
    return probe.span(kind, cpu=cpu, **named) if _device is None else _device.span(kind, **named)


def action(op: Op, stage: int, micro_batch: int = -1, turn: int = 0, num_bytes: int = 0) -> _Block:
    """The span of an action of the plan, named as `holdfast.plan.plan.Action` names it.

    Of a receive, and of gathering, what is waited for the data; of a send, handing it over.
    """
    named = {"stage": stage, "micro_batch": micro_batch, "turn": turn, "num_bytes": num_bytes}
    if op is Op.LOAD:
        # The host reads, wherever the model is.
        return _Block(_PARTS[op], probe.span(SPANS[op], stage, micro_batch, turn, num_bytes))
    return _Block(_PARTS[op], _span(SPANS[op], op in _WORK, **named))


def waited(op: Op, stage: int, micro_batch: int, since_ns: int, num_bytes: int) -> None:
    """The span of a receive that has come now, for which nothing else was done since `since_ns` (monotonic): which one
    is known only when it is there."""
    now = time.monotonic_ns()
    probe.record(SPANS[op], since_ns, now, stage=stage, micro_batch=micro_batch, num_bytes=num_bytes)


def actions(op: Op, stages: Iterable[tuple[int, int]]) -> _Block:
    """An action that is one for several (stage, turn): a span for each, all of the same time."""
    return _Block(_PARTS[op], _All([_span(SPANS[op], op in _WORK, stage=s, turn=turn) for s, turn in stages]))


_done: defaultdict[str, int] = defaultdict(int)  # operations by group


def operations(group: str) -> int:
    """How many operations of a group this rank has begun so far."""
    return _done[group]


def operation(name: str, num_bytes: int = 0) -> _Block:
    """As the probe's, as a block, and a span of the wait with its peers: "tp:all_reduce" is of this rank's tp
    peers. All of them do the operations of a group in one order, so their numbers agree. `num_bytes`: of the whole
    buffer, as nccl-tests count; 0 where that is not known."""
    if name in _WAITS:
        return _Block(BUBBLE, probe.operation(name))  # the span is that of the action
    group = name.partition(":")[0]
    _done[group] += 1
    span = _span(name, False, group=group, seq=_done[group], num_bytes=num_bytes)
    return _Block(COMMUNICATION, _All([probe.operation(name), span]))
