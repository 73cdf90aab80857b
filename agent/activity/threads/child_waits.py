"""When the children end by themselves for which a thread waits, and whether they try something again and again.

A main thread in `wait4`, or at a pipe that a child holds, shows nothing of this: the deadline is that of the child's
own system call. Nor does one at a lock: a thread may hold it that waits for a child, and the main thread of that child
may wait for another of its threads. There all of their sleeps count.
"""

import math
import os
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from holdfast.agent.activity.host import HostLook
from holdfast.agent.activity.process_look import ProcessLook, channel_of
from holdfast.agent.activity.threads.attempts import Attempts
from holdfast.agent.activity.threads.states import TIMERS
from holdfast.agent.activity.waits import LOCK, TIMER, Clocks, describe
from holdfast.agent.processes.proc_files import Call, Stat, parse_call, parse_schedstat, parse_stat, read

MOST = 64
"""Descendants of the worker of which the parents are looked up."""
MOST_LOOKED_AT = 8
_PID = re.compile(r"\bpid (\d+)")


def awaited(words: str) -> list[int] | None:
    """The children that a thread waits for, as the words for its wait name them; empty: any. None: for none."""
    if words.startswith(("its child", "any of its children")) or "a pipe that pid " in words:
        return [int(pid) for pid in _PID.findall(words)]
    return None


class ChildWaits:
    """The waits of one worker's children."""

    def __init__(self, host: HostLook) -> None:
        self._host = host
        self._since: dict[int, tuple[object, float]] = {}
        self._attempts: dict[int, Attempts] = {}
        self._asleep: dict[int, tuple[Call, float]] = {}  # threads of children that sleep, and since when
        self.until = math.nan
        """When the last of their waits ends by itself, monotonic seconds; NaN where none is known to."""

    def look(self, words: str, descendants: Collection[int], clocks: Clocks) -> bool:
        """Whether one of them made an attempt; sets `until`. `words`: for the worker's wait."""
        wanted, self.until = awaited(words), math.nan
        is_lock = words.startswith(LOCK)
        if (wanted is None and not is_lock) or not descendants:
            self._since.clear()
            self._attempts.clear()
            self._asleep.clear()
            return False
        stats = {pid: parse_stat(read(f"{self._host.proc}/{pid}/stat")) for pid in sorted(descendants)[:MOST]}
        there = {pid: stat for pid, stat in stats.items() if stat is not None and stat.state not in "ZX"}
        family = _family(wanted or [], there)[:MOST_LOOKED_AT]
        self._since = {pid: known for pid, known in self._since.items() if pid in family}
        self._attempts = {pid: one for pid, one in self._attempts.items() if pid in family}
        found, ends = False, list[float]()
        if is_lock:  # of a child only a sleep counts: many poll for ever, as loaders do
            self.until = latest(self._sleeps(pid, clocks) for pid in family)
            return False
        for pid in family:
            until, is_attempt = self._look_at(pid, there[pid].state, clocks)
            found |= is_attempt
            ends.append(until)
        self.until = latest(ends)
        return found

    def _look_at(self, pid: int, state: str, clocks: Clocks) -> tuple[float, bool]:
        now, task = clocks.monotonic, f"{self._host.proc}/{pid}/task/{pid}"
        ran, call = parse_schedstat(read(f"{task}/schedstat", 128)), parse_call(read(f"{task}/syscall", 512))
        key = call, ran[1] if ran else 0
        if pid not in self._since or self._since[pid][0] != key:
            self._since[pid] = key, now
        look = ProcessLook(pid, self._host, state, now, [])
        since = Clocks(now, clocks.wall, self._since[pid][1])
        wait = describe(call, state, channel_of(task), look, since)
        if wait.words.startswith(LOCK) and math.isnan(wait.until):
            wait = replace(wait, until=self._sleeps(pid, clocks))
        if ran is None:
            return wait.until, False
        attempts = self._attempts.setdefault(pid, Attempts())
        is_timed = wait.words == TIMER or not math.isnan(wait.until)
        return wait.until, attempts.look(now, is_timed, *ran, wait.until, self._host.wake_s)

    def _sleeps(self, pid: int, clocks: Clocks) -> float:
        """When the last sleep of its threads ends; NaN: none sleeps."""
        now, tasks, ends = clocks.monotonic, f"{self._host.proc}/{pid}/task", list[float]()
        tids = list[int]()
        with suppress(OSError):
            tids = sorted(map(int, os.listdir(tasks)))[:MOST]
        for tid in tids:
            call = parse_call(read(f"{tasks}/{tid}/syscall", 512))
            if call is None or call.name not in TIMERS:
                self._asleep.pop(tid, None)
                continue
            if self._asleep.get(tid, (None, 0.0))[0] != call:
                self._asleep[tid] = call, now
            since = Clocks(now, clocks.wall, self._asleep[tid][1])
            look = ProcessLook(pid, self._host, "S", now, [])
            ends.append(describe(call, "S", channel_of(f"{tasks}/{tid}"), look, since).until)
        return latest(ends)


def latest(ends: Iterable[float]) -> float:
    """Returns the latest of the instants that are known; NaN: none is."""
    return max((one for one in ends if not math.isnan(one)), default=math.nan)


def _family(wanted: list[int], there: Mapping[int, Stat]) -> list[int]:
    """These and their descendants; all where none is named."""
    if not wanted:
        return list(there)
    found = [pid for pid in wanted if pid in there]
    for pid in found:  # grows
        found += [child for child, stat in there.items() if stat.parent == pid and child not in found]
    return found
