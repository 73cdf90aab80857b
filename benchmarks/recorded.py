"""What a rank computes and sends in each step, recorded while it really trains. Needs torch.

An event is a message, a collective, or the wait for one; with it goes the processor time that the rank's own thread
took since the event before. What a rank waits, and what threads of the transport do, is no part of that. A thread that
sums gradients beside the rank is waited for at once where no replica has a core to spare, so one list holds both.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from replayed import Event, Kind

from holdfast.trainer.run.loop import Trainer

_SENDS = {"isend": "group_dst", "irecv": "group_src"}
_COLLECTIVES = {
    "all_reduce": ("all_reduce", "tensor", 0),
    "all_gather_into_tensor": ("all_gather", "output_tensor", 0),
    "all_gather_single": ("all_gather", "output", 0),
    "all_to_all_single": ("reduce_scatter", "input", 1),
}
"""By name in torch: what it is for, and the argument that is the whole array, by name and place. The trainer's
reduce-scatter over gloo is an all-to-all."""
_OTHERS = ("send", "recv", "broadcast", "reduce_scatter_tensor", "reduce_scatter_single", "all_gather", "reduce",
           "scatter", "gather", "batch_isend_irecv")  # fmt: skip


class Recorder:
    """Between `begin` and `end` of a step torch's functions note what they do."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self.steps: list[list[Event]] = []
        self._clock = clock
        self._local = threading.local()
        self._is_on = False
        self._counts: Counter[tuple[object, ...]] = Counter()

    def install(self) -> None:
        """In this process, for good."""
        for name in _SENDS:
            setattr(dist, name, self._message(name, getattr(dist, name)))
        for name in _COLLECTIVES:
            if hasattr(dist, name):
                setattr(dist, name, self._collective(name, getattr(dist, name)))
        for name in _OTHERS:
            if hasattr(dist, name):
                setattr(dist, name, self._refused(name, getattr(dist, name)))
        usual = Trainer.step

        def step(trainer: Trainer, number: int) -> Any:
            self.begin()
            totals = usual(trainer, number)
            self.end()
            return totals

        Trainer.step = step  # type: ignore[method-assign]

    def begin(self) -> None:
        self.steps.append([])
        self._counts.clear()
        self._is_on = True
        self._local.last = self._clock()

    def end(self) -> None:
        self._note(Kind.END, (), 0)
        self._is_on = False

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.steps))

    def _note(self, kind: Kind, key: tuple[object, ...], num_bytes: int) -> None:
        # A thread that begins within a step has computed since then.
        computed = self._clock() - getattr(self._local, "last", 0.0)
        self.steps[-1].append(Event(computed, kind, key, num_bytes))

    def _go_on(self) -> None:
        self._local.last = self._clock()

    def _numbered(self, *key: object) -> tuple[object, ...]:
        self._counts[key] += 1
        return (*key, self._counts[key])

    def _message(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(tensor: torch.Tensor, **named: Any) -> Any:
            if not self._is_on:
                return usual(tensor, **named)
            peer, me = _ranks(named["group"])[named[_SENDS[name]]], dist.get_rank()
            ends = (me, peer) if name == "isend" else (peer, me)
            if name == "isend":
                self._note(Kind.SEND, self._numbered(*ends, _ranks(named["group"])), tensor.nbytes)
                work = usual(tensor, **named)
                self._go_on()
                return work
            # Which message it is, is decided where the receive is posted.
            key = self._numbered(*ends, _ranks(named["group"]))
            return _Watched(usual(tensor, **named), lambda: self._note(Kind.RECEIVE, key, tensor.nbytes), self._go_on)

        return call

    def _collective(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        op, argument, place = _COLLECTIVES[name]

        def call(*args: Any, **named: Any) -> Any:
            ranks = _ranks(named.get("group"))
            if not self._is_on or len(ranks) == 1:
                return usual(*args, **named)
            whole = named[argument] if argument in named else args[place]
            key, is_async = self._numbered(op, ranks), named.pop("async_op", False)
            self._note(Kind.BEGIN, key, whole.nbytes)
            work = _Watched(
                usual(*args, async_op=True, **named), lambda: self._note(Kind.WAIT, key, whole.nbytes), self._go_on
            )
            self._go_on()
            if is_async:
                return work
            work.wait()
            return None

        return call

    def _refused(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._is_on:
                raise RuntimeError(f"torch's {name} in a step: it is not recorded")
            return usual(*args, **named)

        return call


class _Watched(dist.Work):
    """Work under way: notes the first wait for it, and that the rank goes on."""

    def __init__(self, work: Any, note: Callable[[], None], go_on: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._note, self._go_on = work, note, go_on
        self._is_noted = False

    def wait(self, *args: Any) -> bool:
        if self._is_noted:
            return bool(self._work.wait(*args))
        self._is_noted = True
        self._note()
        found = bool(self._work.wait(*args))
        self._go_on()
        return found

    def is_completed(self) -> bool:
        return bool(self._work.is_completed())


def _ranks(group: Any) -> tuple[int, ...]:
    """Of the job."""
    found = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
    return tuple(found)
