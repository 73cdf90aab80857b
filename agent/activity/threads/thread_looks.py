"""A look at the threads of one worker: which of them moves, what each waits for, since when."""

import math
import os
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from holdfast.agent.activity import ras_thread
from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.process_look import MOST_CHILDREN, MOST_THREADS, ProcessLook
from holdfast.agent.activity.threads.states import ThreadFacts, ThreadTable, condition_of
from holdfast.agent.activity.threads.thread_waits import Glance, ThreadWaits, Turn, glance_at
from holdfast.agent.activity.waits import Clocks
from holdfast.agent.processes.proc_files import Stat, parse_call, parse_io, parse_runnable, parse_signals, read

_RING = "anon_inode:[io_uring]"
_COMPUTES_NO_PYTHON = ("NCCL",)
"""How the names of such threads begin. NCCL's for progress spin while they serve a collective."""


class ThreadLooks:
    """The looks at one worker's threads, for as long as it stands."""

    def __init__(self, pid: int, host: HostLook, tick_thread: int) -> None:
        self.pid, self._host, self._tick_thread = pid, host, tick_thread
        self._folder = f"{host.proc}/{pid}"
        self._turn = 0
        self._threads: dict[int, tuple[float, float]] = {}
        self._glances: dict[int, Glance] = {}
        self.states = ""
        """State letters of all threads that were looked at, the main one first."""
        self.table = ThreadTable()
        self.waits = ThreadWaits(self._folder, self.table)
        self.ras_thread = 0
        """NCCL's thread that answers who asks for its state."""
        self._runnable: dict[int, int] = {}  # nanoseconds, of threads that may compute in Python besides the main one
        self.others_ran = 0.0
        """Seconds for which threads other than the main one ran that may compute in Python."""
        self._at = math.nan
        self._interpreter = 0
        self._tids: list[int] = []

    def begin(
        self, now: float, valid_from: float, is_silent: bool, is_frozen: bool, services: Collection[int] = ()
    ) -> Turn:
        """Begin a look; the result holds for all threads in it. `is_silent`: the probe's ticks fail to come.
        `services`: threads that torch started for its process groups."""
        self._turn += 1
        self._tids = self._listed()
        present, clocks = {self.pid, *self._tids}, Clocks(now, time.time(), now)
        interpreter = self._condition() if is_silent and self._tick_thread else 0
        return Turn(_clock_from(now), clocks, present, valid_from, interpreter, is_frozen, services)

    def look(self, main: Stat, now: float, turn: Turn) -> tuple[str, str]:
        """The name of a thread that moves while the main one does not, and the state that stands for the process."""
        self.states = main.state
        tids = self._tids
        # A thread that waits for the interpreter's lock looks at it every 5 ms: it is no reason to forget the others.
        is_running = main.state == "R" and not turn.interpreter
        if main.threads <= 1 or is_running:
            self.waits.forget()
        if main.threads <= 1:
            return "", main.state
        found: list[tuple[float, int, Stat]] = []
        start = self._turn * MOST_CHILDREN % len(tids) if len(tids) > MOST_CHILDREN else 0
        glances: dict[int, Glance] = {}
        for tid in (tids[start:] + tids[:start])[:MOST_CHILDREN]:
            before = self._glances.get(tid)
            glance = glance_at(f"{self._folder}/task/{tid}", turn.clock(), before)
            if glance is None:
                continue
            glances[tid], stat = glance, glance.stat
            if stat.name == ras_thread.NAME:
                self.ras_thread = tid
            is_same = before is not None and before.stat is stat
            if not is_same and (grown := self._grown(tid, stat, now, not is_running)):
                found.append((grown, tid, stat))
        self._glances |= glances
        if len(self._threads) > 2 * MOST_THREADS:
            self._threads.clear()
            self._runnable.clear()
            self._glances.clear()
        self._at = now
        state, living = main.state, [one.stat.state for one in glances.values() if one.stat.state not in "ZX"]
        self.states = state + "".join(living)
        if not is_running:
            # No memory of a process of which any thread cannot be interrupted, and no search for the holders of a pipe.
            reader = ProcessLook(self.pid, self._host, "D" if "D" in self.states else "S", now, [])
            self.waits.look(glances, reader, turn)
        if state in "ZX" and living:
            state = next((one for one in "RDST" if one in living), living[0])
        if not found or main.state == "R":
            return "", state
        _, tid, stat = max(found)
        return (stat.name if stat.name != main.name else f"{stat.name} (thread {tid})"), state

    def facts(self, main: Stat, blocked: int = 0, links: Iterable[str] = ()) -> ThreadFacts:
        """The facts of all threads, once the main one has been noted too. `blocked`: signals for which the script has a
        handler, and that the main thread blocks. `links`: what the process has open."""
        present = {self.pid, *self._tids} - self.waits.left_out
        self.table.keep(present, max(main.threads - len(self._tids) - 1 - bool(self._tick_thread), 0))
        outsider = self._host.sharers(self.pid) or self._by_ring(links) or self._by_signal(blocked)
        return replace(self.table.facts(), outsider=outsider)

    def _by_ring(self, links: Iterable[str]) -> str:
        """An io_uring may wake a futex when a timer ends."""
        return "an io_uring of the process, which may wake its threads" if _RING in links else ""

    def _by_signal(self, signals: int) -> str:
        """The kernel gives a signal to any thread that does not block it: its system call may end, whatever the main
        thread blocks."""
        for tid in sorted(set(self._tids) - self.waits.left_out) if signals else ():
            if signals & ~parse_signals(read(f"{self._folder}/task/{tid}/status"), "SigBlk"):
                return f"a signal that the script handles, which thread {tid} does not block"
        return ""

    def _condition(self) -> int:
        """The condition of the interpreter's lock, which stays where it is: the probe's thread waits for no other."""
        if not self._interpreter:
            self._interpreter = condition_of(parse_call(read(f"{self._folder}/task/{self._tick_thread}/syscall", 512)))
        return self._interpreter

    def _grown(self, tid: int, stat: Stat, now: float, with_bytes: bool) -> float:
        """How much it has moved since it was looked at before; 0 for what is noise."""
        before = self._threads.get(tid)
        io = parse_io(read(f"{self._folder}/task/{tid}/io")) if with_bytes else None
        bytes_now = float(io.taken + io.given) if io else 0.0
        self._threads[tid] = (stat.cpu, bytes_now)
        if before is None:
            return 0.0
        cpu, moved = stat.cpu - before[0], bytes_now - before[1]
        if cpu > 0 and not stat.name.startswith(_COMPUTES_NO_PYTHON):
            self.others_ran += self._ran(tid, now)
        return cpu + moved / 1e8 if cpu >= 0.02 or moved >= 4096 else 0.0

    def _ran(self, tid: int, now: float) -> float:
        """Seconds for which it ran or waited for a processor since it was seen to run before: so long it may have held
        the interpreter's lock, which nobody gets while it waits."""
        before, runnable = self._runnable.get(tid), parse_runnable(read(f"{self._folder}/task/{tid}/schedstat", 128))
        if runnable is None:
            return now - self._at
        self._runnable[tid] = runnable
        return (runnable - before) / 1e9 if before is not None else now - self._at

    def _listed(self) -> list[int]:
        """All but the main one and the probe's."""
        with suppress(OSError), os.scandir(f"{self._folder}/task") as entries:
            tids = [int(entry.name) for entry in islice(entries, MOST_THREADS) if entry.name.isdigit()]
            return [tid for tid in tids if tid not in (self.pid, self._tick_thread)]
        return []


def _clock_from(now: float) -> Callable[[], float]:
    """The clock of a look that began at `now`."""
    offset = now - time.monotonic()
    return lambda: offset + time.monotonic()
