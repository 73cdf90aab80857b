"""What a training process tells its agent: step, phase, operation, spans, and that its interpreter is alive.

    from holdfast.agent import probe

    probe.attach()                      # without HOLDFAST_PROBE everything here does nothing
    probe.phase("train")
    for n, batch in enumerate(data):
        with probe.operation("all_reduce"):
            ...
        probe.step(n, loss=loss, tokens=count)

Everything goes into shared memory (`probe_layout`): no system call and no lock in the step, a few microseconds a
call. Standard library only, because it lives in other people's training processes.
"""

import math
import os
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from zlib import crc32

from holdfast.agent import probe_layout as layout
from holdfast.errors import HoldfastError
from holdfast.types import PHASES, Phase

TICK_S = 0.1
"""How often the liveness thread writes the time."""

_PHASE_INDEX: dict[str, int] = {phase.value: index for index, phase in enumerate(PHASES)}
_TRAIN = _PHASE_INDEX[Phase.TRAIN]
_SEAL_BIT = 1 << 32

_monotonic_ns = time.monotonic_ns
_pack_seal = layout.SEAL.pack
_pack_state = layout.STATE.pack
_pack_operation = layout.OPERATION.pack
_pack_step = layout.STEP.pack
_pack_span = layout.SPAN.pack


class _Live:
    """The mapped file of this process and what must be remembered between two calls."""

    def __init__(self, path: str, rank: int, generation: int) -> None:
        if not os.path.exists(path):
            layout.create(path, rank, generation, _monotonic_ns())
        self.map, self.rank, self.generation = layout.map_file(path)
        self.words = memoryview(self.map).cast("q")
        now = _monotonic_ns()
        self.phase = _PHASE_INDEX[Phase.START]
        self.step = -1
        self.loss = math.nan
        self.tokens = 0
        self.attached = self.progress = self.clock = now
        self.operation = _pack_operation(0, b"")
        self.names: dict[str, bytes] = {}
        self.kinds: dict[str, int] = {}
        self.poisoned = False
        self.spoken = False  # the script itself reports: the hooks for unmodified scripts stay silent
        self.count = self.words[layout.WORD_STEPS]
        self.spans = self.words[layout.WORD_SPANS]

    def owned_by_other(self) -> bool:
        """True when another living process reports through this file: a child that inherited our environment."""
        owner = self.words[layout.WORD_PID]
        if owner in (0, os.getpid()):
            return False
        try:
            os.kill(owner, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True

    def take(self) -> None:
        self.words[layout.WORD_TICK] = _monotonic_ns()
        self.words[layout.WORD_INJECT] = 0
        self.words[layout.WORD_PID] = os.getpid()
        self.write_state()
        threading.Thread(target=self.tick, name="holdfast-tick", daemon=True).start()

    def tick(self) -> None:
        words, at, sleep = self.words, layout.WORD_TICK, time.sleep
        while True:
            words[at] = _monotonic_ns()
            sleep(TICK_S)

    def write_state(self) -> None:
        payload = _pack_state(self.step, self.phase, self.progress, self.loss, self.tokens, self.attached)
        at = layout.AT_STATE
        self.map[at : at + 8 + layout.STATE.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload

    def write_operation(self, payload: bytes) -> None:
        self.operation = payload
        at = layout.AT_OPERATION
        self.map[at : at + 8 + layout.OPERATION.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload

    def record_step(self, n: int, loss: float, tokens: int) -> None:
        now = _monotonic_ns()
        index = self.count
        payload = _pack_step(index, n, time.time_ns(), (now - self.clock) * 1e-9, loss, tokens, self.generation)
        at = layout.AT_STEPS + index % layout.STEPS * layout.STEP_STRIDE
        self.map[at : at + 8 + layout.STEP.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload
        self.count = index + 1
        self.words[layout.WORD_STEPS] = index + 1
        self.step, self.loss, self.progress, self.clock = n, loss, now, now
        self.tokens += tokens
        self.write_state()
        if code := self.words[layout.WORD_INJECT]:
            self.words[layout.WORD_INJECT] = 0
            self.suffer(code, n)

    def suffer(self, code: int, n: int) -> None:
        kind = layout.INJECTIONS[code] if 0 < code < len(layout.INJECTIONS) else ""
        if kind == "nan":
            self.poisoned = True
            return
        # Late: what breaks a process needs modules that a healthy one never loads.
        from holdfast.agent import injections

        injections.perform(kind, n)

    def set_phase(self, index: int) -> None:
        now = _monotonic_ns()
        if index == _TRAIN:
            self.clock = now
        if index != self.phase:
            self.phase, self.progress = index, now
            self.write_state()

    def encode(self, name: str) -> bytes:
        raw = name.encode("utf-8", "replace")[: layout.OPERATION_NAME]
        if len(self.names) < 1024:  # names made on the fly must not grow the table for ever
            self.names[name] = raw
        return raw

    def kind(self, name: str) -> int:
        """The number of a span kind, entering it in the file's table; 0 ("other") when the table is full."""
        number = len(self.kinds) + 1
        if number >= layout.NAMES:
            return 0
        at = layout.AT_NAMES + number * layout.NAME
        self.map[at : at + layout.NAME] = name.encode("utf-8", "replace")[: layout.NAME].ljust(layout.NAME, b"\0")
        self.words[layout.WORD_NAMES] = number + 1
        self.kinds[name] = number
        return number


_live: _Live | None = None


def attach() -> bool:
    """Start reporting through the file named by HOLDFAST_PROBE, making it if need be. Harmless to repeat.

    Returns whether this process reports. It does not when the variable is unset, when another living process (a
    parent, whose environment we inherited) already owns the file, or when the file cannot be used: then one line on
    standard error says why, for no training run may fail because nobody can watch it.
    """
    global _live
    path = os.environ.get(layout.ENV_PATH, "")
    if _live is not None or not path:
        return _live is not None
    try:
        live = _Live(path, _number("RANK"), _number(layout.ENV_GENERATION))
    except (OSError, HoldfastError) as error:
        with suppress(OSError):
            os.write(2, f"holdfast: this process is not watched: {error}\n".encode())
        return False
    if live.owned_by_other():
        return False
    live.take()
    _live = live
    return True


def attached() -> bool:
    """Whether this process reports to an agent."""
    return _live is not None


def step(n: int, loss: float | None = None, tokens: int | None = None) -> None:
    """Step `n` is done: its loss, and the tokens it trained on (of this worker alone)."""
    live = _live
    if live is None:
        return
    live.spoken = True
    if loss is None:
        loss = math.nan  # none reported; a loss that is NaN is reported as infinite: both mean not finite
    elif not math.isfinite(loss):
        loss = math.inf
    live.record_step(n, loss, tokens or 0)


def phase(name: str) -> None:
    """Say what the process does now, one of `holdfast.types.Phase`; raises ValueError for anything else.

    `phase("train")` also starts the clock of the next step, so that what came before does not count into it.
    """
    index = _PHASE_INDEX.get(name)
    if index is None:
        raise ValueError(f"unknown phase {name!r}: one of {', '.join(_PHASE_INDEX)}")
    live = _live
    if live is not None:
        live.spoken = True
        live.set_phase(index)


class _Restore:
    """Puts the previous operation back when its block ends."""

    __slots__ = ("previous",)

    def __init__(self, previous: bytes | None) -> None:
        self.previous = previous

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = _live
        if live is not None and self.previous is not None:
            live.write_operation(self.previous)


_NO_RESTORE = _Restore(None)


def operation(name: str) -> _Restore:
    """Say what the process is waiting for or working on, up to 56 bytes; "" for nothing.

    A plain call sets it until the next one; as a context manager the previous one comes back at the end. It belongs
    to the process, not to a thread: the last call wins.
    """
    live = _live
    if live is None:
        return _NO_RESTORE
    previous = live.operation
    raw = live.names.get(name)
    if raw is None:
        raw = live.encode(name)
    live.write_operation(_pack_operation(_monotonic_ns() if raw else 0, raw))
    return _Restore(previous)


class _Span:
    __slots__ = ("kind", "micro_batch", "num_bytes", "stage", "start", "turn")

    def __init__(self, kind: int, stage: int = -1, micro_batch: int = -1, turn: int = 0, num_bytes: int = 0) -> None:
        self.kind, self.stage, self.micro_batch, self.turn = kind, stage, micro_batch, turn
        self.num_bytes = num_bytes

    def __enter__(self) -> None:
        self.start = _monotonic_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        live = _live
        if live is None or self.kind < 0:
            return
        index = live.spans
        live.spans = index + 1
        payload = _pack_span(
            index, self.start, _monotonic_ns(), live.step + 1, self.num_bytes,
            self.kind, self.stage, self.turn, self.micro_batch,
        )  # fmt: skip
        at = layout.AT_SPANS + index % layout.SPANS * layout.SPAN_STRIDE
        live.map[at : at + layout.SPAN_STRIDE] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload
        live.words[layout.WORD_SPANS] = index + 1


_NO_SPAN = _Span(-1)


def span(kind: str, stage: int = -1, micro_batch: int = -1, turn: int = 0, num_bytes: int = 0) -> _Span:
    """Time a block as one span of this kind ("forward", "send", ...).

    Kind, stage, micro-batch and turn name the action of the job's plan (`holdfast.plan.Action`) that it belongs to.
    """
    live = _live
    if live is None:
        return _NO_SPAN
    number = live.kinds.get(kind)
    return _Span(live.kind(kind) if number is None else number, stage, micro_batch, turn, num_bytes)


def poisoned() -> bool:
    """True exactly once after a "nan" was injected: whoever computes the loss should then spoil it."""
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


def mesh(*, pp: int = 0, dp: int = 0, tp: int = 0, sizes: Iterable[int] = (1, 1, 1)) -> None:
    """This worker's mesh coordinate, and how many there are along (pp, dp, tp)."""
    live = _live
    if live is not None:
        live.map[layout.AT_MESH : layout.AT_MESH + 8 + layout.MESH.size] = layout.seal(
            layout.MESH.pack(pp, dp, tp, *sizes)
        )


def meters(mfu: float, tokens_per_s: float, parts: Sequence[float], memory_bytes: int) -> None:
    """What the step that `step` reports next was worth, as `holdfast.types.Meters`; NaN for what is not known."""
    live = _live
    if live is not None:
        payload = layout.METERS.pack(live.step + 1, mfu, tokens_per_s, *parts, memory_bytes)
        live.map[layout.AT_METERS : layout.AT_METERS + 8 + len(payload)] = layout.seal(payload)


def publish_plan(data: bytes) -> None:
    """Tell the controller what this job does in every step: a `holdfast.wire_plan` message. Called once, by rank 0.

    Goes beside the probe file, whole or not at all. Nobody may fail for want of a plan: errors are one line.
    """
    _leave(layout.PLAN_SUFFIX, data, "the plan of this job is not told")


def restored(step: int, source: str, seconds: float, num_bytes: int) -> None:
    """Tell where the state came from that training goes on with: after `step` steps, from "memory", "peer" or "store",
    in so many seconds and bytes of this job. Called once, by rank 0."""
    said = f'{{"step": {step}, "source": "{source}", "seconds": {seconds:.6f}, "bytes": {num_bytes}}}'
    _leave(layout.RESTORED_SUFFIX, said.encode(), "where the state came from is not told")


def _leave(suffix: str, data: bytes, otherwise: str) -> None:
    path = os.environ.get(layout.ENV_PATH, "")
    if _live is None or not path:
        return
    path += suffix
    try:
        with open(f"{path}.part", "wb") as part:
            part.write(data)
        os.replace(f"{path}.part", path)
    except OSError as error:
        with suppress(OSError):
            os.write(2, f"holdfast: {otherwise}: {error}\n".encode())


def observed_step(n: int) -> None:
    """A hook saw optimizer step `n` end. Counts only while the script itself says nothing through this module."""
    live = _live
    if live is not None and not live.spoken:
        if live.phase != _TRAIN:
            live.phase = _TRAIN  # without its clock: the first step began before it was seen
        live.record_step(n, math.nan, 0)


def observed_phase(name: Phase) -> None:
    """A hook or the bootstrap saw this phase begin. Counts only while the script itself says nothing."""
    live = _live
    if live is not None and not live.spoken:
        live.set_phase(_PHASE_INDEX[name])


def spoke() -> bool:
    """Whether the script itself has reported a step or a phase."""
    live = _live
    return live is not None and live.spoken


def stepped() -> bool:
    """Whether any step of this process was reported."""
    live = _live
    return live is not None and live.step >= 0


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
