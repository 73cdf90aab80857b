"""The processes of a run on this machine: started, watched, ended. What one of them died of is one line."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.service import PARENT

START_S = 60.0
SETTLE_S = 1.0
"""After the first process that fails, how long others may still fail: of a death and its consequences, the death is
reported."""
END_S = 5.0


@dataclass(frozen=True, slots=True)
class Exit:
    name: str
    pid: int
    code: int
    """Below 0: the signal that killed it."""
    last_line: str
    """Of its standard error."""


def cause(exits: Sequence[Exit]) -> HoldfastError:
    """Of processes that failed, in the order in which that was noticed, why the run ended. Pure.

    A signal comes first: nothing that another process does kills one. Then bad input. Then who failed first.
    """
    first = min(exits, key=lambda one: (one.code >= 0, one.code != 2))  # the earlier one of equal ones
    if first.code < 0:
        return HoldfastError(f"{first.name} (pid {first.pid}) was killed by {signal.Signals(-first.code).name}")
    text = first.last_line.removeprefix("holdfast: ") or f"{first.name} ended with code {first.code}"
    return UsageError(text) if first.code == 2 else HoldfastError(text)


@dataclass
class _Child:
    name: str
    process: subprocess.Popen[bytes]
    errors: Path
    rest: bytes = b""
    is_done: bool = False
    lines: list[dict[str, Any]] = field(default_factory=list)

    def exit(self) -> Exit | None:
        code = self.process.poll()
        if code is None or (code == 0 and self.is_done):
            return None
        lines = self.errors.read_text(errors="replace").strip().splitlines() or [""]
        return Exit(self.name, self.process.pid, code or 1, lines[-1][:500])


class Processes:
    """`with Processes(folder, env) as these`: none of them outlives the block, nor this process."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._folder = folder
        self._env = {**os.environ, **env, PARENT: str(os.getpid())}
        self._children: list[_Child] = []
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + END_S
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            _stdout(child).close()
        self._selector.close()

    def start(self, name: str, module: str, *words: str) -> None:
        """Start `python -m holdfast.trainer.embeddings.MODULE`. Call from the main thread: a child ends with it."""
        errors = self._folder / f"{name.replace(' ', '-')}.log"
        with errors.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"holdfast.trainer.embeddings.{module}", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                start_new_session=True,  # Ctrl-C is for the command, which ends them
            )
        child = _Child(name, process, errors)
        self._children.append(child)
        os.set_blocking(_stdout(child).fileno(), False)
        self._selector.register(_stdout(child), selectors.EVENT_READ, child)

    def pids(self) -> dict[str, int]:
        return {child.name: child.process.pid for child in self._children}

    def addresses(self, names: Sequence[str]) -> list[str]:
        """Where these listen. HoldfastError if one does not within `START_S`."""
        wanted = [child for child in self._children if child.name in names]
        deadline = time.monotonic() + START_S
        while missing := [child.name for child in wanted if not child.lines]:
            if time.monotonic() > deadline:
                raise HoldfastError(f"{missing[0]} did not start within {START_S:g} s")
            self.watch(0.2)
        return [child.lines[0]["address"] for child in wanted]

    def follow(self, names: Sequence[str], on_line: Callable[[dict[str, Any]], None]) -> None:
        """Until all of these have ended well: each line of JSON that the first prints. Raises the cause when one of
        all processes fails."""
        wanted = [child for child in self._children if child.name in names]
        for child in wanted:
            child.is_done = True  # now it may end
        seen = 0
        while True:
            ended = all(child.process.poll() == 0 for child in wanted)
            self.watch(0.0 if ended else 0.2)
            for line in wanted[0].lines[seen:]:
                on_line(line)
            seen = len(wanted[0].lines)
            if ended and not self._selector_has(wanted):
                return

    def watch(self, timeout_s: float) -> None:
        """Read what the processes print, for at most so long. Raises the cause when one has failed."""
        for key, _ in self._selector.select(timeout_s):
            self._read(key.data)
        if found := self._failed():
            deadline = time.monotonic() + SETTLE_S
            while time.monotonic() < deadline and not any(one.code < 0 for one in found):
                time.sleep(0.05)
                known = {one.pid for one in found}
                found += [one for one in self._failed() if one.pid not in known]
            raise cause(found)

    def _failed(self) -> list[Exit]:
        return [found for child in self._children if (found := child.exit()) is not None]

    def _read(self, child: _Child) -> None:
        try:
            piece = os.read(_stdout(child).fileno(), 1 << 16)
        except BlockingIOError:
            return
        if not piece:
            self._selector.unregister(_stdout(child))
            return
        *lines, child.rest = (child.rest + piece).split(b"\n")
        child.lines += [json.loads(line) for line in lines if line.startswith(b"{")]

    def _selector_has(self, children: Sequence[_Child]) -> bool:
        return any(key.data in children for key in self._selector.get_map().values())


def _stdout(child: _Child) -> IO[bytes]:
    assert child.process.stdout is not None
    return child.process.stdout
