"""What the workers of this node are doing, line by line: their Python stacks, and what the kernel reports of them.

Where speed matters, the probe's own thread writes the stacks of all threads when a word of its file asks for them: it
has the interpreter's lock then, so nobody's frames change while they are read. Where the lock is held for ever, a
signal that `bootstrap` has registered with faulthandler makes that thread write them without it, if all other threads
sleep: one that runs may end a frame that is just being read, which would end the process. Neither interrupts a system
call of the program. Where there is time, and for a process that is stopped and cannot answer, py-spy reads its memory,
where that is installed. Without either, the kernel's report of the main thread remains: its state, and where it sleeps.
"""

import asyncio
import ctypes
import json
import os
import re
import runpy
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.agent import forkserver
from holdfast.agent.probe_file import memory
from holdfast.agent.probe_file.layout import STACKS_SIGNAL, STACKS_SUFFIX, WORD_STACKS, WORD_TICK_THREAD
from holdfast.base.bounds import MAX_PID
from holdfast.wire import rank_sets

_tgkill = getattr(ctypes.CDLL(None), "tgkill", None)  # of glibc, from 2.30 on
_ANSWER_S = 1.0
_LOCK_S = 0.4
"""Seconds after which the probe's thread, which looks ten times a second, has not got the interpreter's lock."""
_ASLEEP_S = 0.02
_QUIET_S = 0.03
_SPY_S = 5.0
_MOST_BYTES = 4 << 20
"""Of what a worker says of itself: a file in which it may write what it likes."""
_MOST_LINE = 1000
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]{1,16}\b.{0,80} \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<path>.*)", line (?P<line>\d+) in (?P<name>.*)')
_LAST = re.compile(rb"( in (<module>|_run_module_as_main)|^ *\.\.\.)\n\Z", re.MULTILINE)
"""How an answer ends: with the first call of the main thread, or with what says that there is more."""
_LAUNCHER = os.path.dirname(forkserver.__file__) + os.sep
_RUNPY = ("<frozen runpy>", runpy.__file__)

Call = tuple[str, str | int, str]
"""Path, line and function of a frame."""


@dataclass(frozen=True, slots=True)
class Thread:
    """`frames` as "file:line function", the outermost first."""

    name: str
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessStacks:
    """One worker: its state in the kernel ("S in futex_wait"), and its threads, the main one first."""

    state: str
    threads: tuple[Thread, ...]


async def dump(workers: dict[int, tuple[int, Path]], gently: bool = False) -> dict[str, str]:
    """By rank: process id and probe file. `gently`: there is time.

    What a command answers: `stacks`, identical ones listed once, and `states`.
    """
    found = await asyncio.gather(*(read(pid, probe, gently) for pid, probe in workers.values()))
    same: dict[Thread, list[int]] = {}
    for rank, process in zip(workers, found, strict=True):
        for thread in process.threads:
            same.setdefault(thread, []).append(rank)
    stacks = [{"ranks": rank_sets.compact(ranks), "thread": t.name, "frames": t.frames} for t, ranks in same.items()]
    states = {str(rank): process.state for rank, process in zip(workers, found, strict=True)}
    return {"stacks": json.dumps(stacks), "states": json.dumps(states)}


async def read(pid: int, probe: Path, gently: bool = False) -> ProcessStacks:
    """One process, which may end meanwhile. `gently`: without a signal, if that is possible."""
    state = kernel_state(pid)
    threads = parse_spy(await _spy(pid)) if gently else ()
    if not threads and not state.startswith(("T", "t")) and _answers(pid):
        threads = parse_faulthandler(await _ask(pid, probe))
    if not threads and not gently:
        threads = parse_spy(await _spy(pid))
    return ProcessStacks(state, threads)


def kernel_state(pid: int) -> str:
    """State letter of the main thread and where in the kernel it waits, as far as we may know; "gone" without one."""
    folder = Path(f"/proc/{pid}")
    try:
        line = (folder / "stat").read_text()
    except OSError:
        return "gone"
    state = line[line.rindex(")") + 2]
    for name in ("wchan", "stack"):
        with suppress(OSError):
            where = (folder / name).read_text().split("\n")[0].rpartition("] ")[2].partition("+")[0].strip()
            if where not in ("", "0"):
                return f"{state} in {where}"
    with suppress(OSError):
        call = (folder / "syscall").read_text().split()
        return f"{state} in system call {call[0]}" if call and call[0].isdigit() else state
    return state


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """Its threads. The main one is that which the signal interrupted, or, where that was the probe's, the last: the
    interpreter lists the newest first."""
    threads: list[tuple[str, list[Call]]] = []
    for line in text.splitlines():
        line = line[:_MOST_LINE]
        if _THREAD.match(line):
            threads.append(("main" if line.startswith("Current") else "other", []))
        elif threads and (frame := _FRAME.match(line)):
            threads[-1][1].append((frame["path"], frame["line"], frame["name"]))
    if any(name == "main" and _ticks(calls) for name, calls in threads):
        threads = [("main" if at == len(threads) - 1 else "other", calls) for at, (_, calls) in enumerate(threads)]
    return _ordered((name, calls[::-1]) for name, calls in threads)


def parse_spy(text: str) -> tuple[Thread, ...]:
    """The same of `py-spy dump --json`."""
    try:
        answer: list[dict[str, Any]] = json.loads(text) if text else []
        return _ordered(
            (
                "main" if thread.get("thread_name") == "MainThread" else "other",
                # py-spy gives the class as well
                [(f["filename"], f["line"], f["name"].rpartition(".")[2]) for f in reversed(thread["frames"])],
            )
            for thread in answer
        )
    except (ValueError, KeyError, TypeError):
        return ()


def _ordered(threads: Iterable[tuple[str, Sequence[Call]]]) -> tuple[Thread, ...]:
    """Those that say something of the worker, the main one first; `threads` has the outermost calls first."""
    kept = [Thread(name, tuple(map(_frame, _users(calls)))) for name, calls in threads if calls and not _ticks(calls)]
    return tuple(sorted(kept, key=lambda thread: thread.name != "main"))


def _ticks(calls: Iterable[Call]) -> bool:
    """Whether this is the liveness thread that every worker has."""
    return any(path == memory.__file__ and name == "tick" for path, _, name in calls)


def _users(calls: Sequence[Call]) -> Sequence[Call]:
    """From the program's first call on: how the fork server got there is the same in every worker. All of them while
    the program has not begun."""
    own = [path.startswith(_LAUNCHER) or path in _RUNPY for path, _, _ in calls]
    first = own.index(False) if False in own else 0
    return calls[first:]


def _frame(call: Call) -> str:
    """The file without the folders that are the same everywhere: from its package on."""
    path, line, name = call
    for mark in ("/site-packages/", "/dist-packages/"):
        path = path.rpartition(mark)[2]
    short = path if not path.startswith("/") else path.rpartition("/")[2]
    return f"{short}:{line} {name}"


def _answers(pid: int) -> bool:
    """Whether the process itself has a handler for our signal: without one the signal would end it."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (STACKS_SIGNAL - 1) & 1)
    except (OSError, ValueError):
        pass
    return False


class _Probe:
    """Its file, as far as stacks are concerned. Without one there is no thread to ask."""

    def __init__(self, path: Path) -> None:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def ask(self, value: int) -> None:
        """1: the stacks are wanted; 0: no more."""
        if self._file >= 0 and os.fstat(self._file).st_size > 8 * WORD_STACKS + 8:
            os.pwrite(self._file, value.to_bytes(8, "little"), 8 * WORD_STACKS)

    @property
    def thread(self) -> int:
        """The kernel's id of the probe's thread; 0: not known."""
        if self._file < 0:
            return 0
        thread = int.from_bytes(os.pread(self._file, 8, 8 * WORD_TICK_THREAD), "little", signed=True)
        return thread if 0 < thread <= MAX_PID else 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _signal(pid: int, thread: int) -> None:
    """To the probe's thread, or to a process without one, whose main thread gets it."""
    if not thread:
        os.kill(pid, STACKS_SIGNAL)
    elif _tgkill is not None:
        _tgkill(pid, thread, STACKS_SIGNAL)


def _ran(pid: int, but: int) -> dict[str, bytes] | None:
    """By thread, but for one: a value that changes when it runs. None: one runs now, or that is not known."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        if task.name != str(but):
            stat = (task / "stat").read_bytes()
            if stat[stat.rfind(b")") + 2 :][:1] not in (b"S", b"D"):
                return None
            found[task.name] = (task / "schedstat").read_bytes()
    return found


async def _sleeps(pid: int, but: int) -> bool:
    """Whether all threads but one sleep, and have slept for a moment."""
    with suppress(OSError):
        before = _ran(pid, but)
        await asyncio.sleep(_ASLEEP_S)
        return before is not None and _ran(pid, but) == before
    return False


async def _ask(pid: int, probe: Path) -> str:
    """What the process writes about itself, once it has stopped writing; empty when it does not answer.

    A busy host may put it aside in the middle of that: who stops before the end has more time.
    """
    try:
        # A link is not followed and a pipe is not waited for, whoever put it there.
        path = probe.with_name(probe.name + STACKS_SUFFIX)
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    probed = _Probe(probe)
    try:
        os.ftruncate(file, 0)  # fails for what is no regular file
        probed.ask(1)
        size, waited, quiet, is_sent, thread = 0, 0.0, 0.0, False, probed.thread
        while waited < _ANSWER_S and not (size and quiet >= _QUIET_S and _is_whole(file, size)):
            await asyncio.sleep(0.01)
            waited += 0.01
            now = os.fstat(file).st_size
            quiet = quiet + 0.01 if now == size else 0.0
            size = now
            if not size and not is_sent and waited >= (_LOCK_S if thread else 0.0):
                # Once: where others run, the lock is not held for ever, and the probe's thread still comes to it.
                is_sent = True
                if await _sleeps(pid, thread or pid):
                    probed.ask(0)
                    _signal(pid, thread)
        return os.pread(file, _MOST_BYTES, 0).decode(errors="replace")
    except OSError:
        return ""
    finally:
        with suppress(OSError):
            probed.ask(0)
        probed.close()
        os.close(file)


def _is_whole(file: int, size: int) -> bool:
    return _LAST.search(os.pread(file, _MOST_LINE, max(0, size - _MOST_LINE))) is not None


async def _spy(pid: int) -> str:
    """py-spy's answer, without stopping the process for it; empty without py-spy, or when it may not look."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")  # a virtual environment need not be on the path
    program = shutil.which("py-spy") or (beside if os.access(beside, os.X_OK) else None)
    if program is None:
        return ""
    with suppress(OSError, TimeoutError):
        spy = await asyncio.create_subprocess_exec(
            program, "dump", "--json", "--nonblocking", "--pid", str(pid),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            out, _ = await asyncio.wait_for(spy.communicate(), _SPY_S)
            return out.decode(errors="replace")
        finally:
            if spy.returncode is None:
                spy.send_signal(signal.SIGKILL)
                await spy.wait()
    return ""
