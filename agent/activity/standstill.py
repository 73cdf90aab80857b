"""One worker's standstill: quick looks at two files of the kernel, and what close looks at it have found."""

import math
import os
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace

from holdfast.agent.activity.close_look import CloseLook, Sighting
from holdfast.agent.activity.gpu_use import GpuCounts
from holdfast.agent.activity.movement import (
    BYTES_AMOUNT,
    BYTES_LEAK,
    CPU_AMOUNT,
    CPU_LEAK,
    FAULTS_AMOUNT,
    FAULTS_LEAK,
    Growth,
    Moves,
    Rate,
)
from holdfast.agent.activity.threads.states import WORDS, rows
from holdfast.agent.activity.waits import said
from holdfast.agent.processes.proc_files import Io, Stat, parse_io, parse_stat
from holdfast.base import log
from holdfast.wire import types as t
from holdfast.wire.standing import KNOWN_AFTER, StallFacts, ThreadSight, ThreadState

QUICK_SHARE = 0.001
"""Share of a core that the quick looks at one worker may take."""
DISTURBED = 1.0
"""Seconds for which what a worker does is our own doing: it was asked for its stacks."""
_DISTURBANCES = 4096
"""That are remembered; each lasts as long as DISTURBED."""
_UNKNOWN_S = 1.5
"""Seconds after which processor time counts although no close look has said whether it may come from a GPU's wait."""
_HOLDS = 1.5
"""Seconds for which a close look that saw movement stands, if no other follows."""
_AWAY_S = 1.0
"""Seconds between two frames, beyond what is usual, after which a close look counts no more."""
_BLIND_S = 3.0
"""Seconds for which a worker that is not yet looked at closely counts as moving; then it is not known what it does."""
_STALE_S = 20.0
"""Seconds after which a close look says nothing any more: the next one fails, or blocks."""
_ROWS_STALE_S = 60.0
"""The same of threads. Until the worker moves, threads that only wait for each other go on doing so."""
LONG_WAIT_S = 3.0
"""A wait that goes on for longer: when it ends the worker is looked at again, whatever that costs."""
_WAKES = 0.002
_IN_TIME_S = 0.03
"""Seconds before a frame in which a close look still ends in time for it."""
_FACTS = ("T", "Z", "X")
"""States of the main thread that say by themselves that it cannot go on."""


class ActivityWatch:
    """One worker's standstill. Only the heartbeat's thread calls it, except for `closely`."""

    def __init__(self, pid: int, now: float, last_move: float, closely: CloseLook, proc: str, has_gpu: bool) -> None:
        self.pid, self.started, self.last_move = pid, now, last_move
        self.closely = closely
        self.seen: Sighting | None = None
        self.has_gpu = has_gpu
        self._moves, self._moves_inside = Moves(), Moves()  # as the quick looks see it, and the close ones
        self.counts = GpuCounts()
        self.due = 0.0
        self._expected = math.nan
        self.due_since = now
        """When it was time for the first close look."""
        self._files = [_open(f"{proc}/{pid}/{name}") for name in ("stat", "io")]
        self._stat: Stat | None = None
        self._cpu, self._bytes = Growth(CPU_LEAK, CPU_AMOUNT), Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._faults = Growth(FAULTS_LEAK, FAULTS_AMOUNT)
        self._rates = tuple(Rate() for _ in range(3))  # processor, read, written
        self._ticks = Rate()
        self._reaped: tuple[float, int] | None = None
        self._disturbed_until = -math.inf
        self._next_at, self._cost = 0.0, 0.0
        self._framed_at, self._gap = now, 0.0
        self._blind_from = -math.inf
        self._looks_before = 0
        self.valid_from = -math.inf
        self._disturbances: deque[tuple[float, float]] = deque(maxlen=_DISTURBANCES)
        self._rows: tuple[object, tuple[ThreadSight, ...]] = (None, ())

    @property
    def looks(self) -> int:
        """The close ones so far, since the agent was last away."""
        return self.seen.looks - self._looks_before if self.seen is not None else 0

    def is_over(self, now: float) -> bool:
        """Whether a long wait has ended since the last look: what comes after it is not known."""
        return now >= self._expected

    def known_before(self, now: float) -> float:
        """When what its threads wait for has been seen for two windows, if that is before the next frame; else NaN."""
        facts = self.seen.threads.by_tid.values() if self.seen is not None else ()
        at = max((one.since for one in facts if one.state is ThreadState.OWN), default=math.nan) + KNOWN_AFTER
        return at if now < at < self._framed_at + self._gap - _IN_TIME_S else math.nan

    def disturb(self, now: float) -> None:
        begins = max(now, self._disturbed_until)
        self._disturbed_until = max(now + DISTURBED, begins)
        self._disturbances.append((begins, self._disturbed_until))
        self._count_from(self._disturbed_until)

    def _count_from(self, at: float) -> None:
        """Discard what was seen of threads before an instant."""
        self.valid_from = self.closely.valid_from = max(self.valid_from, at)

    def look(self, now: float) -> None:
        """The quick look."""
        gap = now - self._framed_at
        if gap > _AWAY_S and gap > 2.5 * self._gap:
            self._looks_before += self.looks
            self._blind_from = now  # the agent itself was delayed: what it saw before is outdated
            self._count_from(now)
        if gap > 0:
            self._framed_at, self._gap = now, gap
        if now < self._next_at:
            return
        began = time.thread_time()
        stat, io = parse_stat(_read(self._files[0])), parse_io(_read(self._files[1]))
        self._stat = stat
        if stat is not None:
            self._count(now, stat, io)
        cost = time.thread_time() - began
        self._cost = cost if not self._cost else 0.8 * self._cost + 0.2 * cost
        self._next_at = now + self._cost / QUICK_SHARE - _WAKES

    def _count(self, now: float, stat: Stat, io: Io | None) -> None:
        counts = now >= self._disturbed_until
        used = self._cpu.add(now, stat.cpu, counts)
        moved = self._faults.add(now, stat.minor_faults + 50.0 * stat.major_faults, counts)
        self._rates[0].add(now, stat.cpu)
        if io is not None:
            moved |= self._bytes.add(now, float(io.taken + io.given), counts)
            self._rates[1].add(now, float(io.taken))
            self._rates[2].add(now, float(io.given))
        ended, self._reaped = self._reaped, (stat.reaped, stat.reaped_faults)
        moved |= ended is not None and ended != self._reaped
        # CUDA spins while it waits: there the time of its own threads says nothing.
        is_known = self.seen is not None or now - self.started > _UNKNOWN_S
        if moved or (used and is_known and not self.has_gpu):
            log.debug("activity.moves", worker_pid=self.pid, by="bytes, faults, children" if moved else "processor")
            self._moves.note(now)

    def take(self, seen: Sighting) -> None:
        """Take over what a close look has found."""
        before = self.seen
        if before is not None and before.at < self._disturbed_until:
            # It woke to write its stacks: what a look sees of that is ours. What was known before holds until then.
            seen = replace(seen, moves=before.moves)
        self.seen = seen
        until = seen.wait.until
        self._expected = until + _WAKES if until - seen.at > LONG_WAIT_S else math.nan
        self.has_gpu |= seen.has_gpu
        if seen.moves:
            self._moves_inside.note(seen.at)
        if seen.ticks_cpu:
            self._ticks.add(seen.at, seen.ticks_cpu)

    def activity(self, now: float, gpu: t.GpuUse, behind: str = "") -> t.Activity:
        seen = self.seen or Sighting(now)
        if gpu is t.GpuUse.WORKS:
            self._moves.note(now)
        until = seen.wait.until
        cpu, taken, given = (rate.value for rate in self._rates)
        state = self._stat.state if self._stat is not None else ""
        if state == "t" or (state in ("Z", "X") and self._stat is not None and self._stat.threads > 1):
            state = seen.state  # the closer look knows of a debugger's prompt, and of other threads
        if self._is_blind(now, seen) and state not in _FACTS:
            state = ""  # its children and sockets may move: that they are not seen is no evidence
        is_running = state == "R"
        return t.Activity(
            watched=max(now - self.started, 0.0),
            quiet=self._quiet(now, seen),
            state=state,
            cpu=max(cpu - self._ticks.value, 0.0),
            children_cpu=seen.children_cpu,
            read=taken + seen.read,
            written=given + seen.written,
            network=seen.network,
            waits_for="" if is_running else said(seen.wait, now)[:WORDS],
            ends_in=max(until - now, 0.0) if until == until and not is_running else math.nan,
            is_prompt=seen.wait.is_prompt,
            has_gpu=self.has_gpu,
            gpu=gpu,
            thread=seen.thread[:WORDS],
            events_pending=self.counts.pending,
            behind=behind[:WORDS],
        )

    def _is_blind(self, now: float, seen: Sighting) -> bool:
        if self.is_over(now) and now - self._expected >= _BLIND_S:
            return True
        if seen.looks >= 2 and now - seen.at < _STALE_S:
            return False
        return now - self.due_since >= _BLIND_S

    def _quiet(self, now: float, seen: Sighting) -> float:
        if seen.looks < 2 and now - self.due_since < _BLIND_S:
            return 0.0  # what its children and sockets do is not known yet
        if seen.at < self._blind_from and now - self._blind_from < _BLIND_S:
            return 0.0
        if 0.0 <= now - self._expected < _BLIND_S:
            return 0.0  # its long wait has ended, and what came after it was not looked at yet
        if seen.moves and now - seen.at < max(_HOLDS, _HOLDS * self._gap):
            return 0.0  # until the next close look nothing else is known
        moves = (self._moves, self._moves_inside, self.counts.moves)
        since = (self.started, *(one.since(now) for one in moves))
        last = max(at for at in since if at == at)
        # What it does while it is disturbed may be our doing, and that it does nothing then is not seen.
        while self._disturbances and self._disturbances[0][1] <= last:
            self._disturbances.popleft()
        disturbed = sum(max(min(end, now) - max(begin, last), 0.0) for begin, end in self._disturbances)
        return max(now - last - disturbed, 0.0)

    def standing(self, now: float, before: StallFacts | None) -> StallFacts:
        """With what its threads do, and who holds it. `before`: what else is known."""
        before, seen = before or StallFacts(), self.seen
        if seen is None or now - seen.at >= _ROWS_STALE_S:
            return replace(before, threads=(), holder="")
        key = seen, before.operations, self.valid_from
        if self._rows[0] != key:
            found = rows(seen.threads, self.pid, seen.at, before.operations, seen.interrupts, self.valid_from)
            self._rows = key, found
        passed = now - seen.at
        threads = tuple(
            replace(one, ends_in=max(one.ends_in - passed, 0.0)) if one.ends_in == one.ends_in else one
            for one in self._rows[1]
        )
        return replace(before, threads=threads, holder=seen.holder[:WORDS])

    def close(self) -> None:
        for fd in self._files:
            if fd >= 0:
                os.close(fd)
        self._files = [-1, -1]


def _open(path: str) -> int:
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def _read(fd: int) -> bytes:
    if fd >= 0:
        with suppress(OSError):
            return os.pread(fd, 4096, 0)
    return b""
