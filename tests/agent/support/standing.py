"""Processes stalled in various ways, each observed as the heartbeat does."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.agent.activity.watch import Activities
from holdfast.wire import types as t

HEARTBEAT_INTERVAL = 0.1


class Eye:
    """Looks at one process as the heartbeat does, frame by frame, and returns the last view."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.activities = Activities()

    def frame(self) -> t.Activity | None:
        sample = self.activities.attach(t.WorkerSample(0, 0, self.pid))
        self.activities.settle()
        return sample.activity

    def after(self, watched: float) -> t.Activity:
        """Once it has been idle for so long; on a busy machine it may have stalled late."""
        return self.when(lambda seen: seen.quiet >= watched)

    def when(self, what: Callable[[t.Activity], object], deadline_s: float = 60.0) -> t.Activity:
        end = time.monotonic() + deadline_s
        seen = None
        while time.monotonic() < end:
            seen = self.frame()
            if seen is not None and what(seen):
                return seen
            time.sleep(HEARTBEAT_INTERVAL)
        raise AssertionError(f"not seen in time: {seen}")


@contextmanager
def standing(code: str, **more: object) -> Iterator[tuple[Eye, subprocess.Popen[bytes]]]:
    """A process that has printed "ready" and then does what `code` ends with; everything it started ends with it."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "start_new_session": True} | more
    args = options.pop("args", [sys.executable, "-c", code])
    process = subprocess.Popen(args, **options)  # type: ignore[call-overload]
    try:
        if process.stdout is not None:
            assert process.stdout.readline() == b"ready\n"
        eye = Eye(process.pid)
        yield eye, process
        eye.activities.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


READY = "print('ready', flush=True)\n"
LOCK = f"import threading\nlock = threading.Lock(); lock.acquire()\n{READY}lock.acquire()"
SLEEP = f"import time\n{READY}time.sleep(60)"
