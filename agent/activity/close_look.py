"""A look at a worker from outside that may take its time: descendants, threads, descriptors, sockets, its wait.

Made in a thread of its own, since a file of /proc can block. Nothing here takes the memory lock of a process whose
main thread cannot be interrupted (state D): not its command line, its environment or its memory.
"""

import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from holdfast.agent.activity import ras_thread
from holdfast.agent.activity.child_waits import ChildWaits
from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.interpreter import InterpreterLock
from holdfast.agent.activity.movement import BYTES_AMOUNT, BYTES_LEAK, CPU_AMOUNT, CPU_LEAK, Growth, Rate
from holdfast.agent.activity.process_look import MOST_CHILDREN, MOST_THREADS, ProcessLook, channel_of
from holdfast.agent.activity.ras_thread import RasThread
from holdfast.agent.activity.sums import ActivitySums
from holdfast.agent.activity.surroundings import Surroundings
from holdfast.agent.activity.thread_waits import ThreadWaits
from holdfast.agent.activity.waits import Clocks, ThreadWait, describe
from holdfast.agent.processes import sockets
from holdfast.agent.processes.descendants import names
from holdfast.agent.processes.descriptors import Descriptors
from holdfast.agent.processes.proc_files import (
    Call,
    Stat,
    parse_call,
    parse_io,
    parse_runnable,
    parse_schedstat,
    parse_stat,
    parse_status,
    read,
)  # fmt: skip
from holdfast.base import log

MOST_OPENED = 4
"""Descendants whose descriptors are."""
WAIT_FRESH_S = 2.0
"""Seconds for which the words for the same wait stay as they are."""
_COMPUTES_NO_PYTHON = ("NCCL",)
"""How the names of such threads begin. NCCL's for progress spin while they serve a collective."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look. Rates a second; `wait.until` is in monotonic seconds."""

    at: float
    state: str = ""
    """Of the main thread, or of another if that one has ended."""
    children_cpu: float = 0.0
    read: float = 0.0
    written: float = 0.0
    network: float = 0.0
    wait: ThreadWait = ThreadWait()  # noqa: RUF009 - frozen
    thread: str = ""
    has_gpu: bool = False
    moves: bool = False
    """Whether anything has moved between the look before and this one."""
    looks: int = 0
    """This one included: the first has nothing to compare with."""
    ticks_cpu: float = 0.0
    """Seconds on a processor of the probe's own thread."""


class CloseLook:
    """At one worker, for as long as it stands. All calls come from one thread."""

    def __init__(self, pid: int, host: HostLook, mark: str = "", tick_thread: int = 0) -> None:
        self.pid, self._host, self._mark, self._tick_thread = pid, host, mark, tick_thread
        self._folder = f"{host.proc}/{pid}"
        self._descriptors: dict[int, Descriptors] = {}
        self._children: tuple[int, ...] | None = None
        self._sums = ActivitySums()
        self._turn = 0
        self._cpu, self._bytes = Growth(CPU_LEAK, CPU_AMOUNT), Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._network = Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._rates = tuple(Rate() for _ in range(5))  # processor, read, written, network, other ends
        self._queues: tuple[tuple[int, ...], ...] | None = None
        self._threads: dict[int, tuple[float, float]] = {}
        self._states = ""  # of all threads that were looked at
        self._others = ThreadWaits(self._folder)
        self._waits: tuple[object, ThreadWait, float, float] | None = None  # its key, the wait, made at, since
        self._surroundings = Surroundings(host.proc, host.sysfs)
        self._child_waits = ChildWaits(host)
        self._lock = InterpreterLock(self._folder, tick_thread)
        self._runnable: dict[int, int] = {}  # nanoseconds, of threads that may compute in Python besides the main one
        self._others_ran = 0.0  # the same, of all of them so far, in seconds
        self._at = math.nan
        self._ras = RasThread(pid, host.proc)

    def look(self, now: float) -> Sighting:
        """Never raises. `now`: monotonic seconds."""
        self._turn += 1
        stat = parse_stat(read(f"{self._folder}/stat"))
        if stat is None:
            return Sighting(now, looks=self._turn)
        children = self._host.descendants.of(self.pid, self._mark)
        moved = {"children": self._look_at_children(now, children)}
        not_its_own = self._ras.fds("D" if "D" in self._states else stat.state)
        moved["descriptors"] = self._look_at_descriptors(children, not_its_own)
        moved["sockets"] = self._look_at_sockets(now, not_its_own)
        thread, state = self._look_at_threads(stat, now)
        wait, channel, turns = self._wait(now, stat, state, children)
        moved["surroundings"] = self._look_around(now, wait, channel, turns, children)
        moved["a child's attempts"] = self._child_waits.look(wait.words, children, Clocks(now, time.time(), now))
        if math.isnan(wait.until):
            wait = replace(wait, until=self._child_waits.until)
        moved["Python"] = turns is not None and self._lock.is_handed_over(now, turns[0], self._others_ran)
        if any(moved.values()):
            log.debug("activity.moves", worker_pid=self.pid, by=", ".join(what for what, does in moved.items() if does))
        if wait.words == "a lock" and (others := self._others.words):
            wait = replace(wait, words=f"{wait.words} (other threads: {others})")
        if self._surroundings.ends:
            wait = replace(wait, words=f"{wait.words} ({self._said_of_ends()})")
        ticks = (
            parse_schedstat(read(f"{self._folder}/task/{self._tick_thread}/schedstat")) if self._tick_thread else None
        )
        if state == "t" and wait.is_prompt:
            state = "S"
        self._at = now
        return Sighting(
            at=now,
            state=state,
            children_cpu=self._rates[0].value + self._rates[4].value,
            read=self._rates[1].value,
            written=self._rates[2].value,
            network=self._rates[3].value,
            wait=wait,
            thread=thread,
            has_gpu=self._descriptors[self.pid].has_gpu,
            moves=any(moved.values()),
            looks=self._turn,
            ticks_cpu=ticks[0] / 1e9 if ticks else 0.0,
        )

    def _look_around(
        self, now: float, wait: ThreadWait, channel: str, turns: tuple[int, int] | None, children: list[int]
    ) -> bool:
        links = [self._descriptors[self.pid].links.get(fd, "") for fd in wait.fds]
        waits_on = [link for link in links if link.startswith(("socket:", "pipe:"))]
        known = self._host.sockets(now) if waits_on else sockets.Sockets()
        without = {self.pid, os.getpid(), *children, *self._host.workers}
        around = self._surroundings
        moved = around.other_ends(now, waits_on, known, without, self._host.leaders)
        self._rates[4].add(now, around.cpu)
        moved |= around.host(
            now, wait, channel, self._states, self._host.is_one, self._host.has_rdma, self._others.asks_host
        )
        return moved if turns is None else around.attempts(now, wait, *turns) | moved

    def _said_of_ends(self) -> str:
        ends = self._surroundings.ends
        called = names(ends, self._host.proc)
        return "other end: " + ", ".join(f"{called.get(pid, 'no name')}, pid {pid}" for pid in ends)

    # --- descendants

    def _look_at_children(self, now: float, children: list[int]) -> bool:
        before, self._children = self._children, tuple(children)
        start = self._turn * MOST_CHILDREN % len(children) if len(children) > MOST_CHILDREN else 0
        values: dict[int, tuple[float, ...]] = {}
        for pid in (children[start:] + children[:start])[:MOST_CHILDREN]:
            stat = parse_stat(read(f"{self._host.proc}/{pid}/stat"))
            if stat is None:
                continue
            io = parse_io(read(f"{self._host.proc}/{pid}/io"))
            values[pid] = (stat.cpu, float(io.taken if io else 0), float(io.given if io else 0))
        cpu, taken, given = self._sums.add(values, children) or (0.0, 0.0, 0.0)
        for rate, total in zip(self._rates, (cpu, taken, given), strict=False):
            rate.add(now, total)
        moved = [self._cpu.add(now, cpu), self._bytes.add(now, taken + given)]
        return any(moved) or (before is not None and set(before) != set(children))

    # --- descriptors and sockets

    def _look_at_descriptors(self, children: list[int], not_its_own: frozenset[int]) -> bool:
        start = self._turn * MOST_OPENED % len(children) if len(children) > MOST_OPENED else 0
        wanted = [self.pid, *(children[start:] + children[:start])[:MOST_OPENED]]
        there = {self.pid, *children}
        self._descriptors = {pid: one for pid, one in self._descriptors.items() if pid in there}
        moved = False
        for pid in wanted:
            if pid not in self._descriptors:
                self._descriptors[pid] = Descriptors(pid, self._host.proc)
            moved |= self._descriptors[pid].look(not_its_own if pid == self.pid else frozenset())
        return moved

    def _look_at_sockets(self, now: float, not_its_own: frozenset[int]) -> bool:
        inodes = set().union(*(one.sockets for one in self._descriptors.values()))
        inodes -= self._descriptors[self.pid].sockets_of(not_its_own)
        if not inodes:
            self._rates[3].add(now, 0.0)
            return False
        total, queues = self._host.sockets(now).moved(inodes)
        self._rates[3].add(now, float(total))
        before, self._queues = self._queues, queues
        # The descriptors show new and closed sockets. Only sockets that existed before count here.
        known = {row[0]: row for row in before or ()}
        moved = any(known.get(row[0], row) != row for row in queues)
        return self._network.add(now, float(total)) or moved

    # --- threads

    def _look_at_threads(self, main: Stat, now: float) -> tuple[str, str]:
        """The name of a thread that moves while the main one does not, and the state that stands for the process."""
        self._states = main.state
        if main.threads <= 1 or main.state == "R":
            self._others.forget()
        if main.threads <= 1:
            return "", main.state
        found: list[tuple[float, int, Stat]] = []
        tids = [tid for tid in self._tids() if tid not in (self.pid, self._tick_thread)]
        start = self._turn * MOST_CHILDREN % len(tids) if len(tids) > MOST_CHILDREN else 0
        states: dict[int, str] = {}
        for tid in (tids[start:] + tids[:start])[:MOST_CHILDREN]:
            stat = parse_stat(read(f"{self._folder}/task/{tid}/stat"))
            if stat is None:
                continue
            states[tid] = stat.state
            if stat.name == ras_thread.NAME:
                self._ras.tid = tid
            before = self._threads.get(tid)
            io = parse_io(read(f"{self._folder}/task/{tid}/io")) if main.state != "R" else None
            bytes_now = float(io.taken + io.given) if io else 0.0
            self._threads[tid] = (stat.cpu, bytes_now)
            if before and stat.cpu > before[0] and not stat.name.startswith(_COMPUTES_NO_PYTHON):
                self._others_ran += self._ran(tid, now)
            grown = (stat.cpu - before[0]) + (bytes_now - before[1]) / 1e8 if before else 0.0
            if before and (stat.cpu - before[0] >= 0.02 or bytes_now - before[1] >= 4096):
                found.append((grown, tid, stat))
        if len(self._threads) > 2 * MOST_THREADS:
            self._threads.clear()
            self._runnable.clear()
        state, living = main.state, [one for one in states.values() if one not in "ZX"]
        self._states = state + "".join(living)
        if main.state != "R":
            # No memory of a process of which any thread cannot be interrupted, and no search for the holders of a pipe.
            reader = ProcessLook(self.pid, self._host, "D" if "D" in self._states else "S", now, [])
            self._others.look(states, tids, reader, Clocks(now, time.time(), now))
        if state in "ZX" and living:
            state = next((one for one in "RDST" if one in living), living[0])
        if not found or main.state == "R":
            return "", state
        _, tid, stat = max(found)
        return (stat.name if stat.name != main.name else f"{stat.name} (thread {tid})"), state

    def _ran(self, tid: int, now: float) -> float:
        """Seconds for which it ran or waited for a processor since it was seen to run before: so long it may have held
        the interpreter's lock, which nobody gets while it waits."""
        before, runnable = self._runnable.get(tid), parse_runnable(read(f"{self._folder}/task/{tid}/schedstat", 128))
        if runnable is None:
            return now - self._at
        self._runnable[tid] = runnable
        return (runnable - before) / 1e9 if before is not None else now - self._at

    def _tids(self) -> list[int]:
        with suppress(OSError), os.scandir(f"{self._folder}/task") as entries:
            return [int(entry.name) for entry in islice(entries, MOST_THREADS) if entry.name.isdigit()]
        return []

    # --- what it waits for

    def _wait(
        self, now: float, stat: Stat, state: str, children: list[int]
    ) -> tuple[ThreadWait, str, tuple[int, int] | None]:
        """Also the wait channel, and how long and how often the thread has run (nanoseconds, turns)."""
        if stat.state in "ZX":
            wait = ThreadWait() if state in "ZX" else ThreadWait("its other threads (the main thread has ended)")
            return wait, "", None
        look = ProcessLook(self.pid, self._host, stat.state, now, children)
        task = f"{self._folder}/task/{self.pid}"
        call, channel = parse_call(read(f"{task}/syscall", 512)), channel_of(task)
        slices = parse_schedstat(read(f"{task}/schedstat", 128))
        key = (call, stat.state, channel, slices[1] if slices else 0)
        if self._waits is not None and self._waits[0] == key:
            _, wait, made_at, since = self._waits
            if now - made_at < WAIT_FRESH_S:
                return wait, channel, slices
        else:
            since = now
        wait = self._described(call, stat.state, channel, look, Clocks(now, time.time(), since))
        if not wait.is_prompt and any(self._host.is_debugger(pid) for pid in children):
            wait = ThreadWait(f"{wait.words or 'nothing'}, under a debugger (debugpy)", wait.until, True, wait.fds)
        self._waits = (key, wait, now, since)
        return wait, channel, slices

    def _described(self, call: Call | None, state: str, channel: str, look: ProcessLook, clocks: Clocks) -> ThreadWait:
        if state != "t":
            return describe(call, state, channel, look, clocks)
        tracer = parse_status(read(f"{self._folder}/status"), "TracerPid") or 0
        if not tracer:
            return describe(call, state, channel, look, clocks)
        stat = parse_stat(read(f"{self._host.proc}/{tracer}/stat"))
        task = f"{self._host.proc}/{tracer}/task/{tracer}"
        theirs = describe(
            parse_call(read(f"{task}/syscall", 512)), stat.state if stat else "", channel_of(task),
            ProcessLook(tracer, self._host, stat.state if stat else "D", clocks.monotonic, []), clocks,
        )  # fmt: skip
        who = f"its tracer {stat.name if stat else ''} (pid {tracer})".replace("  ", " ")
        return ThreadWait(f"{who}, which waits for {theirs.words}" if theirs.words else who, is_prompt=theirs.is_prompt)
