"""A look at a worker from outside that may take its time: descendants, threads, descriptors, sockets, its wait.

Made in a thread of its own, since a file of /proc can block. Nothing here takes the memory lock of a process whose
main thread cannot be interrupted (state D): not its command line, its environment or its memory.
"""

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice

from holdfast.agent.activity.movement import BYTES_AMOUNT, BYTES_LEAK, CPU_AMOUNT, CPU_LEAK, Growth, Rate
from holdfast.agent.activity.sums import Sums
from holdfast.agent.activity.surroundings import Surroundings
from holdfast.agent.activity.waits import Clocks, Wait, describe
from holdfast.agent.processes import sockets
from holdfast.agent.processes.descendants import Descendants, names
from holdfast.agent.processes.descriptors import Descriptors
from holdfast.agent.processes.proc_files import (
    Call,
    FdInfo,
    Stat,
    parse_call,
    parse_fdinfo,
    parse_io,
    parse_schedstat,
    parse_stat,
    parse_status,
    read,
)  # fmt: skip

MOST_CHILDREN = 64
"""Descendants whose counters are read in one turn, and threads."""
MOST_OPENED = 4
"""Descendants whose descriptors are."""
MOST_THREADS = 1024
WAIT_FRESH_S = 2.0
"""Seconds for which the words for the same wait stay as they are."""
SOCKETS_FRESH_S = 0.09
_NAMED = 3
_DEBUGGER = b"debugpy"


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. Rates a second; `wait.until` is in monotonic seconds."""

    at: float
    state: str = ""
    """Of the main thread, or of another if that one has ended."""
    children_cpu: float = 0.0
    read: float = 0.0
    written: float = 0.0
    network: float = 0.0
    wait: Wait = Wait()  # noqa: RUF009 - frozen
    thread: str = ""
    has_gpu: bool = False
    moves: bool = False
    """Whether anything has moved between the look before and this one."""
    looks: int = 0
    """This one included: the first has nothing to compare with."""
    ticks_cpu: float = 0.0
    """Seconds on a processor of the probe's own thread."""


class Host:
    """What is looked at once for all workers of one turn."""

    def __init__(
        self, proc: str = "/proc", dump: Callable[[], sockets.Sockets] = sockets.dump, sysfs: str = "/sys"
    ) -> None:
        self.proc, self.sysfs = proc, sysfs
        self.has_rdma = os.path.isdir(f"{sysfs}/class/infiniband")
        self.workers: frozenset[int] = frozenset()
        """All workers of this host that are watched, which may wait for each other."""
        self.leaders: frozenset[int] = frozenset()
        """Processes of Holdfast: they and their children (rendezvous stores) serve all ranks, so tell nothing."""
        self.is_one = False
        """Whether the host has one worker only: what the host moves is that one's."""
        self.descendants = Descendants(proc)
        self._dump = dump
        self._sockets = sockets.Sockets()
        self._sockets_at = -math.inf
        self._debuggers: dict[int, bool] = {}

    def begin(self, now: float) -> None:
        self.descendants.look(now)

    def sockets(self, now: float) -> sockets.Sockets:
        if now - self._sockets_at > SOCKETS_FRESH_S:
            self._sockets, self._sockets_at = self._dump(), now
        return self._sockets

    def is_debugger(self, pid: int) -> bool:
        """Whether a descendant is the adapter through which an editor's debugger talks."""
        if pid not in self._debuggers:
            stat = parse_stat(read(f"{self.proc}/{pid}/stat"))
            readable = stat is not None and stat.state not in "DZX"
            self._debuggers[pid] = readable and _DEBUGGER in read(f"{self.proc}/{pid}/cmdline", 4096)
            while len(self._debuggers) > 4096:
                self._debuggers.pop(next(iter(self._debuggers)))
        return self._debuggers[pid]


class CloseLook:
    """At one worker, for as long as it stands. All calls come from one thread."""

    def __init__(self, pid: int, host: Host, mark: str = "", tick_thread: int = 0) -> None:
        self.pid, self._host, self._mark, self._tick_thread = pid, host, mark, tick_thread
        self._folder = f"{host.proc}/{pid}"
        self._descriptors: dict[int, Descriptors] = {}
        self._children: tuple[int, ...] | None = None
        self._sums = Sums()
        self._turn = 0
        self._cpu, self._bytes = Growth(CPU_LEAK, CPU_AMOUNT), Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._network = Growth(BYTES_LEAK, BYTES_AMOUNT)
        self._rates = tuple(Rate() for _ in range(5))  # processor, read, written, network, other ends
        self._queues: tuple[tuple[int, ...], ...] | None = None
        self._threads: dict[int, tuple[float, float]] = {}
        self._states = ""  # of all threads that were looked at
        self._waits: tuple[object, Wait, float, float] | None = None  # its key, the wait, made at, since
        self._surroundings = Surroundings(host.proc, host.sysfs)

    def look(self, now: float) -> Seen:
        """Never raises. `now`: monotonic seconds."""
        self._turn += 1
        stat = parse_stat(read(f"{self._folder}/stat"))
        if stat is None:
            return Seen(now, looks=self._turn)
        children = self._host.descendants.of(self.pid, self._mark)
        moved = self._look_at_children(now, children)
        moved |= self._look_at_descriptors(children)
        moved |= self._look_at_sockets(now)
        thread, state = self._look_at_threads(stat)
        wait, channel, turns = self._wait(now, stat, state, children)
        moved |= self._look_around(now, wait, channel, turns, children)
        if self._surroundings.ends:
            wait = replace(wait, words=f"{wait.words} ({self._said_of_ends()})")
        ticks = (
            parse_schedstat(read(f"{self._folder}/task/{self._tick_thread}/schedstat")) if self._tick_thread else None
        )
        if state == "t" and wait.is_prompt:
            state = "S"
        return Seen(
            at=now,
            state=state,
            children_cpu=self._rates[0].value + self._rates[4].value,
            read=self._rates[1].value,
            written=self._rates[2].value,
            network=self._rates[3].value,
            wait=wait,
            thread=thread,
            has_gpu=self._descriptors[self.pid].has_gpu,
            moves=moved,
            looks=self._turn,
            ticks_cpu=ticks[0] / 1e9 if ticks else 0.0,
        )

    def _look_around(
        self, now: float, wait: Wait, channel: str, turns: tuple[int, int] | None, children: list[int]
    ) -> bool:
        links = [self._descriptors[self.pid].links.get(fd, "") for fd in wait.fds]
        waits_on = [link for link in links if link.startswith(("socket:", "pipe:"))]
        known = self._host.sockets(now) if waits_on else sockets.Sockets()
        without = {self.pid, os.getpid(), *children, *self._host.workers}
        around = self._surroundings
        moved = around.other_ends(now, waits_on, known, without, self._host.leaders)
        self._rates[4].add(now, around.cpu)
        moved |= around.host(now, wait, channel, self._states, self._host.is_one, self._host.has_rdma)
        if turns is None:
            return moved
        moved |= around.attempts(now, wait, *turns)
        waits = parse_status(read(f"{self._folder}/task/{self.pid}/status"), "voluntary_ctxt_switches") or 0
        return around.hands_over(now, turns[0], waits) | moved

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

    def _look_at_descriptors(self, children: list[int]) -> bool:
        start = self._turn * MOST_OPENED % len(children) if len(children) > MOST_OPENED else 0
        wanted = [self.pid, *(children[start:] + children[:start])[:MOST_OPENED]]
        there = {self.pid, *children}
        self._descriptors = {pid: one for pid, one in self._descriptors.items() if pid in there}
        moved = False
        for pid in wanted:
            if pid not in self._descriptors:
                self._descriptors[pid] = Descriptors(pid, self._host.proc)
            moved |= self._descriptors[pid].look()
        return moved

    def _look_at_sockets(self, now: float) -> bool:
        inodes = set().union(*(one.sockets for one in self._descriptors.values()))
        if not inodes:
            self._rates[3].add(now, 0.0)
            return False
        total, queues = self._host.sockets(now).moved(inodes)
        self._rates[3].add(now, float(total))
        before, self._queues = self._queues, queues
        # A socket that is new or gone is told by the descriptors; here those count that were there before.
        known = {row[0]: row for row in before or ()}
        moved = any(known.get(row[0], row) != row for row in queues)
        return self._network.add(now, float(total)) or moved

    # --- threads

    def _look_at_threads(self, main: Stat) -> tuple[str, str]:
        """The name of a thread that moves while the main one does not, and the state that stands for the process."""
        self._states = main.state
        if main.threads <= 1:
            return "", main.state
        found: list[tuple[float, int, Stat]] = []
        tids = [tid for tid in self._tids() if tid not in (self.pid, self._tick_thread)]
        start = self._turn * MOST_CHILDREN % len(tids) if len(tids) > MOST_CHILDREN else 0
        living = []
        for tid in (tids[start:] + tids[:start])[:MOST_CHILDREN]:
            stat = parse_stat(read(f"{self._folder}/task/{tid}/stat"))
            if stat is None:
                continue
            living += [stat.state] if stat.state not in "ZX" else []
            before = self._threads.get(tid)
            io = parse_io(read(f"{self._folder}/task/{tid}/io")) if main.state != "R" else None
            bytes_now = float(io.taken + io.given) if io else 0.0
            self._threads[tid] = (stat.cpu, bytes_now)
            grown = (stat.cpu - before[0]) + (bytes_now - before[1]) / 1e8 if before else 0.0
            if before and (stat.cpu - before[0] >= 0.02 or bytes_now - before[1] >= 4096):
                found.append((grown, tid, stat))
        if len(self._threads) > 2 * MOST_THREADS:
            self._threads.clear()
        state = main.state
        self._states = state + "".join(living)
        if state in "ZX" and living:
            state = next((one for one in "RDST" if one in living), living[0])
        if not found or main.state == "R":
            return "", state
        _, tid, stat = max(found)
        return (stat.name if stat.name != main.name else f"{stat.name} (thread {tid})"), state

    def _tids(self) -> list[int]:
        with suppress(OSError), os.scandir(f"{self._folder}/task") as entries:
            return [int(entry.name) for entry in islice(entries, MOST_THREADS) if entry.name.isdigit()]
        return []

    # --- what it waits for

    def _wait(
        self, now: float, stat: Stat, state: str, children: list[int]
    ) -> tuple[Wait, str, tuple[int, int] | None]:
        """Also the wait channel, and how long and how often the thread has run (nanoseconds, turns)."""
        if stat.state in "ZX":
            wait = Wait() if state in "ZX" else Wait("its other threads (its main thread has ended)")
            return wait, "", None
        look = ProcessLook(self.pid, self._host, stat.state, now, children)
        task = f"{self._folder}/task/{self.pid}"
        call, channel = parse_call(read(f"{task}/syscall", 512)), _channel(task)
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
            wait = Wait(f"{wait.words or 'nothing'}, under a debugger (debugpy)", wait.until, True, wait.fds)
        self._waits = (key, wait, now, since)
        return wait, channel, slices

    def _described(self, call: Call | None, state: str, channel: str, look: "ProcessLook", clocks: Clocks) -> Wait:
        if state != "t":
            return describe(call, state, channel, look, clocks)
        tracer = parse_status(read(f"{self._folder}/status"), "TracerPid") or 0
        if not tracer:
            return describe(call, state, channel, look, clocks)
        stat = parse_stat(read(f"{self._host.proc}/{tracer}/stat"))
        task = f"{self._host.proc}/{tracer}/task/{tracer}"
        theirs = describe(
            parse_call(read(f"{task}/syscall", 512)), stat.state if stat else "", _channel(task),
            ProcessLook(tracer, self._host, stat.state if stat else "D", clocks.monotonic, []), clocks,
        )  # fmt: skip
        who = f"its tracer {stat.name if stat else ''} (pid {tracer})".replace("  ", " ")
        return Wait(f"{who}, which waits for {theirs.words}" if theirs.words else who, is_prompt=theirs.is_prompt)


class ProcessLook:
    """`waits.Look` at a real process."""

    def __init__(self, pid: int, host: Host, state: str, now: float, relatives: list[int]) -> None:
        self._pid, self._host, self._state, self._now = pid, host, state, now
        self._relatives = relatives
        self._folder = f"{host.proc}/{pid}"

    def link(self, fd: int) -> str:
        with suppress(OSError):
            # Names of files are bytes, words are text that goes over the wire.
            return os.fsencode(os.readlink(f"{self._folder}/fd/{fd}")).decode("utf-8", "replace")
        return ""

    def info(self, fd: int) -> FdInfo:
        return parse_fdinfo(read(f"{self._folder}/fdinfo/{fd}"))

    def memory(self, address: int, size: int) -> bytes:
        if self._state == "D" or not 0 < address < 1 << 62 or size <= 0:
            return b""
        with suppress(OSError, OverflowError):
            fd = os.open(f"{self._folder}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.pread(fd, min(size, 4096), address)
            finally:
                os.close(fd)
        return b""

    def name(self, pid: int) -> str:
        return names([pid], self._host.proc).get(pid, "")

    def holders(self, link: str, writes: bool) -> str:
        """Looks among the worker's own relatives only: the whole host's descriptors would take too long."""
        found = []
        for pid in [self._pid, *self._relatives[:MOST_CHILDREN]]:
            if self._holds(pid, link, writes):
                if pid == self._pid:
                    found.append("it holds itself")
                else:
                    found.append(f"pid {pid} ({self.name(pid) or 'no name'}) holds")
        others = [one for one in found if one.startswith("pid ")] or found
        if len(others) > _NAMED:
            return f"{len(others)} of its children hold"
        return " and ".join(others)

    def _holds(self, pid: int, link: str, writes: bool) -> bool:
        folder = f"{self._host.proc}/{pid}"
        with suppress(OSError), os.scandir(f"{folder}/fd") as entries:
            for entry in islice(entries, MOST_THREADS):
                with suppress(OSError):
                    if os.readlink(entry.path) == link:
                        info = parse_fdinfo(read(f"{folder}/fdinfo/{entry.name}", 4096))
                        if info.can_write if writes else info.can_read:
                            return True
        return False

    def socket(self, inode: str) -> str:
        number = int(inode) if inode.isdigit() else 0
        known = self._host.sockets(self._now)
        if (tcp := known.tcp.get(number)) is not None:
            return tcp.words
        if number in known.unix:
            return "a unix socket"
        found = sockets.of_namespace(self._pid, self._host.proc).get(number)
        return found.words if found is not None else ""


def _channel(task: str) -> str:
    """The wait channel; empty where it is not told ("0")."""
    text = read(f"{task}/wchan", 128).decode("ascii", "replace").strip()
    return "" if text == "0" else text
