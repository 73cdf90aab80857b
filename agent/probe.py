"""What a training process reports to its agent: step, phase, operation, spans, and that its interpreter is alive.

    from holdfast.agent import probe

    probe.attach()                      # without HOLDFAST_PROBE everything here does nothing
    probe.phase("train")
    for n, batch in enumerate(data):
        with probe.operation("all_reduce"):
            ...
        probe.step(n, loss=loss, tokens=count)

Everything goes into shared memory (`probe_file.layout`): no system call and no lock in the step, a few microseconds a
call. Standard library only, because it runs in other people's training processes.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.agent.probe_file import layout, side_files, taken
from holdfast.agent.probe_file.memory import NOTHING, PHASE_INDEX, Memory, Operation
from holdfast.base import bounds
from holdfast.base.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.agent.probe_file.events import Event, Recorded

_monotonic_ns = time.monotonic_ns
_thread_time_ns = time.thread_time_ns
_get_ident = threading.get_ident
_WORD_MOVED = layout.WORD_MOVED

_live: Memory | None = None
_recorder: "Callable[[Memory, int], None] | None" = None


def attach() -> bool:
    """Start reporting through the file named by HOLDFAST_PROBE, making it if need be. Harmless to repeat.

    Returns whether this process reports. It does not when the variable is unset, when another running process (a
    parent, whose environment we inherited) already owns the file, or when the file cannot be used: then one line on
    standard error says why: no training run may fail because it cannot be watched.
    """
    global _live
    path = os.environ.get(layout.ENV_PATH, "")
    if _live is not None or not path:
        return _live is not None
    try:
        live = Memory(path, _number("RANK"), _number(layout.ENV_GENERATION))
    except (OSError, HoldfastError) as error:
        with suppress(OSError):
            os.write(2, f"holdfast: this process is not watched: {error}\n".encode())
        return False
    if live.owned_by_other():
        return False
    live.recorder = _recorder
    live.take()
    _live = live
    return True


def attached() -> bool:
    """Whether this process reports to an agent."""
    return _live is not None


def step(n: int, loss: float | None = None, tokens: int | None = None) -> None:
    """Step `n` is done: its loss, and the tokens it trained on (of this worker alone).

    Numbers beyond `holdfast.base.bounds` are clamped: a negative step counts as 0. What is not a number is left out;
    the step counts all the same.
    """
    live = _live
    if live is None:
        return
    if not live.spoken:
        _speaks(live)
    if loss is None:
        loss = math.nan  # none reported; a loss that is NaN is reported as infinite: both mean not finite
    elif type(loss) is not float or not math.isfinite(loss):
        loss = _reported(loss)
    live.record_step(n, loss, 0 if tokens is None else tokens)


def _reported(loss: object) -> float:
    """A loss as the record has it: of a tensor its number, so that nothing of it is kept alive."""
    number = taken.real(loss)
    return math.nan if number is None else number if math.isfinite(number) else math.inf


def _speaks(live: Memory) -> None:
    """The script itself reports its steps: from now on nothing is counted for it."""
    live.spoken = True
    live.words[layout.WORD_COUNTED] = 0


def running_step() -> int:
    """The step that spans which end now are of; 0 unwatched."""
    return _live.step + 1 if _live is not None else 0


def phase(name: str) -> None:
    """Report what the process does now, one of `holdfast.wire.types.Phase`; raises ValueError for anything else.

    `phase("train")` also starts the clock of the next step, so that what came before does not count into it.
    """
    index = PHASE_INDEX.get(name) if isinstance(name, str) else None
    if index is None:
        raise ValueError(f"unknown phase {name!r}: one of {', '.join(PHASE_INDEX)}")
    live = _live
    if live is not None:
        _speaks(live)
        live.set_phase(index)


class _Restore:
    """Puts the previous operation back when its block ends."""

    __slots__ = ("previous",)

    def __init__(self, previous: Operation | None) -> None:
        self.previous = previous

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = _live
        if live is not None and self.previous is not None:
            live.enter(self.previous)


_NO_RESTORE = _Restore(None)


class _Moves:
    """The block of a thread that is not the main one: its end is a move, and changes nothing else."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = _live
        if live is not None:
            live.words[_WORD_MOVED] = _monotonic_ns()


_MOVES = _Moves()


def operation(name: str) -> AbstractContextManager[None]:
    """Report what the main thread waits for or works on, up to 56 bytes; "" for nothing.

    A plain call sets it until the next one; as a context manager the previous one comes back at the end. From any
    other thread it changes nothing: what that one waits for is what `open_operations` reports.
    """
    live = _live
    if live is None:
        return _NO_RESTORE
    if _get_ident() != live.main:
        live.words[_WORD_MOVED] = _monotonic_ns()
        return _MOVES
    return place(name)


def place(name: str) -> _Restore:
    """As `operation`, of the main thread, called by a thread that works for it: autograd's, of a GPU."""
    live = _live
    if live is None:
        return _NO_RESTORE
    previous = live.operation
    if type(name) is not str:
        name = taken.text(name)
    raw = live.names.get(name)
    if raw is None:
        raw = live.encode(name)
    live.enter((_monotonic_ns() if raw else 0, raw))
    return _Restore(previous)


def leave(name: str) -> None:
    """The place of this name is left, if the main thread is still there."""
    live = _live
    if live is not None and live.operation[1] == name.encode():
        live.enter(NOTHING)


def record_with(recorder: "Callable[[Memory, int], None]") -> None:
    """From now on the liveness thread has this write torch's own record while the process stands."""
    global _recorder
    _recorder = recorder
    if _live is not None:
        _live.recorder = recorder


def starting_services() -> AbstractContextManager[None]:
    """Within, torch makes a process group: the threads that appear are its own (`probe_file.service_threads`)."""
    live = _live
    return live.services.starting() if live is not None else nullcontext()


class _Span:
    """As little as can be made and kept for a span: a step may have a thousand of them."""

    __slots__ = ("cpu", "names", "num_bytes", "start")

    def __init__(self, names: tuple[int, ...], num_bytes: int, cpu: int) -> None:
        self.names, self.num_bytes, self.cpu = names, num_bytes, cpu

    def __enter__(self) -> None:
        if self.cpu:
            self.cpu = _thread_time_ns()
        self.start = _monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = _live
        if live is None or not self.names:
            return
        if live.slow and self.names[0] in live.slow:
            from holdfast.agent.probe_file import injections

            injections.drag(live.slow[self.names[0]], self.cpu)
        end = _monotonic_ns()
        cpu = max((_thread_time_ns() - self.cpu) // 100, 1) if self.cpu else 0
        live.record_span(self.start, end, self.num_bytes, live.step + 1, cpu, self.names)


_NO_SPAN = _Span((), 0, 0)


def span(
    kind: str,
    stage: int = -1,
    micro_batch: int = -1,
    turn: int = 0,
    num_bytes: int = 0,
    group: str = "",
    seq: int = -1,
    cpu: bool = False,
) -> _Span:
    """Time a block as one span of this kind ("forward", "send", ...).

    Kind, stage, micro-batch and turn name the action of the job's plan (`plan.Action`) that it belongs to.
    What ranks do together has a group, and a number that is the same on all its members. `cpu`: also measure the
    processor time of this thread, which distinguishes slow work from work that was kept from running.
    """
    live = _live
    if live is None:
        return _NO_SPAN
    if type(kind) is not str or type(group) is not str or type(cpu) is not bool:
        kind, group, cpu = taken.text(kind), taken.text(group), taken.whole(cpu, 0, 1, 0) == 1
    known = live.kinds.get
    place = (known(group) or live.number(group)) if group else 0
    return _Span((known(kind) or live.number(kind), stage, turn, place, micro_batch, seq), num_bytes, cpu)


def record(
    kind: str,
    start_ns: int,
    end_ns: int,
    *,
    stage: int = -1,
    micro_batch: int = -1,
    turn: int = 0,
    num_bytes: int = 0,
    group: str = "",
    seq: int = -1,
    cpu_ns: int = 0,
    step: int = -1,
) -> None:
    """A span that was timed elsewhere, by CLOCK_MONOTONIC. `step` -1: the one that runs now; the rest as `span`."""
    live = _live
    if live is not None:
        group = taken.text(group)
        names = (live.number(kind), stage, turn, live.number(group) if group else 0, micro_batch, seq)
        step, cpu_ns = taken.whole(step, -1, bounds.MAX_STEP, -1), taken.whole(cpu_ns, 0, bounds.MAX_COUNT, 0)
        live.record_span(start_ns, end_ns, num_bytes, live.step + 1 if step < 0 else step, cpu_ns // 100, names)


def recorded(event: "Event") -> "Recorded | None":
    """A timer has just recorded an event in a GPU's stream (`torch.cuda.Event` or its like): from now on the agent is
    notified when it completes. Set `done` of what this returns when you see that yourself. None: no agent watches."""
    live = _live
    if live is None:
        return None
    if live.events is None:
        from holdfast.agent.probe_file.events import DeviceEvents

        live.events = DeviceEvents(live.words)
    return live.events.add(event)


def poisoned() -> bool:
    """True exactly once after a "nan" was injected: the code that computes the loss should then make it NaN."""
    live = _live
    if live is None or not live.poisoned:
        return False
    live.poisoned = False
    return True


def requested() -> bool:
    """True exactly once after a checkpoint was asked for."""
    live = _live
    if live is None or not live.words[layout.WORD_REQUEST]:
        return False
    live.words[layout.WORD_REQUEST] = 0
    return True


def mesh(*, pp: int = 0, dp: int = 0, tp: int = 0, sizes: Sequence[int] = (1, 1, 1)) -> None:
    """This worker's mesh coordinate, and how many there are along (pp, dp, tp). One that no job has is left out."""
    live = _live
    if live is not None:
        live.write_mesh(pp, dp, tp, sizes)


def meters(
    mfu: float, tokens_per_s: float, parts: Sequence[float], memory_bytes: int, grad_norm: float = math.nan
) -> None:
    """What the step that `step` reports next was worth, as `holdfast.wire.types.Meters`; NaN for what is not known."""
    live = _live
    if live is not None:
        live.write_meters(mfu, tokens_per_s, parts, memory_bytes, grad_norm)


def publish_plan(data: bytes) -> None:
    """Report what this job does in every step to the controller: a `holdfast.wire.plans` message. Once, by rank 0.

    Goes beside the probe file, whole or not at all. Errors are one line: no run may fail because its plan is missing.
    """
    if _live is not None:
        side_files.leave_plan(data)


def restored(step: int, source: str, seconds: float, num_bytes: int, sent_bytes: int = 0) -> None:
    """Report where the state of training came from: after `step` steps, from "memory", "peer" or "store",
    in so many seconds. Bytes of all ranks: those read, and those sent from host to host. Called once, by rank 0."""
    if _live is not None:
        side_files.leave_restored(step, source, seconds, num_bytes, sent_bytes)


def _number(variable: str) -> int:
    try:
        return int(os.environ.get(variable, "0"))
    except ValueError:
        return 0


def _forget() -> None:
    """A forked child (a data loader, say) shares the memory but is not the worker: it must not write there."""
    global _live
    _live = None


os.register_at_fork(after_in_child=_forget)
