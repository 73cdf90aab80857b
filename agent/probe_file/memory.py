"""The mapped probe file of this process and what must be remembered between two calls; `probe` is the face of it."""

import faulthandler
import math
import operator
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.agent.probe_file import layout, taken
from holdfast.agent.probe_file.groups import GroupTable
from holdfast.agent.probe_file.handlers import script_handlers
from holdfast.agent.probe_file.open_rows import OpenTable
from holdfast.agent.probe_file.past_rows import PastRing
from holdfast.agent.probe_file.service_threads import ServiceThreads, start_thread
from holdfast.agent.probe_file.thread_clock import ThreadClock
from holdfast.base import bounds
from holdfast.wire.span_rows import THREAD
from holdfast.wire.types import PHASES, Phase

if TYPE_CHECKING:  # what breaks a process, or times a GPU, needs modules that others never load
    from holdfast.agent.probe_file.events import DeviceEvents
    from holdfast.agent.probe_file.injections import Ambush

TICK_S = 0.1
"""How often the liveness thread writes the time."""
STILL_NS = 200_000_000
"""Without a move of any thread for so long, the liveness thread looks into torch's own record."""

PHASE_INDEX: dict[str, int] = {phase.value: index for index, phase in enumerate(PHASES)}
TRAIN = PHASE_INDEX[Phase.TRAIN]
_SEAL_BIT = 1 << 32

Operation = tuple[int, bytes]
"""since_ns, name."""
NOTHING: Operation = (0, b"")

_monotonic_ns = time.monotonic_ns
_pack_seal = layout.SEAL.pack
_pack_state = layout.STATE.pack
_pack_operation = layout.OPERATION.pack
_pack_step = layout.STEP.pack
_pack_span = layout.SPAN.pack
_AT_SPANS, _SPANS, _RECORD, _WORD_SPANS = layout.AT_SPANS, layout.SPANS, layout.RECORD, layout.WORD_SPANS
_WORD_MOVED = layout.WORD_MOVED


_MAX_STEP, _MAX_TOKENS = bounds.MAX_STEP, bounds.MAX_TOKENS
_INT16, _INT32, _INT64 = (1 << 15) - 1, (1 << 31) - 1, (1 << 63) - 1


def _clamped(start: int, end: int, num_bytes: int, step: int, cpu: int, names: tuple[int, ...]) -> tuple[int, ...]:
    """A span's numbers, each as near as its field allows."""
    longs = (taken.whole(value, -_INT64, _INT64, 0) for value in (start, end, num_bytes))
    *places, micro_batch, seq = names
    shorts = (taken.whole(value, -1, _INT16, -1) for value in places)
    ints = (taken.whole(value, -1, _INT32, -1) for value in (micro_batch, seq))
    cpu = taken.whole(cpu, 0, _INT64, 0) & 0xFFFFFFFF
    return (*longs, taken.whole(step, 0, bounds.MAX_SPAN_STEP, 0), cpu, *shorts, *ints)


class Memory:
    """Writes blocks and records; one store or one copy each, so that a reader never meets half of one."""

    def __init__(self, path: str, rank: int, generation: int) -> None:
        if not os.path.exists(path):
            layout.create(path, rank, generation, _monotonic_ns())
        self.path = path
        self.map, self.rank, self.generation = layout.map_file(path)
        self.words = memoryview(self.map).cast("q")
        now = _monotonic_ns()
        self.phase = PHASE_INDEX[Phase.START]
        self.step = -1
        self.loss = math.nan
        self.tokens = 0
        self.attached = self.progress = self.clock = now
        self.operation = NOTHING  # of the main thread
        self.numbered = 0  # operation records written
        self.groups = GroupTable(self.map, self.words)
        self.open = OpenTable(self.map, self.words)
        self.past = PastRing(self.map)
        self.services = ServiceThreads(self.map)
        self.main, self.pid = threading.main_thread().ident or 0, os.getpid()  # of the main thread both
        self.recorder: Callable[[Memory, int], None] | None = None
        """Writes torch's own record, given this and the time; never raises and never waits."""
        self.ambush: Ambush | None = None
        self.names: dict[str, bytes] = {}
        self.kinds: dict[str, int] = {}
        self.poisoned = False
        self.saves, self.saved, self.saved_at = 0, "", 0  # files of state that were finished; the newest, and when
        self.spoken = False  # the script itself reports: the hooks for unmodified scripts stay silent
        self.count = self.words[layout.WORD_STEPS]
        self.spans = self.words[layout.WORD_SPANS]
        self.spans_before = self.spans  # when the running step began
        self.clock_of_thread = ThreadClock()

        self.events: DeviceEvents | None = None  # made with the first: a process without a GPU loads nothing for it
        self.seconds = 0.0  # of the last step
        self.slow: dict[int, float] = {}
        """Kinds of spans that were asked to be slow: by what share of their processor time; of loading, seconds."""

    def owned_by_other(self) -> bool:
        """True when another running process reports through this file: a child that inherited our environment."""
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
        self.words[layout.WORD_COUNTED] = 0
        self.words[layout.WORD_EVENTS] = self.words[layout.WORD_EVENTS_DONE] = 0
        self.words[layout.WORD_MOVED] = self.words[layout.WORD_BEGUN] = 0
        self.groups.clear()
        self.open.clear()
        self.past.clear()
        self.services.clear()
        self.map[layout.AT_RECORD : layout.AT_RECORD + 8] = bytes(8)
        self.words[layout.WORD_PID] = os.getpid()
        self.write_state()
        start_thread(self.tick, "holdfast-tick")

    def tick(self) -> None:
        words, at, sleep = self.words, layout.WORD_TICK, time.sleep
        words[layout.WORD_TICK_THREAD] = threading.get_native_id()
        while True:
            words[at] = now = _monotonic_ns()
            if now - words[layout.WORD_MOVED] >= STILL_NS:
                words[layout.WORD_HANDLERS] = script_handlers()
                self.services.note()
                if (recorder := self.recorder) is not None:
                    recorder(self, now)
            if words[layout.WORD_STACKS]:
                words[layout.WORD_STACKS] = 0
                self.write_stacks()
            sleep(TICK_S)

    def write_stacks(self) -> None:
        """Those of all threads. This one has the interpreter's lock, so no other changes its frames meanwhile."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError, ValueError):
            file = os.open(self.path + layout.STACKS_SUFFIX, flags)
            try:
                faulthandler.dump_traceback(file, all_threads=True)
            finally:
                os.close(file)

    def write_state(self) -> None:
        payload = _pack_state(self.step, self.phase, self.progress, self.loss, self.tokens, self.attached)
        at = layout.AT_STATE
        self.map[at : at + 8 + layout.STATE.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload

    def enter(self, operation: Operation) -> None:
        if self.ambush is not None:
            self.ambush.entering(operation[1])
        self.operation = operation
        since, name = operation
        self.numbered += 1
        self.words[_WORD_MOVED] = now = _monotonic_ns()
        payload = _pack_operation(since, now, self.numbered, name)
        at = layout.AT_OPERATION
        self.map[at : at + 8 + layout.OPERATION.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload
        if self.ambush is not None:
            self.ambush.entered(operation[1])

    def record_step(self, n: int, loss: float, tokens: int) -> None:
        if type(n) is not int or not 0 <= n <= _MAX_STEP:
            n = taken.whole(n, 0, _MAX_STEP, self.step + 1)  # it was a step, whatever its number is
        if type(tokens) is not int or not 0 <= tokens <= _MAX_TOKENS:
            tokens = taken.whole(tokens, 0, _MAX_TOKENS, 0)
        now = _monotonic_ns()
        passed = self.clock_of_thread.since()
        if passed is not None and self.spans != self.spans_before:  # steps without spans are not compared
            names = (self.number(THREAD), -1, 0, 0, passed.voluntary, passed.involuntary)
            self.record_span(now, now, passed.delayed, self.step + 1, max(passed.cpu // 100, 1), names)
        self.spans_before = self.spans
        index = self.count
        payload = _pack_step(index, n, time.time_ns(), (now - self.clock) * 1e-9, loss, tokens, self.generation)
        at = layout.AT_STEPS + index % layout.STEPS * layout.RECORD
        self.map[at : at + 8 + layout.STEP.size] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload
        self.count = index + 1
        self.words[layout.WORD_STEPS] = index + 1
        self.seconds = (now - self.clock) * 1e-9
        self.step, self.loss, self.progress, self.clock = n, loss, now, now
        self.tokens = min(self.tokens + tokens, bounds.MAX_COUNT)
        self.write_state()
        if code := self.words[layout.WORD_INJECT]:
            self.words[layout.WORD_INJECT] = 0
            self.inject(code, n)

    def record_span(self, start: int, end: int, num_bytes: int, step: int, cpu: int, names: tuple[int, ...]) -> None:
        """`names`: kind, stage, turn, group, micro-batch, sequence number; `cpu` in units of 100 ns, up to 7 min."""
        index = self.spans
        self.spans = index + 1
        try:
            payload = _pack_span(index, start, end, num_bytes, step, cpu & 0xFFFFFFFF, *names)
        except Exception:  # a script may number its micro-batches by samples, or pass what is not a number
            payload = _pack_span(index, *_clamped(start, end, num_bytes, step, cpu, names))
        at = _AT_SPANS + index % _SPANS * _RECORD
        self.map[at : at + _RECORD] = _pack_seal(crc32(payload) | _SEAL_BIT) + payload
        self.words[_WORD_SPANS] = index + 1

    def write_mesh(self, pp: int, dp: int, tp: int, sizes: Sequence[int]) -> None:
        try:
            place = [operator.index(value) for value in (pp, dp, tp, *sizes)]
            payload = layout.MESH.pack(*place)
        except Exception:
            return
        if all(0 <= value <= bounds.MAX_RANKS for value in place):
            self.map[layout.AT_MESH : layout.AT_MESH + 8 + len(payload)] = layout.seal(payload)

    def write_meters(
        self, mfu: float, tokens_per_s: float, parts: Sequence[float], memory_bytes: int, grad_norm: float
    ) -> None:
        memory_bytes = taken.whole(memory_bytes, 0, bounds.MAX_COUNT, 0)
        try:
            payload = layout.METERS.pack(self.step + 1, mfu, tokens_per_s, *parts, memory_bytes, grad_norm)
        except Exception:  # other parts than a step has, or no numbers
            return
        self.map[layout.AT_METERS : layout.AT_METERS + 8 + len(payload)] = layout.seal(payload)

    def inject(self, code: int, n: int) -> None:
        kind = layout.INJECTIONS[code & 0xFF] if 0 < code & 0xFF < len(layout.INJECTIONS) else ""
        if kind == "nan":
            self.poisoned = True
            return
        if kind == "slow":
            names, share = layout.SLOWED[code >> 8 & 0xFF], (code >> 16) / 100
            for name in names:
                self.slow[self.number(name)] = share * (self.seconds if name == "load" else 1.0)
            return
        from holdfast.agent.probe_file import injections

        if 0 < code >> 8 < len(layout.PLACES):
            self.ambush = injections.Ambush(kind, layout.PLACES[code >> 8], n)
        else:
            injections.perform(kind, n)

    def set_phase(self, index: int) -> None:
        now = _monotonic_ns()
        if index == TRAIN:
            self.clock = now
        if index != self.phase:
            self.phase, self.progress = index, now
            self.write_state()

    def encode(self, name: str) -> bytes:
        raw = taken.text(name).encode("utf-8", "replace")[: layout.OPERATION_NAME]
        if len(self.names) < 1024:  # names made on the fly must not grow the table without end
            self.names[name] = raw
        return raw

    def number(self, name: str) -> int:
        """The number of a span's kind or group, entering it in the file's table; 0 ("other") when that is full."""
        if type(name) is not str:
            name = taken.text(name)
        known = self.kinds.get(name)
        if known is not None:
            return known
        number = len(self.kinds) + 1
        if number >= layout.NAMES:
            return 0
        at = layout.AT_NAMES + number * layout.NAME
        self.map[at : at + layout.NAME] = name.encode("utf-8", "replace")[: layout.NAME].ljust(layout.NAME, b"\0")
        self.words[layout.WORD_NAMES] = number + 1
        self.kinds[name] = number
        return number
