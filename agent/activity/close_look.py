"""A look at a worker from outside that may take its time: descendants, threads, descriptors, sockets, its wait.

Made in a thread of its own, since a file of /proc can block. Nothing here takes the memory lock of a process whose
main thread cannot be interrupted (state D): not its command line, its environment or its memory.
"""

import math
import os
from dataclasses import dataclass, replace

from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.interpreter import InterpreterLock
from holdfast.agent.activity.movement import BYTES_AMOUNT, BYTES_LEAK, CPU_AMOUNT, CPU_LEAK, Growth, Rate
from holdfast.agent.activity.process_look import MOST_CHILDREN, ProcessLook, channel_of
from holdfast.agent.activity.ras_thread import RasThread
from holdfast.agent.activity.sums import ActivitySums
from holdfast.agent.activity.surroundings import Surroundings
from holdfast.agent.activity.threads.child_waits import ChildWaits, latest
from holdfast.agent.activity.threads.holders import Holders
from holdfast.agent.activity.threads.states import ThreadFacts, interrupts, waits_for_peers
from holdfast.agent.activity.threads.thread_looks import ThreadLooks
from holdfast.agent.activity.threads.thread_waits import Seen, Turn, note_thread, ran_of
from holdfast.agent.activity.waits import LOCK, Clocks, ThreadWait, describe
from holdfast.agent.processes import sockets
from holdfast.agent.processes.descendants import names
from holdfast.agent.processes.descriptors import Descriptors
from holdfast.agent.processes.proc_files import (
    Call,
    Stat,
    parse_call,
    parse_io,
    parse_schedstat,
    parse_signals,
    parse_stat,
    parse_status,
    read,
)
from holdfast.base import log
from holdfast.wire.standing import FROZEN, ThreadState

MOST_OPENED = 4
"""Descendants whose descriptors are."""
WAIT_FRESH_S = 2.0
"""Seconds for which the words for the same wait stay as they are."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """One look. Rates a second; `wait.until` is in monotonic seconds."""

    at: float
    state: str = ""
    """State of the main thread, or of another if that one has ended."""
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
    threads: ThreadFacts = ThreadFacts({})  # noqa: RUF009 - frozen
    interrupts: str = ""
    """The handler or timer that may raise out of a wait of the main thread, in words."""
    holder: str = ""
    """The process's holder, in words."""


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
        self._threads = ThreadLooks(pid, host, tick_thread)
        self._waits: tuple[object, ThreadWait, float, float] | None = None  # its key, the wait, made at, since
        self._surroundings = Surroundings(host.proc, host.sysfs)
        self._child_waits = ChildWaits(host)
        self._lock = InterpreterLock(self._folder, tick_thread)
        self._ras = RasThread(pid, host.proc)
        self._holders = Holders(host.proc)
        self.valid_from = -math.inf
        """Monotonic seconds: what was seen of threads before counts no more. Set by the watch."""
        self.handlers = 0
        """Signals for which the script has a handler, as its probe reports them. Set by the watch."""
        self.services: frozenset[int] = frozenset()
        """Threads that torch started for its process groups. Set by the watch."""
        self.is_silent = False
        """Whether the probe's ticks fail to come. Set by the watch."""

    def look(self, now: float) -> Sighting:
        """Never raises. `now`: monotonic seconds."""
        self._turn += 1
        stat = parse_stat(read(f"{self._folder}/stat"))
        if stat is None:
            return Sighting(now, looks=self._turn)
        children = self._host.descendants.of(self.pid, self._mark)
        moved = {"children": self._look_at_children(now, children)}
        self._ras.tid = self._threads.ras_thread or self._ras.tid
        not_its_own = self._ras.fds("D" if "D" in self._threads.states else stat.state)
        moved["descriptors"] = self._look_at_descriptors(children, not_its_own)
        moved["sockets"] = self._look_at_sockets(now, not_its_own)
        channel, status = channel_of(f"{self._folder}/task/{self.pid}"), read(f"{self._folder}/status")
        holder, is_frozen = self._holders.of(stat, status, self.pid, channel)
        turn = self._threads.begin(now, self.valid_from, self.is_silent, is_frozen, self.services)
        thread, state = self._threads.look(stat, now, turn)
        wait, turns = self._wait(now, stat, state, channel, children, turn)
        moved["surroundings"] = self._look_around(now, wait, channel, turns, children)
        moved["a child's attempts"] = self._child_waits.look(wait.words, children, turn.clocks)
        if math.isnan(wait.until):
            own = self._threads.table.sleeps_until(self.pid) if wait.words.startswith(LOCK) else math.nan
            wait = replace(wait, until=latest((self._child_waits.until, own)))
        moved["Python"] = turns is not None and self._lock.is_handed_over(now, turns[0], self._threads.others_ran)
        if any(moved.values()):
            log.debug("activity.moves", worker_pid=self.pid, by=", ".join(what for what, does in moved.items() if does))
        if stat.state == "T" and not holder:
            holder = self._holders.company(children, self._host.workers - {self.pid})
        if state == "t" and wait.is_prompt:
            state = "S"
        caught, blocked = parse_signals(status, "SigCgt"), parse_signals(status, "SigBlk")
        return Sighting(
            at=now,
            state=state,
            children_cpu=self._rates[0].value + self._rates[4].value,
            read=self._rates[1].value,
            written=self._rates[2].value,
            network=self._rates[3].value,
            wait=self._in_words(wait),
            thread=thread,
            has_gpu=self._descriptors[self.pid].has_gpu,
            moves=any(moved.values()),
            looks=self._turn,
            ticks_cpu=self._ticks_cpu(),
            threads=self._threads.facts(
                stat, caught & blocked & self.handlers, self._descriptors[self.pid].links.values()
            ),
            interrupts=interrupts(caught, bool(read(f"{self._folder}/timers", 64)), self.handlers, blocked),
            holder=holder,
        )

    def _in_words(self, wait: ThreadWait) -> ThreadWait:
        if wait.words == "a lock" and (others := self._threads.waits.words):
            wait = replace(wait, words=f"{wait.words} (other threads: {others})")
        if self._surroundings.ends:
            wait = replace(wait, words=f"{wait.words} ({self._said_of_ends()})")
        return wait

    def _ticks_cpu(self) -> float:
        if not self._tick_thread:
            return 0.0
        ticks = parse_schedstat(read(f"{self._folder}/task/{self._tick_thread}/schedstat"))
        return ticks[0] / 1e9 if ticks else 0.0

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
            now,
            wait,
            channel,
            self._threads.states,
            self._host.is_one,
            self._host.has_rdma,
            self._threads.waits.asks_host,
        )
        return moved if turns is None else around.attempts(now, wait, *turns, self._host.wake_s) | moved

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

    # --- what it waits for

    def _wait(
        self, now: float, stat: Stat, state: str, channel: str, children: list[int], turn: Turn
    ) -> tuple[ThreadWait, tuple[int, int] | None]:
        """Also how long and how often the thread has run (nanoseconds, turns)."""
        if stat.state in "ZX":
            wait = ThreadWait() if state in "ZX" else ThreadWait("its other threads (the main thread has ended)")
            what = ThreadState.GONE if stat.threads <= 1 else ThreadState.UNKNOWN
            self._threads.table.note(self.pid, (now, now), what, stat.state, wait, turn.valid_from)
            return wait, None
        look = ProcessLook(self.pid, self._host, stat.state, now, children)
        task, before = f"{self._folder}/task/{self.pid}", turn.clock()
        call, ran, slices = parse_call(read(f"{task}/syscall", 512)), *ran_of(task)
        after = turn.clock()
        key = (call, stat.state, channel, ran)
        if self._waits is None or self._waits[0] != key:
            self._waits = (key, self._described(call, stat.state, channel, look, turn, children, now), now, now)
        elif now - self._waits[2] >= WAIT_FRESH_S:
            since = self._waits[3]
            self._waits = (key, self._described(call, stat.state, channel, look, turn, children, since), now, since)
        wait = self._waits[1]
        seen = Seen((before, after), call, stat.state, channel, ran, wait)
        note_thread(self._threads.table, self.pid, seen, look, turn)
        return wait, slices

    def _described(
        self, call: Call | None, state: str, channel: str, look: ProcessLook, turn: Turn, children: list[int],
        since: float,
    ) -> ThreadWait:  # fmt: skip
        if turn.is_frozen and state == "D":
            return ThreadWait(FROZEN)
        wait = self._undebugged(call, state, channel, look, replace(turn.clocks, since=since))
        if waits_for_peers(call, wait.until - turn.clocks.monotonic):
            wait = replace(wait, until=math.nan)  # it would say that the wait may go on for as long as torch lets it
        if not wait.is_prompt and any(self._host.is_debugger(pid) for pid in children):
            return ThreadWait(f"{wait.words or 'nothing'}, under a debugger (debugpy)", wait.until, True, wait.fds)
        return wait

    def _undebugged(self, call: Call | None, state: str, channel: str, look: ProcessLook, clocks: Clocks) -> ThreadWait:
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
