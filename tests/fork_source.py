"""One fork server for all agents that the tests of a session start: theirs are forked from it (`HOLDFAST_FORK_FROM`).

Each of a hundred agents would import torch and the trainer otherwise, 3 s of a processor. This process, which needs
only Python itself, holds the socket and starts the fork server when the first agent asks for it. What the fork server
forks has this process as its parent: it is waited for here, so that its time is counted (tests/cpu_seconds.py), and a
fork server that a test leaves behind is found.

    python -S tests/fork_source.py FOLDER COMMAND...
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_PDEATHSIG, _CHILD_SUBREAPER = 1, 36  # prctl(2)
PATIENCE_S = 20.0
"""For fork servers that are ending, on a busy machine."""


@contextmanager
def fork_source(folder: str) -> Iterator[None]:
    """Stand by in this folder. AssertionError at the end for fork servers that are still there."""
    from holdfast.agent.forkserver.json_lines import MODULE
    from holdfast.agent.processes import interpreter
    from holdfast.base.config.agent import AgentConfig

    words = ("--run-dir", folder, "--preload", ",".join(AgentConfig().preload), "--idle-exit", "0")
    process = subprocess.Popen(
        [sys.executable, "-S", __file__, folder, *interpreter.command(MODULE, *words)],
        env=interpreter.environment(os.environ),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.terminate()
        try:
            left, _ = process.communicate(timeout=3 * PATIENCE_S)
        finally:
            process.kill()
    assert not left, f"fork servers left behind by a test: {left}"


def main(folder: str, command: list[str]) -> None:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PDEATHSIG, signal.SIGTERM)
    prctl(_CHILD_SUBREAPER, 1)
    lock = os.open(f"{folder}/warm.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(folder)  # a socket's path may have 107 bytes
    listener.bind("warm.sock")
    os.chdir("/")
    listener.listen(16)
    wake_in, wake_out = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_out)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    print("ready", flush=True)
    own, ends = 0, False
    while not ends:
        readable, _, _ = select.select([wake_in, *([] if own else [listener])], [], [])
        if listener in readable:
            own = _start(folder, command, listener.fileno(), lock)
            listener.close()
            os.close(lock)
        if wake_in in readable:
            ends = signal.SIGTERM in os.read(wake_in, 4096)
            _reap()
    if own:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(own, signal.SIGKILL)
            os.waitpid(own, 0)
    end = time.monotonic() + PATIENCE_S
    while (left := _children()) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        with open(f"/proc/{pid}/cmdline") as file:
            print(pid, file.read().replace("\0", " "))
        os.kill(pid, signal.SIGKILL)


def _start(folder: str, command: list[str], *sockets: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    log = os.open(f"{folder}/warm.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.setsid()
    for fd in sockets:
        os.set_inheritable(fd, True)
    os.execv(command[0], [*command, "--sockets", *map(str, sockets)])


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _children() -> list[int]:
    """Those that still run."""
    _reap()
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
