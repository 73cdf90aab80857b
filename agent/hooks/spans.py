"""Times of an unmodified script's step, as spans: forward, backward, the wait for DDP's gradients, the optimizer.

DDP reduces gradients in C++ and waits for them at the end of backward, in a callback of autograd's engine. One of ours,
queued when backward begins, runs before that wait; one that this one queues runs after it. What lies between is waiting
for the others, what came before is the rank's own.
"""

import gc
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from holdfast.agent import open_operations, probe

WAIT = "ddp:all_reduce"
BACKWARD = "ddp:backward"
LOAD = "load"
GARBAGE_NS = 200_000
"""Collections that take less are not worth a span."""


class StepTimes:
    """The moments of the running step that are known already. A script has one training thread, if not one backward."""

    def __init__(self, queue_callback: Any) -> None:
        self._queue = queue_callback
        self._began: tuple[int, int, int] | None = None
        self._own: tuple[int, int, int] | None = None
        self._has_closure = False
        self._updated: tuple[int, int, int] | None = None
        """Since when the optimizer works by itself."""
        self._collecting = 0
        self._reduced = 0
        self._slots: set[int] = set()
        self._waits = ExitStack()

    def forward(self) -> None:
        self._waits.close()  # of a backward that raised
        self._slots.clear()
        if self._has_closure:  # which calls this
            _record("optimizer", self._updated)
        self._updated = None
        self._began = _moment()

    def forward_done(self) -> None:
        _record("forward", self._began)
        self._began = None

    def backward(self, slot: int = 0) -> None:
        """In a hook of the model's output, so inside of autograd's engine. `slot`: of the group that reduces."""
        self._slots.add(slot)
        if self._began is None:
            self._began = _moment()
            self._queue(self._backward_computed)

    def _backward_computed(self) -> None:
        _record("backward", self._began)
        self._own, self._began = _moment(), None
        self._waits.close()
        for slot in self._slots:
            self._waits.enter_context(open_operations.wait_for_all(slot))
        self._slots.clear()
        self._queue(self._backward_done)

    def _backward_done(self) -> None:
        self._waits.close()
        probe.leave(BACKWARD)
        if self._own is not None:
            self._reduced += 1
            probe.record(WAIT, self._own[0], time.monotonic_ns(), group="world", seq=self._reduced)
            self._own = None
        if self._has_closure:
            self._updated = _moment()

    def optimizer(self, has_closure: bool = False) -> None:
        """`has_closure`: its step was given one, so forward and backward may be in it."""
        self._waits.close()
        self._slots.clear()
        self._began = None
        self._has_closure, self._updated = has_closure, _moment()

    def optimizer_done(self) -> None:
        _record("optimizer", self._updated)
        self._has_closure, self._updated = False, None

    def garbage(self, phase: str, info: dict[str, int]) -> None:
        """As `gc.callbacks` wants it."""
        now = time.monotonic_ns()
        if phase == "start":
            self._collecting = now
        elif now - self._collecting > GARBAGE_NS:
            probe.record("gc", self._collecting, now)

    def watch_garbage(self) -> None:
        gc.callbacks.append(self.garbage)


def _moment() -> tuple[int, int, int]:
    """Now, the processor time of this thread, and which thread it is."""
    return time.monotonic_ns(), time.thread_time_ns(), threading.get_ident()


def _record(kind: str, began: tuple[int, int, int] | None) -> None:
    if began is not None:
        start, cpu, thread = began
        used = time.thread_time_ns() - cpu if thread == threading.get_ident() else 0
        probe.record(kind, start, time.monotonic_ns(), cpu_ns=used)


_numbers: dict[str, int] = {}


def collective(name: str, group: Any) -> AbstractContextManager[None]:
    """The span of a collective that the script asked for. `group`: as the script gave it, None for all ranks."""
    label = "world" if group is None else str(getattr(group, "group_name", "group"))
    if label in ("", "0", "default_pg"):
        label = "world"
    _numbers[label] = _numbers.get(label, 0) + 1
    return probe.span(name, group=label, seq=_numbers[label])
