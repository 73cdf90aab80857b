"""All processes of a worker, also those that left its process group, and how to end them without leaving one.

A worker leads a session of its own. What it starts is found by three signs, since a process can shed each: its
parent chain (lost when a parent ends), its session (lost by setsid), and a mark in its environment (lost only by
wiping the environment). Linux only: reads /proc.
"""

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "HOLDFAST_WORKER"
"""Environment variable `JOB/GENERATION/RANK` that every process of a worker inherits."""


@dataclass(frozen=True, slots=True)
class Process:
    """One line of /proc/PID/stat. `start_ticks` distinguishes two processes with the same id."""

    pid: int
    parent: int
    session: int
    state: str
    start_ticks: int


def read(pid: int, proc: Path = Path("/proc")) -> Process | None:
    """The process as it is now; None when there is none."""
    try:
        text = (proc / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name may hold blanks and parentheses: fields are counted from its end.
    fields = text[text.rindex(")") + 2 :].split()
    return Process(pid, int(fields[1]), int(fields[3]), fields[0], int(fields[19]))


def members(leaders: Collection[int], marks: Collection[str] = (), proc: Path = Path("/proc")) -> list[Process]:
    """The running processes of the workers led by `leaders` (themselves included), zombies left out."""
    every = [found for name in os.listdir(proc) if name.isdigit() and (found := read(int(name), proc))]
    living = {process.pid: process for process in every if process.state not in "ZX"}
    children: dict[int, list[int]] = {}
    for process in every:
        children.setdefault(process.parent, []).append(process.pid)
    roots = [*leaders, *(p.pid for p in living.values() if p.session in leaders)]
    if marks:
        wanted = {f"{MARK}={mark}".encode() for mark in marks}
        roots += [pid for pid in living if not wanted.isdisjoint(_environment(pid, proc))]
    belongs: set[int] = set()
    while roots:
        pid = roots.pop()
        if pid not in belongs:
            belongs.add(pid)
            roots += children.get(pid, ())
    belongs.discard(os.getpid())
    return [process for pid, process in living.items() if pid in belongs]


def kill_tree(
    leaders: Collection[int], number: int = signal.SIGKILL, marks: Collection[str] = (), deadline_s: float = 0.0
) -> int:
    """Send a signal to all processes of these workers; how many got it.

    With a deadline it is repeated until nothing is left, since a process can fork while we look; that is meant for
    SIGKILL. Without one it is sent once and no exit is awaited.
    """
    end = time.monotonic() + deadline_s
    hit: set[int] = set()
    while found := members(leaders, marks):
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
                hit.add(process.pid)
        if time.monotonic() >= end:
            break
        time.sleep(0.001)
    return len(hit)


def _environment(pid: int, proc: Path) -> list[bytes]:
    try:
        return (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
