"""Runs a daemon: signals become an orderly end with a deadline, errors become one line and an exit code.

Exit codes: 0 done, 1 an external failure, 2 the caller's input was wrong.
"""

import asyncio
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.base import log
from holdfast.base.errors import HoldfastError, exit_code
from holdfast.base.plain import one_line

PARENT = "HOLDFAST_PARENT_PID"
"""Set by a local cluster for its daemons: the process that they must not outlive."""

NICENESS = "HOLDFAST_NICENESS"
"""Set by `raise_priority` for code that starts programs: the niceness of those programs."""

_FIRST = -10
_PR_SET_PDEATHSIG = 1
_ECHO_S = 0.5
"""Tools such as timeout(1) signal the process and then its whole group: within this time, two signals are one wish."""


def run(main: Callable[[asyncio.Event], Awaitable[int | None]], *, grace: float = 10.0) -> int:
    """Run a daemon's coroutine and return its exit code.

    The first SIGTERM or SIGINT sets the event that `main` is given, and `main` ends by itself in its own order. After
    `grace` seconds, or at a second signal, it is cancelled; what does not heed that either is left behind.
    """
    return report(lambda: asyncio.run(_supervise(main, grace)))


def report(body: Callable[[], int | None]) -> int:
    """Run `body`; an error of ours is one line on standard error and the exit code that it stands for."""
    try:
        return body() or 0
    except HoldfastError as error:
        print("holdfast:", one_line(error), file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return 130


@contextmanager
def gc_paused() -> Iterator[None]:
    """While a process imports all that it will need, the garbage collector is off: there is almost no garbage, and each
    collection traverses everything imported so far. Of importing torch's parts it takes a seventh."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _supervise(main: Callable[[asyncio.Event], Awaitable[int | None]], grace: float) -> int:
    stop = asyncio.Event()
    cancelled = asyncio.Event()

    loop = asyncio.get_running_loop()
    first = 0.0

    def on_signal(number: int) -> None:
        nonlocal first
        if not stop.is_set():
            first = loop.time()
            stop.set()
            log.event("stopping", signal=signal.Signals(number).name)
        elif loop.time() - first > _ECHO_S:
            cancelled.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # What the parent process ignores stays ignored: SIGHUP under nohup, SIGINT behind `&` in a script.
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, on_signal, number)
    task = asyncio.ensure_future(main(stop))
    stopping = asyncio.ensure_future(stop.wait())
    second = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            await asyncio.wait({task, second}, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            log.warning("stop_forced", after=loop.time() - first)
            task.cancel()
            await asyncio.wait({task}, timeout=2.0)
            if not task.done():
                log.error("stop_failed")
                # Waiting any longer would keep the whole host waiting: leave without the interpreter's own clean-up,
                # which would wait for the same thing.
                os._exit(1)
        if task.cancelled():
            return 1
        return task.result() or 0
    finally:
        stopping.cancel()
        second.cancel()
        _be_deaf(loop)


def _be_deaf(loop: asyncio.AbstractEventLoop) -> None:
    """A process that ended in order must not be killed by a repeated signal while the interpreter shuts down."""
    numbers = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def follow_parent(environ: dict[str, str] | None = None) -> None:
    """Die (by SIGTERM, orderly) with the process named in the environment, even if that one was killed outright.

    The variable is removed, so that workers of this daemon do not inherit the rule.
    """
    parent = (os.environ if environ is None else environ).pop(PARENT, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we could ask
        os.kill(os.getpid(), signal.SIGTERM)


def raise_priority() -> None:
    """Be scheduled ahead of the work that we watch, where we may: starved by it, a daemon takes its own delay for
    the silence of others. Call it before any thread starts; what is started from here must `give_way` first."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    if before <= _FIRST:
        return
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)
    except OSError:
        return  # only root may
    os.environ[NICENESS] = str(before)
    _set_autogroup(_FIRST)


def give_way() -> None:
    """Back to the niceness from before `raise_priority`."""
    before = os.environ.pop(NICENESS, "")
    if before:
        with suppress(OSError, ValueError):
            os.setpriority(os.PRIO_PROCESS, 0, int(before))
            _set_autogroup(int(before))


def _set_autogroup(niceness: int) -> None:
    """Where the kernel groups processes by session, niceness counts within a session only: the group has its own."""
    if os.getsid(0) != os.getpid():
        return  # another process's session, which may be a terminal's
    with suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write(str(niceness))
